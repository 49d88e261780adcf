// How AVX2 unpacks codes and scales of packed weights, 8 outputs at a time. See pack.c.
#ifndef AVX2_CODES_H
#define AVX2_CODES_H
#include "avx2.h"
#include "mm_x86.h"

INLINE __m256i bcast(const void *p) { return _mm256_set1_epi32(load_i32(p)); }
INLINE __m256i load(const uint8_t *p) { return _mm256_loadu_si256((const __m256i *)p); }
INLINE __m256 half8(const uint8_t *p) { return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)p)); }
INLINE __m256i u8_8(const uint8_t *p) { return _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)p)); }
INLINE __m256i i8_8(const uint8_t *p) { return _mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)p)); }
INLINE __m256i only(__m256i v, int bits) { return _mm256_and_si256(v, _mm256_set1_epi8((char)bits)); }

// Codes of inputs [4j, 4j+4) of a block, unsigned; those of CURVE signed.
INLINE __m256i code(const int form, const uint8_t *q, const int j) {
    if (form == BYTES) return load(q + 64 * j);
    if (form == SIXES) {
        q += 192 * (j / 4);
        if (j % 4 < 3) return only(load(q + 64 * (j % 4)), 63);
        __m256i a = only(_mm256_srli_epi16(load(q), 6), 3), b = only(_mm256_srli_epi16(load(q + 64), 4), 12);
        return _mm256_or_si256(_mm256_or_si256(a, b), only(_mm256_srli_epi16(load(q + 128), 2), 48));
    }
    if (form == FIVES) {
        if (j < 5) return only(load(q + 64 * j), 31);
        const uint8_t *t = q + 128 * (j - 5);
        __m256i a = only(_mm256_srli_epi16(load(t), 5), 7);
        if (j < 7) return _mm256_or_si256(a, only(_mm256_srli_epi16(load(t + 64), 2), 24));
        a = _mm256_or_si256(a, only(_mm256_srli_epi16(load(q + 64), 4), 8));
        return _mm256_or_si256(a, only(_mm256_srli_epi16(load(q + 192), 3), 16));
    }
    if (form == TWOS) {
        __m256i v = load(q + 64 * (j / 4));
        return only(j % 4 ? _mm256_srli_epi16(v, 2 * (j % 4)) : v, 3);
    }
    if (form == THREES) {
        __m256i v = load(q + 64 * (j / 4)), u = load(q + 128);
        if (j % 4 < 2) return only(j % 4 ? _mm256_srli_epi16(v, 3) : v, 7);
        if (j % 4 == 2) return only(j > 4 ? _mm256_srli_epi16(u, 3) : u, 7);
        return _mm256_or_si256(only(_mm256_srli_epi16(v, 6), 3), only(_mm256_srli_epi16(u, j > 4 ? 5 : 4), 4));
    }
    __m256i v = load(q + 64 * (j & 3));
    v = only(j > 3 ? _mm256_srli_epi16(v, 4) : v, 15);
    if (form == CURVE) return _mm256_shuffle_epi8(_mm256_setr_epi8(TK_IQ4, TK_IQ4), v);
    return form == FLOATS ? _mm256_shuffle_epi8(_mm256_setr_epi8(E2M1, E2M1), v) : v;
}

// Scales of MXFP4 by their exponents: tk_power_bits. For e of 0 and 1 the second number is the larger one and right.
INLINE __m256 powers8(const uint8_t *p) {
    __m256i e = u8_8(p), usual = _mm256_sub_epi32(_mm256_slli_epi32(e, 23), _mm256_set1_epi32(0x800000));
    return _mm256_castsi256_ps(_mm256_max_epi32(usual, _mm256_add_epi32(_mm256_slli_epi32(e, 21), _mm256_set1_epi32(0x200000))));
}

// The same for 16 outputs, by the upper 16 bits of each.
INLINE void powers16(const uint8_t *p, __m256 *d) {
    __m256i e = _mm256_cvtepu8_epi16(_mm_shuffle_epi32(_mm_loadu_si128((const __m128i *)p), 0xd8));  // unpack works within halves
    __m256i usual = _mm256_sub_epi16(_mm256_slli_epi16(e, 7), _mm256_set1_epi16(0x80)), none = _mm256_setzero_si256();
    e = _mm256_max_epi16(usual, _mm256_add_epi16(_mm256_slli_epi16(e, 5), _mm256_set1_epi16(0x20)));
    d[0] = _mm256_castsi256_ps(_mm256_unpacklo_epi16(none, e));
    d[1] = _mm256_castsi256_ps(_mm256_unpackhi_epi16(none, e));
}

// The eight 6-bit scales and minima of 16 outputs, from 12 bytes each.
INLINE void open_super(const uint8_t *h, float (*scale)[16], __m256i *level) {
    _Alignas(32) uint8_t sc[128], mn[128];
    for (int i = 0; i < 64; i += 32) {
        __m256i a = load(h + 64 + i), b = load(h + 128 + i), c = load(h + 192 + i);
        __m256i at = only(_mm256_srli_epi16(a, 2), 0x30), bt = only(_mm256_srli_epi16(b, 2), 0x30);
        _mm256_store_si256((__m256i *)(sc + i), only(a, 63));
        _mm256_store_si256((__m256i *)(mn + i), only(b, 63));
        _mm256_store_si256((__m256i *)(sc + 64 + i), _mm256_or_si256(only(c, 15), at));
        _mm256_store_si256((__m256i *)(mn + 64 + i), _mm256_or_si256(only(_mm256_srli_epi16(c, 4), 15), bt));
    }
    for (int o = 0; o < 16; o += 8) {
        __m256 d = half8(h + 2 * o);
        for (int b = 0; b < 8; b++) _mm256_store_ps(scale[b] + o, _mm256_mul_ps(d, _mm256_cvtepi32_ps(u8_8(sc + 16 * b + o))));
        for (int i = 0; i < 4; i++)
            level[2 * i + o / 8] = _mm256_or_si256(u8_8(mn + 32 * i + o), _mm256_slli_epi32(u8_8(mn + 32 * i + 16 + o), 16));
    }
}

// The eight 6-bit scales of 16 outputs of IQ4_XS: tk_scale4.
INLINE void open_scales(const uint8_t *h, float (*scale)[16]) {
    for (int o = 0; o < 16; o += 8) {
        __m256 d = half8(h + 2 * o);
        __m256i high = _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)(h + 32 + 2 * o)));
        for (int b = 0; b < 8; b++, high = _mm256_srli_epi32(high, 2)) {
            __m256i low = _mm256_and_si256(_mm256_srli_epi32(u8_8(h + 64 + 16 * (b / 2) + o), b % 2 * 4), _mm256_set1_epi32(15));
            low = _mm256_or_si256(low, _mm256_slli_epi32(_mm256_and_si256(high, _mm256_set1_epi32(3)), 4));
            low = _mm256_sub_epi32(low, _mm256_set1_epi32(32));
            _mm256_store_ps(scale[b] + o, _mm256_mul_ps(d, _mm256_cvtepi32_ps(low)));
        }
    }
}

// The 16 4-bit scales and minima of 16 outputs.
INLINE void open_levels(const uint8_t *h, __m256i *factor, __m256i *level) {
    for (int s = 0; s < 16; s++)
        for (int o = 0; o < 2; o++) {
            __m256i v = u8_8(h + 64 + 16 * s + 8 * o), f = _mm256_and_si256(v, _mm256_set1_epi32(15)), m = _mm256_srli_epi32(v, 4);
            factor[2 * s + o] = _mm256_or_si256(f, _mm256_slli_epi32(f, 16));
            level[2 * (s / 2) + o] = s % 2 ? _mm256_or_si256(level[2 * (s / 2) + o], _mm256_slli_epi32(m, 16)) : m;
        }
}

// The 16 6-bit scales of 16 outputs, from 12 bytes each. Codes are stored with 4 added: levels take it away.
INLINE void open_whole(const uint8_t *h, __m256i *factor, __m256i *level) {
    _Alignas(32) uint8_t sc[256];
    const __m256i bias = _mm256_set1_epi8(32);
    for (int i = 0; i < 64; i += 32) {
        __m256i a = load(h + 64 + i), b = load(h + 128 + i), c = load(h + 192 + i);
        __m256i v[4] = {_mm256_or_si256(only(a, 15), only(_mm256_slli_epi16(c, 4), 0x30)),
                        _mm256_or_si256(only(b, 15), only(_mm256_slli_epi16(c, 2), 0x30)),
                        _mm256_or_si256(only(_mm256_srli_epi16(a, 4), 15), only(c, 0x30)),
                        _mm256_or_si256(only(_mm256_srli_epi16(b, 4), 15), only(_mm256_srli_epi16(c, 2), 0x30))};
        for (int j = 0; j < 4; j++) _mm256_store_si256((__m256i *)(sc + 64 * j + i), _mm256_sub_epi8(v[j], bias));
    }
    for (int s = 0; s < 16; s += 2)
        for (int o = 0; o < 2; o++) {
            __m256i even = i8_8(sc + 16 * s + 8 * o), odd = i8_8(sc + 16 * s + 16 + 8 * o);
            factor[2 * s + o] = _mm256_blend_epi16(even, _mm256_slli_epi32(even, 16), 0xaa);
            factor[2 * s + 2 + o] = _mm256_blend_epi16(odd, _mm256_slli_epi32(odd, 16), 0xaa);
            __m256i both = _mm256_blend_epi16(even, _mm256_slli_epi32(odd, 16), 0xaa);
            level[s + o] = _mm256_sub_epi16(_mm256_setzero_si256(), _mm256_slli_epi16(both, 2));
        }
}
#endif
