// CUDA for g++: what the kernels' sources use of it, with CUDA's meaning. main.cpp runs them.
#pragma once
#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define __global__
#define __device__
#define __host__
#define __constant__
#define __forceinline__ inline __attribute__((always_inline))
#define __launch_bounds__(...)
#define __align__(n) __attribute__((aligned(n)))
#define APART __attribute__((noinline))
#define SHARED(type, name) type *const name = reinterpret_cast<type *>(emu::shared)

struct __align__(8) int2 { int x, y; };
struct __align__(8) uint2 { unsigned x, y; };
struct uint3 { unsigned x, y, z; };
struct __align__(8) float2 { float x, y; };
struct __align__(16) int4 { int x, y, z, w; };
struct __align__(16) uint4 { unsigned x, y, z, w; };
struct __align__(16) float4 { float x, y, z, w; };
typedef uint3 dim3;

static inline int2 make_int2(int x, int y) { return {x, y}; }
static inline uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }
static inline float2 make_float2(float x, float y) { return {x, y}; }
static inline int4 make_int4(int x, int y, int z, int w) { return {x, y, z, w}; }
static inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }
static inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }

extern uint3 threadIdx, blockIdx;
extern dim3 blockDim, gridDim;
static const int warpSize = 32;

namespace emu {

// A place in the sources where threads wait for each other.
struct Place {
    const char *what, *file;
    int line;
};

extern unsigned char *shared; // the block's shared memory

// grid_begin notes that the thread waits for the launches before; begun tells whether it has. One launch runs at a time here, so only this
// shows a kernel that reads before, or never waits: run_threads and the gauge fail then.
void grid_begin();
bool begun();

void wait_block(const Place &p);
void wait_warp(const Place &p, unsigned mask);
// exchange hands a value to the lanes of the warp and returns the values of all, valid until the thread's next exchange.
const uint64_t *exchange(const Place &p, unsigned mask, uint64_t mine);
int lane();

// What other processors see: fence orders accesses, and rest lets them run. Both may take a while: Options.Delay.
void fence();
void rest();
uint64_t clock_ns();

template <class To, class From>
static inline To bits_as(From from) {
    static_assert(sizeof(To) == sizeof(From), "bits_as keeps the size");
    To to;
    memcpy(&to, &from, sizeof to);
    return to;
}

template <class T>
static inline T shuffle(const Place &p, unsigned mask, T v, int from) {
    static_assert(sizeof(T) <= 8, "a shuffle moves at most 8 bytes");
    uint64_t bits = 0;
    memcpy(&bits, &v, sizeof v);
    bits = exchange(p, mask, bits)[from];
    memcpy(&v, &bits, sizeof v);
    return v;
}

} // namespace emu

#define EMU_HERE const char *file = __builtin_FILE(), int line = __builtin_LINE()

static inline void __syncthreads(EMU_HERE) { emu::wait_block({"__syncthreads", file, line}); }
static inline void __threadfence() {} // one block runs at a time
static inline int atomicAdd(int *at, int n) {
    int was = *at;
    *at = was + n;
    return was;
}
static inline void __syncwarp(unsigned mask = 0xffffffffu, EMU_HERE) { emu::wait_warp({"__syncwarp", file, line}, mask); }

static inline void grid_begin() { emu::grid_begin(); }
static inline void __threadfence_system() { emu::fence(); }
static inline void __nanosleep(unsigned) { emu::rest(); }
static inline unsigned long long now_ns() { return emu::clock_ns(); }

// Without CUDA's last argument, a width: all 32 lanes take part.
template <class T>
static inline T __shfl_sync(unsigned mask, T v, int from, EMU_HERE) {
    return emu::shuffle({"__shfl_sync", file, line}, mask, v, from & 31);
}
template <class T>
static inline T __shfl_xor_sync(unsigned mask, T v, int with, EMU_HERE) {
    int from = emu::lane() ^ with;
    return emu::shuffle({"__shfl_xor_sync", file, line}, mask, v, from < 32 ? from : emu::lane());
}
template <class T>
static inline T __shfl_down_sync(unsigned mask, T v, unsigned by, EMU_HERE) {
    unsigned from = emu::lane() + by;
    return emu::shuffle({"__shfl_down_sync", file, line}, mask, v, from < 32 ? (int)from : emu::lane());
}

static inline unsigned __ballot_sync(unsigned mask, int vote, EMU_HERE) {
    const uint64_t *all = emu::exchange({"__ballot_sync", file, line}, mask, vote != 0);
    unsigned bits = 0;
    for (int i = 0; i < 32; i++) bits |= (unsigned)(all[i] & 1) << i;
    return bits;
}
template <class T>
static inline T __ldg(const T *p) { return *p; }

static inline unsigned __float_as_uint(float x) { return emu::bits_as<unsigned>(x); }
static inline float __uint_as_float(unsigned x) { return emu::bits_as<float>(x); }
static inline int __float_as_int(float x) { return emu::bits_as<int>(x); }
static inline float __int_as_float(int x) { return emu::bits_as<float>(x); }
static inline float __fmaf_rn(float a, float b, float c) { return fmaf(a, b, c); }
static inline float __double2float_rn(double x) { return (float)x; }
static inline int __popc(unsigned x) { return __builtin_popcount(x); }
static inline int __ffs(int x) { return __builtin_ffs(x); }
static inline int __clz(int x) { return x ? __builtin_clz((unsigned)x) : 32; }

static inline int __dp4a(int a, int b, int c) {
    unsigned sum = (unsigned)c;
    for (int i = 0; i < 32; i += 8) sum += (unsigned)((signed char)(a >> i) * (signed char)(b >> i));
    return (int)sum;
}

// Byte i of the result is the byte of b:a that bits [4i, 4i+3) of the selector name, or with bit 4i+3 that byte's sign in all bits.
static inline unsigned __byte_perm(unsigned a, unsigned b, unsigned selector) {
    uint64_t both = (uint64_t)b << 32 | a;
    unsigned to = 0;
    for (int i = 0; i < 4; i++) {
        unsigned at = selector >> 4 * i & 15, byte = (unsigned)(both >> (at & 7) * 8) & 255;
        to |= (at & 8 ? (byte & 128 ? 255u : 0u) : byte) << 8 * i;
    }
    return to;
}

static inline int min(int a, int b) { return a < b ? a : b; }
static inline int max(int a, int b) { return a > b ? a : b; }
static inline unsigned min(unsigned a, unsigned b) { return a < b ? a : b; }
static inline unsigned max(unsigned a, unsigned b) { return a > b ? a : b; }
static inline long long min(long long a, long long b) { return a < b ? a : b; }
static inline long long max(long long a, long long b) { return a > b ? a : b; }
// Of a number and a NaN the number; -0 is less than +0.
static inline float min(float a, float b) {
    if (a == b) return signbit(a) ? a : b;
    return a < b || b != b ? a : b;
}
static inline float max(float a, float b) {
    if (a == b) return signbit(a) ? b : a;
    return a > b || b != b ? a : b;
}

struct __half { unsigned short bits; };
typedef __half half;
static inline __half __ushort_as_half(unsigned short x) { return {x}; }
static inline unsigned short __half_as_ushort(__half x) { return x.bits; }

static inline float __half2float(__half h) {
    unsigned sign = (h.bits & 0x8000u) << 16, exp = h.bits >> 10 & 31, man = h.bits & 1023;
    if (exp == 0) return __uint_as_float(sign | __float_as_uint((float)man * 0x1p-24f));
    if (exp == 31) return __uint_as_float(man ? 0x7fffffffu : sign | 0x7f800000u);
    return __uint_as_float(sign | (exp + 112) << 23 | man << 13);
}

static inline __half __float2half_rn(float x) {
    unsigned u = __float_as_uint(x), sign = u >> 16 & 0x8000u, a = u & 0x7fffffffu;
    if (a > 0x7f800000u) return {0x7fff};
    if (a >= 0x477ff000u) return {(unsigned short)(sign | 0x7c00)}; // from 65520 on
    if (a < 0x38800000u) {                                          // below 2^-14: multiples of 2^-24
        float scaled = rintf(__uint_as_float(a) * 0x1p24f);
        return {(unsigned short)(sign | (unsigned)scaled)};
    }
    a += 0xfffu + (a >> 13 & 1); // ties to even
    return {(unsigned short)(sign | (a - 0x38000000u) >> 13)};
}
