package engine

import (
	"context"
	"errors"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/kernels"
	"github.com/tandem-llm/tandem/kernels/cpu"
	"github.com/tandem-llm/tandem/kernels/stream"
	"github.com/tandem-llm/tandem/kernels/testdevice"
	"github.com/tandem-llm/tandem/test/testkit/family"
)

// keptIn returns a stream.Config.Keep that keeps one file in a folder.
func keptIn(dir string) func(context.Context, stream.Request) (string, func() error, error) {
	return func(ctx context.Context, r stream.Request) (string, func() error, error) {
		path := filepath.Join(dir, "packed")
		if r.Check(path) != nil {
			os.Remove(path)
			if err := r.Make(ctx, path, nil); err != nil {
				return "", nil, err
			}
		}
		return path, func() error { return nil }, nil
	}
}

// streaming returns a device with so much memory for weights.
func streaming(t *testing.T, memory int64, dir string) *stream.Device {
	c := stream.Config{Memory: memory, Pack: cpu.Pack}
	if dir != "" {
		c.Keep = keptIn(dir)
	}
	return stream.New(testdevice.CPU(t, 2), c)
}

// least returns the least memory for weights with which a model can be streamed.
func least(t *testing.T, path string, o Options) int64 {
	o.Device = streaming(t, 0, "")
	_, err := Measure(path, o)
	var small *kernels.TooSmall
	if !errors.As(err, &small) {
		t.Fatalf("no memory at all: %v", err)
	}
	return small.Least
}

// TestStreamed: whole models with any memory from the least on give the bits of a resident one, from a packed file that is made, found
// again, and from the model's own file.
func TestStreamed(t *testing.T) {
	cases := archCases()
	small := func(name string) string {
		c := cases[name].model
		c.generate(3)
		return c.write(t, t.TempDir())
	}
	for _, c := range []struct {
		path string
		rows int
		long int
	}{{targetPath, 64, 60}, {targetPath, 12, 8}, {small("gemma2"), 64, 40}, {small("qwen3"), 8, 6},
		{small("qwen3moe"), 12, 9}, {small("gpt-oss"), 64, 20}, {small("granitemoe"), 12, 6}} {
		o := Options{KVPages: 24, MaxRows: c.rows, Device: testdevice.CPU(t, 2)}
		m := openTest(t, c.path, o)
		want, names, all := dialogue(t, m, c.long), m.Names(), m.footprint.Weights
		from, dir := least(t, c.path, o), t.TempDir()
		for i := range 5 {
			memory := from + (all-from)*int64(i)/4
			for _, dir := range []string{dir, ""} {
				d := streaming(t, memory, dir)
				o.Device = d
				m := openTest(t, c.path, o)
				if got := dialogue(t, m, c.long); len(got) != len(want) {
					t.Errorf("%s in %d bytes: %d logits, want %d", c.path, memory, len(got), len(want))
				} else if err := sameBits(got, want); err != nil {
					t.Errorf("%s in %d bytes: %v", c.path, memory, err)
				}
				if m.Names() != names {
					t.Errorf("names %v, want %v", m.Names(), names)
				}
				s := d.StreamStats()
				if m.footprint.Weights > memory || i == 0 && s.Streamed == 0 || s.Read < s.Streamed {
					t.Errorf("%s in %d bytes: %d of memory, %+v", c.path, memory, m.footprint.Weights, s)
				}
				if n := int64(m.config.Experts.Count); (s.Used > 0) != (n > 0) || s.Missed > s.Used || (s.ReadExperts > 0) != (n > 0) {
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
			o := Options{KVPages: PagesFor(2, 64, 16), MaxRows: 12, Device: testdevice.CPU(t, 2)}
			talk := func() (logits []float32, used tandem.Experts) {
				m := openTest(t, path, o)
				defer m.Close()
				r := rand.New(rand.NewPCG(4, 4))
				s := newSeq(t, m, 64, 16)
				defer s.Close()
				out := forward(t, m, 3, Part{Seq: s, Extend: randomTokens(r, m, 11), Want: WantAll})
				logits, used = logitsOf(out), out.Experts()
				for range 3 {
					tree := Part{Seq: s, Nodes: randomTokens(r, m, 4), Parents: []int32{-1, 0, 0, 1}, Want: WantTail}
					logits = append(logits, logitsOf(forward(t, m, 3, tree))...)
					if err := s.Commit([]int32{0, 2}); err != nil {
						t.Fatal(err)
					}
				}
				return logits, used
			}
			want, experts := talk()
			kept := t.TempDir()
			memory := least(t, path, o)
			for _, c := range []struct {
				dir    string
				memory int64
			}{{kept, memory}, {kept, memory + memory/4}, {"", memory}} {
				d := streaming(t, c.memory, c.dir)
				o.Device = d
				if got, used := talk(); len(got) != len(want) || !slices.Equal(used, experts) {
					t.Fatalf("%d logits, %d experts, want %d, %d", len(got), used, len(want), experts)
				} else if err := sameBits(got, want); err != nil {
					t.Errorf("in %d bytes, packed %v: %v", c.memory, c.dir != "", err)
				}
				if s := d.StreamStats(); s.Read <= s.Resident {
					t.Errorf("nothing was streamed: %+v", s)
				}
			}
		})
	}
}

func logitsOf(o *Output) (all []float32) {
	for i := range o.Len() {
		all = append(all, o.Logits(i)...)
	}
	return all
}

// TestStreamedFault: when the packed file is changed or cut while passes run, the pass that would have read wrong bytes fails and says
// where; the device is gone; and the next start makes the file again.
func TestStreamedFault(t *testing.T) {
	o := Options{KVPages: 24, MaxRows: 16, Device: testdevice.CPU(t, 1)}
	want := dialogue(t, openTest(t, targetPath, o), 8)
	memory := least(t, targetPath, o)
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
		d := streaming(t, memory, dir)
		o.Device = d
		m := openTest(t, targetPath, o)
		if err := spoil(filepath.Join(dir, "packed")); err != nil {
			t.Fatal(err)
		}
		s := newSeq(t, m, 64, 16)
		var err error
		for range 3 { // the ring may hold all of the first passes
			if _, err = m.Forward([]Part{{Seq: s, Extend: randomTokens(rand.New(rand.NewPCG(1, 1)), m, 4), Want: WantAll}}, 1); err != nil {
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
		o.Device = streaming(t, memory, dir)
		if err := sameBits(dialogue(t, openTest(t, targetPath, o), 8), want); err != nil {
			t.Errorf("%s, opened again: %v", what, err)
		}
	}
}

// TestStreamedSource: a model file that changes under passes that pack it is an error, and so is a side file that wants to borrow streamed
// weights.
func TestStreamedSource(t *testing.T) {
	b, err := os.ReadFile(targetPath)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "m.gguf")
	if err := os.WriteFile(path, b, 0o600); err != nil {
		t.Fatal(err)
	}
	o := Options{KVPages: 24, MaxRows: 16, Device: testdevice.CPU(t, 1)}
	o.Device = streaming(t, least(t, path, o), "")
	m := openTest(t, path, o)
	b[len(b)-1<<20] ^= 1
	if err := os.WriteFile(path, b, 0o600); err != nil {
		t.Fatal(err)
	}
	s := newSeq(t, m, 64, 16)
	defer s.Close()
	for range 3 {
		if _, err = m.Forward([]Part{{Seq: s, Extend: randomTokens(rand.New(rand.NewPCG(1, 1)), m, 4), Want: WantAll}}, 1); err != nil {
			break
		}
	}
	if tandem.KindOf(err) != tandem.Corrupt {
		t.Errorf("a changed model: %v", err)
	}
}
