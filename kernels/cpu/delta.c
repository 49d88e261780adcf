// Delta nets: how a layer is cut into units, and what is not arithmetic. First each step's row is brought through the convolution, then
// the states go through the steps of their walks. kernels/cpu/states.go lays out slots and records.
#include <string.h>
#include "tk.h"

static const float *step_in(const tk_delta *d, const tk_op *op, const tk_step *s) {
    return s->row >= 0 ? op->in + (size_t)s->row * d->channels : d->records + s->record * d->record;
}

// Where the inputs of the convolution of a step are, oldest first; NULL stands for zeros.
static void taps(const tk_op *op, const tk_walk *w, const tk_step *steps, int step, const float **tap) {
    const tk_delta *d = op->delta;
    int j = d->kernel - 1;
    for (; j >= 0 && step >= 0; j--, step = steps[step].parent) tap[j] = step_in(d, op, steps + step);
    for (int old = d->kernel - 2; j >= 0; j--, old--)
        tap[j] = w->from < 0 ? NULL : d->slots + w->from * d->slot + (size_t)old * d->channels;
}

size_t tk_delta_floats(const tk_prog *p, const tk_op *op) {
    const tk_delta *d = op->delta;
    size_t blocks = p->k->delta_blocks, states = (size_t)(p->pass.held + 1) * blocks * d->dim * 16;
    return states + 2 * (size_t)d->kernel + 16;
}

int tk_delta_groups(const tk_prog *p, const tk_op *op) {
    int blocks = op->delta->dim / 16;
    return (blocks + p->k->delta_blocks - 1) / p->k->delta_blocks;
}

// A unit is a key head of a step, with the value heads that belong to it.
void tk_delta_in(const tk_prog *p, const tk_op *op, int unit, float *scratch) {
    const tk_delta *d = op->delta;
    int head = unit % d->key_heads, step = unit / d->key_heads;
    const tk_step *s = p->pass.steps + step;
    const tk_walk *w = p->pass.walks + s->walk;
    const float **tap = (const float **)scratch;
    taps(op, w, p->pass.steps, step, tap);
    const float *alpha = d->alpha + (size_t)imax(0, s->row) * d->value_heads, *beta = d->beta + (size_t)imax(0, s->row) * d->value_heads;
    float *record = s->record >= 0 ? d->records + s->record * d->record : NULL;
    if (s->row < 0) {
        alpha = record + d->channels;
        beta = alpha + d->value_heads;
    }
    p->k->delta_inputs(d, tap, alpha, beta, head, p->delta_rows + step * d->row);
    if (s->row < 0 || !record) return;
    const float *in = tap[d->kernel - 1];
    size_t n = d->dim, last = d->key_heads + head;
    memcpy(record + head * n, in + head * n, sizeof(float) * n);
    memcpy(record + last * n, in + last * n, sizeof(float) * n);
    for (size_t j = 2 * d->key_heads + head; j < (size_t)(2 * d->key_heads + d->value_heads); j += d->key_heads)
        memcpy(record + j * n, in + j * n, sizeof(float) * n);
    if (head) return;
    memcpy(record + d->channels, alpha, sizeof(float) * d->value_heads);
    memcpy(record + d->channels + d->value_heads, beta, sizeof(float) * d->value_heads);
}

// Saves the inputs of the convolution behind a step, a part of the channels.
static void save_taps(const tk_prog *p, const tk_op *op, const tk_walk *w, int step, int from, int to, const float **tap) {
    const tk_delta *d = op->delta;
    taps(op, w, p->pass.steps, step, tap);
    float *slot = d->slots + p->pass.steps[step].save * d->slot;
    for (int j = 1; j < d->kernel; j++, slot += d->channels) {  // tap j may be what lies behind slot, never before it
        if (!tap[j]) memset(slot + from, 0, sizeof(float) * (to - from));
        else memmove(slot + from, tap[j] + from, sizeof(float) * (to - from));
    }
}

// A unit is some columns of a value head of a walk.
void tk_delta_walk(const tk_prog *p, const tk_op *op, int unit, float *scratch) {
    const tk_delta *d = op->delta;
    int groups = tk_delta_groups(p, op), group = unit % groups, head = unit / groups % d->value_heads;
    const tk_walk *w = p->pass.walks + unit / groups / d->value_heads;
    p->k->delta_walk(d, w, p->pass.steps, p->delta_rows, head, group * p->k->delta_blocks, op->out, scratch);
    if (group) return;
    // The slot that the walk began with comes last: the others' inputs may lie there.
    int from = (int)((int64_t)d->channels * head / d->value_heads), own = -1;
    int to = (int)((int64_t)d->channels * (head + 1) / d->value_heads);
    for (int i = w->first; i < w->first + w->n; i++) {
        const tk_step *s = p->pass.steps + i;
        if (s->save >= 0 && s->save == w->from) own = i;
        else if (s->save >= 0) save_taps(p, op, w, i, from, to, (const float **)scratch);
    }
    if (own >= 0) save_taps(p, op, w, own, from, to, (const float **)scratch);
}
