// A delta net's rows and states, in vectors of one instruction set: included behind attention_tile.h. kernels/ref has the definition.
//
// Of a state's matrix a block of 16 columns lies together, (key, 16): a unit takes DB neighbouring blocks through all steps of a walk, so
// that they stay in the first-level cache. An element is read once for a step: it is brought up to date for this step and enters the sums
// of the next.
enum { DV = 16 / VL, DELTA_SEGMENT = 32 };

INLINE vf v_some(const float *p, int n) {
    float t[VL] = {0};
    if (n >= VL) return v_load(p);
    for (int i = 0; i < n; i++) t[i] = p[i];
    return v_load(t);
}

INLINE vf v_sigmoid(vf x) { return v_div(v_set(1), v_add(v_set(1), v_exp(v_sub(v_zero(), x)))); }

INLINE void gate_by(const float *g, int n, float *y) {
    for (int i = 0; i < n; i += VL) {
        vf r = v_mul(v_some(y + i, n - i), v_sigmoid(v_some(g + i, n - i)));
        float t[VL];
        if (n - i >= VL) { v_store(y + i, r); continue; }
        v_store(t, r);
        for (int j = 0; j < n - i; j++) y[i + j] = t[j];
    }
}

INLINE vf v_softplus(vf x) {
    vf y = v_exp(v_sub(v_zero(), v_max(x, v_sub(v_zero(), x))));
    vf s = v_div(y, v_add(v_set(2), y)), z = v_mul(s, s), p = v_set(1.0f / 17);
    const float c[] = {1.0f / 15, 1.0f / 13, 1.0f / 11, 1.0f / 9, 1.0f / 7, 1.0f / 5, 1.0f / 3};
    for (int i = 0; i < 7; i++) p = v_fma(p, z, v_set(c[i]));
    s = v_add(s, s);
    vf l = v_fma(v_mul(p, z), s, s);
    return v_add(v_max(x, v_zero()), l);  // a NaN of x is one of l
}

INLINE float dot_lanes(const float *x, const float *y, int n) {  // n a multiple of 16
    vf a[DV];
    for (int i = 0; i < DV; i++) a[i] = v_zero();
    for (; n > 0; n -= 16, x += 16, y += 16)
        for (int i = 0; i < DV; i++) a[i] = v_fma(v_load(x + i * VL), v_load(y + i * VL), a[i]);
    return v_sum16(a);
}

// Channels [c, c+dim) of a row after the convolution and its curve.
INLINE void convolve_by(const int K, const tk_delta *d, const float *const *tap, int c, float *y) {
    for (int i = c; i < c + d->dim; i += VL, y += VL) {
        vf a = v_zero();
        for (int j = 0; j < K; j++) a = v_fma(v_load(d->conv + (size_t)j * d->channels + i), tap[j] ? v_load(tap[j] + i) : v_zero(), a);
        v_store(y, v_div(a, v_add(v_set(1), v_exp(v_sub(v_zero(), a)))));
    }
}
INLINE void convolve(const tk_delta *d, const float *const *tap, int c, float *y) {
    if (d->kernel == 4) convolve_by(4, d, tap, c, y);
    else convolve_by(d->kernel, d, tap, c, y);
}

INLINE void unit_length(float *x, int n, float scale) {
    vf r = v_set(1 / v_root(dot_lanes(x, x, n) + 1e-6f)), s = v_set(scale);
    for (int i = 0; i < n; i += VL) v_store(x + i, v_mul(v_mul(v_load(x + i), r), s));
}

INLINE void delta_inputs(const tk_delta *d, const float *const *tap, const float *alpha, const float *beta, int head, float *row) {
    int dim = d->dim, keys = d->key_heads, values = d->value_heads;
    float *q = row + (size_t)head * dim, *k = q + (size_t)keys * dim, *more = row + (size_t)(2 * keys + values) * dim;
    convolve(d, tap, head * d->dim, q);
    convolve(d, tap, (keys + head) * d->dim, k);
    unit_length(q, dim, d->scale);
    unit_length(k, dim, 1);
    more[2 * values + head] = dot_lanes(q, k, dim);
    for (int j = head; j < values; j += keys) convolve(d, tap, (2 * keys + j) * d->dim, row + (size_t)(2 * keys + j) * dim);
    for (int i = 0; head == 0 && i < values; i += VL) {
        int n = values - i;
        float t[2 * VL];
        vf s = v_softplus(v_add(v_some(alpha + i, n), v_some(d->bias + i, n)));
        v_store(t, v_exp(v_mul(v_some(d->a + i, n), s)));
        v_store(t + VL, v_sigmoid(v_some(beta + i, n)));
        for (int j = 0; j < VL && j < n; j++) {
            more[i + j] = t[j];
            more[values + i + j] = t[VL + j];
        }
    }
}

// Takes B blocks of a state through a step (update) to out, and adds up the next step's sums with what it gives (sums): s with the keys nk,
// u with the queries nq. ahead, if not NULL, is fetched: what the next unit reads first.
INLINE void delta_pass(const int B, const int update, const int sums, int dim, const float *in, float *out, const float *k, float g,
                       const float *d, const float *nk, const float *nq, float *s, float *u, const float *ahead) {
    enum { MOST = DELTA_BLOCKS * DV };
    const int N = B * DV;
    size_t block = (size_t)dim * 16;
    vf dd[MOST], as[MOST], au[MOST], gg = v_set(g);
    for (int n = 0; n < N; n++) {
        if (update) dd[n] = v_load(d + n * VL);
        if (sums) { v_store(s + n * VL, v_zero()); v_store(u + n * VL, v_zero()); }
    }
    for (int from = 0; from < dim; from += DELTA_SEGMENT) {
        int to = imin(dim, from + DELTA_SEGMENT);
        for (int n = 0; n < N; n++) as[n] = au[n] = v_zero();
        for (int i = from; i < to; i++) {
            vf kk, kn, qn;
            if (update) kk = v_set(k[i]);
            if (sums) { kn = v_set(nk[i]); qn = v_set(nq[i]); }
            vf m[MOST];  // all are loaded before one is stored: blocks may lie a multiple of 4096 bytes apart
            _Pragma("GCC unroll 16") for (int n = 0; n < N; n++) m[n] = v_load(in + n / DV * block + (size_t)i * 16 + n % DV * VL);
            _Pragma("GCC unroll 16") for (int n = 0; n < N; n++) {
                size_t at = n / DV * block + (size_t)i * 16 + n % DV * VL;
                if (update) {
                    if (ahead && n % DV == 0) v_fetch((const uint8_t *)(ahead + at));
                    m[n] = v_fma(kk, dd[n], v_mul(gg, m[n]));
                    v_store(out + at, m[n]);
                }
                if (sums) {
                    as[n] = v_fma(kn, m[n], as[n]);
                    au[n] = v_fma(qn, m[n], au[n]);
                }
            }
        }
        for (int n = 0; sums && n < N; n++) {
            v_store(s + n * VL, v_add(v_load(s + n * VL), as[n]));
            v_store(u + n * VL, v_add(v_load(u + n * VL), au[n]));
        }
    }
}

// All steps of a walk for B blocks of a value head, from column 16·first on.
INLINE void delta_blocks(const int B, const tk_delta *d, const tk_walk *w, const tk_step *steps, const float *rows, int head, int first,
                         float *out, float *scratch) {
    enum { C = 16 * DELTA_BLOCKS };
    int dim = d->dim, keys = d->key_heads, values = d->value_heads;
    size_t size = (size_t)B * dim * 16, at = d->matrices + ((size_t)head * dim + first * 16) * dim;
    const float *held[TK_HELD], *from = w->from < 0 ? scratch : d->slots + w->from * d->slot + at;
    if (w->from < 0) for (size_t i = 0; i < size; i++) scratch[i] = 0;
    scratch += size;
    if (w->keep) {
        for (size_t i = 0; i < size; i++) scratch[i] = from[i];
        from = scratch;
    }
    held[0] = from;
    float s[C], u[C], dd[C];
    int have = 0;  // s and u of this step
    for (int i = w->first; i < w->first + w->n; i++) {
        const tk_step *x = steps + i, *y = x + 1;
        const float *row = rows + i * d->row, *more = row + (size_t)(2 * keys + values) * dim;
        const float *q = row + (size_t)(head % keys) * dim, *k = q + (size_t)keys * dim, *in = held[x->in];
        if (!have) delta_pass(B, 0, 1, dim, in, NULL, k, 0, dd, k, q, s, u, NULL);
        vf g = v_set(more[head]), beta = v_set(more[values + head]), qk = v_set(more[2 * values + head % keys]);
        const float *v = row + (size_t)(2 * keys + head) * dim + 16 * first;
        for (int c = 0; c < 16 * B; c += VL) {
            vf e = v_mul(beta, v_fma(v_sub(v_zero(), g), v_load(s + c), v_load(v + c)));
            v_store(dd + c, e);
            vf o = v_fma(qk, e, v_mul(g, v_load(u + c)));
            if (x->row >= 0) v_store(out + ((size_t)x->row * values + head) * dim + 16 * first + c, o);
        }
        have = 0;
        if (x->last) continue;
        float *to = x->save >= 0 ? d->slots + x->save * d->slot + at : scratch + x->out * size;
        const float *ahead = i == w->first ? in + size : NULL;
        if ((have = i + 1 < w->first + w->n && y->in == x->out))
            delta_pass(B, 1, 1, dim, in, to, k, more[head], dd, k + d->row, q + d->row, s, u, ahead);
        else delta_pass(B, 1, 0, dim, in, to, k, more[head], dd, k, q, s, u, ahead);
        held[x->out] = to;
    }
}

INLINE void delta_walk(const tk_delta *d, const tk_walk *w, const tk_step *steps, const float *rows, int head, int first, float *out,
                       float *scratch) {
    if (first + DELTA_BLOCKS <= d->dim / 16) delta_blocks(DELTA_BLOCKS, d, w, steps, rows, head, first, out, scratch);
    else for (; first < d->dim / 16; first++) delta_blocks(1, d, w, steps, rows, head, first, out, scratch);
}
