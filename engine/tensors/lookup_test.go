package tensors

import (
	"bytes"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/kernels"
	"github.com/tandem-llm/tandem/kernels/testdevice"
	"github.com/tandem-llm/tandem/modelfile/gguf"
)

const lookupRows, lookupCols = 40, 256

// matrixFile writes a file with one matrix of random finite numbers of a type.
func matrixFile(t *testing.T, typ kernels.Type) string {
	t.Helper()
	r := rand.New(rand.NewPCG(uint64(typ), 5))
	elems, size := typ.Block()
	data := make([]byte, lookupRows*lookupCols/elems*size)
	for i := range data {
		data[i] = byte(r.Uint32())
	}
	for at := Infinite(gguf.Type(typ), data); at >= 0; at = Infinite(gguf.Type(typ), data) {
		clear(data[at:min(at+4, len(data))])
	}
	w := gguf.NewWriter()
	w.Set("general.architecture", "none")
	w.Tensor("m", gguf.Type(typ), []int{lookupCols, lookupRows}, data)
	var b bytes.Buffer
	if _, err := w.WriteTo(&b); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "m.gguf")
	if err := os.WriteFile(path, b.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// Rows that are read from the file have the bits of those that a device looks up in its memory.
func TestLookup(t *testing.T) {
	for _, typ := range kernels.Types() {
		f, err := gguf.Open(matrixFile(t, typ))
		if err != nil {
			t.Fatal(err)
		}
		c := New(f)
		var w kernels.W
		c.Matrix(&w, "m", true, lookupRows, lookupCols)
		x := c.Lookup("m", true, lookupRows, lookupCols)
		if c.Err != nil {
			t.Fatal(c.Err)
		}
		want := loadedRows(t, c.Matrices)
		kept := f.Keep(x)
		if err := f.Close(); err != nil {
			t.Fatal(err)
		}
		l := NewLookup(x)
		for i := range lookupRows {
			got := make([]float32, lookupCols)
			if err := l.Read(i, got); err != nil {
				t.Fatal(err)
			}
			if !slices.Equal(got, want[i]) {
				t.Fatalf("%s: row %d is %v, loaded %v", typ, i, got[:4], want[i][:4])
			}
		}
		if err := l.Read(lookupRows, make([]float32, lookupCols)); tandem.KindOf(err) != tandem.Invalid {
			t.Errorf("%s: a row after the last: %v", typ, err)
		}
		kept.Close()
	}
}

// loadedRows returns all rows of the one matrix as a device looks them up.
func loadedRows(t *testing.T, matrices []Matrix) (rows [][]float32) {
	t.Helper()
	d := testdevice.CPU(t, 1)
	p := kernels.NewProgram(lookupRows, 1)
	AddTo(p, matrices, d.Layout)
	out := p.Buf(lookupCols)
	p.Embed(0, out)
	store, err := d.NewWeights(p)
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	to := Into(store)
	to.Add = func(*gguf.Tensor, int, []byte) {}
	if err := Fill(matrices, to, nil); err != nil {
		t.Fatal(err)
	}
	r, err := d.Compile(p, store, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	pass := kernels.Pass{Rows: lookupRows}
	for i := range lookupRows {
		pass.Tokens = append(pass.Tokens, int32(i))
	}
	if err := r.Run(&pass); err != nil {
		t.Fatal(err)
	}
	for i := range lookupRows {
		rows = append(rows, slices.Clone(r.Row(out, i)))
	}
	return rows
}

// A matrix that stays in its file is read once for the digest, and refused if a number of it is not finite.
func TestLookupChecked(t *testing.T) {
	f, err := gguf.Open(matrixFile(t, kernels.F16))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	x, added := f.Tensor("m"), 0
	to := Filling{Lookup: []*gguf.Tensor{x}, Add: func(_ *gguf.Tensor, _ int, data []byte) { added += len(data) }}
	if err := Fill(nil, to, nil); err != nil || added != x.Size() {
		t.Errorf("%d of %d bytes added: %v", added, x.Size(), err)
	}
	path := matrixFile(t, kernels.F16)
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	copy(data[len(data)-2*lookupCols:], []byte{0, 0x7c})
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
	bad, err := gguf.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer bad.Close()
	to.Lookup = []*gguf.Tensor{bad.Tensor("m")}
	if err := Fill(nil, to, nil); tandem.KindOf(err) != tandem.Corrupt || !strings.Contains(err.Error(), "in row 39") {
		t.Errorf("an infinite number: %v", err)
	}
}

// Rows of a matrix may be any of the tensor's, and one that is not finite is named by its place there.
func TestGathered(t *testing.T) {
	f, err := gguf.Open(matrixFile(t, kernels.Q8_0))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	c := New(f)
	var all, some kernels.W
	order := []int32{39, 0, 7, 7, 20, 1}
	c.Matrix(&all, "m", true, lookupRows, lookupCols)
	c.Gathered(&some, "m", lookupRows, lookupCols, order)
	if c.Err != nil {
		t.Fatal(c.Err)
	}
	var got []byte
	to := Filling{Add: func(*gguf.Tensor, int, []byte) {}, Take: func(p Piece, src []byte) error {
		if p.matrix == some {
			got = append(got, src...)
		}
		return nil
	}}
	if err := Fill(c.Matrices, to, nil); err != nil {
		t.Fatal(err)
	}
	data, err := f.Tensor("m").Bytes()
	if err != nil {
		t.Fatal(err)
	}
	var want []byte
	for _, row := range order {
		want = append(want, data[int(row)*PerRow(f.Tensor("m")):][:PerRow(f.Tensor("m"))]...)
	}
	if !bytes.Equal(got, want) || c.Matrices[some].FileBytes() != int64(len(want)) {
		t.Errorf("%d bytes of rows %d: want %d", len(got), order, len(want))
	}
}
