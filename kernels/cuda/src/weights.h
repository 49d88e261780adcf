// Packed matrices, kernels.Groups32: groups of 32 outputs, in each segments of 256 inputs, in each vectors of 16 bytes, in each vector
// one for every output. So 32 threads, an output each, read 512 bytes in a row. A tail of fewer than 256 inputs takes a whole segment.
// pack.go writes this order. weights16.h has the same types in another one.
//
// A type says where an output's weights lie in a segment (at), how to multiply them with R rows (segment), and what one weight is (value).
// With LANES it also says how to multiply 32 inputs of a segment with one row (part), which is exact, and how to add up the 8 parts in
// order (whole): they lie 32 apart. What does not depend on the order is in Small, Minima and so on, which ask for codes, 16 to a vector in
// the order of inputs, and for scales; header is what of these is read once.
#pragma once
#include "arith.h"

// Inputs are the activations of R rows of a pass. A row that the pass does not have is another one again.
template <int R>
struct Inputs {
    const signed char *q[R];
    const float *scale[R], *x[R];
    const int *sum[R];
};

// Lane is one output of a group of 32 in a segment.
struct Lane {
    const uint4 *first;
    int lane;
    __device__ __forceinline__ const uint4 &operator[](int i) const { return first[32 * i]; }
    // behind returns what lies behind so many vectors, bytes for each output.
    __device__ __forceinline__ const unsigned char *behind(int vectors, int bytes) const {
        return (const unsigned char *)(first - lane + 32 * vectors) + bytes * lane;
    }
};

// In32 is this order, of a type of so many vectors, and bytes behind them.
template <int VECTORS, int TAIL = 0>
struct In32 {
    static __device__ __forceinline__ size_t segment_bytes() { return (VECTORS * 16 + TAIL) * 32; }
    static __device__ __forceinline__ size_t matrix_bytes(int outputs, int cols) {
        return (size_t)((outputs + 31) / 32) * ((cols + 255) / 256) * segment_bytes();
    }
    static __device__ __forceinline__ Lane at(const unsigned char *w, int cols, int out, int seg) {
        return {(const uint4 *)(w + ((size_t)(out / 32) * ((cols + 255) / 256) + seg) * segment_bytes()) + out % 32, out % 32};
    }
    static __device__ __forceinline__ uint4 header(const Lane &w) { return w[0]; }
    static __device__ __forceinline__ void end(const Op *) {}  // what a launch ends with: nothing
};

static __device__ __forceinline__ unsigned word(const uint4 &v, int i) { return i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w; }

// dot16 multiplies 16 codes with 16 activations.
static __device__ __forceinline__ int dot16(const uint4 &c, const signed char *q, int sum) {
    uint4 a = __ldg((const uint4 *)q);
    sum = __dp4a((int)c.x, (int)a.x, sum);
    sum = __dp4a((int)c.y, (int)a.y, sum);
    sum = __dp4a((int)c.z, (int)a.z, sum);
    return __dp4a((int)c.w, (int)a.w, sum);
}

// sum32 returns the sum of block b of 32 activations.
static __device__ __forceinline__ int sum32(const int *sums, int b) {
    int2 s = __ldg((const int2 *)sums + b);
    return s.x + s.y;
}

static __device__ __forceinline__ uint4 low_nibbles(const uint4 &v) {
    return make_uint4(v.x & 0x0f0f0f0fu, v.y & 0x0f0f0f0fu, v.z & 0x0f0f0f0fu, v.w & 0x0f0f0f0fu);
}
static __device__ __forceinline__ uint4 high_nibbles(const uint4 &v) {
    return make_uint4(v.x >> 4 & 0x0f0f0f0fu, v.y >> 4 & 0x0f0f0f0fu, v.z >> 4 & 0x0f0f0f0fu, v.w >> 4 & 0x0f0f0f0fu);
}
static __device__ __forceinline__ uint4 either(const uint4 &a, const uint4 &b) {
    return make_uint4(a.x | b.x, a.y | b.y, a.z | b.z, a.w | b.w);
}

// spread4 moves 4 bits to bit 4 of 4 bytes.
static __device__ __forceinline__ unsigned spread4(unsigned bits) { return ((bits & 15) * 0x00204081u & 0x01010101u) << 4; }
static __device__ __forceinline__ uint4 spread16(unsigned bits) {
    return make_uint4(spread4(bits), spread4(bits >> 4), spread4(bits >> 8), spread4(bits >> 12));
}

// bits_of moves bits [s, s+n) of each byte to bit 4 on; mask is what is kept of it.
static __device__ __forceinline__ uint4 bits_of(const uint4 &v, int s, unsigned mask) {
    return make_uint4((v.x >> s & mask) << 4, (v.y >> s & mask) << 4, (v.z >> s & mask) << 4, (v.w >> s & mask) << 4);
}

// six_bits returns the 6-bit scale and minimum s of Q4_K and Q5_K; v begins with d and dmin.
static __device__ __forceinline__ int byte_at(const uint4 &v, int i) { return word(v, i / 4) >> i % 4 * 8 & 255; }
static __device__ __forceinline__ int2 six_bits(const uint4 &v, int s) {
    if (s < 4) return make_int2(byte_at(v, 4 + s) & 63, byte_at(v, 8 + s) & 63);
    return make_int2((byte_at(v, 8 + s) & 15) | byte_at(v, s) >> 6 << 4, byte_at(v, 8 + s) >> 4 | byte_at(v, 4 + s) >> 6 << 4);
}
static __device__ __forceinline__ float half_in(const uint4 &v, int i) { return half_of(word(v, i / 2) >> i % 2 * 16 & 0xffff); }

// Small is a type with a scale per 32 and codes that are a value minus an offset.
template <class T>
struct Small {
    enum { FLOAT = 0, SUPER = 0, LANES = 1 };
    template <class At>
    static __device__ __forceinline__ float4 part(const At &w, int b, const Inputs<1> &in) {
        uint4 c0, c1;
        T::codes(w, b, &c0, &c1);
        int sum = T::OFFSET ? -T::OFFSET * sum32(in.sum[0], b) : 0;
        sum = dot16(c1, in.q[0] + 32 * b + 16, dot16(c0, in.q[0] + 32 * b, sum));
        return make_float4((float)sum, T::scale_at(T::header(w), b) * __ldg(in.scale[0] + b), 0, 0);
    }
    static __device__ __forceinline__ float whole(const float4 *p, int n) {
        float acc = 0;
        for (int b = 0; 32 * b < n; b++) acc = __fmaf_rn(p[32 * b].x, p[32 * b].y, acc);
        return acc;
    }
    template <int R, class At>
    static __device__ __forceinline__ void segment(const At &w, int n, const Inputs<R> &in, float *acc) {
        auto scales = T::header(w);
#pragma unroll
        for (int b = 0; b < 8; b++) {
            if (32 * b >= n) break;
            uint4 c0, c1;
            T::codes(w, b, &c0, &c1);
            float d = T::scale_at(scales, b);
#pragma unroll
            for (int r = 0; r < R; r++) {
                int sum = T::OFFSET ? -T::OFFSET * sum32(in.sum[r], b) : 0;
                sum = dot16(c1, in.q[r] + 32 * b + 16, dot16(c0, in.q[r] + 32 * b, sum));
                acc[r] = __fmaf_rn((float)sum, d * __ldg(in.scale[r] + b), acc[r]);
            }
        }
    }
    template <class At>
    static __device__ float value(const At &w, int k) {
        uint4 c0, c1;
        T::codes(w, k / 32, &c0, &c1);
        int c = byte_at(k % 32 < 16 ? c0 : c1, k % 16);
        return T::scale_at(T::header(w), k / 32) * (float)(T::OFFSET ? c - T::OFFSET : (int)(signed char)c);
    }
};

// Small32 has the scales in its first vector.
template <class T, int VECTORS, int TAIL = 0>
struct Small32 : Small<T>, In32<VECTORS, TAIL> {
    static __device__ __forceinline__ float scale_at(const uint4 &scales, int b) { return half_in(scales, b); }
};

struct Q8_0 : Small32<Q8_0, 17> {
    enum { OFFSET = 0 };
    static __device__ __forceinline__ void codes(const Lane &w, int b, uint4 *c0, uint4 *c1) {
        *c0 = w[1 + 2 * b];
        *c1 = w[2 + 2 * b];
    }
};

struct Q4_0 : Small32<Q4_0, 9> {
    enum { OFFSET = 8 };
    static __device__ __forceinline__ void codes(const Lane &w, int b, uint4 *c0, uint4 *c1) {
        uint4 v = w[1 + b];
        *c0 = low_nibbles(v);
        *c1 = high_nibbles(v);
    }
};

struct Q5_0 : Small32<Q5_0, 11> {
    enum { OFFSET = 16 };
    static __device__ __forceinline__ void codes(const Lane &w, int b, uint4 *c0, uint4 *c1) {
        uint4 v = w[1 + b];
        unsigned high = word(w[9 + b / 4], b % 4);
        *c0 = either(low_nibbles(v), spread16(high));
        *c1 = either(high_nibbles(v), spread16(high >> 16));
    }
};

// e2m1 turns 4 nibbles, a sign and an index of 0, .5, 1, 1.5, 2, 3, 4, 6, into twice their values plus 16.
static __device__ __forceinline__ unsigned e2m1(unsigned v) {
    unsigned m = v & 0x07070707u, large = m >> 2 & 0x01010101u, sign = (v >> 3 & 0x01010101u) * 255u;
    m += (m & (large | large << 1)) + ((m & m >> 1 & large) << 1);
    return 0x10101010u + m - 2 * (m & sign);
}

// half_of_two_to is 2^(e-128).
static __device__ __forceinline__ float half_of_two_to(int e) {
    return __uint_as_float(e < 2 ? 0x200000u << e : (unsigned)(e - 1) << 23);
}

// MXFP4 has a power of two per 32, 2^(e-127) of which codes are halves.
struct MXFP4 : Small32<MXFP4, 9> {
    enum { OFFSET = 16 };
    static __device__ __forceinline__ float scale_at(const uint4 &scales, int b) {
        return half_of_two_to(byte_at(scales, b));
    }
    static __device__ __forceinline__ void codes(const Lane &w, int b, uint4 *c0, uint4 *c1) {
        uint4 v = w[1 + b];
        *c0 = make_uint4(e2m1(v.x), e2m1(v.y), e2m1(v.z), e2m1(v.w));
        *c1 = make_uint4(e2m1(v.x >> 4), e2m1(v.y >> 4), e2m1(v.z >> 4), e2m1(v.w >> 4));
    }
};

// iq4 turns 8 nibbles into what they stand for in IQ4_NL and IQ4_XS: the low ones of 4 bytes, and the high ones. A permutation looks up
// three bits of each nibble in half of the table; a second one chooses the half by the fourth.
static __device__ __forceinline__ uint2 iq4(unsigned v) {
    unsigned found[2];
#pragma unroll
    for (int i = 0; i < 2; i++) {  // bytes 2i and 2i+1: low, high, low, high
        unsigned at = v >> 16 * i & 0xffff;
        unsigned low = __byte_perm(0xbfad9881u, 0xf6eaddcfu, at & 0x7777), high = __byte_perm(0x26190d01u, 0x71594535u, at & 0x7777);
        found[i] = __byte_perm(low, high, 0x3210 | (at & 0x8888) >> 1);
    }
    return make_uint2(__byte_perm(found[0], found[1], 0x6420), __byte_perm(found[0], found[1], 0x7531));
}
static __device__ __forceinline__ void iq4_codes(const uint4 &v, uint4 *c0, uint4 *c1) {
    uint2 a = iq4(v.x), b = iq4(v.y), c = iq4(v.z), d = iq4(v.w);
    *c0 = make_uint4(a.x, b.x, c.x, d.x);
    *c1 = make_uint4(a.y, b.y, c.y, d.y);
}

struct IQ4_NL : Small32<IQ4_NL, 9> {
    enum { OFFSET = 0 };
    static __device__ __forceinline__ void codes(const Lane &w, int b, uint4 *c0, uint4 *c1) { iq4_codes(w[1 + b], c0, c1); }
};

// IQ4_XS has a 6-bit scale per 32; d and the scales lie behind the vectors, 8 bytes for each output.
struct IQ4_XS : Small32<IQ4_XS, 8, 8> {
    enum { OFFSET = 0 };
    static __device__ __forceinline__ uint4 header(const Lane &w) {
        uint2 h = *(const uint2 *)w.behind(8, 8);
        return make_uint4(h.x, h.y, 0, 0);
    }
    static __device__ __forceinline__ float scale_at(const uint4 &h, int b) {
        return half_in(h, 0) * (float)((int)((h.y >> 4 * b & 15) | (h.x >> (16 + 2 * b) & 3) << 4) - 32);
    }
    static __device__ __forceinline__ void codes(const Lane &w, int b, uint4 *c0, uint4 *c1) { iq4_codes(w[b], c0, c1); }
};

// twice adds up parts of two products.
static __device__ __forceinline__ float twice(const float4 *p, int n) {
    float acc = 0;
    for (int b = 0; 32 * b < n; b++) acc = __fmaf_rn(p[32 * b].z, p[32 * b].w, __fmaf_rn(p[32 * b].x, p[32 * b].y, acc));
    return acc;
}

// Minima is Q4_1 or Q5_1: a scale and a minimum per 32 (pair).
template <class T>
struct Minima {
    enum { FLOAT = 0, SUPER = 0, LANES = 1 };
    template <class At>
    static __device__ __forceinline__ float4 part(const At &w, int b, const Inputs<1> &in) {
        uint4 c0, c1;
        T::codes(w, b, &c0, &c1);
        float2 p = T::pair(w, b);
        float a = __ldg(in.scale[0] + b);
        int sum = dot16(c1, in.q[0] + 32 * b + 16, dot16(c0, in.q[0] + 32 * b, 0));
        return make_float4((float)sum, p.x * a, p.y, a * (float)sum32(in.sum[0], b));
    }
    static __device__ __forceinline__ float whole(const float4 *p, int n) { return twice(p, n); }
    template <int R, class At>
    static __device__ __forceinline__ void segment(const At &w, int n, const Inputs<R> &in, float *acc) {
#pragma unroll
        for (int b = 0; b < 8; b++) {
            if (32 * b >= n) break;
            uint4 c0, c1;
            T::codes(w, b, &c0, &c1);
            float2 p = T::pair(w, b);
#pragma unroll
            for (int r = 0; r < R; r++) {
                int sum = dot16(c1, in.q[r] + 32 * b + 16, dot16(c0, in.q[r] + 32 * b, 0));
                float a = __ldg(in.scale[r] + b);
                acc[r] = __fmaf_rn((float)sum, p.x * a, acc[r]);
                acc[r] = __fmaf_rn(p.y, a * (float)sum32(in.sum[r], b), acc[r]);
            }
        }
    }
    template <class At>
    static __device__ float value(const At &w, int k) {
        uint4 c0, c1;
        T::codes(w, k / 32, &c0, &c1);
        float2 p = T::pair(w, k / 32);
        return p.x * (float)byte_at(k % 32 < 16 ? c0 : c1, k % 16) + p.y;
    }
};

// Minima32 has four pairs in each of the first two vectors.
template <class T, int VECTORS>
struct Minima32 : Minima<T>, In32<VECTORS> {
    static __device__ __forceinline__ float2 pair(const Lane &w, int b) {
        uint4 pairs = w[b / 4];
        return make_float2(half_in(pairs, b % 4 * 2), half_in(pairs, b % 4 * 2 + 1));
    }
};

struct Q4_1 : Minima32<Q4_1, 10> {
    static __device__ __forceinline__ void codes(const Lane &w, int b, uint4 *c0, uint4 *c1) {
        uint4 v = w[2 + b];
        *c0 = low_nibbles(v);
        *c1 = high_nibbles(v);
    }
};

struct Q5_1 : Minima32<Q5_1, 12> {
    static __device__ __forceinline__ void codes(const Lane &w, int b, uint4 *c0, uint4 *c1) {
        Q4_1::codes(w, b, c0, c1);
        unsigned high = word(w[10 + b / 4], b % 4);
        *c0 = either(*c0, spread16(high));
        *c1 = either(*c1, spread16(high >> 16));
    }
};

// Kquant is Q4_K or Q5_K: 6-bit scales and minima per 32 (six), and a factor of each (both).
template <class T>
struct Kquant {
    enum { FLOAT = 0, SUPER = 1, LANES = 1 };
    template <class At>
    static __device__ __forceinline__ float4 part(const At &w, int s, const Inputs<1> &in) {
        auto head = T::header(w);
        uint4 c0, c1;
        T::codes(w, s, &c0, &c1);
        float2 d = T::both(head);
        int2 sc = T::six(head, s);
        int sum = dot16(c1, in.q[0] + 32 * s + 16, dot16(c0, in.q[0] + 32 * s, 0));
        int minimum = sc.y * sum32(in.sum[0], s);
        return make_float4((float)sum, d.x * (float)sc.x, __uint_as_float((unsigned)minimum), d.y);
    }
    static __device__ __forceinline__ float whole(const float4 *p, int) {
        float acc = 0;
        int minima = 0;
        for (int s = 0; s < 8; s++) {
            acc = __fmaf_rn(p[32 * s].x, p[32 * s].y, acc);
            minima += (int)__float_as_uint(p[32 * s].z);
        }
        return __fmaf_rn((float)minima, -p[0].w, acc);
    }
    template <int R, class At>
    static __device__ __forceinline__ void segment(const At &w, int, const Inputs<R> &in, float *acc) {
        auto head = T::header(w);
        float2 d = T::both(head);
        int minima[R] = {};
#pragma unroll
        for (int s = 0; s < 8; s++) {
            uint4 c0, c1;
            T::codes(w, s, &c0, &c1);
            int2 sc = T::six(head, s);
            float scale = d.x * (float)sc.x;
#pragma unroll
            for (int r = 0; r < R; r++) {
                int sum = dot16(c1, in.q[r] + 32 * s + 16, dot16(c0, in.q[r] + 32 * s, 0));
                acc[r] = __fmaf_rn((float)sum, scale, acc[r]);
                minima[r] += sc.y * sum32(in.sum[r], s);
            }
        }
#pragma unroll
        for (int r = 0; r < R; r++) acc[r] = __fmaf_rn((float)minima[r], -d.y, acc[r]);
    }
    template <class At>
    static __device__ float value(const At &w, int k) {
        auto head = T::header(w);
        uint4 c0, c1;
        T::codes(w, k / 32, &c0, &c1);
        float2 d = T::both(head);
        int2 sc = T::six(head, k / 32);
        float scale = d.x * (float)sc.x, min = d.y * (float)sc.y;
        return scale * (float)byte_at(k % 32 < 16 ? c0 : c1, k % 16) - min;
    }
};

// Kquant32 has all of these in its first vector.
template <class T, int VECTORS>
struct Kquant32 : Kquant<T>, In32<VECTORS> {
    static __device__ __forceinline__ float2 both(const uint4 &head) { return make_float2(half_in(head, 0), half_in(head, 1)); }
    static __device__ __forceinline__ int2 six(const uint4 &head, int s) { return six_bits(head, s); }
};

struct Q4_K : Kquant32<Q4_K, 9> {
    static __device__ __forceinline__ void codes(const Lane &w, int s, uint4 *c0, uint4 *c1) {
        uint4 a = w[1 + s / 2 * 2], b = w[2 + s / 2 * 2];
        *c0 = s % 2 ? high_nibbles(a) : low_nibbles(a);
        *c1 = s % 2 ? high_nibbles(b) : low_nibbles(b);
    }
};

struct Q5_K : Kquant32<Q5_K, 11> {
    static __device__ __forceinline__ void codes(const Lane &w, int s, uint4 *c0, uint4 *c1) {
        Q4_K::codes(w, s, c0, c1);
        *c0 = either(*c0, bits_of(w[9], s, 0x01010101u));
        *c1 = either(*c1, bits_of(w[10], s, 0x01010101u));
    }
};

// Sixteens is Q6_K: an 8-bit scale per 16 (scale_at), a factor of all (d_of), and codes of 16 inputs with 32 added.
template <class T>
struct Sixteens {
    enum { FLOAT = 0, SUPER = 1, LANES = 1 };
    template <class At>
    static __device__ __forceinline__ float4 part(const At &w, int b, const Inputs<1> &in) {
        auto scales = T::header(w);
        float d = T::d_of(w), x[2], scale[2];
#pragma unroll
        for (int i = 0; i < 2; i++) {
            int s = 2 * b + i;
            x[i] = (float)dot16(T::codes(w, s), in.q[0] + 16 * s, -32 * __ldg(in.sum[0] + s));
            scale[i] = d * (float)T::scale_at(scales, s);
        }
        return make_float4(x[0], scale[0], x[1], scale[1]);
    }
    static __device__ __forceinline__ float whole(const float4 *p, int n) { return twice(p, n); }
    template <int R, class At>
    static __device__ __forceinline__ void segment(const At &w, int, const Inputs<R> &in, float *acc) {
        auto scales = T::header(w);
        float d = T::d_of(w);
#pragma unroll
        for (int s = 0; s < 16; s++) {
            uint4 c = T::codes(w, s);
            float scale = d * (float)T::scale_at(scales, s);
#pragma unroll
            for (int r = 0; r < R; r++)
                acc[r] = __fmaf_rn((float)dot16(c, in.q[r] + 16 * s, -32 * __ldg(in.sum[r] + s)), scale, acc[r]);
        }
    }
    template <class At>
    static __device__ float value(const At &w, int k) {
        float scale = T::d_of(w) * (float)T::scale_at(T::header(w), k / 16);
        return scale * (float)(byte_at(T::codes(w, k / 16), k % 16) - 32);
    }
};

// Q6_K has its d behind the vectors, 2 bytes for each output.
struct Q6_K : Sixteens<Q6_K>, In32<13, 2> {
    static __device__ __forceinline__ float d_of(const Lane &w) { return half_at(w.behind(13, 2)); }
    static __device__ __forceinline__ int scale_at(const uint4 &scales, int s) { return (signed char)byte_at(scales, s); }
    static __device__ __forceinline__ uint4 codes(const Lane &w, int s) {
        int half = s / 8, part = s % 8 / 2, i = s % 2;
        uint4 v = w[1 + half * 4 + part % 2 * 2 + i];
        v = part >= 2 ? high_nibbles(v) : low_nibbles(v);
        return either(v, bits_of(w[9 + half * 2 + i], 2 * part, 0x03030303u));
    }
};

// Whole is Q2_K or Q3_K: integer scales per 16, and integer sums to the end of a segment.
template <class T>
struct Whole {
    enum { FLOAT = 0, SUPER = 1, LANES = 0 };
    template <int R, class At>
    static __device__ __forceinline__ void segment(const At &w, int, const Inputs<R> &in, float *acc) {
        auto head = T::header(w);
        float d = T::d_of(w), dmin = T::MINIMA ? T::dmin_of(w) : 0;
        int products[R] = {}, minima[R] = {};
#pragma unroll
        for (int s = 0; s < 16; s++) {
            uint4 c = T::codes(w, s);
            int factor = T::factor(head, s);
#pragma unroll
            for (int r = 0; r < R; r++) {
                int sum = __ldg(in.sum[r] + s);
                products[r] += factor * dot16(c, in.q[r] + 16 * s, -T::OFFSET * sum);
                if (T::MINIMA) minima[r] += T::level(head, s) * sum;
            }
        }
#pragma unroll
        for (int r = 0; r < R; r++) {
            acc[r] = (float)products[r] * d;
            if (T::MINIMA) acc[r] = __fmaf_rn((float)minima[r], -dmin, acc[r]);
        }
    }
    template <class At>
    static __device__ float value(const At &w, int k) {
        auto head = T::header(w);
        float scale = T::d_of(w) * (float)T::factor(head, k / 16);
        float v = scale * (float)(byte_at(T::codes(w, k / 16), k % 16) - T::OFFSET);
        return T::MINIMA ? v - T::dmin_of(w) * (float)T::level(head, k / 16) : v;
    }
};

// bits_at moves bits [s, s+2) or, with mask 01, bit s of each byte to its lowest.
static __device__ __forceinline__ uint4 bits_at(const uint4 &v, int s, unsigned mask) {
    return make_uint4(v.x >> s & mask, v.y >> s & mask, v.z >> s & mask, v.w >> s & mask);
}

// Q2_K is as in the file: 4-bit scales and minima, 4 codes to a byte, and behind the vectors d and dmin, 4 bytes for each output.
struct Q2_K : Whole<Q2_K>, In32<5, 4> {
    enum { OFFSET = 0, MINIMA = 1 };
    static __device__ __forceinline__ float d_of(const Lane &w) { return half_at(w.behind(5, 4)); }
    static __device__ __forceinline__ float dmin_of(const Lane &w) { return half_at(w.behind(5, 4) + 2); }
    static __device__ __forceinline__ int factor(const uint4 &head, int s) { return byte_at(head, s) & 15; }
    static __device__ __forceinline__ int level(const uint4 &head, int s) { return byte_at(head, s) >> 4; }
    static __device__ __forceinline__ uint4 codes(const Lane &w, int s) {
        return bits_at(w[1 + s / 8 * 2 + s % 2], s % 8 / 2 * 2, 0x03030303u);
    }
};

// Q3_K has 6-bit scales in 12 bytes, and d; low bits, 4 codes to a byte; high bits, 8 to a byte.
struct Q3_K : Whole<Q3_K>, In32<7> {
    enum { OFFSET = 4, MINIMA = 0 };
    static __device__ __forceinline__ float d_of(const Lane &w) { return half_in(w[0], 6); }
    static __device__ __forceinline__ float dmin_of(const Lane &) { return 0; }
    static __device__ __forceinline__ int level(const uint4 &, int) { return 0; }
    static __device__ __forceinline__ int factor(const uint4 &head, int s) {
        return (byte_at(head, s % 8) >> s / 8 * 4 & 15 | (byte_at(head, 8 + s % 4) >> s / 4 * 2 & 3) << 4) - 32;
    }
    static __device__ __forceinline__ uint4 codes(const Lane &w, int s) {
        uint4 high = bits_at(w[5 + s % 2], s / 2, 0x01010101u);
        return either(Q2_K::codes(w, s), make_uint4(high.x << 2, high.y << 2, high.z << 2, high.w << 2));
    }
};

// Floats has 16-byte vectors of T::EACH weights.
template <class T, int EACH>
struct Floats : In32<256 / EACH> {
    enum { FLOAT = 1, SUPER = 0, LANES = 0 };
    template <int R>
    static __device__ __forceinline__ void segment(const Lane &w, int n, const Inputs<R> &in, float *acc) {
#pragma unroll 4
        for (int v = 0; v < 256 / EACH; v++) {
            if (v * EACH >= n) break;
            uint4 c = w[v];
#pragma unroll
            for (int i = 0; i < EACH; i++) {
                if (v * EACH + i >= n) break;
                float x = T::number(c, i);
#pragma unroll
                for (int r = 0; r < R; r++) acc[r] = __fmaf_rn(x, __ldg(in.x[r] + v * EACH + i), acc[r]);
            }
        }
    }
    static __device__ float value(const Lane &w, int k) { return T::number(w[k / EACH], k % EACH); }
};

struct F32 : Floats<F32, 4> {
    static __device__ __forceinline__ float number(const uint4 &v, int i) { return __uint_as_float(word(v, i)); }
};
struct F16 : Floats<F16, 8> {
    static __device__ __forceinline__ float number(const uint4 &v, int i) { return half_in(v, i); }
};
struct BF16 : Floats<BF16, 8> {
    static __device__ __forceinline__ float number(const uint4 &v, int i) { return __uint_as_float(word(v, i / 2) >> i % 2 * 16 << 16); }
};
