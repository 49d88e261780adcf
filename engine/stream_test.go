package engine_test

import (
	"errors"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/engine"
	"github.com/tandem-llm/tandem/engine/enginetest"
	"github.com/tandem-llm/tandem/engine/naive"
	"github.com/tandem-llm/tandem/kernels/stream"
	"github.com/tandem-llm/tandem/kernels/testdevice"
	"github.com/tandem-llm/tandem/test/testkit/family"
)

// TestStreamed: whole models with any memory from the least on give the bits of a resident one, from a packed file that is made, found
// again, and from the model's own file.
func TestStreamed(t *testing.T) {
	cases := naive.Cases()
	small := func(name string) string {
		c := cases[name].Model
		c.Generate(3)
		return c.Write(t, t.TempDir())
	}
	for _, c := range []struct {
		path string
		rows int
		long int
	}{{enginetest.Target, 64, 60}, {enginetest.Target, 12, 8}, {small("gemma2"), 64, 40}, {small("qwen3"), 8, 6},
		{small("qwen3moe"), 12, 9}, {small("gpt-oss"), 64, 20}, {small("granitemoe"), 12, 6}} {
		o := engine.Options{KVPages: 24, MaxRows: c.rows, Device: testdevice.CPU(t, 2)}
		m := enginetest.Open(t, c.path, o)
		want, names, all := enginetest.Dialogue(t, m, c.long), m.Names(), engine.FootprintOf(m).Weights
		from, dir := enginetest.Least(t, c.path, o), t.TempDir()
		for i := range 5 {
			memory := from + (all-from)*int64(i)/4
			for _, dir := range []string{dir, ""} {
				d := enginetest.Streaming(t, memory, dir)
				o.Device = d
				m := enginetest.Open(t, c.path, o)
				if got := enginetest.Dialogue(t, m, c.long); len(got) != len(want) {
					t.Errorf("%s in %d bytes: %d logits, want %d", c.path, memory, len(got), len(want))
				} else if err := enginetest.SameBits(got, want); err != nil {
					t.Errorf("%s in %d bytes: %v", c.path, memory, err)
				}
				if m.Names() != names {
					t.Errorf("names %v, want %v", m.Names(), names)
				}
				s := d.StreamStats()
				if engine.FootprintOf(m).Weights > memory || i == 0 && s.Streamed == 0 || s.Read < s.Streamed {
					t.Errorf("%s in %d bytes: %d of memory, %+v", c.path, memory, engine.FootprintOf(m).Weights, s)
				}
				if n := int64(m.Config().Experts.Count); (s.Used > 0) != (n > 0) || s.Missed > s.Used || (s.ReadExperts > 0) != (n > 0) ||
					s.Foretold > s.Guessed || (len(s.Layers) > 0) != (n > 0) {
					t.Errorf("%s in %d bytes: %d experts, %+v", c.path, memory, n, s)
				}
				m.Close()
			}
		}
	}
}

// TestStreamedFamilies: models of every architecture, golden ones and random ones of other shapes, give the bits of resident ones in the
// least memory, from a packed file and from their own: experts, the matrices of heads in both layouts, recurrent layers, inputs of layers.
func TestStreamedFamilies(t *testing.T) {
	dir := t.TempDir()
	for _, f := range family.All(1) {
		t.Run(f.Name, func(t *testing.T) {
			path := f.Write(t, dir)
			o := engine.Options{KVPages: engine.PagesFor(2, 64, 16), MaxRows: 12, Device: testdevice.CPU(t, 2)}
			talk := func() (logits []float32, used tandem.Experts) {
				m := enginetest.Open(t, path, o)
				defer m.Close()
				r := rand.New(rand.NewPCG(4, 4))
				s := enginetest.NewSeq(t, m, 64, 16)
				defer s.Close()
				out := enginetest.Forward(t, m, 3, engine.Part{Seq: s, Extend: enginetest.RandomTokens(r, m, 11), Want: engine.WantAll})
				logits, used = logitsOf(out), out.Experts()
				for range 3 {
					tree := engine.Part{Seq: s, Nodes: enginetest.RandomTokens(r, m, 4), Parents: []int32{-1, 0, 0, 1},
						Want: engine.WantTail}
					logits = append(logits, logitsOf(enginetest.Forward(t, m, 3, tree))...)
					if err := s.Commit([]int32{0, 2}); err != nil {
						t.Fatal(err)
					}
				}
				return logits, used
			}
			want, experts := talk()
			kept := t.TempDir()
			memory := enginetest.Least(t, path, o)
			for _, c := range []struct {
				dir    string
				memory int64
			}{{kept, memory}, {kept, memory + memory/4}, {"", memory}} {
				d := enginetest.Streaming(t, c.memory, c.dir)
				o.Device = d
				if got, used := talk(); len(got) != len(want) || !slices.Equal(used, experts) {
					t.Fatalf("%d logits, %d experts, want %d, %d", len(got), used, len(want), experts)
				} else if err := enginetest.SameBits(got, want); err != nil {
					t.Errorf("in %d bytes, packed %v: %v", c.memory, c.dir != "", err)
				}
				if s := d.StreamStats(); s.Read <= s.Resident {
					t.Errorf("nothing was streamed: %+v", s)
				}
			}
		})
	}
}

func logitsOf(o *engine.Output) (all []float32) {
	for i := range o.Len() {
		all = append(all, o.Logits(i)...)
	}
	return all
}

// TestStreamedFault: when the packed file is changed or cut while passes run, the pass that would have read wrong bytes fails and says
// where; the device is gone; and the next start makes the file again.
func TestStreamedFault(t *testing.T) {
	o := engine.Options{KVPages: 24, MaxRows: 16, Device: testdevice.CPU(t, 1)}
	want := enginetest.Dialogue(t, enginetest.Open(t, enginetest.Target, o), 8)
	memory := enginetest.Least(t, enginetest.Target, o)
	for what, spoil := range map[string]func(path string) error{
		"changed": func(path string) error {
			f, err := os.OpenFile(path, os.O_WRONLY, 0)
			if err != nil {
				return err
			}
			st, _ := f.Stat()
			for at := int64(1 << 20); at < st.Size(); at += 1 << 20 {
				if _, err := f.WriteAt([]byte("tandem"), at); err != nil {
					return err
				}
			}
			return f.Close()
		},
		"cut": func(path string) error { return os.Truncate(path, 2<<20) },
	} {
		dir := t.TempDir()
		d := enginetest.Streaming(t, memory, dir)
		o.Device = d
		m := enginetest.Open(t, enginetest.Target, o)
		if err := spoil(filepath.Join(dir, "packed")); err != nil {
			t.Fatal(err)
		}
		s := enginetest.NewSeq(t, m, 64, 16)
		var err error
		for range 3 { // the ring may hold all of the first passes
			if _, err = m.Forward([]engine.Part{{Seq: s, Extend: enginetest.RandomTokens(rand.New(rand.NewPCG(1, 1)), m, 4),
				Want: engine.WantAll}}, 1); err != nil {
				break
			}
		}
		var f *stream.Fault
		if !errors.As(err, &f) || f.File != filepath.Join(dir, "packed") || f.At == 0 || tandem.KindOf(err) != tandem.Unavailable {
			t.Errorf("%s: %v", what, err)
		}
		select {
		case <-d.Gone():
			if !errors.As(d.Lost(), &f) {
				t.Errorf("%s: lost: %v", what, d.Lost())
			}
		default:
			t.Errorf("%s: the device is not gone", what)
		}
		s.Close()
		m.Close()
		o.Device = enginetest.Streaming(t, memory, dir)
		if err := enginetest.SameBits(enginetest.Dialogue(t, enginetest.Open(t, enginetest.Target, o), 8), want); err != nil {
			t.Errorf("%s, opened again: %v", what, err)
		}
	}
}

// TestStreamedSource: a model file that changes under passes that pack it is an error, and so is a side file that wants to borrow streamed
// weights.
func TestStreamedSource(t *testing.T) {
	b, err := os.ReadFile(enginetest.Target)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "m.gguf")
	if err := os.WriteFile(path, b, 0o600); err != nil {
		t.Fatal(err)
	}
	o := engine.Options{KVPages: 24, MaxRows: 16, Device: testdevice.CPU(t, 1)}
	o.Device = enginetest.Streaming(t, enginetest.Least(t, path, o), "")
	m := enginetest.Open(t, path, o)
	b[len(b)-1<<20] ^= 1
	if err := os.WriteFile(path, b, 0o600); err != nil {
		t.Fatal(err)
	}
	s := enginetest.NewSeq(t, m, 64, 16)
	defer s.Close()
	for range 3 {
		if _, err = m.Forward([]engine.Part{{Seq: s, Extend: enginetest.RandomTokens(rand.New(rand.NewPCG(1, 1)), m, 4),
			Want: engine.WantAll}}, 1); err != nil {
			break
		}
	}
	if tandem.KindOf(err) != tandem.Corrupt {
		t.Errorf("a changed model: %v", err)
	}
}
