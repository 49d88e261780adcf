// For benchmarks only: other ways to compute the attention of a token tree's rows to each other, to compare with tandem's
// kernel (Ghidorah, section on sparse attention: naive sparse and masked dense; and sparse with vectors). Keys and values
// are rows of f32, the best case for these; the arithmetic is the usual one.
#include "../tk.h"
#if defined(__x86_64__)
#include "../avx2.h"

enum { MAXNODES = 256 };

// q and out are (rows, heads, d), k and v (rows, kv_heads, d), d a multiple of 8; pairs are the n (row, column)
// of the tree's non-zero scores, by row, at most 256 in a row. This one is a loop over pairs in plain C, as
// one writes it first; the compiler may use AVX2 but leaves a sum of floats in its order.
TARGET void tk_peer_naive(const float *q, const float *k, const float *v, const int32_t *pairs, int n, int heads, int kv_heads,
                   int d, float scale, float *out) {
    for (int h = 0; h < heads; h++)
        for (int from = 0, to; from < n; from = to) {
            float s[MAXNODES], top = -bits_f32(0x7f800000), sum = 0;
            const float *x = q + ((size_t)pairs[2 * from] * heads + h) * d;
            float *o = out + ((size_t)pairs[2 * from] * heads + h) * d;
            for (to = from; to < n && pairs[2 * to] == pairs[2 * from]; to++) {
                const float *key = k + ((size_t)pairs[2 * to + 1] * kv_heads + h * kv_heads / heads) * d;
                float dot = 0;
                for (int i = 0; i < d; i++) dot += x[i] * key[i];
                s[to - from] = dot * scale;
                if (s[to - from] > top) top = s[to - from];
            }
            for (int i = 0; i < d; i++) o[i] = 0;
            for (int e = from; e < to; e++) {
                const float *value = v + ((size_t)pairs[2 * e + 1] * kv_heads + h * kv_heads / heads) * d;
                float p = _mm256_cvtss_f32(exp8(_mm256_set1_ps(s[e - from] - top)));
                sum += p;
                for (int i = 0; i < d; i++) o[i] += p * value[i];
            }
            for (int i = 0; i < d; i++) o[i] /= sum;
        }
}

INLINE float dot(const float *x, const float *y, int d) {
    __m256 a = _mm256_setzero_ps();
    for (int i = 0; i < d; i += 8) a = _mm256_fmadd_ps(_mm256_loadu_ps(x + i), _mm256_loadu_ps(y + i), a);
    __m128 b = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    b = _mm_add_ps(b, _mm_movehl_ps(b, b));
    return _mm_cvtss_f32(_mm_add_ss(b, _mm_movehdup_ps(b)));
}

INLINE void softmax(float *s, int n) {
    float top = s[0], sum = 0;
    for (int i = 1; i < n; i++) top = s[i] > top ? s[i] : top;
    for (int i = n; i % 8; i++) s[i] = top - 1000;  // weight 0
    for (int i = 0; i < n; i += 8) _mm256_storeu_ps(s + i, exp8(_mm256_sub_ps(_mm256_loadu_ps(s + i), _mm256_set1_ps(top))));
    for (int i = 0; i < n; i++) sum += s[i];
    for (int i = 0; i < n; i++) s[i] /= sum;
}

INLINE void add(float p, const float *v, int d, float *o) {
    for (int i = 0; i < d; i += 8)
        _mm256_storeu_ps(o + i, _mm256_fmadd_ps(_mm256_set1_ps(p), _mm256_loadu_ps(v + i), _mm256_loadu_ps(o + i)));
}

TARGET void tk_peer_sparse(const float *q, const float *k, const float *v, const int32_t *pairs, int n, int heads, int kv_heads,
                           int d, float scale, float *out) {
    for (int from = 0, to; from < n; from = to) {
        for (to = from; to < n && pairs[2 * to] == pairs[2 * from]; to++) {}
        for (int h = 0; h < heads; h++) {
            float s[MAXNODES + 8];
            size_t at = ((size_t)pairs[2 * from] * heads + h) * d, g = (size_t)h * kv_heads / heads;
            for (int e = from; e < to; e++) s[e - from] = scale * dot(q + at, k + (pairs[2 * e + 1] * kv_heads + g) * d, d);
            softmax(s, to - from);
            for (int i = 0; i < d; i++) out[at + i] = 0;
            for (int e = from; e < to; e++) add(s[e - from], v + (pairs[2 * e + 1] * kv_heads + g) * d, d, out + at);
        }
    }
}

// mask is (rows, rows): 0, or -Inf where a row does not see a column; at most 256 rows.
TARGET void tk_peer_dense(const float *q, const float *k, const float *v, const float *mask, int rows, int heads, int kv_heads,
                          int d, float scale, float *out) {
    for (int row = 0; row < rows; row++)
        for (int h = 0; h < heads; h++) {
            float s[MAXNODES + 8];
            size_t at = ((size_t)row * heads + h) * d, g = (size_t)h * kv_heads / heads;
            for (int j = 0; j < rows; j++) s[j] = scale * dot(q + at, k + (j * kv_heads + g) * d, d) + mask[row * rows + j];
            softmax(s, rows);
            for (int i = 0; i < d; i++) out[at + i] = 0;
            for (int j = 0; j < rows; j++) add(s[j], v + (j * kv_heads + g) * d, d, out + at);
        }
}
#endif
