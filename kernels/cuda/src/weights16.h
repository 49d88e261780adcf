// Packed matrices in the processor's order, kernels.Groups16: groups of 16 outputs, in each segments of 256 inputs, in each a header of
// scales and then, for each 32 inputs, words of 4 codes for each of the 16 outputs. kernels/cpu/pack.c writes it, docs/kernels.md draws it.
// What weights.h says of a type holds here too.
#pragma once
#include "couple.h"
#include "weights.h"

// Tile is one output of a group in a segment.
struct Tile {
    const unsigned char *head, *codes;
    int lane;  // of 16
    __device__ __forceinline__ unsigned word(int piece, int b, int i) const {
        return *(const unsigned *)(codes + (size_t)b * piece + 64 * i + 4 * lane);
    }
    __device__ __forceinline__ float half_in(int at) const { return half_at(head + at + 2 * lane); }
    __device__ __forceinline__ int byte(int i) const { return head[64 + 16 * i + lane]; }  // of scales behind two halves
};

// How 32 codes lie: eight words of them, from PIECE bytes for each 32 inputs of a group.
struct Bytes16 {
    enum { PIECE = 512 };
    static __device__ __forceinline__ void words(const Tile &t, int b, unsigned *c) {
#pragma unroll
        for (int j = 0; j < 8; j++) c[j] = t.word(PIECE, b, j);
    }
};
struct Nibbles16 {
    enum { PIECE = 256 };
    static __device__ __forceinline__ void words(const Tile &t, int b, unsigned *c) {
#pragma unroll
        for (int j = 0; j < 4; j++) {
            unsigned w = t.word(PIECE, b, j);
            c[j] = w & 0x0f0f0f0fu, c[j + 4] = w >> 4 & 0x0f0f0f0fu;
        }
    }
};
struct Fives16 {
    enum { PIECE = 320 };
    static __device__ __forceinline__ void words(const Tile &t, int b, unsigned *c) {
        unsigned w[5], low = 0x07070707u, two = 0x03030303u, one = 0x01010101u;
#pragma unroll
        for (int j = 0; j < 5; j++) w[j] = t.word(PIECE, b, j), c[j] = w[j] & 0x1f1f1f1fu;
        c[5] = (w[0] >> 5 & low) | (w[1] >> 5 & two) << 3;
        c[6] = (w[2] >> 5 & low) | (w[3] >> 5 & two) << 3;
        c[7] = (w[4] >> 5 & low) | (w[1] >> 7 & one) << 3 | (w[3] >> 7 & one) << 4;
    }
};
struct Sixes16 {
    enum { PIECE = 384 };
    static __device__ __forceinline__ void words(const Tile &t, int b, unsigned *c) {
#pragma unroll
        for (int h = 0; h < 2; h++) {
            c[4 * h + 3] = 0;
#pragma unroll
            for (int i = 0; i < 3; i++) {
                unsigned w = t.word(PIECE, b, 3 * h + i);
                c[4 * h + i] = w & 0x3f3f3f3fu;
                c[4 * h + 3] |= (w >> 6 & 0x03030303u) << 2 * i;
            }
        }
    }
};
struct Twos16 {
    enum { PIECE = 128 };
    static __device__ __forceinline__ void words(const Tile &t, int b, unsigned *c) {
#pragma unroll
        for (int j = 0; j < 8; j++) c[j] = t.word(PIECE, b, j / 4) >> 2 * (j % 4) & 0x03030303u;
    }
};
struct Threes16 {
    enum { PIECE = 192 };
    static __device__ __forceinline__ void words(const Tile &t, int b, unsigned *c) {
        unsigned u = t.word(PIECE, b, 2);
#pragma unroll
        for (int h = 0; h < 2; h++) {
            unsigned w = t.word(PIECE, b, h);
            c[4 * h] = w & 0x07070707u, c[4 * h + 1] = w >> 3 & 0x07070707u, c[4 * h + 2] = u >> 3 * h & 0x07070707u;
            c[4 * h + 3] = (w >> 6 & 0x03030303u) | (u >> (6 + h) & 0x01010101u) << 2;
        }
    }
};

// In16 is this order, of a type T that says how long a header is (head), and whose codes lie as C says.
template <class T, class C>
struct In16 {
    static __device__ __forceinline__ int bytes(int n) { return T::head(n) + n / 32 * C::PIECE; }
    static __device__ __forceinline__ Tile header(const Tile &w) { return w; }
    static __device__ __forceinline__ void end(const Op *op) { meet_behind(op); }
    static __device__ __forceinline__ void codes(const Tile &w, int b, uint4 *c0, uint4 *c1) {
        unsigned c[8];
        C::words(w, b, c);
        *c0 = make_uint4(c[0], c[1], c[2], c[3]);
        *c1 = make_uint4(c[4], c[5], c[6], c[7]);
    }
    static __device__ __forceinline__ size_t group_bytes(int cols) {
        return ((size_t)(cols / 256) * T::bytes(256) + (cols % 256 ? T::bytes(cols % 256) : 0) + 63) / 64 * 64;
    }
    static __device__ __forceinline__ size_t matrix_bytes(int outputs, int cols) { return (outputs + 15) / 16 * group_bytes(cols); }
    static __device__ __forceinline__ Tile tile(const unsigned char *at, int n, int lane) { return {at, at + T::head(n), lane}; }
    static __device__ __forceinline__ Tile at(const unsigned char *w, int cols, int out, int seg) {
        return tile(w + out / 16 * group_bytes(cols) + (size_t)seg * T::bytes(256), min(256, cols - 256 * seg), out % 16);
    }
    // bring copies segments of those of outputs [out0, out0+32) that are in [from, to), by all threads; staged is then at. Between both
    // groups are 64 bytes, so that they lie in other banks.
    static __device__ __forceinline__ void bring(unsigned char *stage, const unsigned char *w, int cols, int out0, int from, int to, int s0,
                                                 int segs) {
        for (int out = max(out0, from / 16 * 16); out < min(out0 + 32, to); out += 16) {
            uint4 *y = (uint4 *)(stage + (out - out0) / 16 * (T::STAGED * T::bytes(256) + 64));
            const uint4 *x = (const uint4 *)(w + out / 16 * group_bytes(cols) + (size_t)s0 * T::bytes(256));
            int last = min(256, cols - 256 * (s0 + segs - 1));
            for (int i = thread(); i < ((segs - 1) * T::bytes(256) + T::bytes(last)) / 16; i += threads()) y[i] = x[i];
        }
    }
    static __device__ __forceinline__ Tile staged(const unsigned char *stage, int cols, int out, int s0, int s) {
        const unsigned char *at = stage + out % 32 / 16 * (T::STAGED * T::bytes(256) + 64) + s * T::bytes(256);
        return tile(at, min(256, cols - 256 * (s0 + s)), out % 16);
    }
};

// Small16 has a scale per 32 in the header.
template <class T, class C>
struct Small16 : Small<T>, In16<T, C> {
    enum { STAGED = 8 };  // segments: a power of two, 36 KiB of two groups at most
    static __device__ __forceinline__ int head(int n) { return (n + 63) / 64 * 64; }
    static __device__ __forceinline__ float scale_at(const Tile &t, int b) { return t.half_in(32 * b); }
};
struct Q8_0_16 : Small16<Q8_0_16, Bytes16> {
    enum { OFFSET = 0, STAGED = 4 };
    static __device__ __forceinline__ void codes(const Tile &t, int b, uint4 *c0, uint4 *c1) {
        Small16::codes(t, b, c0, c1);
        *c0 = make_uint4(c0->x ^ 0x80808080u, c0->y ^ 0x80808080u, c0->z ^ 0x80808080u, c0->w ^ 0x80808080u);
        *c1 = make_uint4(c1->x ^ 0x80808080u, c1->y ^ 0x80808080u, c1->z ^ 0x80808080u, c1->w ^ 0x80808080u);
    }
};
struct Q4_0_16 : Small16<Q4_0_16, Nibbles16> {
    enum { OFFSET = 8 };
};
struct Q5_0_16 : Small16<Q5_0_16, Fives16> {
    enum { OFFSET = 16, STAGED = 4 };
};
struct MXFP4_16 : Small16<MXFP4_16, Nibbles16> {
    enum { OFFSET = 16 };
    static __device__ __forceinline__ int head(int n) { return (n / 2 + 63) / 64 * 64; }
    static __device__ __forceinline__ float scale_at(const Tile &t, int b) {
        return half_of_two_to(t.head[16 * b + t.lane]);
    }
    static __device__ __forceinline__ void codes(const Tile &t, int b, uint4 *c0, uint4 *c1) {
        Small16::codes(t, b, c0, c1);
        *c0 = make_uint4(e2m1(c0->x), e2m1(c0->y), e2m1(c0->z), e2m1(c0->w));
        *c1 = make_uint4(e2m1(c1->x), e2m1(c1->y), e2m1(c1->z), e2m1(c1->w));
    }
};
template <class T>
struct Table16 : Small16<T, Nibbles16> {
    enum { OFFSET = 0 };
    static __device__ __forceinline__ void codes(const Tile &t, int b, uint4 *c0, uint4 *c1) {
        iq4_codes(make_uint4(t.word(256, b, 0), t.word(256, b, 1), t.word(256, b, 2), t.word(256, b, 3)), c0, c1);
    }
};
struct IQ4_NL_16 : Table16<IQ4_NL_16> {};
struct IQ4_XS_16 : Table16<IQ4_XS_16> {
    static __device__ __forceinline__ int head(int) { return 128; }
    static __device__ __forceinline__ float scale_at(const Tile &t, int b) {
        int high = t.head[32 + 2 * t.lane] | t.head[33 + 2 * t.lane] << 8;
        return t.half_in(0) * (float)(((t.byte(b / 2) >> b % 2 * 4 & 15) | (high >> 2 * b & 3) << 4) - 32);
    }
};

template <class T, class C>
struct Minima16 : Minima<T>, In16<T, C> {
    enum { STAGED = 4 };
    static __device__ __forceinline__ int head(int n) { return n / 32 * 64; }
    static __device__ __forceinline__ float2 pair(const Tile &t, int b) { return make_float2(t.half_in(64 * b), t.half_in(64 * b + 32)); }
};
struct Q4_1_16 : Minima16<Q4_1_16, Nibbles16> {};
struct Q5_1_16 : Minima16<Q5_1_16, Fives16> {};

template <class T, class C, int AT_ONCE>
struct Kquant16 : Kquant<T>, In16<T, C> {
    enum { STAGED = AT_ONCE };
    static __device__ __forceinline__ int head(int) { return 256; }
    static __device__ __forceinline__ float2 both(const Tile &t) { return make_float2(t.half_in(0), t.half_in(32)); }
    static __device__ __forceinline__ int2 six(const Tile &t, int s) {
        if (s < 4) return make_int2(t.byte(s) & 63, t.byte(s + 4) & 63);
        return make_int2((t.byte(s + 4) & 15) | t.byte(s - 4) >> 6 << 4, t.byte(s + 4) >> 4 | t.byte(s) >> 6 << 4);
    }
};
struct Q4_K_16 : Kquant16<Q4_K_16, Nibbles16, 8> {};
struct Q5_K_16 : Kquant16<Q5_K_16, Fives16, 4> {};

// sixteen returns codes of 16 inputs.
template <class T>
static __device__ __forceinline__ uint4 sixteen(const Tile &t, int s) {
    uint4 c[2];
    T::In16::codes(t, s / 2, c, c + 1);
    return c[s % 2];
}

struct Q6_K_16 : Sixteens<Q6_K_16>, In16<Q6_K_16, Sixes16> {
    enum { STAGED = 4 };
    static __device__ __forceinline__ int head(int) { return 320; }
    static __device__ __forceinline__ float d_of(const Tile &t) { return t.half_in(0); }
    static __device__ __forceinline__ int scale_at(const Tile &t, int s) { return (signed char)t.byte(s); }
    static __device__ __forceinline__ uint4 codes(const Tile &t, int s) { return sixteen<Q6_K_16>(t, s); }
};

struct Q2_K_16 : Whole<Q2_K_16>, In16<Q2_K_16, Twos16> {
    enum { OFFSET = 0, MINIMA = 1, STAGED = 8 };
    static __device__ __forceinline__ int head(int) { return 320; }
    static __device__ __forceinline__ float d_of(const Tile &t) { return t.half_in(0); }
    static __device__ __forceinline__ float dmin_of(const Tile &t) { return t.half_in(32); }
    static __device__ __forceinline__ int factor(const Tile &t, int s) { return t.byte(s) & 15; }
    static __device__ __forceinline__ int level(const Tile &t, int s) { return t.byte(s) >> 4; }
    static __device__ __forceinline__ uint4 codes(const Tile &t, int s) { return sixteen<Q2_K_16>(t, s); }
};
struct Q3_K_16 : Whole<Q3_K_16>, In16<Q3_K_16, Threes16> {
    enum { OFFSET = 4, MINIMA = 0, STAGED = 8 };
    static __device__ __forceinline__ int head(int) { return 256; }
    static __device__ __forceinline__ float d_of(const Tile &t) { return t.half_in(0); }
    static __device__ __forceinline__ float dmin_of(const Tile &) { return 0; }
    static __device__ __forceinline__ int level(const Tile &, int) { return 0; }
    static __device__ __forceinline__ int factor(const Tile &t, int s) {
        return ((t.byte(s % 8) >> s / 8 * 4 & 15) | (t.byte(8 + s % 4) >> s / 4 * 2 & 3) << 4) - 32;
    }
    static __device__ __forceinline__ uint4 codes(const Tile &t, int s) { return sixteen<Q3_K_16>(t, s); }
};

// Floats16 lies input by input, 16 outputs side by side.
template <class T, int SIZE>
struct Floats16 : In16<T, Bytes16> {
    enum { FLOAT = 1, SUPER = 0, LANES = 0, STAGED = SIZE == 2 ? 2 : 1 };
    static __device__ __forceinline__ int head(int) { return 0; }
    static __device__ __forceinline__ int bytes(int n) { return n * 16 * SIZE; }
    static __device__ __forceinline__ float value(const Tile &t, int k) { return T::number(t.codes + (size_t)(16 * k + t.lane) * SIZE); }
    template <int R>
    static __device__ __forceinline__ void segment(const Tile &t, int n, const Inputs<R> &in, float *acc) {
#pragma unroll 4
        for (int k = 0; k < n; k++) {
            float x = value(t, k);
#pragma unroll
            for (int r = 0; r < R; r++) acc[r] = __fmaf_rn(x, __ldg(in.x[r] + k), acc[r]);
        }
    }
};
struct F32_16 : Floats16<F32_16, 4> {
    static __device__ __forceinline__ float number(const unsigned char *p) { return *(const float *)p; }
};
struct F16_16 : Floats16<F16_16, 2> {
    static __device__ __forceinline__ float number(const unsigned char *p) { return half_at(p); }
};
struct BF16_16 : Floats16<BF16_16, 2> {
    static __device__ __forceinline__ float number(const unsigned char *p) {
        return __uint_as_float((unsigned)*(const unsigned short *)p << 16);
    }
};
