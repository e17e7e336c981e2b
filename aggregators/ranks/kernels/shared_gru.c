/* One direction of a GRU over a sequence that sets of several sizes share, read from each size's end to the start.
 *
 * REAL is float or double. A state has hidden + 1 values of which the last is 1, and its weight is the bias. input
 * (size, 3 hidden) and weight (hidden + 1, 3 hidden) have the gates r, z and the candidate n; state is (sets, size + 1,
 * hidden + 1), and (sets, size, 4 hidden) of the others holds r, z, q and n of every state: q is the state's part of the
 * candidate, n = tanh(input + r q), and the next state is n + z (state - n). Nothing is written beyond a set's size.
 */
#include <stdint.h>
#include <string.h>
#include <tgmath.h>

#define EACH(i, count) for (long i = 0; i < (count); i++)

/* state and kept: in, zeros and the states' ones; out, those of every set. */
void shared_states(const int64_t *sizes, long sets, long size, long hidden, const REAL *restrict input,
                   const REAL *restrict weight, REAL *restrict state, REAL *restrict kept) {
    long gates = 3 * hidden, wide = hidden + 1;
    EACH(s, sets) for (long k = sizes[s] - 1; k >= 0; k--) {
        REAL *now = state + (s * (size + 1) + k) * wide, *past = now + wide;
        REAL *r = kept + (s * size + k) * 4 * hidden, *z = r + hidden, *q = z + hidden, *n = q + hidden;
        const REAL *in = input + k * gates;
        EACH(i, wide) EACH(g, gates) r[g] += past[i] * weight[i * gates + g];
        EACH(h, hidden) {
            r[h] = 1 / (1 + exp(-(in[h] + r[h])));
            z[h] = 1 / (1 + exp(-(in[hidden + h] + z[h])));
            n[h] = tanh(in[2 * hidden + h] + r[h] * q[h]);
            now[h] = n[h] + z[h] * (past[h] - n[h]);
        }
    }
}

/* grad (sets, size, hidden): in, what goes to the states from elsewhere; out, all that goes to them. part like kept, in:
 * zeros; out: what goes to r and z before their sigmoid, to q, and to n before its tanh. weight is (3 hidden, hidden),
 * without the biases. */
void shared_gradients(const int64_t *sizes, long sets, long size, long hidden, const REAL *restrict weight,
                      const REAL *restrict state, const REAL *restrict kept, REAL *restrict grad, REAL *restrict part) {
    EACH(s, sets) EACH(k, sizes[s]) {
        long at = s * size + k;
        const REAL *past = state + (at + s + 1) * (hidden + 1);
        const REAL *r = kept + at * 4 * hidden, *z = r + hidden, *q = z + hidden, *n = q + hidden;
        REAL *to_r = part + at * 4 * hidden, *to_z = to_r + hidden, *to_q = to_z + hidden, *to_n = to_q + hidden;
        REAL *to_now = grad + at * hidden, *to_past = to_now + hidden;
        EACH(h, hidden) {
            to_n[h] = to_now[h] * (1 - z[h]) * (1 - n[h] * n[h]);
            to_q[h] = to_n[h] * r[h];
            to_r[h] = to_q[h] * q[h] * (1 - r[h]);
            to_z[h] = to_now[h] * (past[h] - n[h]) * z[h] * (1 - z[h]);
        }
        if (k + 1 == sizes[s]) continue; /* the first that was read */
        EACH(h, hidden) to_past[h] += to_now[h] * z[h];
        EACH(g, 3 * hidden) EACH(h, hidden) to_past[h] += to_r[g] * weight[g * hidden + h];
    }
}
