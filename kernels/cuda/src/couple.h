// A pass that this GPU and the processor compute together, in memory that both see: kernels/cuda/couple.go. Weights lie in the processor's
// order, kernels.Groups16: groups of 16 outputs, in each segments of 256 inputs, in each a header of scales and then, for each 32 inputs,
// words of 4 codes for each of the 16 outputs. kernels/cpu/pack.c writes it, docs/kernels.md draws it.
#pragma once
#include "matmul.h"

// meet waits until the processor has come as often as this GPU: one thread. What was launched before has ended, and the fence makes it
// visible before the flag is; what is launched next reads after the flag was seen. If a side has gone nobody waits, and the pass is lost.
KERNEL meet(const Op *op, const Pass *pass) {
    volatile Flags *f = (volatile Flags *)op->ids;
    unsigned n = f->there.came + 1;
    __threadfence_system();
    f->there.came = n;
    unsigned long long begin = now_ns();
    while ((int)(f->here.came - n) < 0 && !f->here.gone && !f->there.gone) {
        if (now_ns() - begin > (unsigned long long)f->patience) f->there.gone = 1;
        __nanosleep(100);
    }
    __threadfence_system();
}

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

// dot multiplies words [from, to) of a block's codes with its activations.
static __device__ __forceinline__ int dot_words(const unsigned *c, const signed char *q, int from, int to, int sum) {
#pragma unroll
    for (int j = from; j < to; j++) sum = __dp4a((int)c[j], *(const int *)(q + 4 * j), sum);
    return sum;
}
static __device__ __forceinline__ int code_in(const unsigned *c, int k) { return (int)(c[k / 4] >> k % 4 * 8 & 255); }

// Rows16 are the activations of R rows from a segment on.
template <int R>
struct Rows16 {
    const signed char *q[R];
    const float *scale[R], *x[R];
    const int *sum[R];
};

// small16 is a type with a scale per 32, and codes that are a value plus OFFSET.
template <class T, class C, int OFF>
struct small16 {
    enum { FLOAT = 0, SUPER = 0, OFFSET = OFF };
    static __device__ __forceinline__ int head(int n) { return (n + 63) / 64 * 64; }
    static __device__ __forceinline__ int bytes(int n) { return T::head(n) + n / 32 * C::PIECE; }
    static __device__ __forceinline__ float scale_at(const Tile &t, int b) { return t.half_in(32 * b); }
    static __device__ __forceinline__ void codes(const Tile &t, int b, unsigned *c) { C::words(t, b, c); }
    template <int R>
    static __device__ __forceinline__ void segment(const Tile &t, int n, const Rows16<R> &in, float *acc) {
        for (int b = 0; b < n / 32; b++) {
            unsigned c[8];
            T::codes(t, b, c);
            float d = T::scale_at(t, b);
#pragma unroll
            for (int r = 0; r < R; r++) {
                int sum = OFFSET ? -OFFSET * (in.sum[r][2 * b] + in.sum[r][2 * b + 1]) : 0;
                sum = dot_words(c, in.q[r] + 32 * b, 0, 8, sum);
                acc[r] = __fmaf_rn((float)sum, d * in.scale[r][b], acc[r]);
            }
        }
    }
    static __device__ float value(const Tile &t, int k) {
        unsigned c[8];
        T::codes(t, k / 32, c);
        int v = code_in(c, k % 32);
        return T::scale_at(t, k / 32) * (float)(OFFSET ? v - OFFSET : (int)(signed char)v);
    }
};
struct G_Q8_0 : small16<G_Q8_0, Bytes16, 0> {
    static __device__ __forceinline__ void codes(const Tile &t, int b, unsigned *c) {
        Bytes16::words(t, b, c);
#pragma unroll
        for (int j = 0; j < 8; j++) c[j] ^= 0x80808080u;
    }
};
struct G_Q4_0 : small16<G_Q4_0, Nibbles16, 8> {};
struct G_Q5_0 : small16<G_Q5_0, Fives16, 16> {};
struct G_MXFP4 : small16<G_MXFP4, Nibbles16, 16> {
    static __device__ __forceinline__ int head(int n) { return (n / 2 + 63) / 64 * 64; }
    static __device__ __forceinline__ float scale_at(const Tile &t, int b) {
        int e = t.head[16 * b + t.lane];
        return __uint_as_float(e < 2 ? 0x200000u << e : (unsigned)(e - 1) << 23);
    }
    static __device__ __forceinline__ void codes(const Tile &t, int b, unsigned *c) {
        Nibbles16::words(t, b, c);
#pragma unroll
        for (int j = 0; j < 8; j++) c[j] = e2m1(c[j]);
    }
};
template <class T>
struct iq16 : small16<T, Nibbles16, 0> {
    static __device__ __forceinline__ void codes(const Tile &t, int b, unsigned *c) {
#pragma unroll
        for (int j = 0; j < 4; j++) {
            uint2 both = iq4(t.word(Nibbles16::PIECE, b, j));
            c[j] = both.x, c[j + 4] = both.y;
        }
    }
};
struct G_IQ4_NL : iq16<G_IQ4_NL> {};
struct G_IQ4_XS : iq16<G_IQ4_XS> {
    static __device__ __forceinline__ int head(int) { return 128; }
    static __device__ __forceinline__ float scale_at(const Tile &t, int b) {
        int high = t.head[32 + 2 * t.lane] | t.head[33 + 2 * t.lane] << 8;
        return t.half_in(0) * (float)(((t.byte(b / 2) >> b % 2 * 4 & 15) | (high >> 2 * b & 3) << 4) - 32);
    }
};

// minima16 is Q4_1 or Q5_1: a scale and a minimum per 32.
template <class C>
struct minima16 {
    enum { FLOAT = 0, SUPER = 0 };
    static __device__ __forceinline__ int head(int n) { return n / 32 * 64; }
    static __device__ __forceinline__ int bytes(int n) { return head(n) + n / 32 * C::PIECE; }
    template <int R>
    static __device__ __forceinline__ void segment(const Tile &t, int n, const Rows16<R> &in, float *acc) {
        for (int b = 0; b < n / 32; b++) {
            unsigned c[8];
            C::words(t, b, c);
            float d = t.half_in(64 * b), m = t.half_in(64 * b + 32);
#pragma unroll
            for (int r = 0; r < R; r++) {
                float a = in.scale[r][b];
                acc[r] = __fmaf_rn((float)dot_words(c, in.q[r] + 32 * b, 0, 8, 0), d * a, acc[r]);
                acc[r] = __fmaf_rn(m, a * (float)(in.sum[r][2 * b] + in.sum[r][2 * b + 1]), acc[r]);
            }
        }
    }
    static __device__ float value(const Tile &t, int k) {
        unsigned c[8];
        C::words(t, k / 32, c);
        return t.half_in(k / 32 * 64) * (float)code_in(c, k % 32) + t.half_in(k / 32 * 64 + 32);
    }
};
struct G_Q4_1 : minima16<Nibbles16> {};
struct G_Q5_1 : minima16<Fives16> {};

// kquant16 is Q4_K or Q5_K: 6-bit scales and minima per 32.
template <class C>
struct kquant16 {
    enum { FLOAT = 0, SUPER = 1 };
    static __device__ __forceinline__ int head(int) { return 256; }
    static __device__ __forceinline__ int bytes(int n) { return head(n) + n / 32 * C::PIECE; }
    static __device__ __forceinline__ int2 six(const Tile &t, int s) {
        if (s < 4) return make_int2(t.byte(s) & 63, t.byte(s + 4) & 63);
        return make_int2((t.byte(s + 4) & 15) | t.byte(s - 4) >> 6 << 4, t.byte(s + 4) >> 4 | t.byte(s) >> 6 << 4);
    }
    template <int R>
    static __device__ __forceinline__ void segment(const Tile &t, int, const Rows16<R> &in, float *acc) {
        float d = t.half_in(0), dmin = t.half_in(32);
        int minima[R] = {};
        for (int s = 0; s < 8; s++) {
            unsigned c[8];
            C::words(t, s, c);
            int2 sc = six(t, s);
            float scale = d * (float)sc.x;
#pragma unroll
            for (int r = 0; r < R; r++) {
                acc[r] = __fmaf_rn((float)dot_words(c, in.q[r] + 32 * s, 0, 8, 0), scale, acc[r]);
                minima[r] += sc.y * (in.sum[r][2 * s] + in.sum[r][2 * s + 1]);
            }
        }
#pragma unroll
        for (int r = 0; r < R; r++) acc[r] = __fmaf_rn((float)minima[r], -dmin, acc[r]);
    }
    static __device__ float value(const Tile &t, int k) {
        unsigned c[8];
        C::words(t, k / 32, c);
        int2 sc = six(t, k / 32);
        float scale = t.half_in(0) * (float)sc.x, min = t.half_in(32) * (float)sc.y;
        return scale * (float)code_in(c, k % 32) - min;
    }
};
struct G_Q4_K : kquant16<Nibbles16> {};
struct G_Q5_K : kquant16<Fives16> {};

struct G_Q6_K {
    enum { FLOAT = 0, SUPER = 1 };
    static __device__ __forceinline__ int head(int) { return 320; }
    static __device__ __forceinline__ int bytes(int n) { return head(n) + n / 32 * Sixes16::PIECE; }
    static __device__ __forceinline__ float scale(const Tile &t, int s) { return t.half_in(0) * (float)(signed char)t.byte(s); }
    template <int R>
    static __device__ __forceinline__ void segment(const Tile &t, int, const Rows16<R> &in, float *acc) {
        for (int b = 0; b < 8; b++) {
            unsigned c[8];
            Sixes16::words(t, b, c);
#pragma unroll
            for (int h = 0; h < 2; h++)
#pragma unroll
                for (int r = 0; r < R; r++) {
                    int sum = dot_words(c, in.q[r] + 32 * b, 4 * h, 4 * h + 4, -32 * in.sum[r][2 * b + h]);
                    acc[r] = __fmaf_rn((float)sum, scale(t, 2 * b + h), acc[r]);
                }
        }
    }
    static __device__ float value(const Tile &t, int k) {
        unsigned c[8];
        Sixes16::words(t, k / 32, c);
        return scale(t, k / 16) * (float)(code_in(c, k % 32) - 32);
    }
};

// whole16 is Q2_K or Q3_K: integer scales per 16, and integer sums to the end of a segment.
template <class T, class C>
struct whole16 {
    enum { FLOAT = 0, SUPER = 1 };
    static __device__ __forceinline__ int bytes(int n) { return T::head(n) + n / 32 * C::PIECE; }
    template <int R>
    static __device__ __forceinline__ void segment(const Tile &t, int, const Rows16<R> &in, float *acc) {
        int products[R] = {}, minima[R] = {};
        for (int b = 0; b < 8; b++) {
            unsigned c[8];
            C::words(t, b, c);
#pragma unroll
            for (int h = 0; h < 2; h++) {
                int factor = T::factor(t, 2 * b + h), level = T::MINIMA ? T::level(t, 2 * b + h) : 0;
#pragma unroll
                for (int r = 0; r < R; r++) {
                    int sum = in.sum[r][2 * b + h];
                    products[r] += factor * dot_words(c, in.q[r] + 32 * b, 4 * h, 4 * h + 4, -T::OFFSET * sum);
                    minima[r] += level * sum;
                }
            }
        }
#pragma unroll
        for (int r = 0; r < R; r++) {
            acc[r] = (float)products[r] * t.half_in(0);
            if (T::MINIMA) acc[r] = __fmaf_rn((float)minima[r], -t.half_in(32), acc[r]);
        }
    }
    static __device__ float value(const Tile &t, int k) {
        unsigned c[8];
        C::words(t, k / 32, c);
        float v = t.half_in(0) * (float)T::factor(t, k / 16) * (float)(code_in(c, k % 32) - T::OFFSET);
        return T::MINIMA ? v - t.half_in(32) * (float)T::level(t, k / 16) : v;
    }
};
struct G_Q2_K : whole16<G_Q2_K, Twos16> {
    enum { OFFSET = 0, MINIMA = 1 };
    static __device__ __forceinline__ int head(int) { return 320; }
    static __device__ __forceinline__ int factor(const Tile &t, int s) { return t.byte(s) & 15; }
    static __device__ __forceinline__ int level(const Tile &t, int s) { return t.byte(s) >> 4; }
};
struct G_Q3_K : whole16<G_Q3_K, Threes16> {
    enum { OFFSET = 4, MINIMA = 0 };
    static __device__ __forceinline__ int head(int) { return 256; }
    static __device__ __forceinline__ int level(const Tile &, int) { return 0; }
    static __device__ __forceinline__ int factor(const Tile &t, int s) {
        return ((t.byte(s % 8) >> s / 8 * 4 & 15) | (t.byte(8 + s % 4) >> s / 4 * 2 & 3) << 4) - 32;
    }
};

// floats16 lies input by input, 16 outputs side by side.
template <class T, int SIZE>
struct floats16 {
    enum { FLOAT = 1, SUPER = 0 };
    static __device__ __forceinline__ int head(int) { return 0; }
    static __device__ __forceinline__ int bytes(int n) { return n * 16 * SIZE; }
    static __device__ __forceinline__ float value(const Tile &t, int k) { return T::at(t.codes + (size_t)(16 * k + t.lane) * SIZE); }
    template <int R>
    static __device__ __forceinline__ void segment(const Tile &t, int n, const Rows16<R> &in, float *acc) {
#pragma unroll 4
        for (int k = 0; k < n; k++) {
            float x = value(t, k);
#pragma unroll
            for (int r = 0; r < R; r++) acc[r] = __fmaf_rn(x, in.x[r][k], acc[r]);
        }
    }
};
struct G_F32 : floats16<G_F32, 4> {
    static __device__ __forceinline__ float at(const unsigned char *p) { return *(const float *)p; }
};
struct G_F16 : floats16<G_F16, 2> {
    static __device__ __forceinline__ float at(const unsigned char *p) { return half_at(p); }
};
struct G_BF16 : floats16<G_BF16, 2> {
    static __device__ __forceinline__ float at(const unsigned char *p) {
        return __uint_as_float((unsigned)*(const unsigned short *)p << 16);
    }
};

// group16 returns the bytes of 16 outputs of so many inputs.
template <class T>
static __device__ __forceinline__ size_t group16(int cols) {
    size_t n = (size_t)(cols / 256) * T::bytes(256) + (cols % 256 ? T::bytes(cols % 256) : 0);
    return (n + 63) / 64 * 64;
}

// tile_of returns segment seg of an output.
template <class T>
static __device__ __forceinline__ Tile tile_of(const unsigned char *w, int cols, int out, int seg) {
    const unsigned char *at = w + out / 16 * group16<T>(cols) + (size_t)seg * T::bytes(256);
    return {at, at + T::head(min(256, cols - 256 * seg)), out % 16};
}

// multiply16 is multiply, of weights in the processor's order.
template <class T, int R, int EXPERTS>
static __device__ void multiply16(const Op *op, const Pass *pass) {
    SHARED(float, parts);  // (2, segments, R, 32): of this round and, while it is read, of the next
    op += blockIdx.z;
    int lane = threadIdx.x, warp = threadIdx.y, warps = blockDim.y, row0 = blockIdx.y * R;
    int rows = rows_of(op, pass) * (EXPERTS ? op->used : 1);
    int from = op->from, to = op->to, cut = cut_of(from, to, pass->left);
    if (op->side == 1) to = cut;
    if (op->side == 2) from = cut;
    int group = from / 32 + blockIdx.x, out = group * 32 + lane, segments = (op->cols + 255) / 256;
    if (group * 32 >= to || row0 >= rows) return;
    int expert = EXPERTS ? op->route[row0] : 0, shared = EXPERTS && op->src.dim == op->cols;  // by a row's choices: its activation
    const unsigned char *w = op->w + (size_t)expert * ((op->outputs + 15) / 16) * group16<T>(op->cols);
    int mine = out >= from && out < to;
    float total[R] = {};
    for (int s0 = 0, round = 0; s0 < segments; s0 += warps, round ^= 1) {
        float *part = parts + round * warps * R * 32;
        int seg = s0 + warp;
        float acc[R] = {};
        if (seg < segments && mine) {
            Rows16<R> in;
            const Act &a = op->src;
#pragma unroll
            for (int r = 0; r < R; r++) {
                int row = min(row0 + r, rows - 1);
                size_t at = (size_t)(shared ? row / op->used : row) * op->cols + 256 * seg;
                in.x[r] = T::FLOAT ? a.x + at : nullptr;
                in.q[r] = T::FLOAT ? nullptr : (T::SUPER ? a.q256 : a.q) + at;
                in.scale[r] = T::FLOAT || T::SUPER ? nullptr : a.scale + at / 32;
                in.sum[r] = T::FLOAT ? nullptr : (T::SUPER ? a.sum256 : a.sum) + at / 16;
            }
            T::template segment<R>(tile_of<T>(w, op->cols, out, seg), min(256, op->cols - 256 * seg), in, acc);
        }
#pragma unroll
        for (int r = 0; r < R; r++) part[(warp * R + r) * 32 + lane] = acc[r];
        __syncthreads();
#pragma unroll
        for (int i = 0; i < R; i++) {
            int r = warp + i * warps;
            if (r >= R) break;
            for (int s = 0; s < min(warps, segments - s0); s++) {
                float x = part[(s * R + r) * 32 + lane];
                if (T::SUPER) {
                    int row = min(row0 + r, rows - 1), at = shared ? row / op->used : row;
                    total[i] = __fmaf_rn(x, op->src.scale256[(size_t)at * segments + s0 + s], total[i]);
                } else {
                    total[i] += x;
                }
            }
        }
    }
    if (!mine) return;
#pragma unroll
    for (int i = 0; i < R; i++) {
        int r = warp + i * warps;
        if (r >= R || row0 + r >= rows) break;
        float *y = op->out + (size_t)(row0 + r) * (EXPERTS ? op->outputs : op->dim) + out;
        if (EXPERTS && op->biased) total[i] += op->vec[(size_t)expert * op->outputs + out];
        *y = op->add ? *y + total[i] : total[i];
    }
}

// look_up16 is look_up, of weights in the processor's order.
template <class T>
static __device__ void look_up16(const Op *op, const Pass *pass) {
    op += blockIdx.z;
    int row = blockIdx.y, k = blockIdx.x * THREADS + threadIdx.x;
    if (row >= pass->rows || k >= op->dim) return;
    int token = pass->tokens[row];
    float *y = op->out + (size_t)row * op->dim + k;
    if (token >= 0) *y = T::value(tile_of<T>(op->w, op->cols, token, k / 256), k % 256);
    else *y = op->blank ? 0.0f : pass->given[(size_t)(-1 - token) * op->dim + k];
}

#define GROUPS16(name, type)                                                                              \
    KERNEL mm16_##name##_1(const Op *op, const Pass *pass) { multiply16<G_##type, 1, 0>(op, pass); }      \
    KERNEL mm16_##name##_8(const Op *op, const Pass *pass) { multiply16<G_##type, 8, 0>(op, pass); }      \
    KERNEL experts16_##name##_1(const Op *op, const Pass *pass) { multiply16<G_##type, 1, 1>(op, pass); } \
    KERNEL embed16_##name(const Op *op, const Pass *pass) { look_up16<G_##type>(op, pass); }

EACH_TYPE(GROUPS16)
