package gguf

import "fmt"

// Type is a tensor's element type by its ggml number.
type Type uint32

// The types that tandem computes with, and those that its tools write.
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
	Int32  Type = 26 // of tables, not of weights
	Int64  Type = 27
	BF16   Type = 30
	MXFP4  Type = 39
)

// layouts holds every type number that ggml has assigned: name, and elements and bytes of a block; no
// block for types that ggml has withdrawn. Source: GGML_QUANT_SIZES of ggml's gguf-py and ggml.h.
var layouts = [...]struct {
	name         string
	elems, bytes int
}{
	{"f32", 1, 4}, {"f16", 1, 2}, {"q4_0", 32, 18}, {"q4_1", 32, 20}, {"q4_2", 0, 0}, {"q4_3", 0, 0},
	{"q5_0", 32, 22}, {"q5_1", 32, 24}, {"q8_0", 32, 34}, {"q8_1", 32, 36}, {"q2_k", 256, 84},
	{"q3_k", 256, 110}, {"q4_k", 256, 144}, {"q5_k", 256, 176}, {"q6_k", 256, 210}, {"q8_k", 256, 292},
	{"iq2_xxs", 256, 66}, {"iq2_xs", 256, 74}, {"iq3_xxs", 256, 98}, {"iq1_s", 256, 50}, {"iq4_nl", 32, 18},
	{"iq3_s", 256, 110}, {"iq2_s", 256, 82}, {"iq4_xs", 256, 136}, {"i8", 1, 1}, {"i16", 1, 2},
	{"i32", 1, 4}, {"i64", 1, 8}, {"f64", 1, 8}, {"iq1_m", 256, 56}, {"bf16", 1, 2},
	{"q4_0_4_4", 0, 0}, {"q4_0_4_8", 0, 0}, {"q4_0_8_8", 0, 0}, {"tq1_0", 256, 54}, {"tq2_0", 256, 66},
	{"iq4_nl_4_4", 0, 0}, {"iq4_nl_4_8", 0, 0}, {"iq4_nl_8_8", 0, 0}, {"mxfp4", 32, 17},
	{"nvfp4", 64, 36}, {"q1_0", 128, 18},
}

// String returns the lower-case ggml name, "q8_0"; "type 77" for a number that ggml has not assigned.
func (t Type) String() string {
	if uint64(t) < uint64(len(layouts)) {
		return layouts[t].name
	}
	return fmt.Sprintf("type %d", uint32(t))
}

// number names a type with its number.
func (t Type) number() string {
	if uint64(t) < uint64(len(layouts)) {
		return fmt.Sprintf("type %s (%d)", t, uint32(t))
	}
	return t.String()
}

// Block returns how many elements a block holds and how many bytes it takes; 0, 0 when the layout of
// the type is not known.
func (t Type) Block() (elems, bytes int) {
	if uint64(t) < uint64(len(layouts)) {
		return layouts[t].elems, layouts[t].bytes
	}
	return 0, 0
}

// ValueType is the type of a key's value.
type ValueType uint32

// The types of values, by their numbers in a file. Float32 and Float64 are IEEE numbers, String is bytes with a length, and Array is
// values of one type.
const (
	U8 ValueType = iota
	I8
	U16
	I16
	U32
	I32
	Float32
	Bool
	String
	Array
	U64
	I64
	Float64
)

var valueTypes = [...]struct {
	name  string
	bytes int // of one value; 0 where it varies
}{{"u8", 1}, {"i8", 1}, {"u16", 2}, {"i16", 2}, {"u32", 4}, {"i32", 4}, {"f32", 4}, {"bool", 1},
	{"string", 0}, {"array", 0}, {"u64", 8}, {"i64", 8}, {"f64", 8}}

func (t ValueType) known() bool { return uint64(t) < uint64(len(valueTypes)) }

func (t ValueType) String() string {
	if t.known() {
		return valueTypes[t].name
	}
	return fmt.Sprintf("value type %d", uint32(t))
}
