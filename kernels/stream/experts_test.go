package stream

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"testing"

	"github.com/tandem-llm/tandem/kernels"
)

const testExperts, testUsed = 12, 2

// mixed has three layers with experts, whose parts of a weight are whole pages in some, and in others less than one.
func mixed() *kernels.Program {
	p := kernels.NewProgram(3, 3)
	x, act, apart := p.Buf(48), p.Act(48), p.Buf(testUsed*48)
	embed := p.Weight(kernels.Weight{Name: "embed", Type: kernels.F32, Rows: 64, Cols: 48, Layout: kernels.Groups16})
	p.Stage("embedding")
	p.Embed(embed, x)
	for i := range 3 {
		add := func(name string, rows, cols, experts int) kernels.W {
			return p.Weight(kernels.Weight{Name: fmt.Sprint(name, i), Type: kernels.F32, Rows: rows, Cols: cols, Experts: experts,
				Layout: kernels.Groups16})
		}
		cols := 16 << i // an expert of down takes 3072, 6144 or 12288 bytes
		logits, choice := p.Buf(testExperts), kernels.Route(len(p.Routes))
		p.Routes = append(p.Routes, kernels.RouteShape{Experts: testExperts, Used: testUsed})
		p.Stage(fmt.Sprint("layer ", i))
		p.Add(kernels.RMSNorm{In: x, Weight: make([]float32, 48), Eps: 1, Out: act})
		p.MatMul(add("router", testExperts, 48, 0), act, logits, kernels.MatMulOpt{})
		p.Add(kernels.ChooseExperts{Logits: logits, Out: choice})
		p.Stage(fmt.Sprint("experts ", i))
		wide, many := p.Buf(testUsed*cols), p.Act(testUsed*cols)
		p.Add(kernels.ExpertMatMul{W: add("up", cols, 48, testExperts), In: act, Route: choice, Out: wide})
		p.Feed(wide, many)
		p.Add(kernels.ExpertMatMul{W: add("down", 48, cols, testExperts), In: many, Route: choice, Out: apart})
		p.Add(kernels.JoinExperts{In: apart, Route: choice, Out: x})
	}
	return p
}

// routed runs a pass of n stages, all for n < 0, whose layers choose experts by r, and compares them with the source's.
func (f *fixture) routed(src made, r *rand.Rand, n int) error {
	var chosen []int32
	for i, s := range f.stages[:f.prog.StageCount()] {
		if i == n {
			break
		}
		if len(s.experts) == 0 {
			chosen = nil
			for e := range int32(testExperts) {
				if r.IntN(3) == 0 && len(chosen) < 3*testUsed {
					chosen = append(chosen, e)
				}
			}
		}
		var mine []int32
		if len(s.experts) > 0 {
			mine = append([]int32{}, chosen...)
		}
		all, err := f.Acquire(i, mine)
		if err != nil {
			return err
		}
		for _, w := range f.prog.StageWeights(i) {
			m := &f.prog.Weights[w]
			if m.Experts == 0 {
				all = all[1:]
				continue
			}
			mine := all[:len(chosen)]
			all = all[len(chosen):]
			for k, e := range chosen {
				if got, want := mine[k], src.expert(w, int(e)); !bytes.Equal(got, want) {
					return fmt.Errorf("expert %d of %s has other bytes", e, m.Name)
				}
			}
		}
		f.Release(i)
	}
	return nil
}

// expert returns the bytes of an expert.
func (m made) expert(w kernels.W, e int) (b []byte) {
	rows := m.p.Weights[w].Rows
	for row := e * rows; row < (e+1)*rows; {
		from, to := m.Rows(w, row/32)
		src, _ := m.Read(w, row/32, nil)
		each := len(src) / (to - from)
		end := min(to, (e+1)*rows)
		b = append(b, src[(row-from)*each:(end-from)*each]...)
		row = end
	}
	return b
}

// leastMixed is the least memory for mixed.
func leastMixed(t *testing.T) int64 {
	var small *kernels.TooSmall
	if _, err := layOut(must(divided(mixed())), Config{}); !errors.As(err, &small) {
		t.Fatal(err)
	}
	return small.Least
}

// TestExperts: every pass finds the experts that it has chosen, with any memory from the least on, after passes that end in the middle, and
// with reads that stop early; what is not used lately is given up, so that memory keeps its bound; what is there is not read again.
func TestExperts(t *testing.T) {
	path, src := filepath.Join(t.TempDir(), "packed"), made{mixed(), 3}
	whole := int64(1 << 24)
	for _, memory := range []int64{leastMixed(t), leastMixed(t) + 60<<10, whole} {
		f, err := open(t, path, src, memory, nil)
		if err != nil {
			t.Fatal(err)
		}
		r := rand.New(rand.NewPCG(uint64(memory), 1))
		for i, n := range slices.Repeat([]int{-1, -1, 4, -1, 3, 1, -1}, 6) {
			if err := f.routed(src, r, n); err != nil {
				t.Fatalf("%d bytes, pass %d of %d stages: %v", memory, i, n, err)
			}
		}
		s := f.StreamStats()
		if s.Used == 0 || s.Missed == 0 || s.ReadExperts == 0 || s.Experts != f.expert.memory || f.weights.Bytes() > memory {
			t.Errorf("%d bytes: %+v", memory, s)
		}
		if memory == whole && s.Missed > 3*testExperts {
			t.Errorf("%d experts are read, though all %d fit", s.Missed, 3*testExperts)
		}
		if memory < whole && s.Missed <= 3*testExperts {
			t.Errorf("%d experts are read, though not all fit", s.Missed)
		}
	}
}

// TestExpertFaults: an expert whose bytes have changed, a read that fails and a file that is cut are errors of the pass, and the device is
// gone; experts that were there before stay what they were. So is a pass that does not say which experts it wants.
func TestExpertFaults(t *testing.T) {
	src := made{mixed(), 4}
	for what, spoil := range map[string]func(f *fixture, path string){
		"changed": func(f *fixture, path string) {
			b, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			for i := f.looks[1].home; i < int64(len(b)); i += 1024 {
				b[i] ^= 1
			}
			if err := os.WriteFile(path, b, 0o600); err != nil {
				t.Fatal(err)
			}
		},
		"cut": func(f *fixture, path string) {
			if err := os.Truncate(path, f.looks[1].home); err != nil {
				t.Fatal(err)
			}
		},
		"unreadable": func(f *fixture, _ string) { f.file.err = syscall.EIO; f.file.after.Store(0) },
	} {
		path := filepath.Join(t.TempDir(), "packed")
		f, err := open(t, path, src, leastMixed(t), nil)
		if err != nil {
			t.Fatal(err)
		}
		spoil(f, path)
		r := rand.New(rand.NewPCG(1, 1))
		for range 20 {
			if err = f.routed(src, r, -1); err != nil {
				break
			}
		}
		var fault *Fault
		if !errors.As(err, &fault) || fault.File != path || fault.At == 0 {
			t.Errorf("%s: %v", what, err)
		}
		<-f.Gone()
		if err := f.routed(src, r, -1); err == nil {
			t.Errorf("%s: the next pass has a result", what)
		}
		if _, err := os.Stat(path); (what == "changed") != errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s: the file is there: %v", what, err)
		}
	}
	f, err := open(t, filepath.Join(t.TempDir(), "packed"), src, leastMixed(t), nil)
	if err != nil {
		t.Fatal(err)
	}
	for i, s := range f.stages[:f.prog.StageCount()] {
		if _, err := f.Acquire(i, nil); (err != nil) != (len(s.experts) > 0) {
			t.Errorf("%s without a choice: %v", s.name, err)
		}
	}
}
