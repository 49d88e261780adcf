package kerneltest

import (
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/tandem-llm/tandem/kernels"
)

// outside returns memory outside the Go heap, where weights must lie.
func outside(t testing.TB, n int) []byte {
	b, err := syscall.Mmap(-1, 0, n, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_ANON|syscall.MAP_PRIVATE)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = syscall.Munmap(b) })
	return b
}

func wantError(t *testing.T, what string, err error, text string) {
	t.Helper()
	if err == nil || !strings.Contains(err.Error(), text) {
		t.Errorf("%s: error %v, want one that says %q", what, err, text)
	}
}

// runErrors: a pass with an invalid size or index is refused before anything is written.
func runErrors(t *testing.T, devices []kernels.Device) {
	r := rng(1)
	n := newNetwork(r, netRows, 4, 2, 32, 64, [3]kernels.Type{kernels.Q8_0, kernels.Q8_0, kernels.Q8_0})
	good := func() *kernels.Pass { return treePass(rng(2), 100, 2, 40, 3, n.vocab) }
	m := n.rig(t, r, devices)
	m.run(good())
	for text, spoil := range map[string]func(a *kernels.Pass){
		"pass of 0 rows":               func(a *kernels.Pass) { a.Rows = 0 },
		"pass of 18 rows":              func(a *kernels.Pass) { a.Rows = 18 },
		"7 tokens for 8 rows":          func(a *kernels.Pass) { a.Tokens = a.Tokens[1:] },
		"token 70 of row 0":            func(a *kernels.Pass) { a.Tokens[0] = 70 },
		"token -1 of row 1":            func(a *kernels.Pass) { a.Tokens[1] = -1 },
		"token -2 of row 1":            func(a *kernels.Pass) { a.Tokens[1], a.Given = -2, make([]float32, 128) },
		"100 numbers of given":         func(a *kernels.Pass) { a.Tokens[1], a.Given = -1, make([]float32, 100) },
		"0 positions":                  func(a *kernels.Pass) { a.Pos = nil },
		"position -5":                  func(a *kernels.Pass) { a.Pos[0] = -5 },
		"9 positions in the text":      func(a *kernels.Pass) { a.Turn = make([]int32, 9) },
		"position -6":                  func(a *kernels.Pass) { a.Turn = append(slices.Clone(a.Pos[1:]), -6) },
		"9 cells to store":             func(a *kernels.Pass) { a.Store = append(a.Store, 0) },
		"stored in cell -1":            func(a *kernels.Pass) { a.Store[3] = -1 },
		"stored in cell 768 of 768":    func(a *kernels.Pass) { a.Store[3] = 768 },
		"is page 12 of 12":             func(a *kernels.Pass) { a.Pages[0] = 12 },
		"is page -1 of 12":             func(a *kernels.Pass) { a.Pages[7] = -1 },
		"table begins at 8 of 8":       func(a *kernels.Pass) { a.Table[2] = 8 },
		"table begins at -1":           func(a *kernels.Pass) { a.Table[2] = -1 },
		"ancestor 1 is cell 768":       func(a *kernels.Pass) { a.Anc[1] = 768 },
		"ancestors begin at 1000":      func(a *kernels.Pass) { a.AncOff[2] = 1000 },
		"ancestors begin at -1":        func(a *kernels.Pass) { a.AncOff[2] = -1 },
		"row 0 at position 100":        func(a *kernels.Pass) { a.Prefix[0] = 100 },
		"sees -1 positions":            func(a *kernels.Pass) { a.Prefix[0], a.AncLen[0] = -1, 102 },
		"of 11 for 2000 anc":           func(a *kernels.Pass) { a.Pos[2], a.AncLen[2], a.Prefix[2] = 2000, 2000, 1 },
		"begins at 0 of 8 for 2000":    func(a *kernels.Pass) { a.Pos[0], a.Prefix[0] = 1999, 2000 },
		"wanted row 0 is 8 of 8":       func(a *kernels.Pass) { a.Wanted[0] = 8 },
		"wanted row 1 is -1":           func(a *kernels.Pass) { a.Wanted[1] = -1 },
		"10 wanted rows":               func(a *kernels.Pass) { a.Wanted = make([]int32, 10) },
		"top 65":                       func(a *kernels.Pass) { a.TopK = 65 },
		"top -1":                       func(a *kernels.Pass) { a.TopK = -1 },
		"0 prefixes for 8 rows":        func(a *kernels.Pass) { a.Prefix = nil },
		"0 ancestor counts for 8 rows": func(a *kernels.Pass) { a.AncLen = nil },
	} {
		for _, on := range m {
			a := good()
			spoil(a)
			wantError(t, on.name+", "+text, on.runner.Run(a), text)
		}
	}
	m.run(good())
	m.same("after all that", n.logits, len(good().Wanted))
	for _, on := range m {
		on.runner.Close()
		wantError(t, on.name+", closed", on.runner.Run(good()), "closed")
		if on.runner.Row(n.hidden, 0) != nil || on.runner.Top(0).IDs != nil {
			t.Errorf("%s: a closed runner still has results", on.name)
		}
		on.runner.Close()
	}
}
