// Packed weights: groups of 16 outputs, 64 bytes = 4 consecutive inputs of 16 outputs, and how a GGUF
// row gets in and out of them. docs/kernels.md draws the layouts.
#include "tk.h"
#include "scalar.h"

static size_t round64(size_t n) { return (n + 63) / 64 * 64; }

size_t tk_group_bytes(int type, int k) {
    size_t full = (size_t)k / TK_SEG, tail = (size_t)k % TK_SEG / 32;
    switch (type) {
    case TK_F32: return (size_t)k * 64;
    case TK_F16: case TK_BF16: return round64((size_t)k * 32);
    case TK_Q8_0: return full * (256 + 4096) + round64(32 * tail) + 512 * tail;
    case TK_Q4_0: return full * (256 + 2048) + round64(32 * tail) + 256 * tail;
    case TK_Q4_K: return full * 2304;
    case TK_Q6_K: return full * 3392;
    }
    return 0;
}

static void pack_float(const uint8_t *row, int size, int lane, int k, uint8_t *dst) {
    for (int i = 0; i < k; i++) memcpy(dst + ((size_t)i * 16 + lane) * size, row + (size_t)i * size, size);
}

// Puts nibble (0-15) number v*4+i of a block of 32 into the 256 bytes that hold it for 16 outputs.
static void put_nibble(uint8_t *q, int lane, int e, int nibble) {
    int v = e / 4;
    q[(v & 3) * 64 + lane * 4 + e % 4] |= (uint8_t)(v < 4 ? nibble : nibble << 4);
}

static void pack_q_0(int type, const uint8_t *row, int lane, int k, uint8_t *dst) {
    int size = type == TK_Q8_0 ? 34 : 18;
    for (int k0 = 0; k0 < k; k0 += TK_SEG) {
        int nk = k - k0 < TK_SEG ? k - k0 : TK_SEG, blocks = nk / 32;
        for (int b = 0; b < blocks; b++, row += size) {
            memcpy(dst + 32 * b + 2 * lane, row, 2);
            uint8_t *q = dst + round64(32 * (size_t)blocks) + (size_t)(type == TK_Q8_0 ? 512 : 256) * b;
            for (int i = 0; i < 32; i++) {
                if (type == TK_Q8_0) q[i / 4 * 64 + lane * 4 + i % 4] = row[2 + i] ^ 0x80;
                else put_nibble(q, lane, i, i < 16 ? row[2 + i] & 15 : row[2 + i - 16] >> 4);
            }
        }
        dst += tk_group_bytes(type, nk);
    }
}

static void pack_q4_k(const uint8_t *row, int lane, int k, uint8_t *dst) {
    for (; k > 0; k -= TK_SEG, row += 144, dst += 2304) {
        memcpy(dst + 2 * lane, row, 2);
        memcpy(dst + 32 + 2 * lane, row + 2, 2);
        for (int i = 0; i < 12; i++) dst[64 + 16 * i + lane] = row[4 + i];
        for (int e = 0; e < TK_SEG; e++) {
            uint8_t byte = row[16 + e / 64 * 32 + e % 32];
            put_nibble(dst + 256 + 256 * (e / 32), lane, e % 32, e % 64 < 32 ? byte & 15 : byte >> 4);
        }
    }
}

static int q6_code(const uint8_t *row, int e) {
    int half = e / 128, part = e % 128 / 32, i = e % 32;
    uint8_t lo = row[half * 64 + (part & 1) * 32 + i], hi = row[128 + half * 32 + i];
    return (part < 2 ? lo & 15 : lo >> 4) | (hi >> 2 * part & 3) << 4;
}

static void pack_q6_k(const uint8_t *row, int lane, int k, uint8_t *dst) {
    for (; k > 0; k -= TK_SEG, row += 210, dst += 3392) {
        memcpy(dst + 2 * lane, row + 208, 2);
        for (int i = 0; i < 16; i++) dst[64 + 16 * i + lane] = row[192 + i];
        for (int e = 0; e < TK_SEG; e++) {
            int code = q6_code(row, e), v = e % 32 / 4;
            uint8_t *q = dst + 320 + 384 * (e / 32);
            put_nibble(q, lane, e % 32, code & 15);
            q[256 + (v & 1) * 64 + lane * 4 + e % 4] |= (uint8_t)(code >> 4 << 2 * (v >> 1));
        }
    }
}

// Packs `rows` ≤ 16 rows of GGUF bytes into one group; absent rows become zeros.
void tk_pack_group(int type, const uint8_t *src, size_t rowbytes, int rows, int k, uint8_t *dst) {
    memset(dst, 0, tk_group_bytes(type, k));
    for (int l = 0; l < rows; l++, src += rowbytes) {
        switch (type) {
        case TK_F32: pack_float(src, 4, l, k, dst); break;
        case TK_F16: case TK_BF16: pack_float(src, 2, l, k, dst); break;
        case TK_Q8_0: case TK_Q4_0: pack_q_0(type, src, l, k, dst); break;
        case TK_Q4_K: pack_q4_k(src, l, k, dst); break;
        case TK_Q6_K: pack_q6_k(src, l, k, dst); break;
        }
    }
}

static int get_nibble(const uint8_t *q, int lane, int e) {
    int v = e / 4;
    uint8_t byte = q[(v & 3) * 64 + lane * 4 + e % 4];
    return v < 4 ? byte & 15 : byte >> 4;
}

static void unpack_q_0(int type, const uint8_t *g, int lane, int k, float *out) {
    for (int k0 = 0; k0 < k; k0 += TK_SEG) {
        int nk = k - k0 < TK_SEG ? k - k0 : TK_SEG, blocks = nk / 32;
        for (int e = 0; e < nk; e++) {
            const uint8_t *q = g + round64(32 * (size_t)blocks) + (size_t)(type == TK_Q8_0 ? 512 : 256) * (e / 32);
            float d = f16_f32(load_u16(g + 32 * (e / 32) + 2 * lane));
            int i = e % 32;
            int v = type == TK_Q8_0 ? q[i / 4 * 64 + lane * 4 + i % 4] - 128 : get_nibble(q, lane, i) - 8;
            *out++ = d * (float)v;
        }
        g += tk_group_bytes(type, nk);
    }
}

static void unpack_q4_k(const uint8_t *g, int lane, int k, float *out) {
    for (; k > 0; k -= TK_SEG, g += 2304) {
        float d = f16_f32(load_u16(g + 2 * lane)), dmin = f16_f32(load_u16(g + 32 + 2 * lane));
        const uint8_t *c = g + 64 + lane;
        for (int s = 0; s < 8; s++) {
            int sc = s < 4 ? c[16 * s] & 63 : (c[16 * (s + 4)] & 15) | (c[16 * (s - 4)] >> 6) << 4;
            int m = s < 4 ? c[16 * (s + 4)] & 63 : c[16 * (s + 4)] >> 4 | (c[16 * s] >> 6) << 4;
            float ws = d * (float)sc, wm = dmin * (float)m;
            for (int i = 0; i < 32; i++) {
                float t = ws * (float)get_nibble(g + 256 + 256 * s, lane, i);
                *out++ = t - wm;
            }
        }
    }
}

static void unpack_q6_k(const uint8_t *g, int lane, int k, float *out) {
    for (; k > 0; k -= TK_SEG, g += 3392) {
        float d = f16_f32(load_u16(g + 2 * lane));
        for (int e = 0; e < TK_SEG; e++) {
            const uint8_t *q = g + 320 + 384 * (e / 32);
            int v = e % 32 / 4;
            int hi = q[256 + (v & 1) * 64 + lane * 4 + e % 4] >> 2 * (v >> 1) & 3;
            float ws = d * (float)(int8_t)g[64 + 16 * (e / 16) + lane];
            *out++ = ws * (float)((get_nibble(q, lane, e % 32) | hi << 4) - 32);
        }
    }
}

void tk_unpack_row(int type, const uint8_t *g, int lane, int k, float *out) {
    switch (type) {
    case TK_F32: for (int i = 0; i < k; i++) memcpy(out + i, g + ((size_t)i * 16 + lane) * 4, 4); break;
    case TK_F16: for (int i = 0; i < k; i++) out[i] = f16_f32(load_u16(g + ((size_t)i * 16 + lane) * 2)); break;
    case TK_BF16: for (int i = 0; i < k; i++) out[i] = bf16_f32(load_u16(g + ((size_t)i * 16 + lane) * 2)); break;
    case TK_Q8_0: case TK_Q4_0: unpack_q_0(type, g, lane, k, out); break;
    case TK_Q4_K: unpack_q4_k(g, lane, k, out); break;
    case TK_Q6_K: unpack_q6_k(g, lane, k, out); break;
    }
}
