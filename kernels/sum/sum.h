// The checksum of streamed weights: sums of 32-bit words and sums of these sums (J. G. Fletcher, "An arithmetic checksum for serial
// transmissions", IEEE Transactions on Communications 30, 1982), in eight lanes of 64 bits, mixed into 32 bits. No lane overflows within
// 2 MiB, so there two sums are equal only if the lanes are, or by the mixing, once in 2^32.
#ifndef TK_SUM_H
#define TK_SUM_H
#include <stddef.h>
#include <stdint.h>
#include <string.h>

enum { TK_SUM_STEP = 32 };  // bytes that go into the lanes at a time

typedef struct { uint64_t a[8], b[8]; } tk_sum;

// Adds n bytes, a multiple of TK_SUM_STEP.
static inline void tk_sum_add(tk_sum *s, const uint8_t *p, size_t n) {
    tk_sum t = *s;
    for (const uint8_t *end = p + n; p < end; p += TK_SUM_STEP) {
        uint32_t w[8];
        memcpy(w, p, sizeof w);
        for (int i = 0; i < 8; i++) {
            t.a[i] += w[i];
            t.b[i] += t.a[i];
        }
    }
    *s = t;
}

// Returns the checksum of n bytes, of which all are added but the last n % TK_SUM_STEP, which lie at rest.
static inline uint32_t tk_sum_end(tk_sum s, const uint8_t *rest, size_t n) {
    uint8_t last[TK_SUM_STEP] = {0};
    if (n % TK_SUM_STEP) {
        memcpy(last, rest, n % TK_SUM_STEP);
        tk_sum_add(&s, last, TK_SUM_STEP);
    }
    uint64_t h = n;
    const uint64_t *lanes[] = {s.a, s.b};
    for (int i = 0; i < 16; i++) {
        h = (h ^ lanes[i / 8][i % 8]) * 0x9e3779b97f4a7c15;  // 2^64 over the golden ratio
        h ^= h >> 32;
    }
    return (uint32_t)h;
}

static inline uint32_t tk_sum_of(const uint8_t *p, size_t n) {
    tk_sum s = {{0}, {0}};
    size_t whole = n - n % TK_SUM_STEP;
    tk_sum_add(&s, p, whole);
    return tk_sum_end(s, p + whole, n);
}
#endif
