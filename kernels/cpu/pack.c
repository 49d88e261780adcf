// Packed weights: groups of 16 outputs, 64 bytes = 4 consecutive inputs of 16 outputs, and how a GGUF
// row gets in and out of them. docs/kernels.md draws the layouts.
#include "tk.h"
#include "scalar.h"

static size_t round64(size_t n) { return (n + 63) / 64 * 64; }
static uint32_t load_u32(const uint8_t *p) { uint32_t v; memcpy(&v, p, 4); return v; }
static void put_u32(uint8_t *p, uint32_t v) { memcpy(p, &v, 4); }

size_t tk_group_bytes(int type, int k) {
    int full = k / TK_SEG, tail = k % TK_SEG;
    switch (type) {
    case TK_F32: return (size_t)k * 64;
    case TK_F16: case TK_BF16: return round64((size_t)k * 32);
    }
    return full * tk_segment_bytes(type, TK_SEG) + (tail ? tk_segment_bytes(type, tail) : 0);
}

static void pack_float(const uint8_t *row, int size, int lane, int k, uint8_t *dst) {
    for (int i = 0; i < k; i++) memcpy(dst + ((size_t)i * 16 + lane) * size, row + (size_t)i * size, size);
}

// A block's 32 codes, 4 to a word, in the layouts of the packed types; q is the block's piece.
static void put_bytes(uint8_t *q, int lane, const uint32_t *code) {
    for (int j = 0; j < 8; j++) put_u32(q + 64 * j + 4 * lane, code[j]);
}
static void put_nibbles(uint8_t *q, int lane, const uint32_t *code) {
    for (int j = 0; j < 4; j++) put_u32(q + 64 * j + 4 * lane, (code[j] & 0x0f0f0f0f) | (code[j + 4] & 0x0f0f0f0f) << 4);
}
// Eight words of codes in five: the upper three bits of five words hold the other three.
static void put_fives(uint8_t *q, int lane, const uint32_t *code) {
    const uint32_t *c = code, low = 0x07070707, two = 0x03030303, one = 0x01010101;
    put_u32(q + 4 * lane, c[0] | (c[5] & low) << 5);
    put_u32(q + 64 + 4 * lane, c[1] | (c[5] >> 3 & two) << 5 | (c[7] >> 3 & one) << 7);
    put_u32(q + 128 + 4 * lane, c[2] | (c[6] & low) << 5);
    put_u32(q + 192 + 4 * lane, c[3] | (c[6] >> 3 & two) << 5 | (c[7] >> 4 & one) << 7);
    put_u32(q + 256 + 4 * lane, c[4] | (c[7] & low) << 5);
}
// Four words of codes in three: the upper bits of three words hold the fourth.
static void put_sixes(uint8_t *q, int lane, const uint32_t *code) {
    for (int j = 0; j < 8; j += 4)
        for (int i = 0; i < 3; i++)
            put_u32(q + 48 * j + 64 * i + 4 * lane, code[j + i] | (code[j + 3] >> 2 * i & 0x03030303) << 6);
}
// Four words of codes in one, for each half.
static void put_twos(uint8_t *q, int lane, const uint32_t *code) {
    for (int i = 0; i < 2; i++, code += 4) put_u32(q + 64 * i + 4 * lane, code[0] | code[1] << 2 | code[2] << 4 | code[3] << 6);
}
// Eight words of codes in three: two words hold two codes of each half and, in their upper bits, the low bits of its last one; the third
// holds the code between them of each half, and the last ones' high bits.
static void put_threes(uint8_t *q, int lane, const uint32_t *code) {
    const uint32_t *c = code, two = 0x03030303, one = 0x01010101;
    put_u32(q + 4 * lane, c[0] | c[1] << 3 | (c[3] & two) << 6);
    put_u32(q + 64 + 4 * lane, c[4] | c[5] << 3 | (c[7] & two) << 6);
    put_u32(q + 128 + 4 * lane, c[2] | c[6] << 3 | (c[3] >> 2 & one) << 6 | (c[7] >> 2 & one) << 7);
}
static void put_codes(int type, uint8_t *q, int lane, const uint32_t *code) {
    switch (type) {
    case TK_Q4_0: case TK_Q4_1: case TK_Q4_K: case TK_MXFP4: case TK_IQ4_NL: case TK_IQ4_XS: put_nibbles(q, lane, code); break;
    case TK_Q5_0: case TK_Q5_1: case TK_Q5_K: put_fives(q, lane, code); break;
    case TK_Q6_K: put_sixes(q, lane, code); break;
    case TK_Q2_K: put_twos(q, lane, code); break;
    case TK_Q3_K: put_threes(q, lane, code); break;
    default: put_bytes(q, lane, code);
    }
}

// Byte i of word j is element 4j+i of the 16 low and 16 high nibbles of 16 bytes.
static void half_nibbles(const uint8_t *p, uint32_t *code) {
    for (int j = 0; j < 4; j++) {
        uint32_t w = load_u32(p + 4 * j);
        code[j] = w & 0x0f0f0f0f;
        code[j + 4] = w >> 4 & 0x0f0f0f0f;
    }
}
static void add_bits(uint32_t bits, uint32_t *code) {  // bit e becomes bit 4 of element e
    for (int j = 0; j < 8; j++) code[j] |= ((bits >> 4 * j & 15) * 0x00204081 & 0x01010101) << 4;
}

// A block of 32 of a type with one scale: its codes, and at header the scale (and minimum).
static void pack_small(int type, const uint8_t *row, int lane, uint8_t *header, uint32_t *code) {
    switch (type) {
    case TK_Q8_0: for (int j = 0; j < 8; j++) code[j] = load_u32(row + 2 + 4 * j) ^ 0x80808080; break;
    case TK_Q4_0: case TK_IQ4_NL: half_nibbles(row + 2, code); break;
    case TK_Q5_0: half_nibbles(row + 6, code); add_bits(load_u32(row + 2), code); break;
    case TK_Q4_1: half_nibbles(row + 4, code); break;
    case TK_Q5_1: half_nibbles(row + 8, code); add_bits(load_u32(row + 4), code); break;
    case TK_MXFP4: half_nibbles(row + 1, code); header[lane] = row[0]; return;
    }
    memcpy(header + 2 * lane, row, 2);
    if (tk_has_minima(type)) memcpy(header + 32 + 2 * lane, row + 2, 2);
}

static int small_bytes(int type) {
    switch (type) {
    case TK_MXFP4: return 17;
    case TK_Q4_0: case TK_IQ4_NL: return 18;
    case TK_Q4_1: return 20;
    case TK_Q5_0: return 22;
    case TK_Q5_1: return 24;
    case TK_Q8_0: return 34;
    }
    return 0;
}

static void pack_smalls(int type, const uint8_t *row, int lane, int k, uint8_t *dst) {
    int size = small_bytes(type), step = tk_has_minima(type) ? 64 : type == TK_MXFP4 ? 16 : 32;
    uint32_t code[8];
    for (; k > 0; k -= TK_SEG) {
        int n = k < TK_SEG ? k : TK_SEG;
        uint8_t *q = dst + tk_header_bytes(type, n);
        for (int b = 0; b < n / 32; b++, row += size, q += tk_code_bytes(type)) {
            pack_small(type, row, lane, dst + step * b, code);
            put_codes(type, q, lane, code);
        }
        dst = q;
    }
}

// Block b of 32 codes of a block of 256 of a file.
static void super_codes(int type, const uint8_t *row, int b, uint32_t *code) {
    int half = b / 4, part = b % 4, high = b % 2 * 4;
    for (int j = 0; j < 8; j++) {
        const uint8_t *at = row + 4 * j;
        switch (type) {
        case TK_Q2_K: code[j] = (load_u32(at + 16 + half * 32) >> 2 * part & 0x03030303); break;
        case TK_Q3_K:
            code[j] = (load_u32(at + 32 + half * 32) >> 2 * part & 0x03030303) | (load_u32(at) >> b & 0x01010101) << 2;
            break;
        case TK_Q4_K: code[j] = load_u32(at + 16 + b / 2 * 32) >> high & 0x0f0f0f0f; break;
        case TK_Q5_K: code[j] = (load_u32(at + 48 + b / 2 * 32) >> high & 0x0f0f0f0f) | (load_u32(at + 16) >> b & 0x01010101) << 4; break;
        case TK_Q6_K:
            code[j] = (load_u32(at + half * 64 + (part & 1) * 32) >> (part & 2) * 2 & 0x0f0f0f0f) |
                      (load_u32(at + 128 + half * 32) >> 2 * part & 0x03030303) << 4;
        }
    }
    if (type == TK_IQ4_XS) half_nibbles(row + 8 + 16 * b, code);
}

// The scales of a block of 256, one lane's share of the header.
static void super_scales(int type, const uint8_t *row, int lane, uint8_t *h) {
    switch (type) {
    case TK_Q4_K: case TK_Q5_K:
        memcpy(h + 2 * lane, row, 2);
        memcpy(h + 32 + 2 * lane, row + 2, 2);
        for (int i = 0; i < 12; i++) h[64 + 16 * i + lane] = row[4 + i];
        break;
    case TK_Q6_K:
        memcpy(h + 2 * lane, row + 208, 2);
        for (int i = 0; i < 16; i++) h[64 + 16 * i + lane] = row[192 + i];
        break;
    case TK_Q2_K:
        memcpy(h + 2 * lane, row + 80, 2);
        memcpy(h + 32 + 2 * lane, row + 82, 2);
        for (int i = 0; i < 16; i++) h[64 + 16 * i + lane] = row[i];
        break;
    case TK_Q3_K:
        memcpy(h + 2 * lane, row + 108, 2);
        for (int i = 0; i < 12; i++) h[64 + 16 * i + lane] = row[96 + i];
        break;
    case TK_IQ4_XS:
        memcpy(h + 2 * lane, row, 2);
        memcpy(h + 32 + 2 * lane, row + 2, 2);
        for (int i = 0; i < 4; i++) h[64 + 16 * i + lane] = row[4 + i];
        break;
    }
}

static int super_bytes(int type) {
    switch (type) {
    case TK_Q2_K: return 84;
    case TK_Q3_K: return 110;
    case TK_Q4_K: return 144;
    case TK_Q5_K: return 176;
    case TK_Q6_K: return 210;
    case TK_IQ4_XS: return 136;
    }
    return 0;
}

static void pack_super(int type, const uint8_t *row, int lane, int k, uint8_t *dst) {
    int size = super_bytes(type);
    size_t piece = tk_code_bytes(type), header = tk_header_bytes(type, TK_SEG);
    uint32_t code[8];
    for (; k > 0; k -= TK_SEG, row += size, dst += header + 8 * piece) {
        super_scales(type, row, lane, dst);
        for (int b = 0; b < 8; b++) {
            super_codes(type, row, b, code);
            put_codes(type, dst + header + b * piece, lane, code);
        }
    }
}

// Packs `rows` ≤ 16 rows of GGUF bytes into one group; absent rows become zeros.
void tk_pack_group(int type, const uint8_t *src, size_t rowbytes, int rows, int k, uint8_t *dst) {
    memset(dst, 0, tk_group_bytes(type, k));
    for (int l = 0; l < rows; l++, src += rowbytes) {
        if (type == TK_F32) pack_float(src, 4, l, k, dst);
        else if (tk_is_float(type)) pack_float(src, 2, l, k, dst);
        else if (small_bytes(type)) pack_smalls(type, src, l, k, dst);
        else pack_super(type, src, l, k, dst);
    }
}

// Code e of a lane, as it is stored.
static int code_at(int type, const uint8_t *q, int lane, int e) {
    int v = e / 4, at = lane * 4 + e % 4;
    size_t piece = tk_code_bytes(type);
    if (piece == 512) return q[v * 64 + at];
    if (piece == 384) {
        q += 192 * (v / 4) + at;
        return v % 4 < 3 ? q[64 * (v % 4)] & 63 : q[0] >> 6 | (q[64] >> 6) << 2 | (q[128] >> 6) << 4;
    }
    if (piece == 128) return q[64 * (v / 4) + at] >> 2 * (v % 4) & 3;
    if (piece == 192) {
        const uint8_t *t = q + 64 * (v / 4) + at, *u = q + 128 + at;
        int high = v / 4;
        return v % 4 < 2 ? *t >> 3 * (v % 4) & 7 : v % 4 == 2 ? *u >> 3 * high & 7 : *t >> 6 | (*u >> (6 + high) & 1) << 2;
    }
    if (piece == 320) {
        const uint8_t *t = q + at + 128 * (v - 5);
        if (v < 5) return q[64 * v + at] & 31;
        if (v < 7) return t[0] >> 5 | (t[64] >> 5 & 3) << 3;
        return t[0] >> 5 | (q[64 + at] >> 7) << 3 | (q[192 + at] >> 7) << 4;
    }
    return q[(v & 3) * 64 + at] >> (v < 4 ? 0 : 4) & 15;
}

// Scale and minimum of the 16 or 32 weights at block b, half `half`, of a lane.
static void scale_at(int type, const uint8_t *h, int lane, int b, int half, float *scale, float *min) {
    const uint8_t *c = h + 64 + lane;
    *min = 0;
    switch (type) {
    case TK_Q4_K: case TK_Q5_K: {
        int sc = b < 4 ? c[16 * b] & 63 : (c[16 * (b + 4)] & 15) | (c[16 * (b - 4)] >> 6) << 4;
        int m = b < 4 ? c[16 * (b + 4)] & 63 : c[16 * (b + 4)] >> 4 | (c[16 * b] >> 6) << 4;
        *scale = f16_f32(load_u16(h + 2 * lane)) * (float)sc;
        *min = f16_f32(load_u16(h + 32 + 2 * lane)) * (float)m;
        return;
    }
    case TK_Q6_K: *scale = f16_f32(load_u16(h + 2 * lane)) * (float)(int8_t)c[16 * (2 * b + half)]; return;
    case TK_Q2_K: {
        int v = c[16 * (2 * b + half)];
        *scale = f16_f32(load_u16(h + 2 * lane)) * (float)(v & 15);
        *min = f16_f32(load_u16(h + 32 + 2 * lane)) * (float)(v >> 4);
        return;
    }
    case TK_Q3_K: *scale = f16_f32(load_u16(h + 2 * lane)) * (float)tk_scale3(c, 2 * b + half); return;
    case TK_MXFP4: *scale = bits_f32(tk_power_bits(h[16 * b + lane])); return;
    case TK_IQ4_XS: *scale = f16_f32(load_u16(h + 2 * lane)) * (float)tk_scale4(h, lane, b); return;
    case TK_Q4_1: case TK_Q5_1:
        *scale = f16_f32(load_u16(h + 64 * b + 2 * lane));
        *min = -f16_f32(load_u16(h + 64 * b + 32 + 2 * lane));
        return;
    }
    *scale = f16_f32(load_u16(h + 32 * b + 2 * lane));
}

// What a stored code stands for.
static int value_of(int type, int code) {
    switch (type) {
    case TK_Q3_K: return code - 4;
    case TK_Q4_0: return code - 8;
    case TK_Q5_0: return code - 16;
    case TK_Q6_K: return code - 32;
    case TK_Q8_0: return code - 128;
    case TK_MXFP4: return tk_e2m1(code);
    case TK_IQ4_NL: case TK_IQ4_XS: return tk_iq4(code);
    }
    return code;
}

static void unpack_quant(int type, const uint8_t *g, int lane, int k, float *out) {
    float scale = 0, min = 0;
    for (; k > 0; k -= TK_SEG) {
        int n = k < TK_SEG ? k : TK_SEG;
        const uint8_t *q = g + tk_header_bytes(type, n);
        for (int b = 0; b < n / 32; b++, q += tk_code_bytes(type)) {
            if (type == TK_Q8_0) {  // the usual one, of embeddings: the same without choices
                scale_at(type, g, lane, b, 0, &scale, &min);
                for (int e = 0; e < 32; e++) *out++ = scale * (float)(q[e / 4 * 64 + lane * 4 + e % 4] - 128) - min;
                continue;
            }
            for (int e = 0; e < 32; e++) {
                if (e % 16 == 0) scale_at(type, g, lane, b, e / 16, &scale, &min);
                float t = scale * (float)value_of(type, code_at(type, q, lane, e));
                *out++ = t - min;
            }
        }
        g = q;
    }
}

void tk_unpack_row(int type, const uint8_t *g, int lane, int k, float *out) {
    switch (type) {
    case TK_F32: for (int i = 0; i < k; i++) memcpy(out + i, g + ((size_t)i * 16 + lane) * 4, 4); break;
    case TK_F16: for (int i = 0; i < k; i++) out[i] = f16_f32(load_u16(g + ((size_t)i * 16 + lane) * 2)); break;
    case TK_BF16: for (int i = 0; i < k; i++) out[i] = bf16_f32(load_u16(g + ((size_t)i * 16 + lane) * 2)); break;
    default: unpack_quant(type, g, lane, k, out);
    }
}
