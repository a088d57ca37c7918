/* The functions of fused.c whose activations are of type T, float or bf16. */

/* total = x + dropped(branch + bias); normed = layer norm of it. */
void NAME(residual_norm)(int64_t begin, int64_t end, int64_t width, const float *x, const T *branch, const float *bias,
                         const float *gain, const float *shift, float epsilon, uint64_t seed, int levels, float *total,
                         T *normed, float *statistics) {
    Dropout d = dropout_of(seed, levels);
    for (int64_t row = begin; row < end; row++) {
        float *y = total + row * width;
        vec sums = {}, squares = {};
        Random random = {};
        for (int64_t c = 0; c < width; c += LANES) {
            int64_t at = row * width + c, n = width - c;
            FETCH(x + at + AHEAD, 3);
            FETCH(branch + at + AHEAD, 3);
            FETCH(total + at + AHEAD, 3);
            FETCH(normed + at + AHEAD, 3);
            if (c % 64 == 0) random = draw(d, row, width, c);
            vec added = LOAD(branch + at, n) + load_float(bias + c, n);
            vec t = load_float(x + at, n) + drop(d, random, c, added);
            store_float(y + c, t, n);
            sums += t;
        }
        float mean = sum_of(sums) / width;
        for (int64_t c = 0; c < width; c += LANES) {
            vec off = load_float(y + c, width - c) - mean;
            if (width - c < LANES) off = where((ints)(LANE < (uint32_t)(width - c)), off);
            squares += off * off;
        }
        float rate = 1.0f / sqrtf(sum_of(squares) / width + epsilon);
        for (int64_t c = 0; c < width; c += LANES) {
            int64_t n = width - c;
            vec hat = (load_float(y + c, n) - mean) * rate;
            STORE(normed + row * width + c, hat * load_float(gain + c, n) + load_float(shift + c, n), n);
        }
        statistics[2 * row] = mean;
        statistics[2 * row + 1] = rate;
    }
}

/* The gradients of x (by_x) and of branch, from those of total (may be missing) and normed; sums over rows are added
to those of bias, gain and shift. */
void NAME(residual_norm_back)(int64_t begin, int64_t end, int64_t width, const float *total, const float *statistics,
                              const float *gain, const float *by_total, const T *by_normed, uint64_t seed, int levels,
                              float *by_x, T *by_branch, float *by_bias, float *by_gain, float *by_shift) {
    Dropout d = dropout_of(seed, levels);
    for (int64_t row = begin; row < end; row++) {
        int64_t at = row * width;
        float mean = statistics[2 * row], rate = statistics[2 * row + 1];
        vec sums = {}, products = {};
        for (int64_t c = 0; c < width; c += LANES) {
            int64_t n = width - c;
            FETCH(total + at + c + AHEAD, 3);
            if (by_total) FETCH(by_total + at + c + AHEAD, 3);
            FETCH(by_normed + at + c + AHEAD, 3);
            vec hat = (load_float(total + at + c, n) - mean) * rate, g = LOAD(by_normed + at + c, n);
            add_float(by_gain + c, g * hat, n);
            add_float(by_shift + c, g, n);
            g *= load_float(gain + c, n);
            sums += g;
            products += g * hat;
        }
        Random random = {};
        float first = sum_of(sums) / width, second = sum_of(products) / width;
        for (int64_t c = 0; c < width; c += LANES) {
            int64_t n = width - c;
            vec hat = (load_float(total + at + c, n) - mean) * rate;
            vec g = LOAD(by_normed + at + c, n) * load_float(gain + c, n);
            vec back = (g - first - hat * second) * rate;
            if (by_total) back += load_float(by_total + at + c, n);
            store_float(by_x + at + c, back, n);
            if (c % 64 == 0) random = draw(d, row, width, c);
            back = drop(d, random, c, back);
            STORE(by_branch + at + c, back, n);
            add_float(by_bias + c, back, n);
        }
    }
}

/* h = dropped(relu(h + bias)), in its place. */
void NAME(relu)(int64_t begin, int64_t end, int64_t width, T *h, const float *bias, uint64_t seed, int levels) {
    Dropout d = dropout_of(seed, levels);
    for (int64_t row = begin; row < end; row++) {
        Random random = {};
        for (int64_t c = 0; c < width; c += LANES) {
            T *at = h + row * width + c;
            FETCH(at + AHEAD, 3);
            vec x = LOAD(at, width - c) + load_float(bias + c, width - c);
            if (c % 64 == 0) random = draw(d, row, width, c);
            /* So written that NaN stays. */
            STORE(at, drop(d, random, c, where(~(ints)(x < 0.0f), x)), width - c);
        }
    }
}

/* The gradient of h before bias and relu, in the place of that after. h is zero where either made it so. */
void NAME(relu_back)(int64_t begin, int64_t end, int64_t width, T *gradient, const T *h, float scale, float *by_bias) {
    for (int64_t row = begin; row < end; row++)
        for (int64_t c = 0; c < width; c += LANES) {
            int64_t at = row * width + c, n = width - c;
            FETCH(gradient + at + AHEAD, 3);
            FETCH(h + at + AHEAD, 3);
            vec g = where(LOAD(h + at, n) != 0.0f, LOAD(gradient + at, n) * scale);
            STORE(gradient + at, g, n);
            add_float(by_bias + c, g, n);
        }
}

/* exp(logit - largest of the row) in the place of the logits; the sum of a row, its largest, and the target's logit. */
void NAME(exponentials)(int64_t begin, int64_t end, int64_t width, T *logits, const int64_t *targets, float *sums,
                        float *largest, float *chosen) {
    for (int64_t row = begin; row < end; row++) {
        T *z = logits + row * width;
        int64_t whole = width / LANES * LANES;
        vec best = all(-INFINITY), total = {};
        for (int64_t c = 0; c < whole; c += LANES) {
            FETCH(z + c + AHEAD, 3);
            vec x = LOAD(z + c, LANES);
            best = either(x > best, x, best);
        }
        float top = largest_of(best);
        for (int64_t c = whole; c < width; c++) {
            float x = LOAD(z + c, 1)[0];
            top = x > top ? x : top;
        }
        chosen[row] = LOAD(z + targets[row], 1)[0];
        for (int64_t c = 0; c < width; c += LANES) {
            int64_t n = width - c;
            vec e = exponential(LOAD(z + c, n) - top);
            if (n < LANES) e = where((ints)(LANE < (uint32_t)n), e);
            STORE(z + c, e, n);
            total += e;
        }
        sums[row] = sum_of(total);
        largest[row] = top;
    }
}

/* A head's part of n rows, as float32 with its bias: to (n, padded(width)). */
static void NAME(gather)(const T *from, int64_t row, const float *bias, int64_t n, int64_t width, float scale,
                         float *to) {
    for (int64_t i = 0; i < n; i++)
        for (int64_t c = 0; c < width; c += LANES) {
            FETCH(from + (n + i) * row + c, 2);
            vec x = LOAD(from + i * row + c, width - c);
            if (bias) x += load_float(bias + c, width - c);
            store_float(to + i * padded(width) + c, x * scale, LANES);
        }
}

/* The same laid out as columns: to (padded(width), padded(n)), with the last of them again behind. */
static void NAME(transpose)(const T *from, int64_t row, const float *bias, int64_t n, int64_t width, float *to) {
    for (int64_t i = 0; i < n; i += LANES)
        for (int64_t c = 0; c < width; c += LANES) {
            vec square[LANES], added = load_float(bias + c, width - c);
#pragma GCC unroll 16
            for (int j = 0; j < LANES; j++) {
                const T *at = from + (i + j < n ? i + j : n - 1) * row + c;
                FETCH(at + n * row, 2);
                square[j] = LOAD(at, width - c) + added;
            }
            EXCHANGE(8)
            EXCHANGE(4)
            EXCHANGE(2)
            EXCHANGE(1)
#pragma GCC unroll 16
            for (int j = 0; j < LANES; j++) store_float(to + (c + j) * padded(n) + i, square[j], LANES);
        }
}

/* A head's part of n rows back to its place, with sums over rows added to the gradient of the bias. */
static void NAME(scatter)(const float *from, int64_t n, int64_t width, float scale, T *to, int64_t row,
                          float *by_bias) {
    for (int64_t c = 0; c < width; c += LANES) {
        vec sums = {};
        for (int64_t i = 0; i < n; i++) {
            vec x = load_float(from + i * padded(width) + c, LANES) * scale;
            FETCH(to + (n + i) * row + c, 2);
            STORE(to + i * row + c, x, width - c);
            sums += x;
        }
        if (by_bias) add_float(by_bias + c, sums, width - c);
    }
}

/* Attention of sentences [begin, end). Sentence b has query rows q_starts[b] to q_starts[b + 1], and likewise keys.
q_row and k_row tell how far apart rows lie. `weights` gets the weights before dropout: a row of `columns` for each head
and query, where the heads of a sentence follow each other. */
void NAME(attend)(int64_t begin, int64_t end, int64_t heads, int64_t width, const int64_t *q_starts,
                  const int64_t *k_starts, const T *q, int64_t q_row, const T *k, const T *v, int64_t k_row,
                  const float *q_bias, const float *k_bias, const float *v_bias, int causal, uint64_t seed, int levels,
                  float *weights, int64_t columns, T *mixed_rows) {
    Dropout d = dropout_of(seed, levels);
    int64_t wide = padded(width), q_most = longest(q_starts, begin, end), k_most = longest(k_starts, begin, end);
    float *room = room_for(2 * q_most * wide + 2 * padded(k_most) * wide + q_most * columns);
    float *Q = room, *O = Q + q_most * wide, *V = O + q_most * wide, *KT = V + padded(k_most) * wide;
    float *P = KT + padded(k_most) * wide;
    for (int64_t b = begin; b < end; b++) {
        int64_t nq = q_starts[b + 1] - q_starts[b], nk = k_starts[b + 1] - k_starts[b], np = padded(nk);
        for (int64_t h = 0; h < heads; h++) {
            int64_t at = h * width, first = heads * q_starts[b] + h * nq;
            NAME(gather)(q + q_starts[b] * q_row + at, q_row, q_bias + at, nq, width, 1.0f / sqrtf(width), Q);
            NAME(transpose)(k + k_starts[b] * k_row + at, k_row, k_bias + at, nk, width, KT);
            NAME(gather)(v + k_starts[b] * k_row + at, k_row, v_bias + at, nk, width, 1.0f, V);
            multiply(nq, np, wide, Q, wide, 1, KT, np, weights + first * columns, columns);
            weigh(nq, nk, causal, d, first, weights, columns, P);
            multiply(nq, wide, nk, P, np, 1, V, wide, O, wide);
            NAME(scatter)(O, nq, width, 1.0f, mixed_rows + q_starts[b] * heads * width + at, heads * width, NULL);
        }
    }
    free(room);
}

/* The gradients of q, k and v from that of what was mixed; sums over rows are added to those of the biases. */
void NAME(attend_back)(int64_t begin, int64_t end, int64_t heads, int64_t width, const int64_t *q_starts,
                       const int64_t *k_starts, const T *q, int64_t q_row, const T *k, const T *v, int64_t k_row,
                       const float *q_bias, const float *k_bias, const float *v_bias, uint64_t seed, int levels,
                       const float *weights, int64_t columns, const T *gradient, T *by_q, T *by_k, T *by_v,
                       float *by_q_bias, float *by_k_bias, float *by_v_bias) {
    Dropout d = dropout_of(seed, levels);
    float scale = 1.0f / sqrtf(width);
    int64_t wide = padded(width), q_most = longest(q_starts, begin, end), k_most = longest(k_starts, begin, end);
    /* The last, `out`, is for queries and for keys. */
    float *room = room_for(3 * q_most * wide + 3 * padded(k_most) * wide + 2 * q_most * columns);
    float *Q = room, *G = Q + q_most * wide, *K = G + q_most * wide, *VT = K + padded(k_most) * wide;
    float *P = VT + padded(k_most) * wide, *S = P + q_most * columns, *out = S + q_most * columns;
    for (int64_t b = begin; b < end; b++) {
        int64_t nq = q_starts[b + 1] - q_starts[b], nk = k_starts[b + 1] - k_starts[b], np = padded(nk);
        for (int64_t h = 0; h < heads; h++) {
            int64_t at = h * width, first = heads * q_starts[b] + h * nq;
            int64_t q_at = q_starts[b] * q_row + at, k_at = k_starts[b] * k_row + at;
            NAME(gather)(q + q_at, q_row, q_bias + at, nq, width, scale, Q);
            NAME(gather)(k + k_at, k_row, k_bias + at, nk, width, 1.0f, K);
            NAME(transpose)(v + k_at, k_row, v_bias + at, nk, width, VT);
            NAME(gather)(gradient + q_starts[b] * heads * width + at, heads * width, NULL, nq, width, 1.0f, G);
            multiply(nq, np, wide, G, wide, 1, VT, np, S, np);
            weigh_back(nq, nk, d, first, weights, columns, P, S);
            multiply(nq, wide, nk, S, np, 1, K, wide, out, wide);
            NAME(scatter)(out, nq, width, scale, by_q + q_at, q_row, by_q_bias + at);
            multiply(nk, wide, nq, S, 1, np, Q, wide, out, wide);
            NAME(scatter)(out, nk, width, 1.0f, by_k + k_at, k_row, by_k_bias + at);
            multiply(nk, wide, nq, P, 1, np, G, wide, out, wide);
            NAME(scatter)(out, nk, width, 1.0f, by_v + k_at, k_row, by_v_bias + at);
        }
    }
    free(room);
}
