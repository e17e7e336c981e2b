/* Sorts every channel of every set downwards, a cache line of channels side by side, and sums with weights over ranks.
 *
 * A sorting network (Knuth's merge exchange, The Art of Computer Programming 5.2.2 M, for any number of elements)
 * does the same comparisons whatever the values are, so the channels go through it in step, each a lane of a vector, in
 * the layout in which they came: no copy across. A NaN never compares as less, so it stays in its own lane, and the
 * exchanges remain a permutation.
 *
 * The way back sorts again and notes a bit for every exchange of every lane. With these the gradients of the ranks go
 * through the network from its end to its start, and come out where the elements were.
 *
 * REAL is float or double, INT the integer of its size, int or long long. x is (sets, size, dim); mask (sets, size) is 1 for real
 * elements, and no others are read. The weight of set b, rank k, channel c is w[b * per_set + k * per_rank +
 * c * per_channel]; per_channel is 0 or 1. A thread takes `chunk` channels of a set at a time. Threads are OpenMP's, and
 * those of torch: others would compete with its own, which spin for a while after every operation.
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#if defined(__AVX2__)
#define BYTES 32
#else
#define BYTES 16 /* SSE2, NEON; a vector wider than the processor's own would be compiled into slow scalar code */
#endif
#define PARTS (64 / BYTES)
#define LANES ((long)(64 / sizeof(REAL)))
#define BITS (8 * (long)sizeof(INT))
#define EACH(i, count) for (long i = 0; i < (count); i++)
#define EACH_PART(i) _Pragma("GCC unroll 4") for (int i = 0; i < PARTS; i++)

typedef REAL reals __attribute__((vector_size(BYTES)));
typedef INT ints __attribute__((vector_size(BYTES)));
typedef unsigned INT words __attribute__((vector_size(BYTES)));
typedef reals row[PARTS]; /* one element, of LANES channels */
typedef words notes[PARTS];
typedef struct {
    int32_t upper, lower;
} pair;

/* What a thread works with: room for sets of `size` elements, and the network for the n of the last one. */
typedef struct {
    long n, pairs;
    long *place; /* of the real elements among all */
    pair *network;
    notes *swapped;
    row *value, *sum;
} room;

static int make_room(room *with, long size) {
    long rounds = 0;
    for (long reach = 1, merges = 1; reach < size; reach *= 2) rounds += merges++;
    long most = rounds * (size / 2);
    with->n = with->pairs = 0;
    with->place = malloc((size + 1) * sizeof(long));
    with->network = malloc((most + 1) * sizeof(pair));
    with->swapped = aligned_alloc(64, (most / BITS + 1) * sizeof(notes));
    with->value = aligned_alloc(64, (size + 1) * sizeof(row));
    with->sum = aligned_alloc(64, (size + 1) * sizeof(row));
    return with->place && with->network && with->swapped && with->value && with->sum;
}

static void clear_room(room *with) {
    free(with->place);
    free(with->network);
    free(with->swapped);
    free(with->value);
    free(with->sum);
}

/* Find a set's elements, and list the comparisons that sort so many. */
static void enter(room *with, const uint8_t *mask, long size) {
    long n = 0, pairs = 0, top = 1;
    EACH(k, size) if (mask[k]) with->place[n++] = k;
    if (n == with->n) return;
    while (top * 2 < n) top *= 2;
    for (long p = top; p > 0; p /= 2)
        for (long q = top, r = 0, step = p; step > 0; step = q - p, q /= 2, r = p)
            for (long run = r; run < n - step; run += 2 * p)
                for (long i = run; i < run + p && i < n - step; i++) with->network[pairs++] = (pair){i, i + step};
    with->n = n;
    with->pairs = pairs;
}

static inline void exchange(reals *upper, reals *lower, ints where) {
    ints a = (ints)*upper, b = (ints)*lower, change = (a ^ b) & where;
    *upper = (reals)(a ^ change);
    *lower = (reals)(b ^ change);
}

static void sort(const room *with) {
    EACH(j, with->pairs) {
        reals *a = with->value[with->network[j].upper], *b = with->value[with->network[j].lower];
        EACH_PART(i) exchange(a + i, b + i, (ints)(a[i] < b[i]));
    }
}

/* Sort, and note what is exchanged: of BITS pairs the last has the lowest bit. */
static void sort_noting(const room *with) {
    for (long j = 0, word = 0; j < with->pairs; word++) {
        notes note = {0};
        for (long end = j + BITS < with->pairs ? j + BITS : with->pairs; j < end; j++) {
            reals *a = with->value[with->network[j].upper], *b = with->value[with->network[j].lower];
            EACH_PART(i) {
                ints less = (ints)(a[i] < b[i]);
                note[i] = note[i] + note[i] - (words)less;
                exchange(a + i, b + i, less);
            }
        }
        EACH_PART(i) with->swapped[word][i] = note[i];
    }
}

/* Take every exchange back, the last one first. */
static void undo(const room *with) {
    for (long j = with->pairs, word = (j - 1) / BITS; j > 0; word--) {
        notes note;
        EACH_PART(i) note[i] = with->swapped[word][i];
        while (j > word * BITS) {
            j--;
            reals *a = with->value[with->network[j].upper], *b = with->value[with->network[j].lower];
            EACH_PART(i) {
                exchange(a + i, b + i, -(ints)(note[i] & 1));
                note[i] >>= 1;
            }
        }
    }
}

static inline void load(reals *to, const REAL *from, long width) {
    REAL padded[LANES] = {0};
    if (width < LANES) from = memcpy(padded, from, width * sizeof(REAL));
    EACH_PART(i) memcpy(to + i, from + i * (LANES / PARTS), BYTES);
}

static inline void store(REAL *to, const reals *from, long width) {
    if (width < LANES)
        memcpy(to, from, width * sizeof(REAL));
    else
        memcpy(to, from, sizeof(row));
}

static inline void load_weight(reals *to, const REAL *w, long per_channel, long width) {
    if (per_channel)
        load(to, w, width);
    else
        EACH_PART(i) to[i] = *w - (reals){0};
}

static inline void load_set(const room *with, const REAL *x, long dim, long width) {
    EACH(k, with->n) {
        const REAL *from = x + with->place[k] * dim;
        __builtin_prefetch(from + LANES); /* what the next call reads */
        load(with->value[k], from, width);
    }
}

/* out (sets, dim): the weighted sums. Returns 0, or 1 where there is no memory. */
int weighted_sum(const REAL *x, const uint8_t *mask, const REAL *w, long per_set, long per_rank, long per_channel,
                 long sets, long size, long dim, long chunk, int threads, REAL *out) {
    long chunks = (dim + chunk - 1) / chunk;
    int failed = 0;
#pragma omp parallel num_threads(threads) reduction(| : failed)
    {
        room with;
        failed = !make_room(&with, size);
#pragma omp for
        for (long unit = 0; unit < sets * chunks; unit++) {
            long b = unit / chunks, first = unit % chunks * chunk, end = first + chunk < dim ? first + chunk : dim;
            if (failed) continue;
            enter(&with, mask + b * size, size);
            for (long c = first; c < end; c += LANES) {
                long width = end - c < LANES ? end - c : LANES;
                row sum = {0}, weight;
                load_set(&with, x + b * size * dim + c, dim, width);
                sort(&with);
                EACH(k, with.n) {
                    load_weight(weight, w + b * per_set + k * per_rank + c * per_channel, per_channel, width);
                    EACH_PART(i) sum[i] += weight[i] * with.value[k][i];
                }
                store(out + b * dim + c, sum, width);
            }
        }
        clear_room(&with);
    }
    return failed;
}

/* One row of channels on its way back. What goes to weights that channels share is added to with->sum. */
static void gradients_of_row(const room *with, const REAL *x, const REAL *w, long per_rank, long per_channel,
                             const REAL *g, REAL *grad_x, REAL *grad_w, long dim, long width) {
    row grad, part;
    load(grad, g, width);
    load_set(with, x, dim, width);
    if (grad_x)
        sort_noting(with);
    else
        sort(with);
    if (grad_w) EACH(k, with->n) {
            EACH_PART(i) part[i] = grad[i] * with->value[k][i];
            if (per_channel)
                store(grad_w + k * dim, part, width);
            else
                EACH_PART(i) with->sum[k][i] += part[i];
        }
    if (!grad_x) return;
    EACH(k, with->n) {
        load_weight(part, w + k * per_rank, per_channel, width);
        EACH_PART(i) with->value[k][i] = part[i] * grad[i];
    }
    undo(with);
    EACH(k, with->n) store(grad_x + with->place[k] * dim, with->value[k], width);
}

static REAL total(const reals *of) {
    REAL sum = 0;
    EACH(i, PARTS) EACH(lane, LANES / PARTS) sum += of[i][lane];
    return sum;
}

/* g (sets, dim) is the gradient of the sums. grad_x, where not 0, gets that of x, with zeros where no element is real.
 * grad_w, where not 0, gets that of the weights, with zeros beyond a set's size: (sets, size, dim), or, where channels
 * share them, (sets, chunks, size), to be summed over chunks. Returns 0, or 1 where there is no memory. */
int gradients(const REAL *x, const uint8_t *mask, const REAL *w, long per_set, long per_rank, long per_channel,
              long sets, long size, long dim, long chunk, int threads, const REAL *g, REAL *grad_x, REAL *grad_w) {
    long chunks = (dim + chunk - 1) / chunk;
    int failed = 0;
#pragma omp parallel num_threads(threads) reduction(| : failed)
    {
        room with;
        failed = !make_room(&with, size);
#pragma omp for
        for (long unit = 0; unit < sets * chunks; unit++) {
            long b = unit / chunks, first = unit % chunks * chunk, end = first + chunk < dim ? first + chunk : dim;
            long set = b * size * dim, bytes = (end - first) * sizeof(REAL);
            if (failed) continue;
            enter(&with, mask + b * size, size);
            memset(with.sum, 0, size * sizeof(row));
            for (long c = first; c < end; c += LANES)
                gradients_of_row(&with, x + set + c, w + b * per_set + c * per_channel, per_rank, per_channel,
                                 g + b * dim + c, grad_x ? grad_x + set + c : 0, grad_w ? grad_w + set + c : 0, dim,
                                 end - c < LANES ? end - c : LANES);
            EACH(k, size) {
                if (grad_x && !mask[b * size + k]) memset(grad_x + set + k * dim + first, 0, bytes);
                if (grad_w && per_channel && k >= with.n) memset(grad_w + set + k * dim + first, 0, bytes);
                if (grad_w && !per_channel) grad_w[unit * size + k] = total(with.sum[k]);
            }
        }
        clear_room(&with);
    }
    return failed;
}
