package kernels

import "fmt"

// Type is a weight format, numbered as in GGUF files.
type Type uint32

const (
	F32  Type = 0
	F16  Type = 1
	Q4_0 Type = 2
	Q8_0 Type = 8
	Q4_K Type = 12
	Q6_K Type = 14
	BF16 Type = 30
)

// String returns the type's lower-case name, "q8_0", or "type 99" for one that is not supported.
func (t Type) String() string {
	switch t {
	case F32:
		return "f32"
	case F16:
		return "f16"
	case BF16:
		return "bf16"
	case Q4_0:
		return "q4_0"
	case Q8_0:
		return "q8_0"
	case Q4_K:
		return "q4_k"
	case Q6_K:
		return "q6_k"
	}
	return fmt.Sprintf("type %d", uint32(t))
}

// Block returns how many elements of a row share one block, and the block's bytes in a GGUF file; 0, 0
// for a type that is not supported.
func (t Type) Block() (elems, bytes int) {
	switch t {
	case F32:
		return 1, 4
	case F16, BF16:
		return 1, 2
	case Q4_0:
		return 32, 18
	case Q8_0:
		return 32, 34
	case Q4_K:
		return 256, 144
	case Q6_K:
		return 256, 210
	}
	return 0, 0
}

// Supported reports whether there are kernels for t.
func (t Type) Supported() bool { n, _ := t.Block(); return n > 0 }

// Quantized reports whether products with t take int8 activations.
func (t Type) Quantized() bool { n, _ := t.Block(); return n > 1 }

// ISA is an instruction set for which there are kernels. All give the same bits.
type ISA int

const (
	Auto ISA = iota // the best of this machine
	Generic
	AVX2
	AVX512
)

var isaNames = [...]string{"auto", "generic", "avx2", "avx512"}

// ParseISA reads "auto", "generic", "avx2" or "avx512".
func ParseISA(s string) (ISA, error) {
	for i, n := range isaNames {
		if s == n {
			return ISA(i), nil
		}
	}
	return Auto, fmt.Errorf("kernels: unknown instruction set %q, want auto, generic, avx2 or avx512", s)
}

func (i ISA) String() string {
	if i < 0 || int(i) >= len(isaNames) {
		return fmt.Sprintf("isa(%d)", int(i))
	}
	return isaNames[i]
}
