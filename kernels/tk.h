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

enum { TK_F32 = 0, TK_F16 = 1, TK_Q4_0 = 2, TK_Q8_0 = 8, TK_Q4_K = 12, TK_Q6_K = 14, TK_BF16 = 30, TK_TYPES = 31 };
enum { TK_GENERIC = 1, TK_AVX2 = 2, TK_AVX512 = 3 };
enum { TK_TILE = 8, TK_LANES = 16, TK_SEG = 256, TK_PAGE = 64, TK_MAXTOP = 64 };

// One block of 32 quantised activations of one row, with what every weight type needs beside it.
typedef struct {
    int8_t q[32];
    float scale, xsum;     // xsum = scale * float(sum of q)
    int32_t off8, off128;  // -8 * sum, -128 * sum
    int32_t off32[2];      // -32 * sum of each half
    int32_t pad[2];
} tk_qblock;

// An activation of W rows is cut into ceil(W/8) panels of nearly equal height, larger ones first. In the
// panel of h rows that begins at row r0, block b of row r0+i is q[(r0*blocks) + b*h + i], and element k
// is x[r0*dim + k*h + i]: a kernel walks one pointer however many rows it holds.
typedef struct { tk_qblock *q; float *x; int dim, wanted; } tk_act;
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

// One call of a matrix kernel: ng groups of 16 outputs from w on, against the h rows of a panel.
typedef struct {
    const uint8_t *w;
    size_t gbytes;  // from one group to the next
    int ng, k;      // groups, inputs
    const void *x;  // tk_qblock[k/32][h] or float[k][h]
    int h;
    float *out;     // out[i*ldo + column]
    size_t ldo;
    int cols;       // valid outputs from w on; more than 16*ng-16
    int add;        // out += instead of out =
    const uint8_t *ahead;  // weights that are wanted next,
    int lines;      // and how many of their cache lines to fetch with each 32 inputs
} tk_mm;

// Attention of queries that see the same n ≤ 256 keys of one block: the query heads that share a KV
// head, of one row or of several.
typedef struct {
    const uint16_t *const *key;  // n pointers to f16 keys; a value lies voff elements behind its key
    ptrdiff_t voff;
    int n, heads, dim;           // heads: queries
    const float *q;              // (heads, dim)
    float scale;
    float *widened, *p;          // scratch: 16*dim rounded up to 16, heads*256; 64-aligned
    float *max, *sum, *o;        // results: (heads), (heads), (heads, dim)
} tk_attn;

typedef struct {
    void (*mm[TK_TYPES])(const tk_mm *);
    void (*quantize)(const float *x, int n, tk_qblock *q, size_t stride);  // n a multiple of 32
    void (*rmsnorm)(const float *x, const float *w, int n, float eps, float *y);
    void (*silu_mul)(const float *g, const float *u, int n, float *y);
    void (*rope)(float *x, const float *c, const float *s, int n, int halves);
    void (*narrow)(const float *x, int n, uint16_t *y);
    void (*attend)(const tk_attn *);
    void (*axpy)(float c, const float *x, int n, float *y);                // y = fma(c, x, y)
    float (*expf1)(float x);
    float (*max)(const float *x, int n);                                   // NaN counts as -Inf
    float (*sum_exp)(const float *x, int n, float max);                    // NaN counts as -Inf
    int (*above)(const float *x, int from, int n, float limit);            // first i ≥ from with x[i] > limit, or n
    // What this machine can do at most: bytes read, and multiply-adds in chains that do not wait.
    void (*read)(const uint8_t *p, size_t n);                              // n a multiple of 4096
    double (*int_macs)(int rounds);                                        // returns how many it did
    double (*float_macs)(int rounds);
} tk_kernels;

void tk_quantize_block(const float *x, float top, tk_qblock *q);  // top = max |x|, or larger
const tk_kernels *tk_kernels_of(int isa);  // NULL where this machine lacks it
extern const tk_kernels tk_generic;
#if defined(__x86_64__)
extern const tk_kernels tk_avx2, tk_avx512;
#endif

double tk_int_macs(const tk_kernels *, int rounds), tk_float_macs(const tk_kernels *, int rounds);

size_t tk_group_bytes(int type, int k);
void tk_pack_group(int type, const uint8_t *src, size_t rowbytes, int rows, int k, uint8_t *dst);
void tk_unpack_row(int type, const uint8_t *group, int lane, int k, float *out);
void tk_rope_angle(int32_t pos, double freq, float *c, float *s);

typedef enum {
    TK_EMBED, TK_NORM, TK_MATMUL, TK_BIAS, TK_ANGLES, TK_ROPE, TK_STORE, TK_ATTEND, TK_SILU, TK_GATHER, TK_TOPK,
    TK_PROBE_READ, TK_PROBE_INT, TK_PROBE_FLOAT
} tk_kind;

typedef struct {
    int kind;
    int chain;        // how many row operations after this one run in the same unit
    int concurrent;   // the next operation may start before this one ends
    int wanted;       // rows are those of pass.wanted
    int dim;          // elements in a row of in
    int add, halves, layer, heads, head_dim, rope_dim;
    int type, cols, g0, g1;  // matrix: outputs, range of groups
    const uint8_t *w;
    size_t gbytes;
    const float *in, *in2, *vec;
    float *out;
    size_t ldo;
    tk_act src, dst;
    const double *freq;
    float *angles;    // (rows, 2, rope_dim/2): cosines, then sines
    float eps, scale;
    int units, grain; // of this pass
} tk_op;

typedef struct {
    int rows, nwanted, topk;
    const int32_t *tokens, *pos, *store, *pages, *table, *prefix, *anc, *anc_off, *anc_len, *wanted;
} tk_pass;

typedef struct {
    int layers, kv_heads, head_dim;
    uint8_t *arena;
} tk_kv;

// Rows [row, row+rows) attend blocks [b0, b1): one row, or several that share all those keys.
typedef struct { int row, rows, b0, b1; } tk_span;

typedef struct tk_sync tk_sync;  // how far an operation is: pool.c

typedef struct {
    tk_op *ops;
    tk_sync *sync;               // one for each operation
    int nops, max_dim;
    int max_group;               // query heads per KV head
    int broken;                  // docs/kernels.md, "A kernel that must be caught"
    tk_kv kv;
    tk_pass pass;
    const tk_kernels *k;
    tk_span *spans;              // attention of this pass; times the KV heads its units
    int nspans;
    size_t spans_cap;
    float *partial;              // attention results of single blocks
    size_t partial_cap;          // floats
    size_t *partial_at;          // per row: where its results begin
    int32_t *row_units;          // per row: units of attention in one layer
    int32_t *row_left;           // and those still to finish
    float *attn_out;             // (max rows, heads*head_dim)
    int32_t *top_ids;            // (max wanted, TK_MAXTOP)
    float *top_logits, *top_max, *top_sum;
} tk_prog;

typedef struct tk_pool tk_pool;
tk_pool *tk_pool_new(int threads, int isa, int *err);
void tk_pool_free(tk_pool *);
void tk_pool_quiet(tk_pool *);   // returns when no worker holds a program any more
int tk_pool_run(tk_pool *, tk_prog *);  // 0 or an errno

size_t tk_sync_bytes(void);

static inline int imin(int a, int b) { return a < b ? a : b; }
static inline int imax(int a, int b) { return a > b ? a : b; }
// Writes y, elements [k0, k0+n) of a row, in the forms the activation's readers want. For an int8 form
// k0 and n are multiples of 32.
void tk_fill(const tk_prog *, const tk_act *, int row, int k0, int n, const float *y);
uint16_t *tk_cell(const tk_kv *, int layer, int head, int32_t at);  // keys of a cell
ptrdiff_t tk_value_offset(const tk_kv *);                           // from keys to values, in elements
void tk_attend(const tk_prog *, const tk_op *, int unit, float *scratch);
size_t tk_attend_floats(const tk_prog *);  // of scratch

// Per-thread scratch of a program, in floats.
size_t tk_scratch_floats(const tk_prog *);
void tk_plan_pass(tk_prog *, int threads);  // fills units and grain of each operation
void tk_run_units(tk_prog *, tk_op *, int from, int to, float *scratch);
int tk_prepare_pass(tk_prog *, int threads);  // cuts attention and grows what it needs; 0 or ENOMEM
void tk_prog_release(tk_prog *);             // frees what passes grew
#endif
