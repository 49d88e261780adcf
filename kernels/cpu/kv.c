// Writing keys and values into the cells of the KV cache; kernels/cpu/cache.go says where everything lies.
#include "tk.h"
#include "scalar.h"

enum { MAXDIM = 4096 };  // of a head: kernels.KVShape.Check

static void put16(uint8_t *at, uint16_t v) { memcpy(at, &v, sizeof v); }

// Keys lie transposed: dimension d of a page's positions side by side.
static void store_f16(const tk_prog *p, const tk_kept *kept, const float *k, const float *v, uint8_t *keys, int slot, uint8_t *value) {
    uint16_t half[MAXDIM];
    p->k->narrow(k, kept->dim, half);
    for (int d = 0; d < kept->dim; d++) put16(keys + 2 * (TK_PAGE * d + slot), half[d]);
    p->k->narrow(v, kept->value_dim, (uint16_t *)value);
}

static void store_q8_0(const tk_prog *p, const tk_kept *kept, const float *k, const float *v, uint8_t *keys, int slot, uint8_t *value,
                       uint8_t *scale) {
    tk_qblock q[MAXDIM / 32];
    int blocks = kept->dim / 32;
    p->k->quantize(k, 32 * blocks, q, 1);
    for (int b = 0; b < blocks; b++, keys += 34 * TK_PAGE) {
        put16(keys + 2 * slot, f32_f16(q[b].scale));
        for (int d = 0; d < 32; d++) keys[(2 + d) * TK_PAGE + slot] = (uint8_t)q[b].q[d];
    }
    blocks = kept->value_dim / 32;
    p->k->quantize(v, 32 * blocks, q, 1);
    for (int b = 0; b < blocks; b++) {
        put16(scale + 2 * TK_PAGE * b, f32_f16(q[b].scale));
        memcpy(value + 32 * b, q[b].q, 32);
    }
}

void tk_store(const tk_prog *p, const tk_op *op, int row) {
    const tk_kv *kv = &p->kv;
    const tk_kept *kept = kv->layers + op->layer;
    int32_t cell = p->pass.store[row];
    int slot = cell % TK_PAGE, dim = kept->dim;
    const float *v = op->in + (size_t)row * kept->heads * kept->value_dim, *k;
    float whole[MAXDIM];
    if (!kept->latent) {
        k = op->in2 + (size_t)row * kept->heads * dim;
    } else {
        int rotated = dim - kept->value_dim;
        if (rotated) memcpy(whole, op->in2 + (size_t)row * rotated, sizeof(float) * rotated);
        memcpy(whole + rotated, v, sizeof(float) * kept->value_dim);
        k = whole;
    }
    for (int h = 0; h < kept->heads; h++, k += dim, v += dim) {
        uint8_t *keys = tk_keys(kv, kept, h, cell / TK_PAGE), *values = keys + kept->values;
        uint8_t *value = values + slot * kept->value_row;
        if (kv->type == TK_KV_Q8_0) store_q8_0(p, kept, k, v, keys, slot, value, values + kept->value_scales + 2 * slot);
        else store_f16(p, kept, k, v, keys, slot, value);
    }
}
