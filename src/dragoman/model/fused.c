/* What lies between the matrix products of a Transformer, in one pass over memory each.

Every function works on rows [begin, end) of matrices whose rows lie one after the other, so that threads can share
them. A row is a token; only real tokens have one. Numbers are float32, or bf16 where a product makes or takes them
(the suffix of a function tells); everything is computed in float32, by vectors of the processor's own width: a wider
one would live in memory.

Dropout keeps no mask: a number is dropped by a hash of (seed, row, column), which costs less than reading a mask would.
kernels.py has the same in torch's operations; tests compare.
*/
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#if defined __AVX512F__
#define LANES 16
#elif defined __AVX__
#define LANES 8
#else
#define LANES 4
#endif
typedef float vec __attribute__((vector_size(4 * LANES)));
typedef uint32_t bits __attribute__((vector_size(4 * LANES)));
typedef int32_t ints __attribute__((vector_size(4 * LANES)));
typedef uint16_t halves __attribute__((vector_size(2 * LANES)));
#define INLINE static inline __attribute__((always_inline))

/* first, first + 1 and so on, of at most sixteen. */
INLINE bits lanes(int first) {
    static const uint32_t numbers[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    bits x;
    memcpy(&x, numbers + first, sizeof x);
    return x;
}

#define LANE lanes(0)

INLINE int64_t padded(int64_t n) { return (n + LANES - 1) / LANES * LANES; }
INLINE vec all(float x) { return x - (vec){}; }
INLINE vec either(ints condition, vec yes, vec no) { return (vec)((condition & (ints)yes) | (~condition & (ints)no)); }
INLINE vec where(ints condition, vec x) { return (vec)(condition & (ints)x); }

/* Numbers of two vectors, by constant indices: EACH lists what the macro f makes of each lane and of s. */
#ifdef __clang__
#define SHUFFLE(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
#define SHUFFLE(a, b, ...) __builtin_shuffle(a, b, (ints){__VA_ARGS__})
#endif
#define FOUR(f, j, s) f(j, s), f(j + 1, s), f(j + 2, s), f(j + 3, s)
#if LANES == 16
#define EACH(f, s) FOUR(f, 0, s), FOUR(f, 4, s), FOUR(f, 8, s), FOUR(f, 12, s)
#elif LANES == 8
#define EACH(f, s) FOUR(f, 0, s), FOUR(f, 4, s)
#else
#define EACH(f, s) FOUR(f, 0, s)
#endif

/* Each with what lies half a vector further, then a quarter: one after the other would take four times as long. */
#define FURTHER(j, step) (((j) + (step)) % LANES)
#define FOLD(x, combine)                                                     \
    if (LANES > 8) x = combine(x, SHUFFLE(x, x, EACH(FURTHER, 8)));          \
    if (LANES > 4) x = combine(x, SHUFFLE(x, x, EACH(FURTHER, 4)));          \
    x = combine(x, SHUFFLE(x, x, EACH(FURTHER, 2)));                         \
    return combine(x, SHUFFLE(x, x, EACH(FURTHER, 1)))[0];

INLINE vec sum(vec a, vec b) { return a + b; }
INLINE vec larger(vec a, vec b) { return either(a > b, a, b); }
INLINE float sum_of(vec x) { FOLD(x, sum) }
INLINE float largest_of(vec x) { FOLD(x, larger) }

/* e to the x for x <= 0, to 2 units in the last place; below -87 nearly nothing. NaN stays NaN. */
INLINE vec exponential(vec x) {
    x = either(x < -87.0f, all(-87.0f), x);
    const vec magic = all(12582912.0f); /* 1.5 · 2^23: adding it rounds to a whole number */
    vec shifted = x * 1.44269504f + magic, n = shifted - magic;
    vec r = (x - n * 0.693359375f) + n * 2.12194440e-4f;
    vec p = all(1.9875691500e-4f);
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * r * r + r + 1.0f;
    return p * (vec)(((ints)shifted + 127) << 23);
}

/* 32 random bits for each of sixteen neighbouring columns: a byte for each of four such groups in a row. */
INLINE bits mixed(bits x) {
    x = (x ^ (x >> 16)) * 0x21f0aaadu;
    x = (x ^ (x >> 15)) * 0xd35a2d97u;
    return x ^ (x >> 15);
}

typedef struct {
    uint32_t low, high, dropped; /* dropped: of 256 levels */
    float scale;                 /* of what is kept */
} Dropout;

INLINE Dropout dropout_of(uint64_t seed, int dropped) {
    return (Dropout){(uint32_t)seed, (uint32_t)(seed >> 32), (uint32_t)dropped, 256.0f / (256 - dropped)};
}

#define GROUP 16
typedef struct {
    bits of[GROUP / LANES];
} Random;

/* For the 64 columns from here on. */
INLINE Random draw(Dropout d, int64_t row, int64_t width, int64_t column) {
    Random random = {};
    if (d.dropped == 0) return random;
    uint32_t block = (uint32_t)(row * ((width + 63) / 64) + column / 64);
    for (int part = 0; part < GROUP / LANES; part++)
        random.of[part] = mixed(mixed((block * GROUP + lanes(part * LANES)) ^ d.low) ^ d.high);
    return random;
}

/* The byte that decides is moved to the top; those below it change no comparison. */
INLINE vec drop(Dropout d, Random random, int64_t column, vec x) {
    bits own = random.of[column % GROUP / LANES] << (uint32_t)(24 - column % 64 / GROUP * 8);
    return where((ints)(own >= d.dropped << 24), x * d.scale);
}

/* n numbers, fewer than a vector at the end of a row; the rest is zero. Such an end goes through an array of its own, so
that whole vectors, which are expected, stay in registers. */
INLINE vec load_float(const float *from, int64_t n) {
    vec x;
    float end[LANES];
    if (__builtin_expect(n < LANES, 0)) {
        memset(end, 0, sizeof end);
        for (int64_t i = 0; i < n; i++) end[i] = from[i];
        from = end;
    }
    memcpy(&x, from, sizeof x);
    return x;
}

INLINE void store_float(float *to, vec x, int64_t n) {
    if (__builtin_expect(n >= LANES, 1)) memcpy(to, &x, sizeof x);
    else {
        float end[LANES];
        memcpy(end, &x, sizeof x);
        for (int64_t i = 0; i < n; i++) to[i] = end[i];
    }
}

INLINE vec load_bf16(const uint16_t *from, int64_t n) {
    halves h;
    uint16_t end[LANES];
    if (__builtin_expect(n < LANES, 0)) {
        memset(end, 0, sizeof end);
        for (int64_t i = 0; i < n; i++) end[i] = from[i];
        from = end;
    }
    memcpy(&h, from, sizeof h);
    return (vec)(__builtin_convertvector(h, bits) << 16);
}

INLINE void store_bf16(uint16_t *to, vec x, int64_t n) {
    bits b = (bits)x;
    bits rounded = (b + 0x7fffu + ((b >> 16) & 1u)) >> 16; /* to nearest, ties to even */
    bits not_a_number = (b >> 16) | 64u;
    ints is_number = (ints)(x == x);
    halves h = __builtin_convertvector((rounded & (bits)is_number) | (not_a_number & ~(bits)is_number), halves);
    if (__builtin_expect(n >= LANES, 1)) memcpy(to, &h, sizeof h);
    else {
        uint16_t end[LANES];
        memcpy(end, &h, sizeof h);
        for (int64_t i = 0; i < n; i++) to[i] = end[i];
    }
}

/* Asks for memory before it is read or written: near is 3 for the cache of first level, 2 for that of second. The
processor itself foresees what follows within 4 KB, and not where the next sentence's part of a head lies. It may be past
the end of a matrix: nothing happens then. */
#define FETCH(at, near) __builtin_prefetch(at, 0, near)
#define AHEAD (3072 / sizeof(T)) /* numbers, where rows follow each other */

INLINE void add_float(float *to, vec x, int64_t n) { store_float(to, load_float(to, n) + x, n); }

/* C (rows × columns) = A · B for matrices that fit in the cache. A's numbers are a_row and a_column apart, so it may
lie either way; B's and C's rows are whole vectors. */
#if LANES == 16
#define WIDE 4
#define SUMS 16 /* vectors in registers at a time, of 32 */
#else
#define WIDE 2
#define SUMS 12 /* of 16 */
#endif

INLINE void block(const int rows, const int columns, int64_t inner, const float *a, int64_t a_row, int64_t a_column,
                  const float *b, int64_t b_row, float *c, int64_t c_row) {
    vec sums[8][WIDE] = {};
    for (int64_t k = 0; k < inner; k++) {
        vec right[WIDE];
#pragma GCC unroll 4
        for (int j = 0; j < columns; j++) memcpy(&right[j], b + k * b_row + j * LANES, sizeof(vec));
#pragma GCC unroll 8
        for (int i = 0; i < rows; i++) {
            float left = a[i * a_row + k * a_column];
#pragma GCC unroll 4
            for (int j = 0; j < columns; j++) sums[i][j] += left * right[j];
        }
    }
#pragma GCC unroll 8
    for (int i = 0; i < rows; i++)
#pragma GCC unroll 4
        for (int j = 0; j < columns; j++) memcpy(c + i * c_row + j * LANES, &sums[i][j], sizeof(vec));
}

#define TALL(columns_) (SUMS / (columns_) < 8 ? SUMS / (columns_) : 8)
#define STRIP(columns_)                                                                                    \
    for (; vectors >= columns_; vectors -= columns_, b += columns_ * LANES, c += columns_ * LANES) {      \
        int64_t i = 0;                                                                                     \
        for (; i + TALL(columns_) <= rows; i += TALL(columns_))                                            \
            block(TALL(columns_), columns_, inner, a + i * a_row, a_row, a_column, b, b_row, c + i * c_row, c_row); \
        for (; i + 2 <= rows; i += 2)                                                                      \
            block(2, columns_, inner, a + i * a_row, a_row, a_column, b, b_row, c + i * c_row, c_row);     \
        for (; i < rows; i++)                                                                              \
            block(1, columns_, inner, a + i * a_row, a_row, a_column, b, b_row, c + i * c_row, c_row);     \
    }

static void multiply(int64_t rows, int64_t columns, int64_t inner, const float *a, int64_t a_row, int64_t a_column,
                     const float *b, int64_t b_row, float *c, int64_t c_row) {
    int64_t vectors = columns / LANES;
#if WIDE == 4
    STRIP(4)
#endif
    STRIP(2)
    STRIP(1)
}

/* Squares of numbers, a vector wide, are transposed by exchanging ever smaller squares across the diagonal. */
#define UPPER(j, step) ((j) & (step) ? LANES + (j) - (step) : (j))
#define LOWER(j, step) (((j) & (step) ? LANES + (j) : (j) + (step)) % (2 * LANES))
#define EXCHANGE(step)                                                          \
    for (int i = 0; i < LANES; i++)                                             \
        if (step < LANES && !(i & step)) {                                      \
            vec upper = square[i], lower = square[i + step];                    \
            square[i] = SHUFFLE(upper, lower, EACH(UPPER, step));               \
            square[i + step] = SHUFFLE(upper, lower, EACH(LOWER, step));        \
        }

static int64_t longest(const int64_t *starts, int64_t begin, int64_t end) {
    int64_t most = 0;
    for (int64_t b = begin; b < end; b++) most = starts[b + 1] - starts[b] > most ? starts[b + 1] - starts[b] : most;
    return most;
}

static float *room_for(int64_t numbers) {
    float *room = aligned_alloc(64, (numbers + 15) / 16 * 64);
    if (!room) abort();
    return room;
}

/* Turns the scores of one head's queries, rows of `weights` from `first` on, into weights; P gets them with some
dropped. What is done to a row waits for what was done before, so each step is taken for all rows. */
static void weigh(int64_t queries, int64_t keys, int causal, Dropout d, int64_t first, float *weights, int64_t columns,
                  float *P) {
    float *w = weights + first * columns, *p = P;
    for (int64_t t = 0; t < queries; t++, w += columns, p += padded(keys)) {
        int64_t seen = causal ? t + 1 : keys;
        vec best = all(-INFINITY);
        for (int64_t c = 0; c < seen; c += LANES) {
            vec x = load_float(w + c, LANES);
            best = either((ints)((uint32_t)c + LANE < (uint32_t)seen) & (x > best), x, best);
        }
        *p = largest_of(best);
    }
    w = weights + first * columns, p = P;
    for (int64_t t = 0; t < queries; t++, w += columns, p += padded(keys)) {
        int64_t seen = causal ? t + 1 : keys;
        vec total = {};
        for (int64_t c = 0; c < keys; c += LANES) {
            vec e = exponential(load_float(w + c, LANES) - *p);
            e = where((ints)((uint32_t)c + LANE < (uint32_t)seen), e);
            store_float(w + c, e, LANES);
            total += e;
        }
        *p = 1.0f / sum_of(total);
    }
    w = weights + first * columns, p = P;
    for (int64_t t = 0; t < queries; t++, w += columns, p += padded(keys)) {
        float scale = *p;
        Random random = {};
        for (int64_t c = 0; c < keys; c += LANES) {
            if (c % 64 == 0) random = draw(d, first + t, columns, c);
            vec x = load_float(w + c, LANES) * scale;
            store_float(w + c, x, LANES);
            store_float(p + c, drop(d, random, c, x), LANES);
        }
    }
}

/* The gradient of the scores in the place of that of the dropped weights, S; P gets those weights again. */
static void weigh_back(int64_t queries, int64_t keys, Dropout d, int64_t first, const float *weights, int64_t columns,
                       float *P, float *S) {
    for (int64_t t = 0; t < queries; t++) {
        const float *w = weights + (first + t) * columns;
        float *p = P + t * padded(keys), *s = S + t * padded(keys);
        vec sums = {};
        Random random = {};
        for (int64_t c = 0; c < keys; c += LANES) {
            if (c % 64 == 0) random = draw(d, first + t, columns, c);
            vec x = load_float(w + c, LANES), g = drop(d, random, c, load_float(s + c, LANES));
            store_float(p + c, drop(d, random, c, x), LANES);
            store_float(s + c, g, LANES);
            sums += x * g;
        }
        float mean = sum_of(sums);
        for (int64_t c = 0; c < keys; c += LANES)
            store_float(s + c, load_float(w + c, LANES) * (load_float(s + c, LANES) - mean), LANES);
    }
}

void dropout_rows(int64_t begin, int64_t end, int64_t width, const float *x, float *out, uint64_t seed, int levels) {
    Dropout d = dropout_of(seed, levels);
    for (int64_t row = begin; row < end; row++) {
        Random random = {};
        for (int64_t c = 0; c < width; c += LANES) {
            if (c % 64 == 0) random = draw(d, row, width, c);
            vec kept = drop(d, random, c, load_float(x + row * width + c, width - c));
            store_float(out + row * width + c, kept, width - c);
        }
    }
}

#define T float
#define NAME(name) name##_float
#define LOAD load_float
#define STORE store_float
#include "fused_typed.h"
#undef T
#undef NAME
#undef LOAD
#undef STORE

#define T uint16_t
#define NAME(name) name##_bf16
#define LOAD load_bf16
#define STORE store_bf16
#include "fused_typed.h"
