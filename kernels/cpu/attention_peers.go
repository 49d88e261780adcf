//go:build amd64

package kernels

// #include "tk.h"
// void tk_peer_naive(const float *q, const float *k, const float *v, const int32_t *pairs, int n, int heads, int kv_heads,
//                    int d, float scale, float *out);
// void tk_peer_sparse(const float *q, const float *k, const float *v, const int32_t *pairs, int n, int heads, int kv_heads,
//                     int d, float scale, float *out);
// void tk_peer_dense(const float *q, const float *k, const float *v, const float *mask, int rows, int heads, int kv_heads,
//                    int d, float scale, float *out);
import "C"

import "unsafe"

// treePeer is the input of the other ways to do a tree's attention, for benchmarks: attention_peers.c.
type treePeer struct {
	Q, K, V, Out, Mask            []float32
	Pairs                         []int32
	Rows, Heads, KVHeads, HeadDim int
	Scale                         float32
}

func (t *treePeer) naive() {
	C.tk_peer_naive(cfloats(t.Q), cfloats(t.K), cfloats(t.V), (*C.int32_t)(unsafe.Pointer(&t.Pairs[0])), C.int(len(t.Pairs)/2),
		C.int(t.Heads), C.int(t.KVHeads), C.int(t.HeadDim), C.float(t.Scale), cfloats(t.Out))
}

func (t *treePeer) sparse() {
	C.tk_peer_sparse(cfloats(t.Q), cfloats(t.K), cfloats(t.V), (*C.int32_t)(unsafe.Pointer(&t.Pairs[0])), C.int(len(t.Pairs)/2),
		C.int(t.Heads), C.int(t.KVHeads), C.int(t.HeadDim), C.float(t.Scale), cfloats(t.Out))
}

func (t *treePeer) dense() {
	C.tk_peer_dense(cfloats(t.Q), cfloats(t.K), cfloats(t.V), cfloats(t.Mask), C.int(t.Rows),
		C.int(t.Heads), C.int(t.KVHeads), C.int(t.HeadDim), C.float(t.Scale), cfloats(t.Out))
}

func cfloats(x []float32) *C.float { return (*C.float)(unsafe.Pointer(&x[0])) }
