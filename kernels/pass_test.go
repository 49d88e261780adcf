package kernels

import (
	"strings"
	"testing"
)

// TestBlockRows: a pass of a program that convolves blocks has the rows of each block side by side, in order.
func TestBlockRows(t *testing.T) {
	p := NewProgram(4, 0)
	p.KV = UniformKV(1, 1, 32, KVF16)
	p.Add(conv(p, 64, 16, 0))
	if err := p.CheckFor("test", Rows, false); err != nil {
		t.Fatal(err)
	}
	l := p.PassLimits(4)
	good := func() *Pass { // a row of a text, and a block of three rows
		return &Pass{Rows: 4, Pages: []int32{0}, Table: make([]int32, 4), Store: []Cell{9, 10, 11, 12}, Pos: []int32{9, 10, 11, 12},
			Prefix: []int32{10, 10, 10, 10}, Anc: []Cell{10, 11, 12}, AncOff: make([]int32, 4), AncLen: []int32{0, 3, 3, 3}}
	}
	if err := l.Check(good()); err != nil {
		t.Fatal(err)
	}
	for text, spoil := range map[string]func(a *Pass){
		"row 2 is at position 12 of a block that begins at 10: want the row of position 11 right before it": func(a *Pass) {
			a.Pos[2] = 12
		},
		"row 3 is at position 12 of a block that begins at 11": func(a *Pass) { a.Prefix[3] = 11 },
		"row 0 is at position 9 of a block that begins at 8": func(a *Pass) {
			a.Prefix[0], a.AncLen[0] = 8, 3
		},
	} {
		a := good()
		spoil(a)
		if err := l.Check(a); err == nil || !strings.Contains(err.Error(), text) {
			t.Errorf("%v, want %q", err, text)
		}
	}
}
