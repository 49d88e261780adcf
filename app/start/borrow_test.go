package start

import (
	"errors"
	"strings"
	"testing"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/kernels/cuda"
	"github.com/tandem-llm/tandem/modelfile/gguf"
)

// TestBorrow: where a draft with states gets its target's output matrix from, by where both compute and what the GPU can, and what is said.
func TestBorrow(t *testing.T) {
	const dovetail = "../../models/gopher-dovetail-q8_0.gguf"
	for _, c := range []struct {
		at, draftsAt  string
		chip          cuda.Chip
		lends, inside bool
		says          string
	}{
		{"cpu", "cpu", chip, true, false, ""},
		{"cores:0", "cpu", chip, true, false, ""},
		{"cpu", "auto", chip, true, false, ""},
		{"cpu", "cuda", chip, false, false, "have copies of their target's output matrix: cuda: GPU of a test is not integrated"},
		{"cpu", "cuda", cuda.Chip{Name: "a Jetson", Integrated: true}, false, false, "a Jetson reads no memory of the processor"},
		{"cpu", "cuda", cuda.Chip{Name: "a Spark", Integrated: true, Registers: true}, true, false, ""},
		{"cpu", "cuda+cpu", chip, false, false, "cuda+cpu wants its bytes in another order"},
		{"cuda", "cuda", chip, false, true, "runs in its target's process: there both multiply by one output matrix"},
		{"cuda", "cuda:1", chip, false, false, ""},
		{"cuda", "cpu", chip, false, false, ""},
		{"cuda+cpu", "cpu", chip, false, false, ""},
	} {
		s, env, said := autoSetup(t, t.TempDir())
		env.GPUs = func() ([]cuda.Chip, error) { return []cuda.Chip{c.chip}, nil }
		s.Device, s.DraftDevice, s.DraftFiles = c.at, c.draftsAt, []string{dovetail}
		s.borrow(env)
		if s.lends != c.lends || s.inside != c.inside || !strings.Contains(said.String(), c.says) || c.says == "" && said.Len() > 0 {
			t.Errorf("%s and %s: lends %v, inside %v, says %q: want %+v", c.at, c.draftsAt, s.lends, s.inside, said, c)
		}
	}
	s, env, _ := autoSetup(t, t.TempDir())
	env.GPUs = func() ([]cuda.Chip, error) { return nil, errors.New("none") }
	s.Device, s.DraftDevice, s.DraftFiles, s.DraftAnyway = "cpu", "cpu", []string{dovetail}, true
	s.TargetFile = "../../models/gopher-19m-q8_0.gguf"
	if s, err := s.Checked(env, tandem.Request{}); err != nil || !s.lends {
		t.Errorf("lends %v, %v: want that the draft maps the target's", s.lends, err)
	}
	if s.TargetFile = gguf.Builtin + "gopher-19m-q8_0.gguf"; s.lender() {
		t.Error("a target in the program is to lend: want one in a file")
	}
}
