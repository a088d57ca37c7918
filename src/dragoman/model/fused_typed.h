/* The functions of fused.c whose activations are of type T, float or bf16. */

/* total = x + dropped(branch + bias); normed = layer norm of it. */
void NAME(residual_norm)(int64_t begin, int64_t end, int64_t width, const float *x, const T *branch, const float *bias,
                         const float *gain, const float *shift, float epsilon, uint64_t seed, int levels, float *total,
                         T *normed, float *statistics) {
    Dropout d = dropout_of(seed, levels);
    for (int64_t row = begin; row < end; row++) {
        float *y = total + row * width;
        vec sums = {}, squares = {};
        bits random = {};
        for (int64_t c = 0; c < width; c += LANES) {
            int64_t n = width - c;
            if (c % 64 == 0) random = draw(d, row, width, c);
            vec added = LOAD(branch + row * width + c, n) + load_float(bias + c, n);
            vec t = load_float(x + row * width + c, n) + drop(d, random, c, added);
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
            vec hat = (load_float(total + at + c, n) - mean) * rate, g = LOAD(by_normed + at + c, n);
            add_float(by_gain + c, g * hat, n);
            add_float(by_shift + c, g, n);
            g *= load_float(gain + c, n);
            sums += g;
            products += g * hat;
        }
        bits random = {};
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
        bits random = {};
        for (int64_t c = 0; c < width; c += LANES) {
            T *at = h + row * width + c;
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

/* The rows of a sentence by head, as float32 with their bias: to (heads, n, padded(width)). */
static void NAME(gather)(const T *from, int64_t row, const float *bias, int64_t n, int64_t heads, int64_t width,
                         float scale, float *to) {
    for (int64_t i = 0; i < n; i++)
        for (int64_t h = 0; h < heads; h++)
            for (int64_t c = 0; c < width; c += LANES) {
                int64_t at = h * width + c;
                vec x = LOAD(from + i * row + at, width - c);
                if (bias) x += load_float(bias + at, width - c);
                store_float(to + (h * n + i) * padded(width) + c, x * scale, LANES);
            }
}

/* And back, with sums over rows added to the gradient of the bias. */
static void NAME(scatter)(const float *from, int64_t n, int64_t heads, int64_t width, float scale, T *to, int64_t row,
                          float *by_bias) {
    for (int64_t i = 0; i < n; i++)
        for (int64_t h = 0; h < heads; h++)
            for (int64_t c = 0; c < width; c += LANES) {
                int64_t at = h * width + c;
                vec x = load_float(from + (h * n + i) * padded(width) + c, LANES) * scale;
                STORE(to + i * row + at, x, width - c);
                if (by_bias) add_float(by_bias + at, x, width - c);
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
    int64_t wide = padded(width), q_size = longest(q_starts, begin, end) * wide;
    int64_t k_size = padded(longest(k_starts, begin, end)) * wide;
    float *room = room_for(2 * heads * q_size + 2 * heads * k_size + k_size + q_size / wide * columns);
    float *Q = room, *O = Q + heads * q_size, *K = O + heads * q_size, *V = K + heads * k_size;
    float *KT = V + heads * k_size, *P = KT + k_size;
    for (int64_t b = begin; b < end; b++) {
        int64_t nq = q_starts[b + 1] - q_starts[b], nk = k_starts[b + 1] - k_starts[b], np = padded(nk);
        NAME(gather)(q + q_starts[b] * q_row, q_row, q_bias, nq, heads, width, 1.0f / sqrtf(width), Q);
        NAME(gather)(k + k_starts[b] * k_row, k_row, k_bias, nk, heads, width, 1.0f, K);
        NAME(gather)(v + k_starts[b] * k_row, k_row, v_bias, nk, heads, width, 1.0f, V);
        for (int64_t h = 0; h < heads; h++) {
            int64_t first = heads * q_starts[b] + h * nq;
            transpose(K + h * nk * wide, nk, wide, KT);
            multiply(nq, np, wide, Q + h * nq * wide, wide, 1, KT, np, weights + first * columns, columns);
            weigh(nq, nk, causal, d, first, weights, columns, P);
            multiply(nq, wide, nk, P, np, 1, V + h * nk * wide, wide, O + h * nq * wide, wide);
        }
        NAME(scatter)(O, nq, heads, width, 1.0f, mixed_rows + q_starts[b] * heads * width, heads * width, NULL);
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
    int64_t wide = padded(width), q_size = longest(q_starts, begin, end) * wide;
    int64_t k_size = padded(longest(k_starts, begin, end)) * wide;
    float *room = room_for(3 * heads * q_size + 4 * heads * k_size + k_size + 2 * (q_size / wide * columns));
    float *Q = room, *G = Q + heads * q_size, *by_Q = G + heads * q_size, *K = by_Q + heads * q_size;
    float *V = K + heads * k_size, *by_K = V + heads * k_size, *by_V = by_K + heads * k_size;
    float *VT = by_V + heads * k_size, *P = VT + k_size, *S = P + q_size / wide * columns;
    for (int64_t b = begin; b < end; b++) {
        int64_t nq = q_starts[b + 1] - q_starts[b], nk = k_starts[b + 1] - k_starts[b], np = padded(nk);
        int64_t q_at = q_starts[b] * q_row, k_at = k_starts[b] * k_row;
        NAME(gather)(q + q_at, q_row, q_bias, nq, heads, width, scale, Q);
        NAME(gather)(k + k_at, k_row, k_bias, nk, heads, width, 1.0f, K);
        NAME(gather)(v + k_at, k_row, v_bias, nk, heads, width, 1.0f, V);
        NAME(gather)(gradient + q_starts[b] * heads * width, heads * width, NULL, nq, heads, width, 1.0f, G);
        for (int64_t h = 0; h < heads; h++) {
            int64_t q_head = h * nq * wide, k_head = h * nk * wide;
            transpose(V + k_head, nk, wide, VT);
            multiply(nq, np, wide, G + q_head, wide, 1, VT, np, S, np);
            weigh_back(nq, nk, d, heads * q_starts[b] + h * nq, weights, columns, P, S);
            multiply(nq, wide, nk, S, np, 1, K + k_head, wide, by_Q + q_head, wide);
            multiply(nk, wide, nq, S, 1, np, Q + q_head, wide, by_K + k_head, wide);
            multiply(nk, wide, nq, P, 1, np, G + q_head, wide, by_V + k_head, wide);
        }
        NAME(scatter)(by_Q, nq, heads, width, scale, by_q + q_at, q_row, by_q_bias);
        NAME(scatter)(by_K, nk, heads, width, 1.0f, by_k + k_at, k_row, by_k_bias);
        NAME(scatter)(by_V, nk, heads, width, 1.0f, by_v + k_at, k_row, by_v_bias);
    }
    free(room);
}
