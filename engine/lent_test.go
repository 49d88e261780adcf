package engine_test

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/engine"
	"github.com/tandem-llm/tandem/engine/enginetest"
	"github.com/tandem-llm/tandem/kernels"
	"github.com/tandem-llm/tandem/kernels/cuda/emulated"
	"github.com/tandem-llm/tandem/kernels/testdevice"
	"github.com/tandem-llm/tandem/modelfile/gguf"
	"github.com/tandem-llm/tandem/test/testkit"
)

const lentTarget, lentDraft = "../models/gopher-19m-q8_0.gguf", "../models/gopher-dovetail-q8_0.gguf"

// lentRig opens targets and drafts that share memory.
type lentRig struct {
	*testing.T
	target  string   // path
	refused []string // why targets have weights of their own
	want    []float32
}

func (r *lentRig) memory(output bool) *engine.Shared {
	r.Helper()
	f, err := engine.NewShared()
	if err != nil {
		r.Fatal(err)
	}
	r.Cleanup(func() { f.Close() })
	return &engine.Shared{File: f, Output: output, Patience: time.Millisecond,
		Refused: func(_ string, why error) { r.refused = append(r.refused, why.Error()) }}
}

func (r *lentRig) options(d kernels.Device, s *engine.Shared) engine.Options {
	return engine.Options{Device: d, Context: 64, KVPages: 8, MaxRows: 8, Shared: s}
}

func (r *lentRig) open(s *engine.Shared) *engine.Model {
	r.Helper()
	m, err := engine.Open(r.target, r.options(testdevice.CPU(r.T, 2), s))
	if err != nil {
		r.Fatal(err)
	}
	r.Cleanup(m.Close)
	return m
}

// draft opens the draft and checks its logits, and whether it maps its target's output matrix; says is a part of why not.
func (r *lentRig) draft(name string, d kernels.Device, s *engine.Shared, says string) *engine.Model {
	r.Helper()
	m, err := engine.OpenDraft(lentDraft, r.target, r.options(d, s))
	if err != nil {
		r.Fatal(err)
	}
	r.Cleanup(m.Close)
	got := draftLogits(r.T, m)
	if r.want == nil {
		r.want = got
	}
	if err := enginetest.SameBits(got, r.want); err != nil {
		r.Errorf("%s: %v", name, err)
	}
	mapped, apart := m.Mapped()
	c := m.Config()
	want := int64(kernels.Groups16.Bytes(kernels.Q8_0, c.Vocab, c.Dim))
	if s == nil || says != "" {
		want = 0
	}
	if mapped != want || (says == "") != (apart == nil) || apart != nil && !strings.Contains(apart.Error(), says) {
		r.Errorf("%s: %d bytes are mapped, %v: want %d, and %q", name, mapped, apart, want, says)
	}
	return m
}

// draftLogits returns the logits of a draft's pass, with states that are always the same.
func draftLogits(t *testing.T, m *engine.Model) (logits []float32) {
	t.Helper()
	s, err := m.NewSequence(32, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	width, _ := m.StateWidth()
	p := engine.Part{Seq: s, Extend: []tandem.Token{5, 9, 7}, Want: engine.WantTail, States: make([]engine.State, 3)}
	for i := range p.States {
		p.States[i].Target = make([]float32, width)
		for j := range width {
			p.States[i].Target[j] = float32((i+3)*(j+5)%17) - 8
		}
	}
	out, err := m.Forward([]engine.Part{p}, 0)
	if err != nil {
		t.Fatal(err)
	}
	for i := range out.Len() {
		logits = append(logits, out.Logits(i)...)
	}
	return logits
}

// TestLent: a draft with states that multiplies by its target's output matrix maps it from the target's memory, with the same bits: before
// the target is there and after, from memory with all weights and from one with the output matrix alone, whoever of both starts again. A
// target whose file is another one by now has weights of its own.
func TestLent(t *testing.T) {
	r := &lentRig{T: t, target: lentTarget}
	cores := testdevice.CPU(t, 2)
	r.draft("alone", cores, nil, "")
	alone := r.open(nil)
	for _, output := range []bool{true, false} {
		s := r.memory(output)
		s.Patience = time.Minute
		opened := make(chan *engine.Model)
		go func() { opened <- r.open(s) }()
		r.draft("before its target", cores, s, "").Close()
		first := <-opened
		r.draft("after its target", cores, s, "")
		check := func(m *engine.Model) {
			if !bytes.Equal(m.Image().Packed(), alone.Image().Packed()) || m.Names() != alone.Names() {
				t.Error("the target has other weights or names")
			}
		}
		check(first)
		left := r.draft("of a target that goes", cores, s, "")
		first.Close()
		if err := enginetest.SameBits(draftLogits(t, left), r.want); err != nil {
			t.Errorf("after its target has gone: %v", err)
		}
		check(r.open(s)) // the target starts again
		r.draft("of a target that has started again", cores, s, "")
		if !s.Full() || len(r.refused) > 0 {
			t.Errorf("full %v, refused %q", s.Full(), r.refused)
		}
	}
}

// TestUnlent: a draft packs the output matrix itself, and says why, if no target comes, or one that cannot lend; if the memory is not what
// it should be, or the target's file is another one by now; if its device wants another order.
func TestUnlent(t *testing.T) {
	r := &lentRig{T: t, target: lentTarget}
	cores := testdevice.CPU(t, 2)
	r.draft("alone", cores, nil, "")
	r.draft("no target comes", cores, r.memory(true), "no target has put it there in 1ms")
	r.draft("another order", testdevice.Ref(), r.memory(true), "another order")

	s := r.memory(true)
	m, err := engine.Open(r.target, r.options(testdevice.Ref(), s))
	if err != nil {
		t.Fatal(err)
	}
	m.Close()
	if len(r.refused) != 1 || !strings.Contains(r.refused[0], "does not lie in the processor's memory") {
		t.Errorf("refused %q: want that it cannot lend", r.refused)
	}
	r.draft("a target that cannot lend", cores, s, "too few")

	s, r.refused = r.memory(true), nil
	r.open(s)
	info, err := s.File.Stat()
	if err != nil {
		t.Fatal(err)
	}
	good := make([]byte, info.Size())
	if _, err := s.File.ReadAt(good, 0); err != nil {
		t.Fatal(err)
	}
	other, err := os.ReadFile(r.target)
	if err != nil {
		t.Fatal(err)
	}
	at := bytes.LastIndex(good, []byte(`"at":0`))
	for _, c := range []struct {
		says  string
		bytes []byte
		seals int
	}{
		{"seals", good, unix.F_SEAL_SHRINK},
		{"too few", nil, engineSeals},
		{"does not end", good[:len(good)-1], engineSeals},
		{"does not end", other, engineSeals},
		{"description has changed", changed(good, at), engineSeals},
		{"no matrix", described(good, `"at":0`, `"at":4096`), engineSeals},
		{"no matrix", described(good, `"at":0`, `"at":-1`), engineSeals},
		{"no matrix", described(good, `"rows":4096`, `"rows":4112`), engineSeals},
		{"no matrix", described(good, "token_embd", "token_bmed"), engineSeals},
		{"another release", described(good, `"layout":`, `"layout":9`), engineSeals},
		{"file has changed", described(good, `"key":"`, `"key":"0`), engineSeals},
	} {
		s := r.memory(true)
		if _, err := s.File.Write(c.bytes); err != nil {
			t.Fatal(err)
		}
		if _, err := unix.FcntlInt(s.File.Fd(), unix.F_ADD_SEALS, c.seals); err != nil {
			t.Fatal(err)
		}
		r.draft(c.says, cores, s, c.says)
	}
	r.draft("as it was", cores, s, "")

	r.target = filepath.Join(t.TempDir(), "target.gguf")
	if err := os.WriteFile(r.target, other, 0o600); err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, "the copy has been left alone", func() bool {
		f, err := gguf.Open(r.target)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		_, err = f.Stamp()
		return err == nil
	})
	r.draft("another file", cores, s, "file has changed")
	r.open(s)
	if len(r.refused) != 1 || !strings.Contains(r.refused[0], "file has changed") {
		t.Errorf("refused %q: want that the target's file has changed", r.refused)
	}
}

// described returns an image with a part of its description replaced, and the digest of that.
func described(image []byte, old, new string) []byte {
	const end = 8 + 32 + len("tandem image 2\n\x00")
	tail := image[len(image)-end:]
	var n uint64
	for i := range 8 {
		n |= uint64(tail[i]) << (8 * i)
	}
	from := len(image) - end - int(n)
	table := bytes.Replace(image[from:from+int(n)], []byte(old), []byte(new), 1)
	return fmt.Appendf(image[:from:from], "%s%s", table, append(sealed(table), tail[40:]...))
}

// sealed returns a description's length and digest.
func sealed(table []byte) []byte {
	sum := sha256.Sum256(table)
	return append(binary.LittleEndian.AppendUint64(nil, uint64(len(table))), sum[:]...)
}

// TestLentToGPU: a GPU in the processor's memory reads the target's output matrix there, with the same bits. One that has a copy of its own
// says why, and so does one whose target does not come: it packs the matrix where both see it.
func TestLentToGPU(t *testing.T) {
	r := &lentRig{T: t, target: lentTarget}
	r.draft("alone", testdevice.CPU(t, 2), nil, "")
	s := r.memory(true)
	r.open(s)
	for name, c := range map[string]struct {
		o    emulated.Options
		says string
	}{
		"integrated":       {emulated.Options{Integrated: true, Registers: true}, ""},
		"coherent":         {emulated.Options{Coherent: true, Registers: true}, ""},
		"registers not":    {emulated.Options{Integrated: true}, "reads no memory of the processor that others have allocated"},
		"memory of itself": {emulated.Options{Registers: true}, "not integrated"},
	} {
		gpu, _ := testdevice.GPU(t, c.o)
		before, _, err := gpu.Free()
		if err != nil {
			t.Fatal(err)
		}
		m := r.draft(name, gpu, s, c.says)
		if c.says == "" {
			r.draft(name+", of a target that does not come", gpu, r.memory(true), "no target has put it there in 1ms").Close()
		}
		m.Close()
		if after, _, err := gpu.Free(); err != nil || after != before {
			t.Errorf("%s: %d bytes of the GPU's memory are free after its model was closed, %d before; %v", name, after, before, err)
		}
	}
}

// TestLentInside: a draft in its target's process multiplies by the matrix that the target has, on the processor and on a GPU.
func TestLentInside(t *testing.T) {
	r := &lentRig{T: t, target: lentTarget}
	r.draft("alone", testdevice.CPU(t, 2), nil, "")
	gpu, _ := testdevice.GPU(t, emulated.Options{})
	for name, on := range map[string]struct{ target, draft kernels.Device }{
		"processor": {testdevice.CPU(t, 2), testdevice.CPU(t, 1)},
		"gpu":       {gpu, gpu},
		"apart":     {testdevice.CPU(t, 2), testdevice.Ref()},
	} {
		target, err := engine.Open(r.target, r.options(on.target, nil))
		if err != nil {
			t.Fatal(err)
		}
		defer target.Close()
		o := r.options(on.draft, nil)
		target.Lend(&o)
		draft, err := engine.OpenDraft(lentDraft, r.target, o)
		if err != nil {
			t.Fatal(err)
		}
		defer draft.Close()
		if err := enginetest.SameBits(draftLogits(t, draft), r.want); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if bytes, apart := draft.Mapped(); (bytes == 0) != (name == "apart") || (apart == nil) == (name == "apart") {
			t.Errorf("%s: %d bytes are the target's, %v", name, bytes, apart)
		}
	}
}
