package convert

import (
	"encoding/binary"
	"math"

	"github.com/tandem-llm/tandem/kernels/half"
	"github.com/tandem-llm/tandem/kernels/ref"
	"github.com/tandem-llm/tandem/modelfile/gguf"
)

// decodable reports whether decode knows the type.
func decodable(t gguf.Type) bool {
	switch t {
	case gguf.Q4_0, gguf.Q4_1, gguf.Q5_0, gguf.Q5_1, gguf.Q8_0, gguf.Q2_K, gguf.Q3_K, gguf.Q4_K, gguf.Q5_K, gguf.Q6_K,
		gguf.IQ4_NL, gguf.IQ4_XS, gguf.MXFP4:
		return true
	}
	return isFloat(t)
}

func isFloat(t gguf.Type) bool { return t == gguf.F32 || t == gguf.F16 || t == gguf.BF16 }

// readRows decodes whole rows of t from row on into dst, whose rows are stride values apart. The bytes go
// through buf.
func readRows(t *gguf.Tensor, dst []float32, stride int, buf *[]byte, row, n int) error {
	cols := t.Shape[0]
	block, size := t.Type.Block()
	bytes := cols / block * size
	raw := sized(buf, n*bytes)
	*buf = raw
	if err := t.ReadAt(raw, int64(row)*int64(bytes)); err != nil {
		return err
	}
	for r := range n {
		decode(t.Type, raw[r*bytes:(r+1)*bytes], dst[r*stride:r*stride+cols])
	}
	return nil
}

// decode writes the values of one row of a decodable type. Quantised types are decoded by kernels/ref,
// which is slow: only small sources have them.
func decode(t gguf.Type, row []byte, dst []float32) {
	switch t {
	case gguf.F32:
		for i := range dst {
			dst[i] = math.Float32frombits(binary.LittleEndian.Uint32(row[4*i:]))
		}
	case gguf.BF16:
		for i := range dst {
			dst[i] = math.Float32frombits(uint32(binary.LittleEndian.Uint16(row[2*i:])) << 16)
		}
	case gguf.F16:
		for i := range dst {
			dst[i] = half.Float(binary.LittleEndian.Uint16(row[2*i:]))
		}
	default:
		ref.Dequantize(uint32(t), row, dst)
	}
}
