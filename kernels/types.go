// Package kernels says what a pass computes, whatever the device: a Program lists the operations of a pass, as a plain value.
// A Device compiles it into a Runner, which computes with Weights and a Cache.
//
// Every operation is defined in kernels/ref and docs/kernels.md down to the order of each rounding. All devices give those
// bits, and a row's result never depends on the other rows of the pass, or on how work was divided.
package kernels

import (
	"fmt"
	"maps"
	"slices"
)

// Type is a weight format, numbered as in GGUF files.
type Type uint32

// The formats that devices compute with. Each is described in docs/kernels.md, beside the sum that defines it.
const (
	F32    Type = 0
	F16    Type = 1
	Q4_0   Type = 2
	Q4_1   Type = 3
	Q5_0   Type = 6
	Q5_1   Type = 7
	Q8_0   Type = 8
	Q2_K   Type = 10
	Q3_K   Type = 11
	Q4_K   Type = 12
	Q5_K   Type = 13
	Q6_K   Type = 14
	IQ4_NL Type = 20
	IQ4_XS Type = 23
	BF16   Type = 30
	MXFP4  Type = 39
)

// formats holds what is known of each type: a block's elements and bytes in a GGUF file.
var formats = map[Type]struct {
	name         string
	elems, bytes int
}{
	F32:    {"f32", 1, 4},
	F16:    {"f16", 1, 2},
	BF16:   {"bf16", 1, 2},
	Q8_0:   {"q8_0", 32, 34},
	Q4_0:   {"q4_0", 32, 18},
	Q4_1:   {"q4_1", 32, 20},
	Q5_0:   {"q5_0", 32, 22},
	Q5_1:   {"q5_1", 32, 24},
	Q2_K:   {"q2_k", 256, 84},
	Q3_K:   {"q3_k", 256, 110},
	Q4_K:   {"q4_k", 256, 144},
	Q5_K:   {"q5_k", 256, 176},
	Q6_K:   {"q6_k", 256, 210},
	IQ4_NL: {"iq4_nl", 32, 18},
	IQ4_XS: {"iq4_xs", 256, 136},
	MXFP4:  {"mxfp4", 32, 17},
}

// Types returns all supported types in order of their numbers.
func Types() []Type { return slices.Sorted(maps.Keys(formats)) }

// String returns the type's lower-case name, "q8_0", or "type 99" for one that is not supported.
func (t Type) String() string {
	if f, ok := formats[t]; ok {
		return f.name
	}
	return fmt.Sprintf("type %d", uint32(t))
}

// Block returns how many elements of a row share one block, and the block's bytes in a GGUF file; 0, 0 for a type that is not supported.
func (t Type) Block() (elems, bytes int) { return formats[t].elems, formats[t].bytes }

// Super reports whether products with t take int8 activations with one scale for 256 numbers.
func (t Type) Super() bool {
	switch t {
	case Q2_K, Q3_K, Q4_K, Q5_K, Q6_K:
		return true
	}
	return false
}

// Supported reports whether there are kernels for t.
func (t Type) Supported() bool { n, _ := t.Block(); return n > 0 }

// Quantized reports whether products with t take int8 activations.
func (t Type) Quantized() bool { n, _ := t.Block(); return n > 1 }
