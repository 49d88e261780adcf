//go:build amd64

// Package peers holds other ways to compute what kernels/cpu does, for benchmarks to compare with: the attention of a
// token tree's rows to each other. Only tests import it.
package peers

// #cgo CFLAGS: -O3 -std=c11 -D_GNU_SOURCE -Wall -Wextra
// #include <stdint.h>
// void tk_peer_naive(const float *q, const float *k, const float *v, const int32_t *pairs, int n, int heads, int kv_heads,
//                    int d, float scale, float *out);
// void tk_peer_sparse(const float *q, const float *k, const float *v, const int32_t *pairs, int n, int heads, int kv_heads,
//                     int d, float scale, float *out);
// void tk_peer_dense(const float *q, const float *k, const float *v, const float *mask, int rows, int heads, int kv_heads,
//                    int d, float scale, float *out);
import "C"

import "unsafe"

// Tree holds the inputs of a tree's attention and the result, Out: peers.c gives the layouts.
type Tree struct {
	Q, K, V, Out, Mask            []float32
	Pairs                         []int32
	Rows, Heads, KVHeads, HeadDim int
	Scale                         float32
}

// Naive is a loop over pairs in plain C.
func (t *Tree) Naive() {
	C.tk_peer_naive(cfloats(t.Q), cfloats(t.K), cfloats(t.V), (*C.int32_t)(unsafe.Pointer(&t.Pairs[0])), C.int(len(t.Pairs)/2),
		C.int(t.Heads), C.int(t.KVHeads), C.int(t.HeadDim), C.float(t.Scale), cfloats(t.Out))
}

// Sparse is a loop over pairs with vector instructions.
func (t *Tree) Sparse() {
	C.tk_peer_sparse(cfloats(t.Q), cfloats(t.K), cfloats(t.V), (*C.int32_t)(unsafe.Pointer(&t.Pairs[0])), C.int(len(t.Pairs)/2),
		C.int(t.Heads), C.int(t.KVHeads), C.int(t.HeadDim), C.float(t.Scale), cfloats(t.Out))
}

// Dense multiplies every row with every other and applies the mask.
func (t *Tree) Dense() {
	C.tk_peer_dense(cfloats(t.Q), cfloats(t.K), cfloats(t.V), cfloats(t.Mask), C.int(t.Rows),
		C.int(t.Heads), C.int(t.KVHeads), C.int(t.HeadDim), C.float(t.Scale), cfloats(t.Out))
}

func cfloats(x []float32) *C.float { return (*C.float)(unsafe.Pointer(&x[0])) }
