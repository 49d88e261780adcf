// Package side reads and writes side files: heads, prompt tokens and drafts that were trained for one target (docs/sidefiles.md). A Spec
// is the one description of such a file: what its keys say. From it follow the tensors that the file must hold, their shapes, and what
// each becomes in a side file for an expanded target. Each kind has a file of this package.
package side

import (
	"context"
	"fmt"
	"slices"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/modelfile/gguf"
)

const op = "side"

// Kind is what a side file holds: its architecture.
type Kind string

// layout is how the files of a kind are laid out, and who runs them.
type layout struct {
	kind      Kind
	selfDraft string // the name of the self-draft that its target then has, one of tandem.SelfDrafts; "": a drafter runs the file
	sort      Sort   // of the self-draft
	numbers   func(s *Spec) []number
	read      func(r *reader) // what numbers do not say; nil: nothing
	describe  func(s *Spec) string

	// Of tandem's own format alone; nil for kinds whose files other programs make.
	taps     int // at most, and at least one; 0: it reads no states
	check    func(s *Spec) error
	tensors  func(l *slots, s *Spec)
	others   func(name string) bool                            // tensors whose shapes only the target knows; nil: none
	complete func(s *Spec, has func(tensor string) bool) error // what optional tensors want of each other; nil: nothing
	set      func(s *Spec, set func(name string, v any))       // writes the keys that read reads; nil: none
	head     func(s *Spec, k int) Head                         // of sort Heads
	prompts  string                                            // of sort Prompts: the tensor with the embeddings of prompt rows
}

// Sort says how a self-draft guesses, and so which passes it needs. Kinds of one sort differ in their files alone.
type Sort uint8

const (
	Heads   Sort = iota + 1 // by heads on a hidden state of the target's
	Prompts                 // by rows with trained embeddings in the target's own passes
	Chain                   // one token after the other, by a draft that reads the target's keys and values
)

// Head names the tensors of a head: its residual blocks, each with .weight and perhaps .bias, and its own output matrix.
type Head struct {
	Blocks []string
	Output string
}

// number is a key with a whole number from 1 to most.
type number struct {
	name string
	at   *int
	most int
}

// layouts lists the kinds. Each has a file of this package.
var layouts = []*layout{&medusa, &ppd, &dovetail, &eagle, &eagle3, &dflash, &mtp, &assistant}

// layout returns the layout of a kind; nil: there is none.
func (k Kind) layout() *layout {
	if i := slices.IndexFunc(layouts, func(l *layout) bool { return l.kind == k }); i >= 0 {
		return layouts[i]
	}
	return nil
}

// All returns all kinds, in a fixed order.
func All() (all []Kind) {
	for _, l := range layouts {
		all = append(all, l.kind)
	}
	return all
}

// Kinds returns the kinds whose files have tandem's own format: those that Read reads and Slots describes.
func Kinds() []Kind {
	return slices.DeleteFunc(All(), func(k Kind) bool { return k.layout().tensors == nil })
}

// InVerifier reports whether files of the kind are opened beside the target (engine.Model.OpenSide).
func (k Kind) InVerifier() bool {
	l := k.layout()
	return l != nil && l.selfDraft != ""
}

// Sort returns how the self-draft of the kind guesses. k must be InVerifier; it panics for an unknown kind.
func (k Kind) Sort() Sort { return k.layout().sort }

// Head names the tensors of head k, 0 to Levels − 1. The file must be of sort Heads.
func (s *Spec) Head(k int) Head { return s.Kind.layout().head(s, k) }

// Prompts names the tensor with the embeddings of prompt rows, (Members·Levels, Dim). Its row member·Levels + level is for that member and
// level. The file must be of sort Prompts.
func (s *Spec) Prompts() string { return s.Kind.layout().prompts }

// IsDraft reports whether the kind is a draft with states, which a drafter runs (engine.OpenDraft). "", an ordinary model, is none.
func (k Kind) IsDraft() bool { return k != "" && !k.InVerifier() }

// Keys that all files of tandem's format have, and limits of what they say.
const (
	LineageKey    = "tandem.target.lineage"
	VocabularyKey = "tandem.target.vocabulary"

	LastNorm = -1 // as a tap: the state after the final norm

	lineageDigits, vocabularyDigits = 32, 16

	maxLayers, maxDim, maxVocab, maxContext = 1 << 12, 1 << 20, 1 << 24, 1 << 28
)

// Spec describes a side file. The zero value is that of an ordinary model.
type Spec struct {
	Kind                Kind
	Name                string // in messages; not checked
	Lineage, Vocabulary string // of the target: 32 and 16 hexadecimal digits; "" where the file names none
	Dim, Vocab          int    // the target's width and its number of tokens
	Taps                []int  // the target's hidden states that it reads, by the number of layers before them, or LastNorm; none for ppd

	Levels  int // tokens that it guesses ahead. medusa: heads; ppd: prompt tokens; assistant: tokens of a chain; 0: a draft
	Members int // ppd: embeddings for each prompt token
	Blocks  int // medusa: residual blocks in a head; drafts and assistant: transformer blocks

	Draft  Draft          // of drafts; of an assistant Width alone
	Helper AssistantShape // of an assistant
}

// Target is what a side file must fit.
type Target struct {
	Path                string // as errors show it
	Lineage, Vocabulary string
	Dim, Vocab, Layers  int
}

// Is reports whether f is a side file in tandem's format. A file of architecture eagle3 or dflash without taps is another program's.
func Is(f *gguf.File) bool {
	arch, err := f.StringOr("general.architecture", "")
	return err == nil && slices.Contains(Kinds(), Kind(arch)) && (!Kind(arch).ownWidth() || f.Has(arch+".taps"))
}

// Of describes the side file f, whatever its kind; the zero Spec: it is an ordinary model. Errors: as Read's.
func Of(f *gguf.File) (Spec, error) {
	arch, err := f.String("general.architecture")
	if _, assists := spellings[arch]; err == nil && assists {
		s, err := read(f, arch, &assistant)
		return *s, err
	}
	if err != nil || !Is(f) {
		return Spec{}, err
	}
	s, err := Read(f)
	if err != nil {
		return Spec{}, err
	}
	return *s, nil
}

// Read reads the keys of f, which must have tandem's format, and checks that it holds the tensors that follow from them, in the right
// shapes, and no others. The weights are not read. Errors: Corrupt for what contradicts the format, Unsupported for tensors that have no
// place in it, Invalid for another architecture.
func Read(f *gguf.File) (*Spec, error) {
	arch, err := f.String("general.architecture")
	if err != nil {
		return nil, err
	}
	if !slices.Contains(Kinds(), Kind(arch)) {
		return nil, tandem.Errorf(op, tandem.Invalid, "%s: architecture %q: want a side file, of %v", f.Path(), arch, Kinds())
	}
	s, err := read(f, arch, Kind(arch).layout())
	if err != nil {
		return nil, err
	}
	if err := s.Check(); err != nil {
		return nil, tandem.Errorf(op, tandem.Corrupt, "%s: %w", f.Path(), err)
	}
	return s, s.checkTensors(f)
}

// read reads the keys of f, whose names begin with arch.
func read(f *gguf.File, arch string, l *layout) (*Spec, error) {
	s := &Spec{Kind: l.kind}
	r := &reader{file: f, arch: arch, spec: s}
	if l.tensors != nil {
		s.Lineage, s.Vocabulary = r.digits(LineageKey, lineageDigits), r.digits(VocabularyKey, vocabularyDigits)
	}
	for _, n := range l.allNumbers(s) {
		*n.at = r.count(n.name, n.most)
	}
	if l.read != nil {
		l.read(r)
	}
	if l.taps > 0 {
		s.Taps = r.ints("taps", LastNorm, maxLayers)
	}
	if r.err != nil {
		return s, r.err
	}
	var err error
	s.Name, err = f.StringOr("general.name", string(l.kind))
	return s, err
}

// allNumbers returns l's numbers and, in tandem's format, those of every file.
func (l *layout) allNumbers(s *Spec) (all []number) {
	if l.tensors != nil {
		all = []number{{"embedding_length", &s.Dim, maxDim}, {"vocab_size", &s.Vocab, maxVocab}}
	}
	if l.numbers != nil {
		all = append(all, l.numbers(s)...)
	}
	return all
}

// SetKeys sets the keys of a file in tandem's format in w. s must be a spec that Check accepts.
func (s *Spec) SetKeys(w *gguf.Writer) {
	l := s.Kind.layout()
	set := func(name string, v any) { w.Set(string(s.Kind)+"."+name, v) }
	w.Set("general.architecture", string(s.Kind))
	w.Set(LineageKey, s.Lineage)
	w.Set(VocabularyKey, s.Vocabulary)
	for _, n := range l.allNumbers(s) {
		set(n.name, uint32(*n.at))
	}
	if l.taps > 0 {
		set("taps", int32s(s.Taps))
	}
	if l.set != nil {
		l.set(s, set)
	}
}

// Check returns an error if s, the spec of a file in tandem's format, contradicts itself or the format's limits. The error has no kind: the
// caller knows whose mistake it is.
func (s *Spec) Check() error {
	l := s.Kind.layout()
	if err := s.checkTaps(l.taps); err != nil {
		return err
	}
	if s.Dim < 1 || s.Dim > maxDim {
		return fmt.Errorf("width %d: want 1 to %d", s.Dim, maxDim)
	}
	if s.Vocab < 1 || s.Vocab > maxVocab {
		return fmt.Errorf("vocabulary %d: want 1 to %d", s.Vocab, maxVocab)
	}
	return l.check(s)
}

// checkTaps refuses taps that are none, more than most, or no two different states.
func (s *Spec) checkTaps(most int) error {
	if n := len(s.Taps); n > most || n < min(1, most) {
		wants := fmt.Sprint(most)
		if most > 1 {
			wants = fmt.Sprint("1 to ", most)
		}
		return fmt.Errorf("%d taps %d: %s wants %s", n, s.Taps, s.Kind, wants)
	}
	for i, t := range s.Taps {
		if t != LastNorm && (t < 1 || t > maxLayers) {
			return fmt.Errorf("tap %d: want a number of layers from 1 on, or %d for the state after the final norm", t, LastNorm)
		}
		if slices.Contains(s.Taps[:i], t) {
			return fmt.Errorf("taps %d: %d is there twice, want each state once", s.Taps, t)
		}
	}
	return nil
}

// Fits returns an error unless the side file at path was made for target t: Invalid, with what would be right.
func (s *Spec) Fits(path string, t Target) error {
	fail := func(format string, args ...any) error {
		return tandem.Errorf(op, tandem.Invalid, "%s does not belong to %s: %w", path, t.Path, fmt.Errorf(format, args...))
	}
	switch {
	case s.Lineage != t.Lineage && (s.Lineage != "" || s.Kind != MTP): // other programs' files of this kind name none
		return fail("it was made for a target of lineage %s, this one has %s: name that target with --target", s.Lineage, t.Lineage)
	case s.Vocabulary != t.Vocabulary:
		return fail("it was made for a vocabulary of fingerprint %s, this one has %s", s.Vocabulary, t.Vocabulary)
	case s.Vocab != t.Vocab:
		return fail("it was made for %d tokens, the target has %d", s.Vocab, t.Vocab)
	case s.Dim < t.Dim:
		return fail("it was made for width %d, the target was expanded to %d: tandem model expand makes a side file for it", s.Dim, t.Dim)
	case s.Dim > t.Dim:
		return fail("it was made for width %d, the target has %d", s.Dim, t.Dim)
	}
	for _, tap := range s.Taps {
		if tap > t.Layers {
			return fail("it reads the state after layer %d, the target has %d", tap, t.Layers)
		}
	}
	return nil
}

// SelfDraft describes the self-draft that a target gets by this file, whose kind must be InVerifier.
func (s Spec) SelfDraft() tandem.SelfDraft {
	return tandem.SelfDraft{Name: s.Kind.layout().selfDraft, Levels: s.Levels, Members: s.Members}
}

// StateWidth returns how many numbers of the target's states a draft reads for a row, and how many its own state has; 0: rows have none.
func (s *Spec) StateWidth() (target, own int) {
	if s.Draft.Block.Rows > 0 {
		return len(s.Taps) * s.Dim, 0
	}
	return len(s.Taps) * s.Dim, s.Draft.Width
}

// String describes the file in a few words, without sizes of its blocks.
func (s Spec) String() string {
	if l := s.Kind.layout(); l != nil {
		return l.describe(&s)
	}
	return describeDraft(&s)
}

// Shape is String with the sizes of its blocks.
func (s *Spec) Shape() string {
	words, d := s.String(), &s.Draft
	if d.Width > 0 {
		words += fmt.Sprintf(", d %d", d.Width)
	}
	if d.Heads > 0 {
		words += fmt.Sprintf(", %d heads, %d kv heads of %d, ffn %d, context %d", d.Heads, d.KVHeads, d.HeadDim, d.FFN, d.Context)
	}
	if len(d.IDs) > 0 {
		words += fmt.Sprintf(", %d of the target's tokens", len(d.IDs))
	}
	return words
}

// Lineage returns what identifies the side file at path. It stays the same when its weights are quantised or its target is expanded. It
// reads the whole file. Errors: as gguf.Open's and those of broken files, and ctx's once it has ended.
func Lineage(ctx context.Context, path string) (string, error) {
	f, err := gguf.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	return f.ReadLineage(ctx)
}
