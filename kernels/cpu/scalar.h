// Scalar arithmetic with the exact rounding of docs/kernels.md, for portable C without libm.
#ifndef SCALAR_H
#define SCALAR_H
#include <stdint.h>
#include <string.h>

static inline uint32_t f32_bits(float x) { uint32_t u; memcpy(&u, &x, 4); return u; }
static inline float bits_f32(uint32_t u) { float x; memcpy(&x, &u, 4); return x; }
static inline uint64_t f64_bits(double x) { uint64_t u; memcpy(&u, &x, 8); return u; }
static inline double bits_f64(uint64_t u) { double x; memcpy(&x, &u, 8); return x; }

// a*b + c with one rounding: the product is exact in double; the sum is rounded to odd before it is
// narrowed, so that narrowing sees on which side of a tie it lies (Boldo and Melquiond, 2008).
static inline float soft_fma(float a, float b, float c) {
    double p = (double)a * (double)b, z = (double)c, s = p + z;
    double t = s - p, err = (p - (s - t)) + (z - t);
    uint64_t u = f64_bits(s);
    if (err != 0 && !(u & 1) && (u & 0x7ff0000000000000u) != 0x7ff0000000000000u)
        u += ((err > 0) == (s > 0)) ? 1 : -1;
    return (float)bits_f64(u);
}

static inline float f16_f32(uint16_t h) {
    uint32_t sign = (uint32_t)(h & 0x8000) << 16, exp = (h >> 10) & 31, man = h & 1023;
    if (exp == 31) return bits_f32(sign | 0x7f800000 | man << 13);
    if (exp) return bits_f32(sign | (exp + 112) << 23 | man << 13);
    float v = (float)man * 0x1p-24f;
    return bits_f32(sign | f32_bits(v));
}

static inline uint16_t f32_f16(float x) {
    uint32_t u = f32_bits(x), a = u & 0x7fffffff;
    uint16_t sign = (uint16_t)(u >> 16 & 0x8000);
    if (a > 0x7f800000) return sign | 0x7e00;
    if (a >= 0x477ff000) return sign | 0x7c00;  // 65520 and above
    if (a < 0x38800000) {                       // below 2^-14: a multiple of 2^-24
        float m = bits_f32(a) + 0.5f;           // the sum's last place is 2^-24
        return sign | (uint16_t)(f32_bits(m) - 0x3f000000);
    }
    uint32_t r = a - 0x38000000;
    r += 0xfff + (r >> 13 & 1);
    return sign | (uint16_t)(r >> 13);
}

static inline float bf16_f32(uint16_t h) { return bits_f32((uint32_t)h << 16); }

static inline uint16_t load_u16(const uint8_t *p) { uint16_t v; memcpy(&v, p, 2); return v; }
static inline int32_t load_i32(const void *p) { int32_t v; memcpy(&v, p, 4); return v; }

// Round to the nearest integer, ties to even, for |x| < 2^22.
static inline float rne_f32(float x) { float t = x + 0x1.8p23f; return t - 0x1.8p23f; }

// Constants of exp: 1/ln 2, ln 2 in two parts, and a polynomial fitted to e^r on |r| ≤ ln2/2.
#define EXP_LO -87.33655f
#define EXP_HI 88.3f
#define EXP_LOG2E 0x1.715476p+0f
#define EXP_LN2HI 0x1.63p-1f
#define EXP_LN2LO -0x1.bd0106p-13f
#define EXP_C2 0x1p-1f
#define EXP_C3 0x1.5554dcp-3f
#define EXP_C4 0x1.55551ap-5f
#define EXP_C5 0x1.120b7cp-7f
#define EXP_C6 0x1.6d1116p-10f

// Constants of gelu, 2√(2/π) and that times 0.044715, of the clamped silu, and of tanh: where its polynomial (Moshier's Cephes)
// ends, and the coefficients.
#define GELU_LINEAR 0x1.988454p+0f
#define GELU_CUBIC 0x1.2444f2p-4f
#define CLAMP_SLOPE 1.702f
#define CLAMP_LIMIT 7.0f
#define TANH_SMALL 0.625f
#define TANH_C1 -0x1.555532p-2f
#define TANH_C2 0x1.110726p-3f
#define TANH_C3 -0x1.b83c5ap-5f
#define TANH_C4 0x1.52269cp-6f
#define TANH_C5 -0x1.75e1d4p-8f

// e^x: docs/kernels.md.
static inline float soft_exp(float x) {
    if (x < EXP_LO) return 0;
    if (x > EXP_HI) x = EXP_HI;
    if (x != x) return x;
    float n = rne_f32(x * EXP_LOG2E);
    float r = soft_fma(-n, EXP_LN2HI, x);
    r = soft_fma(-n, EXP_LN2LO, r);
    float p = soft_fma(EXP_C6, r, EXP_C5);
    p = soft_fma(p, r, EXP_C4);
    p = soft_fma(p, r, EXP_C3);
    p = soft_fma(p, r, EXP_C2);
    p = soft_fma(p, r, 1);
    p = soft_fma(p, r, 1);
    return p * bits_f32((uint32_t)((int32_t)n + 127) << 23);
}

// Correctly rounded square root of x ≥ 0, by the digits of the integer root of the mantissa.
static inline float soft_root(float x) {
    uint32_t u = f32_bits(x);
    if (u == 0 || u >= 0x7f800000) return u == 0x80000000 || u <= 0x7f800000 ? x : bits_f32(0x7fc00000);
    int e = (int)(u >> 23);
    uint64_t m = u & 0x7fffff;
    if (e) m |= 0x800000;
    else { e = 1; while (!(m & 0x800000)) { m <<= 1; e--; } }
    e -= 150;                      // x = m * 2^e
    if (e & 1) { m <<= 1; e--; }
    uint64_t v = m << 26, root = 0;
    for (uint64_t bit = (uint64_t)1 << 50; bit; bit >>= 2) {
        if (v >= root + bit) { v -= root + bit; root = (root >> 1) + bit; } else root >>= 1;
    }
    float s = (float)(root << 1 | (v != 0));  // 26 or 27 bits, sticky at the end: rounds once
    return s * bits_f32((uint32_t)(e / 2 - 14 + 127) << 23);
}
#endif
