package guess

import (
	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/kernels"
	"github.com/tandem-llm/tandem/modelfile/gguf"
	"github.com/tandem-llm/tandem/modelfile/side"
)

// Guesser makes the guesses of one side file. A guess does not depend on the other asks of a round.
type Guesser interface {
	// guess fills in the levels of all asks. Errors: Invalid for an ask that makes no sense, Internal.
	guess(r *round, asks []*ask) error
}

// File is a side file that was planned, and perhaps loaded.
type File struct {
	Spec              side.Spec
	kernels.Footprint // what it takes beside the model; only Weights and Buffers
	Guesser           Guesser
	target            *Target
	passes            []*pass
	output            *output // what multiplies its states; nil: nothing
}

// planning is what a kind lays its passes out with.
type planning struct {
	*Target
	*File
	file   *gguf.File
	shared *output // the one of all tokens that files which are open already share; nil: none has needed it
}

// needOutput makes sure that round.state works for this file.
func (p *planning) needOutput() (err error) {
	var ids []int32
	for _, id := range p.Spec.Draft.IDs {
		ids = append(ids, int32(id))
	}
	if p.output = p.shared; ids != nil || p.output == nil {
		if p.output, err = newOutput(p.Target, ids); err == nil {
			p.passes = append(p.passes, &p.output.pass)
		}
	}
	return err
}

// measure fills in the footprint.
func (s *File) measure(path string) error {
	for _, p := range s.passes {
		need, err := p.footprint(s.target, path)
		if err != nil {
			return err
		}
		s.Footprint = s.With(need)
	}
	if g, ok := s.Guesser.(interface{ Embeddings() []float32 }); ok {
		s.Buffers += 4 * int64(len(g.Embeddings()))
	}
	return nil
}

// Load allocates and fills what the file needs; f is the file that was planned. Close it whether or not that succeeds. Errors: those of the
// device and of reading f.
func (s *File) Load(f *gguf.File) error {
	for _, p := range s.passes {
		if err := p.load(s.target, f); err != nil {
			return err
		}
	}
	return nil
}

// Close frees what Load has allocated. No guess may be in progress.
func (s *File) Close() {
	for _, p := range s.passes {
		p.close()
	}
}

// ask is an Ask and its guess.
type ask struct {
	*Ask
	states [][]float32 // of Hidden, after the target's final norm
	guess  *tandem.Guess
}

// prepare checks the states of an ask, norms them, and makes room for its guess.
func (a *ask) prepare(s *File) error {
	t := s.target
	if rows := max(1, s.Spec.Members*s.Spec.Levels); len(a.Hidden) != rows {
		return tandem.Errorf("engine", tandem.Invalid, "a guess by %s from %d hidden states: want %d", a.SelfDraft, len(a.Hidden), rows)
	}
	for _, h := range a.Hidden {
		if len(h) != t.Config.Dim {
			return tandem.Errorf("engine", tandem.Invalid, "a guess by %s from a hidden state of %d numbers: want %d", a.SelfDraft, len(h),
				t.Config.Dim)
		}
		a.states = append(a.states, t.Normed(h))
	}
	*a.guess = tandem.Guess{SelfDraft: a.SelfDraft, Levels: make([][]tandem.TopLogprob, s.Spec.Levels)}
	return nil
}
