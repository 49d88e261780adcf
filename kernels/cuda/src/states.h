// Delta nets: kernels.DeltaNet, and slots of recurrent states. kernels/ref/delta.go has the formulas.
//
// A launch of delta_in brings every step's row through the convolution, then one of delta_walk takes the states through the steps of their
// walks. A slot and a record have a part for each layer. In a slot that is the inputs of the convolution, oldest first, and a matrix (key,
// column) for each value head; in a record the row's in, alpha and beta.
#pragma once
#include "arith.h"

// input_of returns where the input of the convolution lies that stands so many rows before a step's; null stands for zeros.
static __device__ const float *input_of(const Op *op, const Pass *pass, const Walk *w, int step, int back) {
    const Delta &d = op->delta;
    for (; back > 0 && step >= 0; back--) step = pass->steps[step].parent;
    if (step < 0) return w->from < 0 ? nullptr : d.slots + w->from * d.slot + (size_t)(d.taps - 2 - back) * d.channels;
    const Step &s = pass->steps[step];
    return s.row >= 0 ? op->in + (size_t)s.row * d.channels : d.records + s.record * d.record;
}

static __device__ __forceinline__ float softplus(float x) {
    float y = exp_of(-fabsf(x)), s = y / (2.0f + y), z = s * s, p = 1.0f / 17;
    p = __fmaf_rn(p, z, 1.0f / 15);
    p = __fmaf_rn(p, z, 1.0f / 13);
    p = __fmaf_rn(p, z, 1.0f / 11);
    p = __fmaf_rn(p, z, 1.0f / 9);
    p = __fmaf_rn(p, z, 1.0f / 7);
    p = __fmaf_rn(p, z, 1.0f / 5);
    p = __fmaf_rn(p, z, 1.0f / 3);
    s += s;
    float l = __fmaf_rn(p * z, s, s);
    return x > 0 ? x + l : l;
}

// delta_in computes a key head of a step, with the value heads that belong to it: (steps, key heads) blocks of THREADS. Shared memory holds
// an address for each tap, a query, a key, and 2 numbers. What delta_walk reads goes to delta.rows: queries, keys and values as the
// channels lie, then the decay and the strength of each value head, then the product of query and key of each key head.
KERNEL(delta_in) {
    SHARED(const float *, tap);
    const Delta &d = op->delta;
    int step = blockIdx.x, head = blockIdx.y, t = threadIdx.x, dim = d.dim, keys = d.key_heads, values = d.value_heads;
    if (step >= pass->nsteps || head >= keys) return;
    const Step &s = pass->steps[step];
    float *qk = (float *)(tap + d.taps), *box = qk + 2 * dim;  // the query, then the key
    float *row = d.rows + step * d.row, *more = row + d.channels, *record = s.record >= 0 ? d.records + s.record * d.record : nullptr;
    for (int j = t; j < d.taps; j += THREADS) tap[j] = input_of(op, pass, pass->walks + s.walk, step, d.taps - 1 - j);
    __syncthreads();
    int recording = s.row >= 0 && s.record >= 0;
    for (int i = t; i < (2 + values / keys) * dim; i += THREADS) {
        int c = (head + i / dim * keys) * dim + i % dim;
        float a = 0;
        for (int j = 0; j < d.taps; j++) a = __fmaf_rn(op->vec[(size_t)j * d.channels + c], tap[j] ? tap[j][c] : 0.0f, a);
        a /= 1.0f + exp_of(-a);
        if (i < 2 * dim) qk[i] = a;
        else row[c] = a;
        if (recording) record[c] = tap[d.taps - 1][c];
    }
    __syncthreads();
    int lane = t % 16;
    if (t < 32) {
        const float *x = qk + t / 16 * dim;
        float a = 0;
        for (int i = lane; i < dim; i += 16) a = __fmaf_rn(x[i], x[i], a);
        a = add16(a);
        if (lane == 0) box[t / 16] = 1.0f / sqrtf(a + 1e-6f);
    }
    __syncthreads();
    for (int i = t; i < 2 * dim; i += THREADS) {
        qk[i] = qk[i] * box[i / dim] * (i < dim ? d.scale : 1.0f);
        row[(size_t)(head + i / dim * keys) * dim + i % dim] = qk[i];
    }
    __syncthreads();
    if (t < 32) {
        float a = 0;
        for (int i = lane; i < dim; i += 16) a = __fmaf_rn(qk[i], qk[dim + i], a);
        a = add16(a);
        if (t == 0) more[2 * values + head] = a;
    }
    const float *alpha = d.alpha + (size_t)s.row * values, *beta = d.beta + (size_t)s.row * values;
    if (s.row < 0) {
        alpha = record + d.channels;
        beta = alpha + values;
    }
    const float *a = op->vec + (size_t)d.taps * d.channels, *bias = a + values;
    for (int j = head + t * keys; j < values; j += THREADS * keys) {
        more[j] = exp_of(a[j] * softplus(alpha[j] + bias[j]));
        more[values + j] = sigmoid(beta[j]);
        if (!recording) continue;
        record[d.channels + j] = alpha[j];
        record[d.channels + values + j] = beta[j];
    }
}

// A thread of delta_walk keeps SEGMENT keys of a column of a state's matrix in registers, from the first step to the last.
enum { COLUMNS = 32, SEGMENT = 32, MOST_DELTA = 512 };

struct Column {
    float m[SEGMENT];
};

// Loops over a column have a fixed number of turns, so that it stays in registers: n are there.
#define FOR_KEY(i, n)  \
    _Pragma("unroll") \
    for (int i = 0; i < SEGMENT; i++) \
        if (i < (n))

static __device__ __forceinline__ void load_column(Column &c, const float *from, size_t step, int n) {
    FOR_KEY(i, n) c.m[i] = from[i * step];
}

static __device__ __forceinline__ void store_column(const Column &c, float *to, size_t step, int n) {
    FOR_KEY(i, n) to[i * step] = c.m[i];
}

// sums_of adds up the column times the key, and times the query.
static __device__ __forceinline__ float2 sums_of(const Column &c, const float *key, const float *query, int n) {
    float s = 0, u = 0;
    FOR_KEY(i, n) {
        s = __fmaf_rn(key[i], c.m[i], s);
        u = __fmaf_rn(query[i], c.m[i], u);
    }
    return make_float2(s, u);
}

static __device__ __forceinline__ void change(Column &c, const float *key, float d, float g, int n) {
    FOR_KEY(i, n) c.m[i] = __fmaf_rn(key[i], d, g * c.m[i]);
}

// save_inputs puts the inputs of the convolution behind a step into its slot, for one channel. Those of the slot that the walk began with
// move towards its beginning, so the oldest comes first.
static __device__ void save_inputs(const Op *op, const Pass *pass, const Walk *w, int step, int channel) {
    const Delta &d = op->delta;
    float *slot = d.slots + pass->steps[step].save * d.slot + channel;
    for (int j = 1; j < d.taps; j++, slot += d.channels) {
        const float *in = input_of(op, pass, w, step, d.taps - 1 - j);
        *slot = in ? in[channel] : 0.0f;
    }
}

// take_through takes COLUMNS columns of a value head of a walk through its steps. n is the keys of a thread's segment, sums (segments,
// COLUMNS) of shared memory for one step and as many for the next, in turn, held where the states lie that the walk holds, part from one
// to the next. It returns whose turn it is.
static __device__ __forceinline__ int take_through(const Op *op, const Pass *pass, const Walk *w, int head, int group, int n,
                                                   float2 *sums, int turn, float *held, size_t part) {
    const Delta &d = op->delta;
    int lane = threadIdx.x, dim = d.dim, first = threadIdx.y * SEGMENT, segments = blockDim.y, column = group * COLUMNS + lane;
    int in = column < dim, have = in ? n : 0, keys = d.key_heads, values = d.value_heads;
    float *slots = d.slots + (size_t)(d.taps - 1) * d.channels + ((size_t)head * dim + first) * dim + column;
    float *own = held + first * COLUMNS + lane;
    Column c = {};
    if (w->keep) {
        load_column(c, slots + w->from * d.slot, dim, have);
        store_column(c, own, COLUMNS, have);
    }
    for (int i = w->first; i < w->first + w->n; i++, turn ^= 1) {
        const Step &x = pass->steps[i];
        const float *row = d.rows + i * d.row, *query = row + (size_t)(head % keys) * dim + first, *key = query + (size_t)keys * dim;
        const float *more = row + d.channels;
        if (x.load >= 0) load_column(c, own + x.load * part, COLUMNS, have);
        else if (x.load == LOAD_FIRST && w->from >= 0) load_column(c, slots + w->from * d.slot, dim, have);
        else if (x.load == LOAD_FIRST) c = Column();
        float2 *all = sums + (size_t)turn * segments * COLUMNS;
        all[threadIdx.y * COLUMNS + lane] = sums_of(c, key, query, n);
        __syncthreads();
        float s = 0, u = 0, g = more[head];
        for (int j = 0; j < segments; j++) {
            s += all[j * COLUMNS + lane].x;
            u += all[j * COLUMNS + lane].y;
        }
        float v = in ? row[(size_t)(2 * keys + head) * dim + column] : 0.0f, e = more[values + head] * __fmaf_rn(-g, s, v);
        if (in && threadIdx.y == 0 && x.row >= 0)
            op->out[((size_t)x.row * values + head) * dim + column] = __fmaf_rn(more[2 * values + head % keys], e, g * u);
        if (!x.update) continue;
        change(c, key, e, g, n);
        if (x.hold >= 0) store_column(c, own + x.hold * part, COLUMNS, have);
        if (x.save >= 0) store_column(c, slots + x.save * d.slot, dim, have);
    }
    return turn;
}

// take_ragged is take_through if the last segment has fewer keys: a function of its own, so that it takes no registers from the usual case.
static __device__ APART int take_ragged(const Op *op, const Pass *pass, const Walk *w, int head, int group, int n, float2 *sums, int turn,
                                        float *held, size_t part) {
    return take_through(op, pass, w, head, group, n, sums, turn, held, part);
}

// delta_walk has a block for each COLUMNS columns of each value head of each walk, or fewer that each take several of them, of (COLUMNS,
// segments) threads. Shared memory holds (2, 2, segments, COLUMNS) numbers.
KERNEL_OF(__launch_bounds__(MOST_DELTA), delta_walk) {
    SHARED(float2, sums);
    const Delta &d = op->delta;
    int t = threadIdx.y * COLUMNS + threadIdx.x, threads = COLUMNS * blockDim.y, values = d.value_heads, blocks = gridDim.x, turn = 0;
    int groups = (d.dim + COLUMNS - 1) / COLUMNS, n = min((int)SEGMENT, d.dim - (int)threadIdx.y * SEGMENT);
    size_t part = (size_t)threads * SEGMENT;
    if (pass->held > 0) blocks = (int)min((long long)blocks, d.room / (long long)(pass->held * part));
    if ((int)blockIdx.x >= blocks) return;
    float *held = d.held + blockIdx.x * pass->held * part;
    for (int unit = blockIdx.x; unit < pass->nwalks * values * groups; unit += blocks) {
        int group = unit % groups, head = unit / groups % values;
        const Walk *w = pass->walks + unit / groups / values;
        if (d.dim % SEGMENT == 0) turn = take_through(op, pass, w, head, group, SEGMENT, sums, turn, held, part);
        else turn = take_ragged(op, pass, w, head, group, n, sums, turn, held, part);
        if (group > 0) continue;
        // The slot that the walk began with comes last: the others' inputs may lie there.
        int to = (int)((long long)d.channels * (head + 1) / values);
        for (int channel = (int)((long long)d.channels * head / values) + t; channel < to; channel += threads) {
            int own = -1;
            for (int i = w->first; i < w->first + w->n; i++) {
                const Step &s = pass->steps[i];
                if (s.save >= 0 && s.save == w->from) own = i;
                else if (s.save >= 0) save_inputs(op, pass, w, i, channel);
            }
            if (own >= 0) save_inputs(op, pass, w, own, channel);
        }
    }
}

// copy_states copies slots one after the other: ids holds how many pairs follow, of a slot to write and one to read. (numbers of a
// slot/THREADS) blocks; a thread keeps to its number, so that a slot that was just written may be read.
KERNEL(copy_states) {
    const Delta &d = op->delta;
    long long k = (long long)blockIdx.x * THREADS + threadIdx.x;
    if (k >= d.slot) return;
    for (int i = 0; i < op->ids[0]; i++) d.slots[op->ids[2 * i + 1] * d.slot + k] = d.slots[op->ids[2 * i + 2] * d.slot + k];
}
