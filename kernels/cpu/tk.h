// Internal interface of the C side: packed weights, quantised activations, the table of kernels of one
// instruction set, the operation list of a program, and the thread pool that runs it.
// Arithmetic is defined in docs/kernels.md; kernels/ref is its executable form.
#ifndef TK_H
#define TK_H
#include <stddef.h>
#include <stdint.h>

#ifdef __clang__
#pragma STDC FP_CONTRACT OFF
#endif

// Weight types as in GGUF files.
enum {
    TK_F32 = 0, TK_F16 = 1, TK_Q4_0 = 2, TK_Q4_1 = 3, TK_Q5_0 = 6, TK_Q5_1 = 7, TK_Q8_0 = 8, TK_Q2_K = 10, TK_Q3_K = 11,
    TK_Q4_K = 12, TK_Q5_K = 13, TK_Q6_K = 14, TK_IQ4_NL = 20, TK_IQ4_XS = 23, TK_BF16 = 30, TK_MXFP4 = 39
};
enum { TK_GENERIC = 1, TK_AVX2 = 2, TK_AVXVNNI = 3, TK_AVX512 = 4, TK_NEON = 5, TK_NEON_DOT = 6, TK_NEON_I8MM = 7 };
// Compilers before gcc 11 and clang 12 cannot make these kernels.
#if defined(__x86_64__) && (defined(__clang__) ? __clang_major__ > 11 : __GNUC__ > 10)
#define TK_HAS_AVXVNNI 1
#else
#define TK_HAS_AVXVNNI 0
#endif
enum { TK_TILE = 8, TK_LANES = 16, TK_SEG = 256, TK_PAGE = 64, TK_MAXTOP = 64, TK_PANELS = 8 };

// One block of 32 quantised activations of one row, with what every weight type needs beside it. The
// scale is that of 32 activations or of 256 (K-quants), then repeated in each of the eight blocks.
typedef struct {
    int8_t q[32];
    float scale;
    int16_t half[2];       // the sums of each half of q
    union {
        struct { int32_t off8, off16; };  // -8 * sum, -16 * sum
        int32_t lanes32[2];  // AVX2, of a scale per 256: as lanes below, but of each half and -32 *
    };
    int32_t off128;        // -128 * sum
    union {                // of a scale per 32, or of one per 256:
        struct {
            float xsum;      // scale * sum
            int32_t lanes;   // AVX2: -16 * the sums of q[4j], q[4j+1] and of q[4j+2], q[4j+3], 16 bits each
        };
        int32_t off32[2];    // -32 * sum of each half
    };
    int16_t pair[2];       // of a scale per 256, in even blocks: the sums of this block and of the next
} tk_qblock;

// An activation of W rows is cut into ceil(W/8) panels of nearly equal height, larger ones first. In the
// panel of h rows that begins at row r0, block b of row r0+i is q[(r0*blocks) + b*h + i], and element k
// is x[r0*dim + k*h + i]: a kernel walks one pointer however many rows it holds.
typedef struct { tk_qblock *q, *q256; float *x; int dim, wanted; } tk_act;
typedef struct { int r0, h; } tk_panel;
static inline int tk_panels(int rows) { return (rows + TK_TILE - 1) / TK_TILE; }
static inline tk_panel tk_panel_at(int rows, int p) {
    int t = tk_panels(rows), base = rows / t, rem = rows % t;
    tk_panel r = {p * base + (p < rem ? p : rem), base + (p < rem)};
    return r;
}
static inline tk_panel tk_panel_of(int rows, int row) {
    int t = tk_panels(rows), base = rows / t, rem = rows % t, big = rem * (base + 1);
    return tk_panel_at(rows, row < big ? row / (base + 1) : rem + (row - big) / base);
}

// One call of a matrix kernel: ng groups of 16 outputs from w on, against panels [p0, p1) of rows.
typedef struct {
    const uint8_t *w;
    size_t gbytes;  // from one group to the next
    int ng, k;      // groups, inputs
    int rows, p0, p1;  // rows of the pass, which the panels are cut from; at most TK_PANELS panels
    const tk_qblock *q;  // all rows: tk_act.q, q256 or x
    const float *x;
    float *out;     // out[row*ldo + column]
    size_t ldo;
    int cols;       // valid outputs from w on; more than 16*ng-16
    int add;        // out += instead of out =
} tk_mm;

enum { TK_WHOLE = 0, TK_LEFT = 1, TK_RIGHT = 2 };  // kernels.Side
enum { TK_KV_F16 = 0, TK_KV_Q8_0 = 1 };

// The KV cache: kernels/cpu/cache.go says how a page is laid out.
typedef struct {
    int heads, dim, value_dim;  // elements of a key and of a value
    int latent;              // compressed: a key is the rotated key and then the value
    size_t at;               // from the beginning of a page
    size_t head_bytes;       // keys and values of one KV head
    size_t values, value_row;  // from the keys of a head to its values, and from one value to the next
    size_t value_scales;     // Q8_0: from the values to their scales
} tk_kept;                   // what a layer keeps in a page, or the layer whose keys and values it reads
typedef struct {
    int type;
    const tk_kept *layers;
    size_t page_bytes;
    uint8_t *arena;
} tk_kv;

// The keys of a layer and KV head in a page.
static inline uint8_t *tk_keys(const tk_kv *kv, const tk_kept *kept, int head, int32_t page) {
    return kv->arena + page * kv->page_bytes + kept->at + head * kept->head_bytes;
}

// What a row sees of a block of 256 positions: [lo, mid) of the prefix and the cells anc of [mid, hi).
// All are 0 if it sees nothing.
typedef struct { int lo, mid, hi; const int32_t *anc; } tk_sight;
static inline int32_t tk_cell_at(const tk_sight *s, int pos) { return s->anc[pos - s->mid]; }

// Attention of one block for a KV head: rows that share a page table, `group` query heads of each.
typedef struct {
    const tk_kv *kv;
    const tk_kept *kept;
    int head, rows, group;
    const uint8_t *page[TK_SEG / TK_PAGE];   // keys of the block's pages, as far as rows see them
    const uint8_t *ahead[TK_SEG / TK_PAGE];  // keys wanted next, all or none
    const tk_sight *see;                     // per row
    const float *q;                          // row r: (group, dim) at q + r*ldq
    size_t ldq;
    float scale, softcap;
    void (*soft_cap)(float *x, int n, float cap);
    float *out;                              // row r's part at out + r*ldout: per query o (value_dim rounded up to 16),
    size_t ldout;                            // the largest score, Σ exp
} tk_attn;
static inline int tk_round16(int n) { return (n + 15) / 16 * 16; }
static inline size_t tk_part_floats(int group, int dim) { return ((size_t)group * (tk_round16(dim) + 2) + 15) / 16 * 16; }

// A delta net: kernels.DeltaNet, and where its slots and records are. A row of delta_rows holds queries, keys and values of each head, and
// then per value head g and β, per key head q·k. dim is a multiple of 16.
typedef struct {
    int key_heads, value_heads, dim, kernel, channels;
    const float *alpha, *beta, *conv, *a, *bias;  // conv: (kernel, channels)
    float scale;                 // 1/√dim
    float *slots, *records;      // this layer's part of the first ones
    size_t slot, record, row;    // floats from one to the next
    size_t matrices;             // in a slot, behind the inputs of the convolution: per value head and 16 columns (key, 16)
} tk_delta;

// kernels.Walk and Step. last: nothing needs the state that the step leaves. parent: the step that left its state, or -1.
// keep: a step begins with what slot from held, after another has saved in it.
enum { TK_HELD = 64 };
typedef struct { int32_t row, record, in, out, save, walk, parent, last; } tk_step;
typedef struct { int32_t from, first, n, keep; } tk_walk;

typedef struct {
    void (*mm)(int type, const tk_mm *);
    void (*quantize)(const float *x, int n, tk_qblock *q, size_t stride);  // n a multiple of 32
    void (*quantize256)(const float *x, int n, tk_qblock *q, size_t stride);  // n a multiple of 256
    void (*rmsnorm)(const float *x, const float *w, int n, float eps, float *y);
    void (*silu_mul)(const float *g, const float *u, int n, float *y);
    void (*gelu_mul)(const float *g, const float *u, int n, float *y);
    void (*clamped_mul)(const float *g, const float *u, int n, float *y);
    void (*blend)(const float *g, const float *x, int n, float *y);        // y = σ(g)·x + (1-σ(g))·y
    void (*soft_cap)(float *x, int n, float cap);                          // x = cap·tanh(x/cap)
    void (*rope)(float *x, const float *c, const float *s, int n, int halves);
    void (*narrow)(const float *x, int n, uint16_t *y);
    void (*attend)(const tk_attn *);
    // Joins the parts of blocks, one behind the other, to out: (group, dim). sinks, if not NULL, are the scores of the heads' sinks.
    void (*join)(const float *part, int blocks, int group, int dim, const float *sinks, float *out);
    void (*gate)(const float *g, int n, float *y);                         // y *= σ(g)
    // A step's row after convolution, for a key head and the value heads that belong to it.
    void (*delta_inputs)(const tk_delta *, const float *const *tap, const float *alpha, const float *beta, int head, float *row);
    // Takes delta_blocks blocks of 16 columns of a value head, or as many as there are from block first on, through a walk.
    void (*delta_walk)(const tk_delta *, const tk_walk *, const tk_step *, const float *rows, int head, int first, float *out,
                       float *scratch);
    int delta_blocks;
    float (*max)(const float *x, int n);                                   // NaN counts as -Inf
    float (*sum_exp)(const float *x, int n, float max);                    // NaN counts as -Inf
    int (*above)(const float *x, int from, int n, float limit);            // first i ≥ from with x[i] > limit, or n
    // What this machine can do at most: bytes read, and multiply-adds in chains that do not wait.
    void (*read)(const uint8_t *p, size_t n);                              // n a multiple of 4096
    double (*int_macs)(int rounds);                                        // returns how many it did
    double (*float_macs)(int rounds);
} tk_kernels;

// How weights are read with one or two rows, when a pass waits for memory. Changes no result.
//   TK_ALONE    as one stream, left to the processor's prefetcher; but AVX2 without VNNI fetches quantised weights ahead
//   TK_AHEAD    as one stream; types whose codes take long to unpack (nibbles, Q2_K to Q6_K; with AVX2 all) are fetched ahead
//   TK_STREAMS  as several streams, fetched ahead
enum { TK_ALONE, TK_AHEAD, TK_STREAMS };
extern int tk_reading;
int tk_reading_known(void);  // what is known to be best on this processor, or -1
// Whether AVX-512 kernels may use vpermb (VBMI). Changes no result. tk_no_permutes: not, for tests.
int tk_permutes(void);
extern int tk_no_permutes;
// One row times ng groups of Q4_K with k inputs, as it is read now: for measuring.
void tk_read_product(int isa, const uint8_t *w, int ng, int k, float *out, const tk_qblock *q);

void tk_generic_attend(const tk_attn *), tk_avx2_attend(const tk_attn *), tk_avx512_attend(const tk_attn *);
void tk_generic_join(const float *part, int blocks, int group, int dim, const float *sinks, float *out);
void tk_avx2_join(const float *part, int blocks, int group, int dim, const float *sinks, float *out);
void tk_avx512_join(const float *part, int blocks, int group, int dim, const float *sinks, float *out);
#define TK_DELTA_KERNELS(isa)                                                                                                \
    void tk_##isa##_gate(const float *g, int n, float *y);                                                                   \
    void tk_##isa##_delta_inputs(const tk_delta *, const float *const *, const float *, const float *, int, float *);        \
    void tk_##isa##_delta_walk(const tk_delta *, const tk_walk *, const tk_step *, const float *, int, int, float *, float *);
TK_DELTA_KERNELS(generic) TK_DELTA_KERNELS(avx2) TK_DELTA_KERNELS(avx512) TK_DELTA_KERNELS(neon)
void tk_quantize_block(const float *x, float top, tk_qblock *q);  // top = max |x|, or larger; with a scale per 32
void tk_generic_quantize(const float *x, int n, tk_qblock *q, size_t stride);
void tk_generic_quantize256(const float *x, int n, tk_qblock *q, size_t stride);
static inline void tk_pair(tk_qblock *q, size_t stride) {  // of block q and the next
    q->pair[0] = (int16_t)(q->half[0] + q->half[1]);
    q->pair[1] = (int16_t)(q[stride].half[0] + q[stride].half[1]);
}
void tk_generic_mm(int type, const tk_mm *);
double tk_generic_int_macs(int rounds);
const tk_kernels *tk_kernels_of(int isa);  // NULL where this machine lacks it
extern int tk_assume_avxvnni;  // for tests: AVX-VNNI is there, by emulation
extern const tk_kernels tk_generic;
#if defined(__x86_64__)
extern const tk_kernels tk_avx2, tk_avxvnni, tk_avx512;
#elif defined(__aarch64__)
extern const tk_kernels tk_neon, tk_neon_dot, tk_neon_i8mm;
#endif

double tk_int_macs(const tk_kernels *, int rounds), tk_float_macs(const tk_kernels *, int rounds);

// A segment of n ≤ 256 inputs of a packed group of quantised weights is a header (scales) and a piece of
// codes for each 32 inputs.
static inline size_t tk_header_bytes(int type, int n) {
    switch (type) {
    case TK_Q4_K: case TK_Q5_K: return 256;
    case TK_Q6_K: return 320;
    case TK_Q2_K: return 320;
    case TK_Q3_K: return 256;
    case TK_IQ4_XS: return 128;
    case TK_Q4_1: case TK_Q5_1: return (size_t)n / 32 * 64;
    case TK_MXFP4: return ((size_t)n / 2 + 63) / 64 * 64;
    }
    return ((size_t)n + 63) / 64 * 64;
}
static inline size_t tk_code_bytes(int type) {
    switch (type) {
    case TK_Q2_K: return 128;
    case TK_Q3_K: return 192;
    case TK_Q4_0: case TK_Q4_1: case TK_Q4_K: case TK_MXFP4: case TK_IQ4_NL: case TK_IQ4_XS: return 256;
    case TK_Q5_0: case TK_Q5_1: case TK_Q5_K: return 320;
    case TK_Q6_K: return 384;
    }
    return 512;
}
static inline size_t tk_segment_bytes(int type, int n) { return tk_header_bytes(type, n) + (size_t)n / 32 * tk_code_bytes(type); }

// Scale s of 16 of a lane of Q3_K, 6 bits less 32, from 12 bytes that lie 16 apart.
static inline int tk_scale3(const uint8_t *c, int s) {
    return ((s < 8 ? c[16 * s] & 15 : c[16 * (s - 8)] >> 4) | (c[16 * (8 + s % 4)] >> 2 * (s / 4) & 3) << 4) - 32;
}
// Scale b of 32 of a lane of IQ4_XS: 4 bits of bytes that lie 16 apart, 2 bits of a word before them, less 32. h: the header.
static inline int tk_scale4(const uint8_t *h, int lane, int b) {
    const uint8_t *high = h + 32 + 2 * lane;
    return ((h[64 + 16 * (b / 2) + lane] >> b % 2 * 4 & 15) | ((high[0] | high[1] << 8) >> 2 * b & 3) << 4) - 32;
}
// What a nibble of IQ4_NL and IQ4_XS stands for.
#define TK_IQ4 -127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113
static inline int tk_iq4(int nibble) {
    static const int8_t value[16] = {TK_IQ4};
    return value[nibble];
}
static inline int tk_is_iq4(int type) { return type == TK_IQ4_NL || type == TK_IQ4_XS; }
// What a nibble of MXFP4 (E2M1) stands for, twice.
static inline int tk_e2m1(int nibble) {
    static const int8_t value[8] = {0, 1, 2, 3, 4, 6, 8, 12};
    return nibble < 8 ? value[nibble] : -value[nibble - 8];
}
// A scale of MXFP4 by its exponent: half of 2^(e-127), since codes are twice their values.
static inline uint32_t tk_power_bits(int e) { return e < 2 ? 0x200000u << e : (uint32_t)(e - 1) << 23; }
static inline int tk_is_float(int type) { return type == TK_F32 || type == TK_F16 || type == TK_BF16; }
static inline int tk_has_minima(int type) { return type == TK_Q4_1 || type == TK_Q5_1; }  // floats, one per 32
static inline int tk_is_whole(int type) { return type == TK_Q2_K || type == TK_Q3_K; }  // integer sums over a segment
// Takes activations with a scale per 256.
static inline int tk_is_super(int type) { return type == TK_Q4_K || type == TK_Q5_K || type == TK_Q6_K || tk_is_whole(type); }
size_t tk_group_bytes(int type, int k);
void tk_pack_group(int type, const uint8_t *src, size_t rowbytes, int rows, int k, uint8_t *dst);
void tk_unpack_row(int type, const uint8_t *group, int lane, int k, float *out);
void tk_rope_angle(int32_t pos, double freq, float *c, float *s);

// The kinds of operations, here alone: name (TK_…, also in Go), whether it works row by row, so that it may share a unit with its
// neighbours, and what it is called where times are told. ops.c has the work of each; a kind without a case there does not compile.
#define TK_KINDS(KIND)                                                                                                          \
    KIND(EMBED, 1, "embed") KIND(NORM, 1, "norm") KIND(NORM_ADD, 1, "norm add") KIND(HEAD_NORM, 1, "head norm")                 \
    KIND(MATMUL, 0, "matmul") KIND(BIAS, 1, "bias") KIND(ANGLES, 1, "angles") KIND(ROPE, 1, "rope") KIND(STORE, 1, "store")     \
    KIND(ATTEND, 0, "attention") KIND(ATTEND_BLOCKS, 0, "attention") KIND(JOIN, 1, "join")                                      \
    KIND(SILU, 0, "gate") KIND(GELU, 0, "gate") KIND(CLAMPED, 0, "gate")                                                        \
    KIND(GATHER, 1, "gather") KIND(TOPK, 1, "top") KIND(SCALE, 1, "scale") KIND(POSITION_SCALE, 1, "position scale")            \
    KIND(SOFT_CAP, 1, "soft cap") KIND(COPY, 1, "copy") KIND(COPY_HEADS, 1, "copy heads") KIND(FEED, 1, "feed")                 \
    KIND(ADD_SILU, 1, "add silu") KIND(ADD_SCALED, 1, "add scaled") KIND(BLEND, 1, "blend")                                     \
    KIND(SIGMOID_SCALE, 1, "sigmoid scale") KIND(CHOOSE, 1, "choose experts") KIND(EXPERTS, 0, "experts")                       \
    KIND(JOIN_EXPERTS, 1, "join experts") KIND(MEET, 0, "meet") KIND(DELTA_IN, 0, "delta inputs") KIND(DELTA, 0, "delta net")   \
    KIND(BLOCK_CONV, 0, "block convolution")                                                                                    \
    KIND(PROBE_READ, 1, "probe") KIND(PROBE_INT, 1, "probe") KIND(PROBE_FLOAT, 1, "probe")
typedef enum {
#define TK_ENUM(kind, by_row, name) TK_##kind,
    TK_KINDS(TK_ENUM) TK_NKINDS
#undef TK_ENUM
} tk_kind;
typedef struct { const char *name; int by_row; } tk_kind_info;
extern const tk_kind_info tk_kinds[TK_NKINDS];

typedef struct {
    tk_kind kind;
    int chain;        // how many row operations after this one run in the same unit
    int concurrent;   // the next operation may start before this one ends
    int wanted;       // rows are those of pass.wanted
    int dim;          // elements in a row of in
    int add, halves, layer, heads, head_dim, rope_dim;
    int type, cols, g0, g1;  // matrix: outputs, range of groups in this pass
    int first_group, groups;  // all that the operation may compute
    const uint8_t *w;
    size_t gbytes;
    const uint32_t *sums;  // TK_MATMUL: checksums of the weight's groups (kernels/sum), to be compared before they are read; NULL: none
    const float *in, *in2, *vec;
    float *out;
    size_t ldo;
    const float *each;  // TK_CHOOSE: factors of the experts' weights; NULL: none
    tk_act src, dst;
    const double *freq;
    float *angles;    // (rows, 2, rope_dim/2): cosines, then sines
    float eps, scale, softcap;  // softcap 0: none
    int window;       // attention: positions seen, 0 for all
    int later;        // attention: a row sees all that the pass lists for it, later rows of its block too
    int ahead;        // TK_ANGLES: positions added to the row's
    int blank;        // TK_EMBED: a row without a token is 0
    int every, steps;  // TK_POSITION_SCALE: positions that share a factor, and how many factors vec has
    int from, to;     // TK_COPY_HEADS: the first of head_dim elements in a head of in and of out
    int taps, group, ld2;  // TK_BLOCK_CONV: kernels.BlockConv, whose weights are columns of in2, `from` on; elements in a row of in2
    int side;         // TK_MATMUL, TK_ATTEND_BLOCKS: which part of a divided operation
    int shared, parts;  // TK_ATTEND_BLOCKS, TK_JOIN: kernels.AttendBlocks, and which of tk_prog.parts
    int route, sigmoid, normed;  // of experts: which of tk_prog.routes; kernels.RouteOpt
    const tk_delta *delta;  // TK_DELTA_IN, TK_DELTA
    size_t expert_bytes;  // TK_EXPERTS: from one expert's matrix to the next
    const uint8_t **each_w;  // TK_EXPERTS: where the matrix of each of the route's list lies, if w is NULL
    int at_once;      // TK_ATTEND, TK_ATTEND_BLOCKS: KV heads of a unit
    int units;        // of this pass
    int grain, most;  // of units that a thread claims at once: multiples of grain, and at most so many
} tk_op;

// Which experts the rows of a pass have chosen: kernels.Route. A slot is a choice, row·used + rank.
typedef struct {
    int experts, used, fixed;
    int32_t *ids;              // (rows, used), best first
    float *weights;            // (rows, used)
    int32_t *slots, *first;    // those of expert e are slots[first[e]] to slots[first[e+1]-1], in order
    int32_t *list, nlist;      // experts that the pass uses, ascending
    int32_t left;              // rows that have not chosen yet
} tk_route;

typedef struct {
    int rows, nwanted, topk, left;
    const int32_t *tokens, *pos, *turn, *store, *pages, *table, *prefix, *anc, *anc_off, *anc_len, *cut, *wanted;
    const tk_walk *walks;
    const tk_step *steps;
    int nwalks, nsteps, held;  // held: states that a walk holds at most
    const float *given;  // embeddings of rows whose token is -1, -2 ...
} tk_pass;

// Neighbouring rows with one page table. Their parts are at float `part` of tk_prog.part, (KV heads, rows,
// blocks), or in the thread's scratch if one span covers them.
typedef struct { int row, rows, blocks, spans; size_t part; } tk_run;
typedef struct { int run, b0, b1, k, n; } tk_span;  // blocks [b0, b1) of a run; of a KV head's query heads the k-th of n parts
// What AttendBlocks hands over: (KV heads, rows, tk_prog.blocks) parts, the same however a pass is cut.
// Attentions with the same parts have the same KV heads of the same dim, each with a group of query heads.
typedef struct { float *mem; size_t cap; int heads, group, dim; } tk_parts;

// Where the two halves of a divided pass meet: how often each has come.
typedef struct tk_meeting tk_meeting;

// Where they meet if another device runs the other half: words in memory that both see, each with one writer. kernels/cuda/src/abi.h has
// the same structure. A side that has gone comes no more, and nobody waits for it; one that has waited for patience nanoseconds goes.
typedef struct { uint32_t came, gone, pad[30]; } tk_arrivals;
typedef struct { tk_arrivals here, there; int64_t patience; } tk_flags;

typedef struct tk_sync tk_sync;  // how far an operation is: pool.c
typedef struct { int64_t busy, wait; } tk_time;  // nanoseconds

typedef struct {
    tk_op *ops;
    tk_sync *sync;               // one for each operation
    int timed;                   // threads that add up times; 0: nobody wants to know
    tk_time *times;              // (timed, nops): each thread adds up its own
    int nops, max_dim;
    int first, end;              // operations of this call
    int max_group;               // most query heads per KV head of an attention; 0 without any
    int max_heads, min_heads;    // most and least KV heads of an attention
    tk_kv kv;
    tk_pass pass;
    const tk_kernels *k;
    tk_run *runs;                // (max rows)
    int32_t *done;               // (max rows, 1 + max_heads): per run: units of one attention whose spans are all finished, and the
                                 // finished spans of each unit; 0 between attentions
    tk_span *spans;              // attention of this pass: nspans · KV heads ÷ at_once units
    int nruns, nspans, threads;
    size_t spans_cap;
    float *part;                 // attention results of single blocks
    size_t part_cap;             // floats
    tk_route *routes;
    int nroutes;
    tk_parts *parts;
    int nparts, blocks;          // the most blocks of a row of this pass
    tk_meeting *meeting;         // NULL: no other half
    int half;                    // 0 left, 1 right
    uint32_t met;                // how often this half has come
    tk_flags *flags;             // NULL: no other device
    uint32_t second;             // how often the other device had come before
    int repeat;                  // of products and blocks of attention, for tests of slow processors: 0 and 1 are once
    float *dummy;                // where repeated products go: as many floats as the widest matrix has outputs
    float *delta_rows;           // (steps of a pass): see tk_delta
    float *attn_out;             // (max rows, heads·value_dim of the widest)
    int32_t *top_ids;            // (max wanted, TK_MAXTOP)
    float *top_logits, *top_max, *top_sum;
    int32_t wrong;               // 1 + an operation whose weight has another checksum than its sums say; 0: none
} tk_prog;

typedef struct tk_pool tk_pool;
// cores: one for each thread, on which it stays, the caller's while it runs a program; NULL: wherever the system puts them.
tk_pool *tk_pool_new(int threads, const int32_t *cores, int isa, int *err);
void tk_pool_free(tk_pool *);
void tk_pool_quiet(tk_pool *);   // returns when no worker holds a program any more
int tk_pool_run(tk_pool *, tk_prog *);  // 0 or an errno

// Two pools that run the halves of a pass at the same time. A thread of its own is the caller of the right pool.
typedef struct tk_couple tk_couple;
tk_couple *tk_couple_new(int *err);
void tk_couple_free(tk_couple *);
int tk_couple_run(tk_couple *, tk_pool *left, tk_prog *l, tk_pool *right, tk_prog *r);  // 0 or an errno
void tk_meet(tk_prog *);
static inline void tk_leave(tk_arrivals *a) { __atomic_store_n(&a->gone, 1, __ATOMIC_RELEASE); }

size_t tk_sync_bytes(void);

static inline int imin(int a, int b) { return a < b ? a : b; }
static inline int imax(int a, int b) { return a > b ? a : b; }
// Writes y, elements [k0, k0+n) of a row, in the forms the activation's readers want. For an int8 form
// k0 and n are multiples of 32.
void tk_fill(const tk_prog *, const tk_act *, int row, int k0, int n, const float *y);
void tk_store(const tk_prog *, const tk_op *, int row);  // to the row's cell
void tk_attend(const tk_prog *, const tk_op *, int unit, float *scratch);
void tk_attend_blocks(const tk_prog *, const tk_op *, int unit);
void tk_join_row(const tk_prog *, const tk_op *, int row);
float *tk_part_at(const tk_prog *, int parts, int row, int block, int head);  // o, largest score, sum; NULL for none
void tk_share_parts(tk_prog *to, const tk_prog *from);  // makes two halves hand over in the same memory
size_t tk_attend_floats(const tk_prog *, const tk_op *);  // of scratch
void tk_products(const tk_prog *, tk_mm, int type);  // all rows of m, whose p0 and p1 are filled in
// The k best of n values by (value descending, index ascending); NaN counts as -Inf.
void tk_best(const tk_kernels *, const float *x, int n, int k, int32_t *ids, float *best);
void tk_choose(const tk_prog *, const tk_op *, int row, float *scratch);
size_t tk_choose_floats(const tk_op *);
void tk_experts(const tk_prog *, const tk_op *, int from, int to, float *scratch);
size_t tk_experts_floats(const tk_prog *, const tk_op *);
void tk_fixed_routes(tk_prog *);  // fills those of a pass
int tk_experts_used(const tk_prog *, const tk_op *);  // at most, by the rows of this pass
void tk_delta_in(const tk_prog *, const tk_op *, int unit, float *scratch);
void tk_delta_walk(const tk_prog *, const tk_op *, int unit, float *scratch);
int tk_delta_groups(const tk_prog *, const tk_op *);  // units of a value head
size_t tk_delta_floats(const tk_prog *, const tk_op *);
void tk_join_experts(const tk_prog *, const tk_op *, int row, float *scratch);

// Per-thread scratch of a program, in floats.
size_t tk_scratch_floats(const tk_prog *);
void tk_divide_pass(tk_prog *, int threads);  // fills units and grain of the operations of this call
void tk_run_units(tk_prog *, tk_op *, int from, int to, float *scratch);
int tk_cut_rows(int rows, int group, int heads, int threads);  // rows of a pass, at most, whose results of attention lie in tk_prog.part
int tk_prepare_pass(tk_prog *, int threads);  // cuts attention and grows what it needs; 0 or ENOMEM
void tk_prog_release(tk_prog *);             // frees what passes grew
#endif
