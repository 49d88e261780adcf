package safetensors

import (
	"encoding/binary"
	"math"
	"strings"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/kernels/half"
)

// DType is the type of a tensor's elements.
type DType uint8

// The types of the format whose elements are whole bytes.
const (
	Bool DType = iota
	U8
	I8
	F8E5M2
	F8E4M3
	F8E8M0
	I16
	U16
	F16
	BF16
	I32
	U32
	F32
	F64
	I64
	U64
	C64
)

var types = [...]struct {
	name string
	size int
}{{"BOOL", 1}, {"U8", 1}, {"I8", 1}, {"F8_E5M2", 1}, {"F8_E4M3", 1}, {"F8_E8M0", 1}, {"I16", 2}, {"U16", 2}, {"F16", 2}, {"BF16", 2},
	{"I32", 4}, {"U32", 4}, {"F32", 4}, {"F64", 8}, {"I64", 8}, {"U64", 8}, {"C64", 8}}

// String returns the type's name in the format.
func (t DType) String() string { return types[t].name }

// Size returns the bytes of an element.
func (t DType) Size() int { return types[t].size }

func typeNamed(name string) (DType, bool) {
	for i, t := range types {
		if t.name == name {
			return DType(i), true
		}
	}
	return 0, false
}

func typeNames() string {
	names := make([]string, len(types))
	for i, t := range types {
		names[i] = t.name
	}
	return strings.Join(names, ", ")
}

// Elements returns the number of elements; a tensor without dimensions has one.
func (t *Tensor) Elements() int { return int(t.size) / t.Type.Size() }

// IsFloat reports whether Floats can read the tensor.
func (t *Tensor) IsFloat() bool {
	return t.Type == F64 || t.Type == F32 || t.Type == F16 || t.Type == BF16
}

// raw reads n elements from element at on, through buf.
func (t *Tensor) raw(buf *[]byte, at, n int) ([]byte, error) {
	if at < 0 || n < 0 || at > t.Elements()-n {
		return nil, tandem.Errorf(op, tandem.Invalid, "%s: elements %d to %d of tensor %s, which has %d", t.src.path, at, at+n,
			short(t.Name),
			t.Elements())
	}
	size := t.Type.Size()
	if cap(*buf) < n*size {
		*buf = make([]byte, n*size)
	}
	b := (*buf)[:n*size]
	return b, t.src.readAt(b, t.off+int64(at)*int64(size), "tensor "+short(t.Name))
}

// Floats fills dst with the elements from element at on, rounded to float32; NaN and infinities come as they are. The bytes go through
// buf, which grows. Errors: Unsupported for types other than F64, F32, F16 and BF16, Invalid for elements outside of the tensor,
// Corrupt and Unavailable when the file cannot be read as it was.
func (t *Tensor) Floats(dst []float32, buf *[]byte, at int) error {
	if !t.IsFloat() {
		return tandem.Errorf(op, tandem.Unsupported, "%s: tensor %s is %s: want F64, F32, F16 or BF16", t.src.path, short(t.Name), t.Type)
	}
	b, err := t.raw(buf, at, len(dst))
	if err != nil {
		return err
	}
	le := binary.LittleEndian
	for i := range dst {
		switch t.Type {
		case F64:
			dst[i] = float32(math.Float64frombits(le.Uint64(b[8*i:])))
		case F32:
			dst[i] = math.Float32frombits(le.Uint32(b[4*i:]))
		case F16:
			dst[i] = half.Float(le.Uint16(b[2*i:]))
		default:
			dst[i] = math.Float32frombits(uint32(le.Uint16(b[2*i:])) << 16)
		}
	}
	return nil
}

// Ints reads all elements of a tensor of at most most whole numbers or bools (0 and 1). Errors: as Floats's, Unsupported for other
// types and for more elements, Corrupt for a bool that is neither.
func (t *Tensor) Ints(most int) ([]int64, error) {
	switch t.Type {
	case I64, I32, I16, I8, U8, Bool:
	default:
		return nil, tandem.Errorf(op, tandem.Unsupported, "%s: tensor %s is %s: want I64, I32, I16, I8, U8 or BOOL", t.src.path,
			short(t.Name), t.Type)
	}
	n := t.Elements()
	if n > most {
		return nil, tandem.Errorf(op, tandem.Unsupported, "%s: tensor %s has %d elements: want at most %d", t.src.path, short(t.Name), n,
			most)
	}
	b, err := t.raw(new([]byte), 0, n)
	if err != nil {
		return nil, err
	}
	le := binary.LittleEndian
	out := make([]int64, n)
	for i := range out {
		switch t.Type {
		case I64:
			out[i] = int64(le.Uint64(b[8*i:]))
		case I32:
			out[i] = int64(int32(le.Uint32(b[4*i:])))
		case I16:
			out[i] = int64(int16(le.Uint16(b[2*i:])))
		case I8:
			out[i] = int64(int8(b[i]))
		case U8:
			out[i] = int64(b[i])
		case Bool:
			if out[i] = int64(b[i]); b[i] > 1 {
				return nil, tandem.Errorf(op, tandem.Corrupt, "%s: tensor %s has a bool of value %d: want 0 or 1", t.src.path,
					short(t.Name),
					b[i])
			}
		}
	}
	return out, nil
}
