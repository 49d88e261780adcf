// How AVX-512 unpacks codes and scales of packed weights, 16 outputs at a time. See pack.c.
#ifndef AVX512_CODES_H
#define AVX512_CODES_H
#include "avx512.h"
#include "mm_x86.h"

INLINE __m512i bcast(const void *p) { return _mm512_set1_epi32(load_i32(p)); }
INLINE __m512 half16(const uint8_t *p) { return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)p)); }

// Scales of MXFP4 by their exponents: tk_power_bits.
INLINE __m512 powers16(const uint8_t *p) {
    __m512i e = _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)p)), one = _mm512_set1_epi32(1);
    __mmask16 tiny = _mm512_cmple_epi32_mask(e, one);
    __m512i usual = _mm512_slli_epi32(_mm512_sub_epi32(e, one), 23);
    return _mm512_castsi512_ps(_mm512_mask_sllv_epi32(usual, tiny, _mm512_set1_epi32(0x200000), e));
}

// a | (b & bits) in every byte
INLINE __m512i pick(__m512i a, __m512i b, int bits) { return _mm512_ternarylogic_epi32(a, b, _mm512_set1_epi8((char)bits), 0xf8); }

// vpermb takes six bits of each byte of v: with a table that repeats, the upper two do not matter. In assembler, since the kernels'
// target does not include VBMI: recipe_of asks for it.
INLINE __m512i permute(__m512i v, __m512i table) {
    __m512i r;
    __asm__("vpermb %2, %1, %0" : "=v"(r) : "v"(v), "v"(table));
    return r;
}

// What the nibbles of CURVE stand for, plus 128.
INLINE __m128i curve(void) { return _mm_xor_si128(_mm_setr_epi8(TK_IQ4), _mm_set1_epi8((char)128)); }

// Codes by the lower four bits of each byte.
INLINE __m512i nibbles(const int form, __m512i v) {
    const __m512i table = _mm512_broadcast_i32x4(form == CURVE ? curve() : _mm_setr_epi8(E2M1));
    if (form == SIXBIT) return permute(v, table);
    v = _mm512_and_si512(v, _mm512_set1_epi8(15));
    return form == FLOATS || form == CURVE ? _mm512_shuffle_epi8(table, v) : v;
}

// Codes of inputs [4j, 4j+4) of a block, unsigned.
INLINE __m512i code(const int form, const uint8_t *q, const int j) {
    if (form == BYTES) return _mm512_loadu_si512(q + 64 * j);
    if (form == SIXES) {
        q += 192 * (j / 4);
        const __m512i six = _mm512_set1_epi8(63);
        if (j % 4 < 3) return _mm512_and_si512(_mm512_loadu_si512(q + 64 * (j % 4)), six);
        __m512i a = _mm512_and_si512(_mm512_srli_epi16(_mm512_loadu_si512(q), 6), _mm512_set1_epi8(3));
        a = pick(a, _mm512_srli_epi16(_mm512_loadu_si512(q + 64), 4), 12);
        return pick(a, _mm512_srli_epi16(_mm512_loadu_si512(q + 128), 2), 48);
    }
    if (form == FIVES) {
        if (j < 5) return _mm512_and_si512(_mm512_loadu_si512(q + 64 * j), _mm512_set1_epi8(31));
        const uint8_t *t = q + 128 * (j - 5);
        __m512i a = _mm512_and_si512(_mm512_srli_epi16(_mm512_loadu_si512(t), 5), _mm512_set1_epi8(7));
        if (j < 7) return pick(a, _mm512_srli_epi16(_mm512_loadu_si512(t + 64), 2), 24);
        a = pick(a, _mm512_srli_epi16(_mm512_loadu_si512(q + 64), 4), 8);
        return pick(a, _mm512_srli_epi16(_mm512_loadu_si512(q + 192), 3), 16);
    }
    if (form == TWOS) {
        __m512i v = _mm512_loadu_si512(q + 64 * (j / 4));
        return _mm512_and_si512(j % 4 ? _mm512_srli_epi16(v, 2 * (j % 4)) : v, _mm512_set1_epi8(3));
    }
    if (form == THREES) {
        const __m512i seven = _mm512_set1_epi8(7);
        __m512i v = _mm512_loadu_si512(q + 64 * (j / 4)), u = _mm512_loadu_si512(q + 128);
        if (j % 4 < 2) return _mm512_and_si512(j % 4 ? _mm512_srli_epi16(v, 3) : v, seven);
        if (j % 4 == 2) return _mm512_and_si512(j > 4 ? _mm512_srli_epi16(u, 3) : u, seven);
        return pick(_mm512_and_si512(_mm512_srli_epi16(v, 6), _mm512_set1_epi8(3)), _mm512_srli_epi16(u, j > 4 ? 5 : 4), 4);
    }
    __m512i v = _mm512_loadu_si512(q + 64 * (j & 3));
    return nibbles(form, j > 3 ? _mm512_srli_epi16(v, 4) : v);
}

// The eight 6-bit scales and minima of 16 outputs, from 12 bytes each.
INLINE void open_super(const uint8_t *h, float (*scale)[16], __m512i *level, __m512 *step) {
    const __m512i six = _mm512_set1_epi8(63), low = _mm512_set1_epi8(15), top = _mm512_set1_epi8(0x30);
    __m512i a = _mm512_loadu_si512(h + 64), b = _mm512_loadu_si512(h + 128), c = _mm512_loadu_si512(h + 192);
    __m512i at = _mm512_and_si512(_mm512_srli_epi16(a, 2), top), bt = _mm512_and_si512(_mm512_srli_epi16(b, 2), top);
    __m512i sc[2] = {_mm512_and_si512(a, six), _mm512_or_si512(_mm512_and_si512(c, low), at)};
    __m512i mn[2] = {_mm512_and_si512(b, six), _mm512_or_si512(_mm512_and_si512(_mm512_srli_epi16(c, 4), low), bt)};
    __m512 d = half16(h);
    *step = half16(h + 32);
    _Alignas(64) uint8_t s[128], m[128];
    for (int i = 0; i < 2; i++) { _mm512_store_si512(s + 64 * i, sc[i]); _mm512_store_si512(m + 64 * i, mn[i]); }
    for (int b8 = 0; b8 < 8; b8++) {
        __m512i u = _mm512_cvtepu8_epi32(_mm_load_si128((const __m128i *)(s + 16 * b8)));
        _mm512_store_ps(scale[b8], _mm512_mul_ps(d, _mm512_cvtepi32_ps(u)));
    }
    for (int i = 0; i < 4; i++) {
        __m512i even = _mm512_cvtepu8_epi32(_mm_load_si128((const __m128i *)(m + 32 * i)));
        __m512i odd = _mm512_cvtepu8_epi32(_mm_load_si128((const __m128i *)(m + 32 * i + 16)));
        level[i] = _mm512_or_si512(even, _mm512_slli_epi32(odd, 16));
    }
}

// The eight 6-bit scales of 16 outputs of IQ4_XS: tk_scale4.
INLINE void open_scales(const uint8_t *h, float (*scale)[16]) {
    const __m512i low = _mm512_set1_epi32(15), top = _mm512_set1_epi32(0x30), bias = _mm512_set1_epi32(32);
    __m512 d = half16(h);
    __m512i high = _mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)(h + 32))), 4);
    for (int b = 0; b < 8; b++, high = _mm512_srli_epi32(high, 2)) {
        __m512i v = _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)(h + 64 + 16 * (b / 2))));
        v = _mm512_and_si512(b % 2 ? _mm512_srli_epi32(v, 4) : v, low);
        v = _mm512_sub_epi32(_mm512_or_si512(v, _mm512_and_si512(high, top)), bias);
        _mm512_store_ps(scale[b], _mm512_mul_ps(d, _mm512_cvtepi32_ps(v)));
    }
}

INLINE __m512i i8_16(const uint8_t *p) { return _mm512_cvtepi8_epi32(_mm_load_si128((const __m128i *)p)); }

// The 16 4-bit scales and minima of 16 outputs.
INLINE void open_levels(const uint8_t *h, __m512i *factor, __m512i *level, __m512 *unit, __m512 *step) {
    const __m512i low = _mm512_set1_epi8(15);
    _Alignas(64) uint8_t s[256], m[256];
    *unit = half16(h);
    *step = half16(h + 32);
    for (int i = 0; i < 256; i += 64) {
        __m512i v = _mm512_loadu_si512(h + 64 + i);
        _mm512_store_si512(s + i, _mm512_and_si512(v, low));
        _mm512_store_si512(m + i, _mm512_and_si512(_mm512_srli_epi16(v, 4), low));
    }
    for (int i = 0; i < 16; i++) factor[i] = i8_16(s + 16 * i);
    for (int b = 0; b < 8; b++) level[b] = _mm512_or_si512(i8_16(m + 32 * b), _mm512_slli_epi32(i8_16(m + 32 * b + 16), 16));
}

// The 16 6-bit scales of 16 outputs, from 12 bytes each. Codes are stored with 4 added: levels take it away.
INLINE void open_whole(const uint8_t *h, __m512i *factor, __m512i *level, __m512 *unit) {
    const __m512i low = _mm512_set1_epi8(15), bias = _mm512_set1_epi8(32), word = _mm512_set1_epi32(0xffff);
    __m512i a = _mm512_loadu_si512(h + 64), b = _mm512_loadu_si512(h + 128), c = _mm512_loadu_si512(h + 192);
    __m512i v[4] = {_mm512_and_si512(a, low), _mm512_and_si512(b, low),
                    _mm512_and_si512(_mm512_srli_epi16(a, 4), low), _mm512_and_si512(_mm512_srli_epi16(b, 4), low)};
    _Alignas(64) uint8_t s[256];
    *unit = half16(h);
    v[0] = pick(v[0], _mm512_slli_epi16(c, 4), 0x30);
    v[1] = pick(v[1], _mm512_slli_epi16(c, 2), 0x30);
    v[2] = pick(v[2], c, 0x30);
    v[3] = pick(v[3], _mm512_srli_epi16(c, 2), 0x30);
    for (int i = 0; i < 4; i++) _mm512_store_si512(s + 64 * i, _mm512_sub_epi8(v[i], bias));
    for (int i = 0; i < 16; i++) factor[i] = _mm512_and_si512(i8_16(s + 16 * i), word);
    for (int i = 0; i < 8; i++) {
        __m512i both = _mm512_or_si512(factor[2 * i], _mm512_slli_epi32(factor[2 * i + 1], 16));
        level[i] = _mm512_sub_epi16(_mm512_setzero_si512(), _mm512_slli_epi16(both, 2));
    }
}

INLINE void open_halves(const uint8_t *h, float (*scale)[16]) {
    __m512 d = half16(h);
    for (int s = 0; s < 16; s++) {
        __m512i v = _mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)(h + 64 + 16 * s)));
        _mm512_store_ps(scale[s], _mm512_mul_ps(d, _mm512_cvtepi32_ps(v)));
    }
}
#endif
