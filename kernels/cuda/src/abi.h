// What the Go side writes into the GPU's memory: kernels/cuda/abi.go has the same structures, field by field.
#pragma once
#include "device.h"

// Act is the input of products: (rows, dim) in the forms that are read; the others are null.
struct Act {
    signed char *q, *q256;    // int8 codes with a scale per 32 or 256
    float *scale, *scale256;  // per 32, or per 256
    int *sum, *sum256;        // of the codes, per 16
    float *x;
    int dim, wanted;
};

// Delta is kernels.DeltaNet and where its layer's states lie; see states.h. The convolution's weights, tap by tap, the decay's factors and
// its biases are in vec, the inputs in `in`. From a slot, a record or a step's row to the next there are as many floats as these say.
struct Delta {
    float *slots, *records, *alpha, *beta;
    float *rows, *held;      // of delta_in for delta_walk, and room for states that walks hold
    long long slot, record, row, room;
    int key_heads, value_heads, dim, taps, channels;
    float scale;             // of queries
};

// Arrivals is what one side writes: how often it has come, and whether it has gone.
struct Arrivals {
    unsigned came, gone, pad[30];
};
// Flags is where this GPU, `there`, meets the processor, `here`: tk_flags of kernels/cpu/tk.h.
struct Flags {
    Arrivals here, there;
    long long patience;    // nanoseconds
};

// Op is one operation. A launch that does several at once gets the first of them; blockIdx.z counts them, in products blockIdx.y.
struct Op {
    const unsigned char *w;  // packed matrix (weights.h)
    const float *vec;        // norm weights, bias
    const double *freq;      // RoPE
    float *table;            // cosine and sine of (rows, turned/2), of RoPE
    float *in, *in2, *out;   // buffers
    float *parts;            // (pairs, heads, dim+2) of attention: o, m, l
    unsigned char *kv;       // pages of the cache
    int *ids;                // of TopK: see top.h
    int *route;              // (rows, used): the experts that each row chose
    float *shares;           // their weights
    long long page_bytes, head_bytes, layer_at, values, value_scales;
    Act src, dst;
    Delta delta;
    Flags *flags;               // where to meet the processor; behind a launch, or null
    const Op *tail;             // what the last block of a tile of rows does: see tail.h
    int *done;                  // blocks of each unit that have ended
    int kind, tails, spans, share;
    int wanted, dim;            // rows are the wanted ones; columns of the output
    int cols, outputs;          // of the matrix: inputs and outputs
    int from, to, add;          // outputs to compute; add to what is there
    int ld;                     // columns of the buffer in
    int heads, head_dim, turned, halves;
    int kv_heads, kv_q8, value_row, window, side, shared;
    int later;                  // of attention: kernels.AttentionOpt
    int taps, group;            // kernels.BlockConv, whose weights are columns of in2, `from` on, which has cols
    int chunks, most_wanted;    // of TopK
    int used, sigmoid, normed;  // of experts: kernels.RouteShape, RouteOpt
    int biased;                 // vec is there: bias of experts, sinks of attention
    int ahead;                  // angles: positions added to the row's
    int blank;                  // embed: a row without a token is 0
    int each;                   // of experts: vec has, behind the bias, factors of their weights
    int every, steps;           // positions that share a factor of vec, and how many it has
    int value_dim, latent;      // elements of a value (head_dim: of a key); a key is the rotated key and then the value
    int tiled;                  // of attention: parts lie as the processor's, see part_of
    float eps, scale, softcap, magnitude;
};

// Pair is a row and a block of 256 positions that it sees.
struct Pair {
    int row, block;
};

// Walk is kernels.Walk. With keep the state that it begins with goes to the first place of those that it holds, since a step needs it when
// its slot has another.
struct Walk {
    int from, first, n, keep;
};

// Step is kernels.Step. Where its state comes from: a place of those that the walk holds, or one of LOAD_. What it leaves goes to a place
// (hold; -1: none) if later steps want it that are not the next one. Without update nobody wants it.
struct Step {
    int row, record, save, walk;
    int parent;  // the step that left its state; -1: none
    int load, hold, update;
};

enum { LOAD_NONE = -1, LOAD_FIRST = -2 };  // the step before has left it; the walk begins with it

// Span is numbers that lie together, behind an address, and where they lie packed: see pack.
struct Span {
    long long at, packed, n;
};

// Pass is the rows of a pass: kernels.Pass, with the pairs in order of block and row, so that rows share the keys that they read.
struct Pass {
    const int *tokens, *pos, *turn, *store, *pages, *table, *prefix, *anc, *anc_off, *anc_len, *cut, *wanted;
    const float *given;
    const Pair *pairs;
    const int *first;      // per row: how many blocks the rows before it see
    const Walk *walks;
    const Step *steps;     // of all walks
    const float *gifts;    // what goes to buffers before anything else; see steps.h
    const Span *gives;     // where from (packed < 0: zeros) and where to
    const int *after;      // per row: the result that it follows
    int rows, nwanted, topk;
    int row_from, row_to;  // rows whose attention this launch computes, and their pairs, whose results begin at parts
    int pair_from, pair_to;
    int left;              // shares of divided products, of 4096
    int nwalks, nsteps;
    int held;              // the most states that a walk holds
    int each;              // pairs that a block of attend takes
    int blocks;            // the most that a row sees
    int ngives, nafter;
    int result;            // the results of its wanted rows begin there
};

static __device__ __forceinline__ int rows_of(const Op *op, const Pass *pass) { return op->wanted ? pass->nwanted : pass->rows; }

enum { THREADS = 256, BLOCK = 256, PAGE = 64, MOST_TOP = 64, TOP_CHUNK = 4096 };
