// Package tensors finds the matrices and vectors of a pass in a model file, checks their shapes, and fills a device's store with them: from
// whole tensors, rows of them, experts, transposes.
package tensors

import (
	"encoding/binary"
	"fmt"
	"io"
	"math"
	"strings"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/kernels"
	"github.com/tandem-llm/tandem/modelfile/gguf"
)

// Catalog finds a model's tensors in its file, checks their shapes, and remembers which were asked
// for, so that unused tensors are noticed. Its methods set Err instead of returning an error; the caller checks it at the end.
type Catalog struct {
	File     *gguf.File
	used     map[string]bool
	Matrices []Matrix // asked for, in this order: a handle is an index
	Err      error    // the first one: Corrupt for a wrong or missing tensor, Unsupported, or one of reading File
}

// New returns a catalog of f from which nothing was asked for. f stays the caller's and must be open while the catalog is used.
func New(f *gguf.File) *Catalog { return &Catalog{File: f, used: map[string]bool{}} }

// Uses reports whether the named tensor was asked for, or skipped.
func (c *Catalog) Uses(name string) bool { return c.used[name] }

// Skip marks a tensor as not needed, so that RefuseOthers accepts it.
func (c *Catalog) Skip(name string) { c.used[name] = true }

// Matrix is a weight matrix of the program: rows [Row0, Row0+Rows) of a tensor, or of each of a tensor's matrices. Its handle is its
// index in the catalog.
type Matrix struct {
	Tensor       *gguf.Tensor
	Row0, Rows   int
	Experts      int     // a stack of so many matrices, each of Rows rows; 0: one matrix
	band, stride int     // the matrix takes band rows of every stride, from Row0 on; 0: all
	Heads        bool    // the matrices of the stack belong to heads: every row of a pass uses all
	Every        int     // rows of the tensor from one matrix of the stack to the next; 0: as many as the tensor's own matrices have
	Across       int     // each matrix is the transpose of so many rows of the tensor, in F32; 0: it is as in the tensor
	col0, width  int     // the matrix takes width columns, from col0 on; 0: all
	Order        []int32 // the tensor's row for each row of the matrix, all experts one after the other; nil: rows follow each other
}

// Describe writes everything that decides which bytes of a file the matrices have, and in which order.
func Describe(w io.Writer, matrices []Matrix) {
	for _, m := range matrices {
		of := m.Tensor
		m.Tensor = nil
		fmt.Fprintf(w, "%s %d %v %+v\n", of.Name, of.Type, of.Shape, m)
	}
}

// all returns the rows of all experts.
func (m *Matrix) all() int { return max(1, m.Experts) * m.Rows }

// From returns which row of the tensor is row `row` of the matrix; rows of a stack are numbered through. Order and Across must not be set.
func (m *Matrix) From(row int) int {
	if m.band > 0 {
		return m.Row0 + row/m.band*m.stride + row%m.band
	}
	if m.Experts == 0 {
		return m.Row0 + row
	}
	every := m.Every
	if every == 0 {
		every = m.Tensor.Shape[1]
	}
	return m.Row0 + row/m.Rows*every + row%m.Rows
}

// Cols returns the inputs of one of m's matrices as products see it; the inputs of a transposed one are rows of the tensor.
func (m *Matrix) Cols() int {
	if m.Across > 0 {
		return m.Across
	}
	if m.width > 0 {
		return m.width
	}
	return m.Tensor.Shape[0]
}

// Kind returns the format in which m's numbers are packed: the tensor's, or f32 for one that is transposed at load.
func (m *Matrix) Kind() kernels.Type {
	if m.Across > 0 {
		return kernels.F32
	}
	return kernels.Type(m.Tensor.Type)
}

// Whole reports whether m is all of its tensor, as it lies there.
func (m *Matrix) Whole() bool {
	t := m.Tensor
	return len(t.Shape) == 2 && m.Rows == t.Shape[1] && m.Experts == 0 && m.band == 0 && m.Across == 0 && m.width == 0 && m.Order == nil
}

// FileBytes returns the bytes that one of m's matrices takes in the file.
func (m *Matrix) FileBytes() int64 {
	if m.Across > 0 {
		return int64(m.Across) * int64(PerRow(m.Tensor))
	}
	return int64(m.Rows) * int64(PerRow(m.Tensor)) * int64(m.Cols()) / int64(m.Tensor.Shape[0])
}

// Name returns the tensor's name for messages, with the range of rows if m does not take all.
func (m *Matrix) Name() string {
	if m.Every > 0 {
		n := m.Rows
		if m.Across > 0 {
			n = m.Across
		}
		return fmt.Sprintf("%s[%d:%d of each %d]", m.Tensor.Name, m.Row0, m.Row0+n, m.Every)
	}
	if len(m.Tensor.Shape) == 1 || m.Rows == m.Tensor.Shape[1] || m.Order != nil {
		return m.Tensor.Name
	}
	return fmt.Sprintf("%s[%d:%d]", m.Tensor.Name, m.Row0, m.Row0+m.Rows)
}

// Fail sets Err to an error of kind k that begins with the file's path, unless there is one already.
func (c *Catalog) Fail(k tandem.Kind, format string, args ...any) {
	if c.Err == nil {
		c.Err = tandem.Errorf("engine", k, "%s: %s", c.File.Path(), fmt.Sprintf(format, args...))
	}
}

// Keep sets Err to err, an error of the file, unless there is one already.
func (c *Catalog) Keep(err error) {
	if c.Err == nil {
		c.Err = err
	}
}

// Find returns the named tensor; nil if it is absent, which is an error if it is required, or has another shape, which always is one.
func (c *Catalog) Find(name string, required bool, shape ...int) *gguf.Tensor {
	t := c.File.Tensor(name)
	if t == nil {
		if required {
			c.Fail(tandem.Corrupt, "tensor %q is missing", name)
		}
		return nil
	}
	c.used[name] = true
	same := len(t.Shape) == len(shape)
	for i := 0; same && i < len(shape); i++ {
		same = t.Shape[i] == shape[i]
	}
	if !same {
		c.Fail(tandem.Corrupt, "tensor %q has shape %v: the hyper-parameters want %v", name, t.Shape, shape)
		return nil
	}
	return t
}

// Band is a matrix that takes some rows of a tensor: made by Rows, for Stacked and OfExperts.
type Band struct {
	into *kernels.W
	rows int
}

// Rows returns a band of so many rows, whose handle goes into *into.
func Rows(into *kernels.W, rows int) Band { return Band{into, rows} }

// Matrix asks for a (rows, cols) weight matrix, rows being outputs. Its handle goes into *into, which stays as it is after an error or if
// the tensor is absent and not required. So do the methods below.
func (c *Catalog) Matrix(into *kernels.W, name string, required bool, rows, cols int) {
	if required || c.File.Tensor(name) != nil {
		c.Stacked(name, cols, Band{into, rows})
	}
}

// Gathered asks for a matrix of some rows of a (rows, cols) tensor. Output i of the matrix is row order[i] of the tensor. order is kept.
func (c *Catalog) Gathered(into *kernels.W, name string, rows, cols int, order []int32) {
	if t := c.Find(name, true, cols, rows); t != nil && c.Runs(t) {
		*into = kernels.W(len(c.Matrices))
		c.Matrices = append(c.Matrices, Matrix{Tensor: t, Rows: len(order), Order: order})
	}
}

// Lookup asks for a (rows, cols) tensor of which passes read single rows from the file. It returns nil if that is absent or wrong.
func (c *Catalog) Lookup(name string, required bool, rows, cols int) *gguf.Tensor {
	if t := c.Find(name, required, cols, rows); t != nil && c.Runs(t) {
		return t
	}
	return nil
}

// Row asks for a matrix of one output, which the file has as a vector.
func (c *Catalog) Row(into *kernels.W, name string, cols int) {
	if t := c.Find(name, true, cols); t != nil && c.Runs(t) {
		*into = kernels.W(len(c.Matrices))
		c.Matrices = append(c.Matrices, Matrix{Tensor: t, Rows: 1})
	}
}

// Stacked asks for matrices whose rows follow each other in one tensor, in the order of bands, and fill it. The tensor is required.
func (c *Catalog) Stacked(name string, cols int, bands ...Band) {
	rows := 0
	for _, b := range bands {
		rows += b.rows
	}
	t := c.Find(name, true, cols, rows)
	if t == nil || !c.Runs(t) {
		return
	}
	row0 := 0
	for _, b := range bands {
		*b.into = kernels.W(len(c.Matrices))
		c.Matrices = append(c.Matrices, Matrix{Tensor: t, Row0: row0, Rows: b.rows})
		row0 += b.rows
	}
}

// Runs reports whether there are kernels for the type of t. If not, it sets Err.
func (c *Catalog) Runs(t *gguf.Tensor) bool {
	ok := kernels.Type(t.Type).Supported()
	if !ok {
		c.Fail(tandem.Unsupported, "tensor %q has type %s: supported are %s", t.Name, t.Type, supported())
	}
	return ok
}

// supported lists the types of weights for which there are kernels.
func supported() string {
	var names []string
	for _, t := range kernels.Types() {
		names = append(names, t.String())
	}
	return strings.Join(names, ", ")
}

// Vector reads an F32 tensor of one dimension or more, all of whose numbers must be finite. It returns nil if the tensor is absent, or has
// another type or shape. The result is the caller's.
func (c *Catalog) Vector(name string, required bool, shape ...int) []float32 {
	t := c.Find(name, required, shape...)
	if t == nil {
		return nil
	}
	if t.Type != gguf.Type(kernels.F32) {
		c.Fail(tandem.Unsupported, "tensor %q has type %s: want f32", name, t.Type)
		return nil
	}
	data, err := t.Bytes()
	if err != nil {
		c.Keep(err)
		return nil
	}
	v := make([]float32, t.Elements())
	for i := range v {
		v[i] = math.Float32frombits(binary.LittleEndian.Uint32(data[4*i:]))
	}
	c.CheckFinite(name, v)
	return v
}

// Interleaved asks for two (rows, cols) matrices that take turns in one tensor: band rows of the first, then band rows of the second.
func (c *Catalog) Interleaved(name string, cols, rows, band int, first, second *kernels.W) {
	t := c.Find(name, true, cols, 2*rows)
	if t == nil || !c.Runs(t) {
		return
	}
	for i, into := range []*kernels.W{first, second} {
		*into = kernels.W(len(c.Matrices))
		c.Matrices = append(c.Matrices, Matrix{Tensor: t, Row0: i * band, Rows: rows, band: band, stride: 2 * band})
	}
}

// OfExperts asks for a stack of n matrices for each band. The tensor has n matrices of cols inputs, each with the bands' rows in order.
func (c *Catalog) OfExperts(name string, n, cols int, bands ...Band) {
	rows := 0
	for _, b := range bands {
		rows += b.rows
	}
	t := c.Find(name, true, cols, rows, n)
	if t == nil || !c.Runs(t) {
		return
	}
	row0 := 0
	for _, b := range bands {
		*b.into = kernels.W(len(c.Matrices))
		c.Matrices = append(c.Matrices, Matrix{Tensor: t, Row0: row0, Rows: b.rows, Experts: n})
		row0 += b.rows
	}
}

// KeysAndValues asks for two stacks of matrices, one matrix for each head, that take turns in one tensor: plain rows of keys, whose
// transpose (rank, plain) is the matrix, then the rows of values, (value, rank). Every row of a pass uses all heads.
func (c *Catalog) KeysAndValues(name string, heads, plain, value, rank int, keys, values *kernels.W) {
	each := plain + value
	t := c.Find(name, true, rank, heads*each)
	if t == nil || !c.Runs(t) {
		return
	}
	*keys, *values = kernels.W(len(c.Matrices)), kernels.W(len(c.Matrices)+1)
	c.Matrices = append(c.Matrices, Matrix{Tensor: t, Rows: rank, Experts: heads, Heads: true, Every: each, Across: plain},
		Matrix{Tensor: t, Row0: plain, Rows: value, Experts: heads, Heads: true, Every: each})
}

// OfHeads asks for a stack of n (rows, cols) matrices, one for each head. Every row of a pass uses all.
func (c *Catalog) OfHeads(into *kernels.W, name string, n, rows, cols int) {
	if c.OfExperts(name, n, cols, Band{into, rows}); c.Err == nil {
		c.Matrices[*into].Heads = true
	}
}

// BesideEachOther asks for two (rows, cols) matrices that lie side by side in one tensor: each of its rows is a row of the first, then one
// of the second. Unsupported if a block of the tensor's type would be cut.
func (c *Catalog) BesideEachOther(name string, rows int, first, second *kernels.W, cols int) {
	t := c.Find(name, true, 2*cols, rows)
	if t == nil || !c.Runs(t) {
		return
	}
	if elems, _ := kernels.Type(t.Type).Block(); cols%elems != 0 {
		c.Fail(tandem.Unsupported, "tensor %q has type %s, in blocks of %d: want one whose blocks divide %d inputs", name, t.Type, elems,
			cols)
		return
	}
	for i, into := range []*kernels.W{first, second} {
		*into = kernels.W(len(c.Matrices))
		c.Matrices = append(c.Matrices, Matrix{Tensor: t, Rows: rows, col0: i * cols, width: cols})
	}
}

// CheckFinite fails if v, the numbers of the named tensor, holds an infinity or NaN.
func (c *Catalog) CheckFinite(name string, v []float32) {
	for i, x := range v {
		if math.IsNaN(float64(x)) || math.IsInf(float64(x), 0) {
			c.Fail(tandem.Corrupt, "tensor %q: number %d is %v: want finite numbers", name, i, x)
			return
		}
	}
}

// RefuseOthers fails if the file has a tensor that nobody has asked for. Call it last.
func (c *Catalog) RefuseOthers(arch string) {
	for _, t := range c.File.Tensors() {
		if !c.used[t.Name] {
			c.Fail(tandem.Unsupported, "tensor %q has no place in the %s architecture: leaving it out would change the text", t.Name, arch)
			return
		}
	}
}

// LeaveOutTowers skips the tensors that read pictures or sound: text does not depend on them.
func (c *Catalog) LeaveOutTowers() {
	for _, t := range c.File.Tensors() {
		if gguf.Tower(t.Name) != "" {
			c.used[t.Name] = true
		}
	}
}

// AddTo adds matrices to p as weights, in order. In a program without weights, their handles are then those of the catalog.
func AddTo(p *kernels.Program, matrices []Matrix, layout func(kernels.Type) kernels.Layout) {
	for i := range matrices {
		x := &matrices[i]
		p.Weight(kernels.Weight{Name: x.Name(), Type: x.Kind(), Rows: x.Rows, Cols: x.Cols(), Experts: x.Experts, Layout: layout(x.Kind())})
	}
}

// Packed returns the bytes that m, with all matrices of a stack, takes in memory in the layout Groups16.
func (m *Matrix) Packed() int64 {
	return int64(max(1, m.Experts)) * int64(kernels.Groups16.Bytes(m.Kind(), m.Rows, m.Cols()))
}
