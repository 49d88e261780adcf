package tensors

import (
	"encoding/binary"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/modelfile/gguf"
)

// ScalesAt says at which bytes of a block a quantised type has its scales and minima, which are IEEE halves; all else of a block is
// integers. MXFP4 is not in it: its scale is one byte, a power of two.
var ScalesAt = map[gguf.Type][]int{
	gguf.Q4_0: {0}, gguf.Q4_1: {0, 2}, gguf.Q5_0: {0}, gguf.Q5_1: {0, 2}, gguf.Q8_0: {0}, gguf.Q2_K: {80, 82}, gguf.Q3_K: {108},
	gguf.Q4_K: {0, 2}, gguf.Q5_K: {0, 2}, gguf.Q6_K: {208}, gguf.IQ4_NL: {0}, gguf.IQ4_XS: {0},
}

// Infinite looks for a weight, or the scale of a block, that is infinite or not a number. rows are whole rows of a tensor of type t. It
// returns the byte in rows where one begins; -1: there is none.
func Infinite(t gguf.Type, rows []byte) int {
	_, size := t.Block()
	const half = 0x7c00 // the exponent of an infinity or NaN
	switch t {
	case gguf.F32:
		return exponents(rows, 4, 0x7f800000)
	case gguf.F16:
		return exponents(rows, 2, half)
	case gguf.BF16:
		return exponents(rows, 2, 0x7f80)
	case gguf.MXFP4:
		for i := 0; i < len(rows); i += size {
			if rows[i] >= 253 { // NaN, or a power of two whose products are infinite
				return i
			}
		}
	default:
		for _, at := range ScalesAt[t] {
			for i := at; i+2 <= len(rows); i += size {
				if binary.LittleEndian.Uint16(rows[i:])&half == half {
					return i
				}
			}
		}
	}
	return -1
}

// exponents returns the byte of the first number of so many bytes whose bits of the mask, its exponent, are all set; -1 for none.
func exponents(rows []byte, size int, mask uint64) int {
	each := uint64(0x0000000100000001) // 1 in each number of a word
	if size == 2 {
		each = 0x0001000100010001
	}
	// an exponent of ones and 1 more carries into the sign's place
	keep, one, sign := mask*each, mask&-mask*each, 1<<(8*size-1)*each
	i := 0
	for ; i+8 <= len(rows) && (binary.LittleEndian.Uint64(rows[i:])&keep+one)&sign == 0; i += 8 {
	}
	for ; i+size <= len(rows); i += size {
		number := uint64(binary.LittleEndian.Uint16(rows[i:]))
		if size == 4 {
			number = uint64(binary.LittleEndian.Uint32(rows[i:]))
		}
		if number&mask == mask {
			return i
		}
	}
	return -1
}

// checkRows refuses rows of t that hold an infinite weight or one that is not a number. rowAt says which rows of t they are.
func checkRows(t *gguf.Tensor, rowAt func(i int) int, rows []byte) error {
	at := Infinite(t.Type, rows)
	if at < 0 {
		return nil
	}
	what := "a scale that is"
	if elems, _ := t.Type.Block(); elems == 1 {
		what = "a weight that is"
	}
	return tandem.Errorf("engine", tandem.Corrupt, "tensor %q has %s infinite or not a number, in row %d: want finite numbers", t.Name,
		what, rowAt(at/PerRow(t)))
}
