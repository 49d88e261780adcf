// Package sttest writes safetensors files, for tests alone.
package sttest

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"testing"
)

// Tensor is a tensor to write, its elements as bytes.
type Tensor struct {
	DType string
	Shape []int
	Data  []byte
}

// F32 returns a tensor of floats.
func F32(values []float32, shape ...int) Tensor {
	var data []byte
	for _, v := range values {
		data = binary.LittleEndian.AppendUint32(data, math.Float32bits(v))
	}
	return Tensor{"F32", shape, data}
}

// BF16 returns a tensor of floats cut to their upper halves.
func BF16(values []float32, shape ...int) Tensor {
	var data []byte
	for _, v := range values {
		data = binary.LittleEndian.AppendUint16(data, uint16(math.Float32bits(v)>>16))
	}
	return Tensor{"BF16", shape, data}
}

// I64 returns a vector of whole numbers.
func I64(values ...int64) Tensor {
	var data []byte
	for _, v := range values {
		data = binary.LittleEndian.AppendUint64(data, uint64(v))
	}
	return Tensor{"I64", []int{len(values)}, data}
}

// Bools returns a vector of bools.
func Bools(values ...bool) Tensor {
	data := make([]byte, len(values))
	for i, v := range values {
		if v {
			data[i] = 1
		}
	}
	return Tensor{"BOOL", []int{len(values)}, data}
}

// File is a checkpoint: tensors in the order in which they are written.
type File struct {
	Names    []string
	Tensors  map[string]Tensor
	Metadata map[string]string
}

// Set adds or replaces a tensor.
func (f *File) Set(name string, t Tensor) {
	if f.Tensors == nil {
		f.Tensors = map[string]Tensor{}
	}
	if _, ok := f.Tensors[name]; !ok {
		f.Names = append(f.Names, name)
	}
	f.Tensors[name] = t
}

// Drop removes a tensor.
func (f *File) Drop(name string) {
	delete(f.Tensors, name)
	for i, n := range f.Names {
		if n == name {
			f.Names = append(f.Names[:i:i], f.Names[i+1:]...)
			return
		}
	}
}

// Bytes returns the file; its header is padded with spaces to a multiple of 8, as PyTorch's tools pad it.
func (f *File) Bytes() []byte {
	var header, data bytes.Buffer
	header.WriteByte('{')
	if f.Metadata != nil {
		text, _ := json.Marshal(f.Metadata)
		header.WriteString(`"__metadata__":`)
		header.Write(text)
	}
	for _, name := range f.Names {
		if header.Len() > 1 {
			header.WriteByte(',')
		}
		t := f.Tensors[name]
		shape, _ := json.Marshal(t.Shape)
		if t.Shape == nil {
			shape = []byte("[]")
		}
		header.WriteString(strconv.Quote(name) + `:{"dtype":"` + t.DType + `","shape":` + string(shape) + `,"data_offsets":[` +
			strconv.Itoa(data.Len()) + "," + strconv.Itoa(data.Len()+len(t.Data)) + "]}")
		data.Write(t.Data)
	}
	header.WriteByte('}')
	for header.Len()%8 != 0 {
		header.WriteByte(' ')
	}
	return Raw(header.String(), data.Bytes())
}

// Raw returns a file of that header and data, whatever they say.
func Raw(header string, data []byte) []byte {
	return append(append(binary.LittleEndian.AppendUint64(nil, uint64(len(header))), header...), data...)
}

// Write writes the file to path.
func (f *File) Write(t testing.TB, path string) string {
	t.Helper()
	return Put(t, path, f.Bytes())
}

// Put writes data to path, whose folder it makes.
func Put(t testing.TB, path string, data []byte) string {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, data, 0o644); err != nil {
		t.Fatal(err)
	}
	return path
}
