// Package family makes tiny models of every architecture that tandem runs, of random shapes and with random weights, and changes models
// before they are written: keys, tensors, noise. Only test files import it.
package family

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/tandem-llm/tandem/kernels/half"
	"github.com/tandem-llm/tandem/kernels/ref"
	"github.com/tandem-llm/tandem/modelfile/gguf"
)

// Model is a model that is not written yet. Its fields may be changed.
type Model struct {
	Name    string // of the family and the seed, or of the golden model
	Arch    string
	Tensors []Tensor
	Vocab   int
	Keys    []string // of the architecture, without its name
	w       *gguf.Writer
}

// Tensor is one of a model's; Shape as in gguf.Tensor.
type Tensor struct {
	Name  string
	Type  gguf.Type
	Shape []int
	Data  []byte
}

// Read reads a model file.
func Read(t testing.TB, path string) *Model {
	t.Helper()
	f, err := gguf.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	m, err := read(f)
	if err != nil {
		t.Fatal(err)
	}
	m.Name = filepath.Base(path)
	return m
}

func read(f *gguf.File) (*Model, error) {
	m := &Model{w: gguf.KeysOf(f)}
	var err error
	if m.Arch, err = f.String("general.architecture"); err != nil {
		return nil, err
	}
	for _, k := range f.Keys() {
		if name, own := strings.CutPrefix(k.Name, m.Arch+"."); own {
			m.Keys = append(m.Keys, name)
		}
	}
	for _, x := range f.Tensors() {
		data, err := x.Bytes()
		if err != nil {
			return nil, err
		}
		m.Tensors = append(m.Tensors, Tensor{x.Name, x.Type, x.Shape, slices.Clone(data)})
		if x.Name == "token_embd.weight" {
			m.Vocab = x.Shape[1]
		}
	}
	return m, nil
}

// Set gives a key of the architecture a value.
func (m *Model) Set(key string, v any) {
	if m.w.Set(m.Arch+"."+key, v); !slices.Contains(m.Keys, key) {
		m.Keys = append(m.Keys, key)
	}
}

// SetAny gives a key, by its whole name, a value.
func (m *Model) SetAny(key string, v any) { m.w.Set(key, v) }

// DropKey removes a key of the architecture.
func (m *Model) DropKey(key string) { m.w.DropKey(m.Arch + "." + key) }

// Tensor returns the tensor of that name, nil if there is none.
func (m *Model) Tensor(name string) *Tensor {
	if i := slices.IndexFunc(m.Tensors, func(x Tensor) bool { return x.Name == name }); i >= 0 {
		return &m.Tensors[i]
	}
	return nil
}

// Drop removes a tensor.
func (m *Model) Drop(name string) {
	m.Tensors = slices.DeleteFunc(m.Tensors, func(x Tensor) bool { return x.Name == name })
}

// Add adds a tensor of zeros in f32.
func (m *Model) Add(name string, shape ...int) {
	n := 4
	for _, d := range shape {
		n *= d
	}
	m.Tensors = append(m.Tensors, Tensor{name, gguf.F32, shape, make([]byte, n)})
}

// Reshape gives a tensor another shape, and as many bytes of zeros as that takes.
func (m *Model) Reshape(name string, shape ...int) {
	x := m.Tensor(name)
	elems, bytes := x.Type.Block()
	n := 1
	for _, d := range shape {
		n *= d
	}
	x.Shape, x.Data = shape, make([]byte, n/elems*bytes)
}

// Fill gives all elements of an f32 tensor a value.
func (m *Model) Fill(name string, v float32) {
	x := m.Tensor(name)
	if x.Type != gguf.F32 {
		panic("tensor " + name + " is no f32")
	}
	for i := 0; i < len(x.Data); i += 4 {
		binary.LittleEndian.PutUint32(x.Data[i:], math.Float32bits(v))
	}
}

// Widen gives all tensors of numbers the type f32, which holds what they are exactly.
func (m *Model) Widen() {
	for i := range m.Tensors {
		x := &m.Tensors[i]
		n := 1
		for _, d := range x.Shape {
			n *= d
		}
		values := make([]float32, n)
		ref.Dequantize(uint32(x.Type), x.Data, values)
		x.Type, x.Data = gguf.F32, make([]byte, 4*n)
		for j, v := range values {
			x.set(j, v)
		}
	}
}

// Noisy returns the model with noise on its f16 matrices, each weight moved by up to `most` of its size: a draft that is often right about
// m, and often not.
func (m *Model) Noisy(seed uint64, most float32) *Model {
	r := rand.New(rand.NewPCG(seed, 7))
	out := &Model{Name: m.Name, Arch: m.Arch, Vocab: m.Vocab, w: m.w, Tensors: slices.Clone(m.Tensors)}
	for i := range out.Tensors {
		x := &out.Tensors[i]
		if x.Type != gguf.F16 {
			continue
		}
		x.Data = slices.Clone(x.Data)
		for j := 0; j < len(x.Data); j += 2 {
			v := half.Float(binary.LittleEndian.Uint16(x.Data[j:])) * (1 + most*(2*r.Float32()-1))
			binary.LittleEndian.PutUint16(x.Data[j:], half.From(v))
		}
	}
	return out
}

// Bytes returns the file.
func (m *Model) Bytes(t testing.TB) []byte {
	t.Helper()
	var b bytes.Buffer
	m.write(t, &b, m.Tensors)
	return b.Bytes()
}

// Write writes the model to a file in dir and returns its path.
func (m *Model) Write(t testing.TB, dir string) string {
	t.Helper()
	return m.file(t, filepath.Join(dir, m.Name+".gguf"), m.Tensors)
}

// Split writes the model as n files into dir and returns the path of the first.
func (m *Model) Split(t testing.TB, dir string, n int) (first string) {
	t.Helper()
	keys := m.w
	defer func() { m.w = keys }()
	for i := range n {
		if i > 0 {
			m.w = gguf.NewWriter()
		}
		m.SetAny("split.no", uint16(i))
		m.SetAny("split.count", uint16(n))
		m.SetAny("split.tensors.count", int32(len(m.Tensors)))
		from, to := i*len(m.Tensors)/n, (i+1)*len(m.Tensors)/n
		path := m.file(t, filepath.Join(dir, fmt.Sprintf("%s-%05d-of-%05d.gguf", m.Name, i+1, n)), m.Tensors[from:to])
		if i == 0 {
			first = path
		}
	}
	for _, key := range []string{"split.no", "split.count", "split.tensors.count"} {
		keys.DropKey(key)
	}
	return first
}

func (m *Model) file(t testing.TB, path string, tensors []Tensor) string {
	t.Helper()
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	m.write(t, f, tensors)
	return path
}

func (m *Model) write(t testing.TB, to io.Writer, tensors []Tensor) {
	t.Helper()
	if err := m.writeTo(to, tensors); err != nil {
		t.Fatal(err)
	}
}

func (m *Model) writeTo(to io.Writer, tensors []Tensor) error {
	for _, x := range tensors {
		m.w.Tensor(x.Name, x.Type, x.Shape, x.Data)
	}
	defer func() {
		for _, x := range tensors {
			m.w.DropTensor(x.Name)
		}
	}()
	_, err := m.w.WriteTo(to)
	return err
}

// WithMTP gives the model a layer behind its last that guesses further tokens: a copy of its last layer with attention, and random tensors
// to enter it.
func (m *Model) WithMTP(seed uint64) {
	layers, like := 0, -1
	for _, x := range m.Tensors {
		var i int
		var name string
		if n, _ := fmt.Sscanf(x.Name, "blk.%d.%s", &i, &name); n != 2 {
			continue
		}
		if layers = max(layers, i+1); name == "attn_output.weight" {
			like = i
		}
	}
	for _, x := range slices.Clone(m.Tensors) {
		if name, ok := strings.CutPrefix(x.Name, fmt.Sprintf("blk.%d.", like)); ok {
			x.Name = fmt.Sprintf("blk.%d.%s", layers, name)
			m.Tensors = append(m.Tensors, x)
		}
	}
	dim := m.Tensor("output_norm.weight").Shape[0]
	r := rand.New(rand.NewPCG(seed, 31))
	b := &builder{m: m, r: r, draw: r.NormFloat64, layer: layers}
	b.matrix(b.at("nextn.eh_proj.weight"), dim, 2*dim)
	b.vector(b.at("nextn.enorm.weight"), dim, 1, 0.2)
	b.vector(b.at("nextn.hnorm.weight"), dim, 1, 0.2)
	b.vector(b.at("nextn.shared_head_norm.weight"), dim, 1, 0.2)
	m.Set("block_count", u(layers+1))
	m.Set("nextn_predict_layers", u(1))
}
