package gguf

import (
	"encoding/binary"
	"fmt"
	"math"
	"strconv"
	"strings"

	"github.com/tandem-llm/tandem"
)

// Has reports whether the file has the key.
func (f *File) Has(key string) bool {
	_, ok := f.keyAt[key]
	return ok
}

// IsArray reports whether the file has the key and its value is an array.
func (f *File) IsArray(key string) bool {
	i, ok := f.keyAt[key]
	return ok && f.keys[i].Type == Array
}

// The getters below return an error of kind Corrupt that names key, type and value when the key is
// missing or its value is of another type or range. The …Or forms return the default when it is missing.

// String returns a copy of a string value.
func (f *File) String(key string) (string, error) {
	k, err := f.key(key)
	if err != nil {
		return "", err
	}
	if k.Type != String {
		return "", f.wrong(k, "a string")
	}
	return string(f.data[k.off : k.off+k.Len]), nil
}

// StringOr is String with a default.
func (f *File) StringOr(key, def string) (string, error) {
	if !f.Has(key) {
		return def, nil
	}
	return f.String(key)
}

// Bool returns a bool.
func (f *File) Bool(key string) (bool, error) {
	k, err := f.key(key)
	if err != nil {
		return false, err
	}
	if k.Type != Bool {
		return false, f.wrong(k, "a bool")
	}
	return f.data[k.off] != 0, nil
}

// BoolOr is Bool with a default.
func (f *File) BoolOr(key string, def bool) (bool, error) {
	if !f.Has(key) {
		return def, nil
	}
	return f.Bool(key)
}

// Uint returns an integer of any width that is not negative.
func (f *File) Uint(key string) (uint64, error) {
	k, err := f.key(key)
	if err != nil {
		return 0, err
	}
	u, negative, ok := f.integer(k.Type, k.off)
	if !ok || negative {
		return 0, f.wrong(k, "an integer of 0 or more")
	}
	return u, nil
}

// Int returns an integer of any width, from lo to hi.
func (f *File) Int(key string, lo, hi int) (int, error) {
	k, err := f.key(key)
	if err != nil {
		return 0, err
	}
	if n, ok := f.intIn(k.Type, k.off, lo, hi); ok {
		return n, nil
	}
	return 0, f.wrong(k, fmt.Sprintf("an integer from %d to %d", lo, hi))
}

// IntOr is Int with a default, which need not lie in the range.
func (f *File) IntOr(key string, lo, hi, def int) (int, error) {
	if !f.Has(key) {
		return def, nil
	}
	return f.Int(key, lo, hi)
}

// Float returns a finite number; an integer will do.
func (f *File) Float(key string) (float64, error) {
	k, err := f.key(key)
	if err != nil {
		return 0, err
	}
	v, ok := f.float(k.Type, k.off)
	if !ok || math.IsNaN(v) || math.IsInf(v, 0) {
		return 0, f.wrong(k, "a finite number")
	}
	return v, nil
}

// FloatOr is Float with a default.
func (f *File) FloatOr(key string, def float64) (float64, error) {
	if !f.Has(key) {
		return def, nil
	}
	return f.Float(key)
}

// Strings returns an array of strings, copied.
func (f *File) Strings(key string) ([]string, error) {
	k, err := f.array(key, "strings", func(t ValueType) bool { return t == String })
	if err != nil {
		return nil, err
	}
	ends := f.end(k)
	all := string(f.data[k.off:ends]) // one copy that all elements share
	out := make([]string, k.Len)
	at := 0
	for i := range out {
		n := int(binary.LittleEndian.Uint64(f.data[k.off+at:]))
		out[i] = all[at+8 : at+8+n]
		at += 8 + n
	}
	return out, nil
}

// Ints returns an array of integers of any width, each from lo to hi.
func (f *File) Ints(key string, lo, hi int) ([]int, error) {
	k, err := f.array(key, "integers", func(t ValueType) bool { return t.integer() })
	if err != nil {
		return nil, err
	}
	out := make([]int, k.Len)
	size := valueTypes[k.Elem].bytes
	for i := range out {
		n, ok := f.intIn(k.Elem, k.off+i*size, lo, hi)
		if !ok {
			return nil, tandem.Errorf(op, tandem.Corrupt, "%s: key %s has %s (%s) as element %d: want an integer from %d to %d",
				f.Path(), short(key), f.text(k.Elem, k.off+i*size), k.Elem, i, lo, hi)
		}
		out[i] = n
	}
	return out, nil
}

// Bools returns an array of bools.
func (f *File) Bools(key string) ([]bool, error) {
	k, err := f.array(key, "bools", func(t ValueType) bool { return t == Bool })
	if err != nil {
		return nil, err
	}
	out := make([]bool, k.Len)
	for i := range out {
		out[i] = f.data[k.off+i] != 0
	}
	return out, nil
}

// Floats returns an array of finite f32 or f64 numbers, rounded to float32.
func (f *File) Floats(key string) ([]float32, error) {
	k, err := f.array(key, "numbers", func(t ValueType) bool { return t == Float32 || t == Float64 })
	if err != nil {
		return nil, err
	}
	out := make([]float32, k.Len)
	size := valueTypes[k.Elem].bytes
	for i := range out {
		v, _ := f.float(k.Elem, k.off+i*size)
		out[i] = float32(v)
		if math.IsNaN(v) || math.IsInf(float64(out[i]), 0) {
			return nil, tandem.Errorf(op, tandem.Corrupt, "%s: key %s has %g (%s) as element %d: want a finite number",
				f.Path(), short(key), v, k.Elem, i)
		}
	}
	return out, nil
}

// Describe returns the value of a key as one short, readable line; "" when there is no such key.
func (f *File) Describe(key string) string {
	i, ok := f.keyAt[key]
	if !ok {
		return ""
	}
	k := &f.keys[i]
	if k.Type == String {
		return short(string(f.data[k.off : k.off+min(k.Len, 1<<10)]))
	}
	if k.Type != Array {
		return f.text(k.Type, k.off)
	}
	const most = 4
	var parts []string
	for i, at := 0, k.off; i < min(k.Len, most); i++ {
		parts = append(parts, f.text(k.Elem, at))
		at += f.width(k.Elem, at)
	}
	if k.Len > most {
		parts = append(parts, "…")
	}
	return fmt.Sprintf("%d × %s [%s]", k.Len, k.Elem, strings.Join(parts, ", "))
}

func (f *File) key(name string) (*Key, error) {
	if i, ok := f.keyAt[name]; ok {
		return &f.keys[i], nil
	}
	return nil, tandem.Errorf(op, tandem.Corrupt, "%s: key %s is missing", f.Path(), short(name))
}

func (f *File) array(key, of string, fits func(ValueType) bool) (*Key, error) {
	k, err := f.key(key)
	if err != nil {
		return nil, err
	}
	if k.Type != Array || !fits(k.Elem) {
		return nil, f.wrong(k, "an array of "+of)
	}
	return k, nil
}

func (f *File) wrong(k *Key, want string) error {
	return tandem.Errorf(op, tandem.Corrupt, "%s: key %s is %s (%s): want %s", f.Path(), short(k.Name), f.Describe(k.Name), k.Type, want)
}

func (t ValueType) integer() bool {
	switch t {
	case U8, I8, U16, I16, U32, I32, U64, I64:
		return true
	}
	return false
}

// width returns the bytes of one value of type t at off.
func (f *File) width(t ValueType, off int) int {
	if t == String {
		return 8 + int(binary.LittleEndian.Uint64(f.data[off:]))
	}
	return valueTypes[t].bytes
}

// end returns where the value of k ends.
func (f *File) end(k *Key) int {
	switch {
	case k.Type == String:
		return k.off + k.Len
	case k.Type != Array:
		return k.off + valueTypes[k.Type].bytes
	case k.Elem != String:
		return k.off + k.Len*valueTypes[k.Elem].bytes
	}
	at := k.off
	for range k.Len {
		at += f.width(String, at)
	}
	return at
}

// integer returns the integer at off in two's complement; ok is false for other types.
func (f *File) integer(t ValueType, off int) (u uint64, negative, ok bool) {
	b := f.data[off:]
	var i int64
	switch t {
	case U8:
		return uint64(b[0]), false, true
	case U16:
		return uint64(binary.LittleEndian.Uint16(b)), false, true
	case U32:
		return uint64(binary.LittleEndian.Uint32(b)), false, true
	case U64:
		return binary.LittleEndian.Uint64(b), false, true
	case I8:
		i = int64(int8(b[0]))
	case I16:
		i = int64(int16(binary.LittleEndian.Uint16(b)))
	case I32:
		i = int64(int32(binary.LittleEndian.Uint32(b)))
	case I64:
		i = int64(binary.LittleEndian.Uint64(b))
	default:
		return 0, false, false
	}
	return uint64(i), i < 0, true
}

func (f *File) intIn(t ValueType, off, lo, hi int) (int, bool) {
	u, negative, ok := f.integer(t, off)
	if !ok || !negative && u > math.MaxInt {
		return 0, false
	}
	return int(u), int(u) >= lo && int(u) <= hi
}

func (f *File) float(t ValueType, off int) (float64, bool) {
	switch t {
	case Float32:
		return float64(math.Float32frombits(binary.LittleEndian.Uint32(f.data[off:]))), true
	case Float64:
		return math.Float64frombits(binary.LittleEndian.Uint64(f.data[off:])), true
	}
	u, negative, ok := f.integer(t, off)
	if negative {
		return float64(int64(u)), ok
	}
	return float64(u), ok
}

// text shows the value of type t at off.
func (f *File) text(t ValueType, off int) string {
	switch t {
	case String:
		n := f.width(String, off) - 8
		return short(string(f.data[off+8 : off+8+min(n, 1<<10)]))
	case Bool:
		return strconv.FormatBool(f.data[off] != 0)
	case Float32:
		v, _ := f.float(t, off)
		return strconv.FormatFloat(v, 'g', -1, 32)
	case Float64:
		v, _ := f.float(t, off)
		return strconv.FormatFloat(v, 'g', -1, 64)
	}
	u, negative, _ := f.integer(t, off)
	if negative {
		return strconv.FormatInt(int64(u), 10)
	}
	return strconv.FormatUint(u, 10)
}
