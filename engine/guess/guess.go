// Package guess has what guesses tokens beside a target or from its hidden states: from the tensors of a side file over the plan of its
// passes to the guess.
//
// A Guesser is opened beside the target and answers what follows a row of the target's pass; there is one for each sort of self-draft
// (medusa has heads, ppd prompt rows, assistant is a chain), and the model keeps them in a List. A Draft is a model of its own, whose rows
// read states besides tokens (dovetail, eagle, eagle3, dflash, mtp).
package guess

import (
	"cmp"
	"slices"
	"strings"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/modelfile/gguf"
	"github.com/tandem-llm/tandem/modelfile/side"
)

// sorts has what reads the side file of a self-draft and lays its passes out, by the self-draft's sort. It allocates nothing yet.
var sorts = map[side.Sort]func(p *planning) (Guesser, error){
	side.Heads:   planHeads,
	side.Prompts: planPrompts,
	side.Chain:   planAssistant,
}

// List is the open side files of a target, in the order in which they were opened. The zero value has none.
type List struct {
	files  []*File
	output *output // of all tokens, which files share; nil: no file needs it
}

// Plan reads the side file f and plans what it needs beside the target. The lineages are compared if the target's is known. Errors:
// Invalid (not a side file of a target, of another target, one of its kind is open), Corrupt, Unsupported, and the device's own.
func (l *List) Plan(f *gguf.File, t *Target) (*File, error) {
	s, err := side.Of(f)
	if err != nil {
		return nil, err
	}
	fail := func(format string, args ...any) (*File, error) {
		return nil, tandem.Errorf("engine", tandem.Invalid, "%s"+format, append([]any{f.Path()}, args...)...)
	}
	switch {
	case !s.Kind.InVerifier():
		return fail(" is no side file of a target (%s), but %s", openable(),
			map[bool]string{true: "a draft: a drafter opens it", false: "a model"}[s.Kind.IsDraft()])
	case t.Draft:
		return fail(": %s is a draft with states, which has no side files", t.Path)
	case l.file(s.SelfDraft().Name) != nil:
		return fail(": the target has a side file of kind %s already", s.Kind)
	}
	if s.Lineage != "" { // else the kind compares
		of := t.Target
		of.Lineage = cmp.Or(of.Lineage, s.Lineage)
		if err := s.Fits(f.Path(), of); err != nil {
			return nil, err
		}
	}
	p := &planning{Target: t, File: &File{Spec: s, target: t}, file: f, shared: l.output}
	if p.Guesser, err = sorts[s.Kind.Sort()](p); err != nil {
		return nil, err
	}
	return p.File, p.measure(f.Path())
}

// openable names the kinds that are opened beside a target.
func openable() string {
	var names []string
	for _, k := range side.All() {
		if k.InVerifier() {
			names = append(names, string(k))
		}
	}
	return strings.Join(names, ", ")
}

// Add adds a file that Plan has returned, loaded or only planned. Close then closes it.
func (l *List) Add(s *File) {
	if l.files = append(l.files, s); s.output != nil && s.output.ids == nil {
		l.output = s.output
	}
}

// Close closes all files.
func (l *List) Close() {
	for _, s := range l.files {
		s.Close()
	}
}

// file returns the file of that self-draft; nil: none is open.
func (l *List) file(selfDraft string) *File {
	if i := slices.IndexFunc(l.files, func(s *File) bool { return s.Spec.SelfDraft().Name == selfDraft }); i >= 0 {
		return l.files[i]
	}
	return nil
}

// Of returns what makes the guesses of the self-draft of that name; nil: its file is not open.
func (l *List) Of(selfDraft string) Guesser {
	if s := l.file(selfDraft); s != nil {
		return s.Guesser
	}
	return nil
}

// Stored returns the bytes of memory that the files' own weights take.
func (l *List) Stored() (bytes int64) {
	for _, s := range l.files {
		for _, p := range s.passes {
			if p.store != nil {
				bytes += p.store.Bytes()
			}
		}
	}
	return bytes
}

// SelfDrafts describes the open files, in the order in which they were opened.
func (l *List) SelfDrafts() (all []tandem.SelfDraft) {
	for _, s := range l.files {
		all = append(all, s.Spec.SelfDraft())
	}
	return all
}

// Prompts returns the embeddings of prompt rows: (number of them, d); nil: the target has no prompt tokens.
func (l *List) Prompts() []float32 {
	for _, s := range l.files {
		if g, ok := s.Guesser.(interface{ Embeddings() []float32 }); ok {
			return g.Embeddings()
		}
	}
	return nil
}

// Guess returns one guess for each ask, with at most top candidates in a level (1 to tandem.MostCandidates). A level is empty if its
// logits are not numbers. All asks of a file share runs: matrices are read once for up to maxRows rows. Errors: Invalid (a self-draft that
// is not open, states of another number or width), Internal.
func (l *List) Guess(asks []Ask, top int) ([]tandem.Guess, error) {
	if top < 1 || top > tandem.MostCandidates {
		return nil, tandem.Errorf("engine", tandem.Invalid, "%d candidates in a level: want 1 to %d", top, tandem.MostCandidates)
	}
	guesses, of := make([]tandem.Guess, len(asks)), map[*File][]*ask{}
	for i := range asks {
		s := l.file(asks[i].SelfDraft)
		if s == nil {
			return nil, tandem.Errorf("engine", tandem.Invalid, "a guess by %.20q: no side file for it is open", asks[i].SelfDraft)
		}
		a := &ask{Ask: &asks[i], guess: &guesses[i]}
		if err := a.prepare(s); err != nil {
			return nil, err
		}
		of[s] = append(of[s], a)
	}
	for _, s := range l.files {
		if len(of[s]) == 0 {
			continue
		}
		r := newRound(top)
		if err := s.Guesser.guess(r, of[s]); err != nil {
			return nil, err
		}
		if err := r.multiply(s.output); err != nil {
			return nil, tandem.Errorf("engine", tandem.Internal, "output product of %d guesses: %w", len(asks), err)
		}
	}
	return guesses, nil
}
