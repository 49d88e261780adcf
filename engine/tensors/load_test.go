package tensors

import (
	"testing"

	"github.com/tandem-llm/tandem/kernels"
	"github.com/tandem-llm/tandem/modelfile/gguf"
)

// Chunks cover every row of every matrix once, in groups of 16.
func TestChunks(t *testing.T) {
	f, err := gguf.Open("../../models/gopher-19m-q8_0.gguf")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	m := New(f)
	for _, x := range f.Tensors() {
		if len(x.Shape) == 2 {
			m.Matrix(new(kernels.W), x.Name, true, x.Shape[1], x.Shape[0])
		}
	}
	if m.Err != nil {
		t.Fatal(m.Err)
	}
	chunks, largest, total := chunksOf(m.Matrices)
	covered := map[kernels.W]int{}
	last := map[string]int{}
	for _, c := range chunks {
		if c.size > largest || c.row != last[c.tensor.Name] || c.split {
			t.Errorf("%s: %d bytes from row %d on, after row %d", c.tensor.Name, c.size, c.row, last[c.tensor.Name])
		}
		last[c.tensor.Name] += c.size / PerRow(c.tensor)
		for _, p := range c.into {
			if p.row%16 != 0 || p.row != covered[p.matrix] {
				t.Errorf("%s: row %d of a matrix, after row %d", c.tensor.Name, p.row, covered[p.matrix])
			}
			covered[p.matrix] += p.size / PerRow(c.tensor)
		}
		total -= int64(c.size)
	}
	for i, p := range m.Matrices {
		if got := covered[kernels.W(i)]; got != p.Rows {
			t.Errorf("%s: %d rows of %d", p.Tensor.Name, got, p.Rows)
		}
	}
	if total != 0 || len(chunks) <= len(m.Matrices) {
		t.Errorf("%d chunks of %d matrices, %d bytes apart", len(chunks), len(m.Matrices), total)
	}
}
