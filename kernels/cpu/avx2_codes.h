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

INLINE __m256i u8_16(const uint8_t *p) { return _mm256_cvtepu8_epi16(_mm_load_si128((const __m128i *)p)); }

// Codes by the lower four bits of each byte.
INLINE __m256i nibbles(const int form, __m256i v) {
    v = only(v, 15);
    if (form == CURVE) return _mm256_shuffle_epi8(_mm256_setr_epi8(TK_IQ4, TK_IQ4), v);
    return form == FLOATS ? _mm256_shuffle_epi8(_mm256_setr_epi8(E2M1, E2M1), v) : v;
}

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
    return nibbles(form, j > 3 ? _mm256_srli_epi16(v, 4) : v);
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

// The bytes of 8 outputs as 16-bit numbers, each twice: in their lower bytes, or in their upper ones, signed and 256 times as large.
INLINE __m256i twice(const uint8_t *p, const int upper) {
    const int no = -128;
#define TWICE(i) upper ? no : i, upper ? i : no, upper ? no : i, upper ? i : no
    const __m256i pick = _mm256_setr_epi8(TWICE(0), TWICE(1), TWICE(2), TWICE(3), TWICE(4), TWICE(5), TWICE(6), TWICE(7));
#undef TWICE
    int64_t v;
    memcpy(&v, p, 8);
    return _mm256_shuffle_epi8(_mm256_set1_epi64x(v), pick);
}

// Two rows of 16 bytes as pairs, one for each output.
INLINE __m256i pairs(__m256i rows) {
#define PAIRS 0, 8, 1, 9, 2, 10, 3, 11, 4, 12, 5, 13, 6, 14, 7, 15
    return _mm256_shuffle_epi8(_mm256_permute4x64_epi64(rows, 0xd8), _mm256_setr_epi8(PAIRS, PAIRS));
#undef PAIRS
}

// The eight 6-bit scales of 16 outputs, a byte each, and their minima in pairs, from 12 bytes each.
enum { OPENED = 128 };  // bytes
INLINE void open_super(const uint8_t *h, uint8_t *scale, uint8_t *min) {
    for (int i = 0; i < 64; i += 32) {
        __m256i a = load(h + 64 + i), b = load(h + 128 + i), c = load(h + 192 + i);
        __m256i at = only(_mm256_srli_epi16(a, 2), 0x30), bt = only(_mm256_srli_epi16(b, 2), 0x30);
        _mm256_store_si256((__m256i *)(scale + i), only(a, 63));
        _mm256_store_si256((__m256i *)(min + i), pairs(only(b, 63)));
        _mm256_store_si256((__m256i *)(scale + 64 + i), _mm256_or_si256(only(c, 15), at));
        _mm256_store_si256((__m256i *)(min + 64 + i), pairs(_mm256_or_si256(only(_mm256_srli_epi16(c, 4), 15), bt)));
    }
}

// The eight 6-bit scales of 16 outputs of IQ4_XS, a signed byte each: tk_scale4.
INLINE void open_scales(const uint8_t *h, uint8_t *scale) {
    const __m256i two = _mm256_set1_epi16(3);
    __m256i high = load(h + 32);
    for (int b = 0; b < 8; b += 2, high = _mm256_srli_epi16(high, 4)) {
        __m256i top = _mm256_packus_epi16(_mm256_and_si256(high, two), _mm256_and_si256(_mm256_srli_epi16(high, 2), two));
        top = _mm256_slli_epi16(_mm256_permute4x64_epi64(top, 0xd8), 4);  // packus works within halves
        __m128i low = _mm_loadu_si128((const __m128i *)(h + 64 + 8 * b));
        __m256i both = only(_mm256_inserti128_si256(_mm256_castsi128_si256(low), _mm_srli_epi16(low, 4), 1), 15);
        _mm256_store_si256((__m256i *)(scale + 16 * b), _mm256_sub_epi8(_mm256_or_si256(both, top), _mm256_set1_epi8(32)));
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
