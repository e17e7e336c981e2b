/* Sorts every channel of every set downwards, as many channels side by side as a vector of this processor holds, and
 * sums with weights over ranks.
 *
 * A sorting network (Knuth's merge exchange, The Art of Computer Programming 5.2.2 M, for any number of elements)
 * does the same comparisons whatever the values are, so the channels go through it in step, each a lane of a vector, in
 * the layout in which they came: no copy across. A NaN never compares as less, so it stays in its own lane, and the
 * exchanges remain a permutation.
 *
 * REAL is float or double, INT the signed integer of its size. x is (rows, dim); the real elements of set b are the rows
 * row[first[b]] to row[first[b + 1] - 1] of it, so padding is never read. The weight of set b, rank k, channel c is
 * w[b * per_set + k * per_rank + c * per_channel]; per_channel is 0 or 1. The sets are shared by OpenMP's threads, which
 * are those of torch: other threads would compete with its own, which spin for a while after every operation.
 */
#include <stdint.h>
#include <stdlib.h>

#if defined(__AVX512F__)
#define BYTES 64
#elif defined(__AVX2__)
#define BYTES 32
#else
#define BYTES 16 /* SSE2, NEON; a vector wider than the processor's own would be compiled into slow scalar code */
#endif
#define LANES ((long)(BYTES / sizeof(REAL)))
#define EACH(lane, count) for (long lane = 0; lane < (count); lane++)

typedef REAL reals __attribute__((vector_size(BYTES), may_alias));
typedef INT ints __attribute__((vector_size(BYTES), may_alias));

static inline void exchange(ints *a, ints *b, ints where) {
    ints change = (*a ^ *b) & where;
    *a ^= change;
    *b ^= change;
}

/* place may be 0: then only values are sorted. */
static inline void sort(reals *value, ints *place, long n) {
    long top = 1;
    while (top * 2 < n) top *= 2;
    for (long p = top; p > 0 && n > 1; p /= 2)
        for (long q = top, r = 0, step = p; step > 0; step = q - p, q /= 2, r = p)
            for (long i = 0; i < n - step; i++) {
                if ((i & p) != r) continue;
                ints less = (ints)(value[i] < value[i + step]);
                exchange((ints *)&value[i], (ints *)&value[i + step], less);
                if (place) exchange(&place[i], &place[i + step], less);
            }
}

static inline void load(REAL (*value)[LANES], const REAL *x, const int64_t *row, long n, long dim, long c, long width) {
    EACH(k, n) {
        const REAL *from = x + row[k] * dim + c;
        __builtin_prefetch(from + LANES); /* what the next call reads */
        EACH(lane, LANES) value[k][lane] = lane < width ? from[lane] : 0;
    }
}

static long largest(const int64_t *first, long sets) {
    long most = 1;
    for (long b = 0; b < sets; b++)
        if (first[b + 1] - first[b] > most) most = first[b + 1] - first[b];
    return most;
}

/* out (sets, dim): the weighted sums. Returns 0, or 1 where there is no memory. */
int weighted_sum(const REAL *x, const int64_t *row, const int64_t *first, const REAL *w, long per_set, long per_rank,
                 long per_channel, REAL *out, long dim, long sets, int threads) {
    long most = largest(first, sets);
    int failed = 0;
#pragma omp parallel num_threads(threads) reduction(| : failed)
    {
        REAL(*value)[LANES] = aligned_alloc(128, most * LANES * sizeof(REAL));
        failed = !value;
#pragma omp for
        for (long b = 0; b < sets; b++)
            for (long c = 0; c < dim && value; c += LANES) {
                long n = first[b + 1] - first[b], width = dim - c < LANES ? dim - c : LANES;
                const REAL *weight = w + b * per_set + c * per_channel;
                REAL sum[LANES] = {0};
                load(value, x, row + first[b], n, dim, c, width);
                sort((reals *)value, 0, n);
                EACH(k, n) EACH(lane, width) sum[lane] += weight[k * per_rank + lane * per_channel] * value[k][lane];
                EACH(lane, width) out[b * dim + c + lane] = sum[lane];
            }
        free(value);
    }
    return failed;
}

/* g (sets, dim) is the gradient of the sums; grad_x, where not 0, gets that of x in the rows of real elements, and
 * grad_w, where not 0, has that of the weights added to it. Returns 0, or 1 where there is no memory. */
int gradients(const REAL *x, const int64_t *row, const int64_t *first, const REAL *w, long per_set, long per_rank,
              long per_channel, const REAL *g, REAL *grad_x, REAL *grad_w, long dim, long sets, int threads) {
    long most = largest(first, sets);
    int failed = 0;
#pragma omp parallel num_threads(threads) reduction(| : failed)
    {
        REAL(*value)[LANES] = aligned_alloc(128, 2 * most * LANES * sizeof(REAL)), (*put)[LANES] = value + most;
        INT(*place)[LANES] = aligned_alloc(128, most * LANES * sizeof(INT));
        failed = !value || !place;
#pragma omp for
        for (long b = 0; b < sets; b++)
            for (long c = 0; c < dim && !failed; c += LANES) {
                const int64_t *rows = row + first[b];
                long n = first[b + 1] - first[b], width = dim - c < LANES ? dim - c : LANES;
                long at = b * per_set + c * per_channel;
                REAL grad[LANES] = {0};
                EACH(lane, width) grad[lane] = g[b * dim + c + lane];
                load(value, x, rows, n, dim, c, width);
                EACH(k, n) EACH(lane, LANES) place[k][lane] = k;
                sort((reals *)value, (ints *)place, n);
                if (grad_x) {
                    EACH(k, n) EACH(lane, width)
                        put[place[k][lane]][lane] = w[at + k * per_rank + lane * per_channel] * grad[lane];
                    EACH(k, n) EACH(lane, width) grad_x[rows[k] * dim + c + lane] = put[k][lane];
                }
                if (grad_w)
                    EACH(k, n) EACH(lane, width)
                        grad_w[at + k * per_rank + lane * per_channel] += grad[lane] * value[k][lane];
            }
        free(value);
        free(place);
    }
    return failed;
}
