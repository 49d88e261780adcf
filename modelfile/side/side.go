// Package side describes side files: heads, prompt tokens and drafts that were trained for one target (docs/sidefiles.md). A Spec is
// what a file's keys say; from it follow the tensors that the file must hold, their shapes, and what each becomes in a side file for
// an expanded target.
package side

import (
	"encoding/hex"
	"fmt"
	"math"
	"slices"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/modelfile/gguf"
)

const op = "side"

// Kind is what a side file holds: its architecture.
type Kind string

// The kinds of side files.
const (
	Medusa   Kind = "medusa"
	PPD      Kind = "ppd"
	Dovetail Kind = "dovetail"
	Eagle    Kind = "eagle"
	Eagle3   Kind = "eagle3"
)

// Kinds returns all kinds.
func Kinds() []Kind { return []Kind{Medusa, PPD, Dovetail, Eagle, Eagle3} }

// IsDraft reports whether a drafter runs the file. The others run in the verifier, and are named as their kind.
func (k Kind) IsDraft() bool { return k == Dovetail || k == Eagle || k == Eagle3 }

// Keys that all side files have, and limits of what they say.
const (
	LineageKey    = "tandem.target.lineage"
	VocabularyKey = "tandem.target.vocabulary"

	LastNorm = -1 // as a tap: the state after the final norm

	MaxHeads    = 16 // of medusa
	MaxResidual = 4  // residual blocks in a head
	MaxTokens   = 16 // prompt tokens
	MaxPrompts  = 1024
	MaxBlocks   = 8 // of a draft

	lineageDigits, vocabularyDigits = 32, 16

	maxLayers, maxDim, maxVocab, maxContext = 1 << 12, 1 << 20, 1 << 24, 1 << 28
)

// Spec is what the keys of a side file say.
type Spec struct {
	Kind                Kind
	Lineage, Vocabulary string // of the target: 32 and 16 hexadecimal digits
	Dim, Vocab          int    // the target's width and its number of tokens
	Taps                []int  // the hidden states that it reads: after so many layers, or LastNorm; none for ppd

	Heads, Residual  int   // medusa: heads, and residual blocks in each
	Tokens, Ensemble int   // ppd: prompt tokens, and members of the ensemble
	Draft            Draft // of drafts
}

// Draft is the shape of a draft's blocks.
type Draft struct {
	Blocks, Context, FFN    int
	Heads, KVHeads, HeadDim int
	RopeDim                 int     // leading elements of a head that RoPE turns
	RopeBase, Eps           float64 // Eps: of the norms

	Width int   // of its hidden states; eagle3 alone may differ from the target
	IDs   []int // eagle3: the target's id of each token that it knows
}

// Target is what a side file must fit.
type Target struct {
	Path                string // as errors show it
	Lineage, Vocabulary string
	Dim, Vocab, Layers  int
}

// Is reports whether f is a side file. A file of architecture eagle3 without taps is another program's.
func Is(f *gguf.File) bool {
	arch, err := f.StringOr("general.architecture", "")
	return err == nil && slices.Contains(Kinds(), Kind(arch)) && (Kind(arch) != Eagle3 || f.Has("eagle3.taps"))
}

// Read reads f's keys and checks that it holds the tensors that follow from them, in the right shapes, and no others. The weights are
// not read. Errors: Corrupt for what contradicts the format, Unsupported for tensors that have no place in it, Invalid for another
// architecture.
func Read(f *gguf.File) (*Spec, error) {
	arch, err := f.String("general.architecture")
	if err != nil {
		return nil, err
	}
	s := &Spec{Kind: Kind(arch)}
	if !slices.Contains(Kinds(), s.Kind) {
		return nil, tandem.Errorf(op, tandem.Invalid, "%s: architecture %q: want a side file, of %v", f.Path(), arch, Kinds())
	}
	r := &reader{file: f, spec: s}
	s.Lineage = r.digits(LineageKey, lineageDigits)
	s.Vocabulary = r.digits(VocabularyKey, vocabularyDigits)
	s.Dim = r.count("embedding_length", maxDim)
	s.Vocab = r.count("vocab_size", maxVocab)
	switch {
	case s.Kind == Medusa:
		s.Heads, s.Residual = r.count("head_count", MaxHeads), r.count("block_count", MaxResidual)
	case s.Kind == PPD:
		s.Tokens, s.Ensemble = r.count("token_count", MaxTokens), r.count("ensemble_count", MaxPrompts)
	default:
		r.draft(&s.Draft)
	}
	if s.Kind != PPD {
		s.Taps = r.ints("taps", LastNorm, maxLayers)
	}
	if r.err != nil {
		return nil, r.err
	}
	if err := s.Check(); err != nil {
		return nil, tandem.Errorf(op, tandem.Corrupt, "%s: %w", f.Path(), err)
	}
	return s, s.checkTensors(f)
}

// reader reads keys; the first error sticks.
type reader struct {
	file *gguf.File
	spec *Spec
	err  error
}

func (r *reader) key(name string) string { return string(r.spec.Kind) + "." + name }

func (r *reader) keep(err error) {
	if r.err == nil {
		r.err = err
	}
}

// count reads a whole number from 1 to most.
func (r *reader) count(name string, most int) int {
	n, err := r.file.Int(r.key(name), 1, most)
	r.keep(err)
	return n
}

func (r *reader) ints(name string, lo, hi int) []int {
	n, err := r.file.Ints(r.key(name), lo, hi)
	r.keep(err)
	return n
}

// number reads a finite number above 0.
func (r *reader) number(name string) float64 {
	v, err := r.file.Float(r.key(name))
	if r.keep(err); err == nil && !(v > 0) {
		r.keep(tandem.Errorf(op, tandem.Corrupt, "%s: key %q is %v: want a number above 0", r.file.Path(), r.key(name), v))
	}
	return v
}

// digits reads n hexadecimal digits.
func (r *reader) digits(key string, n int) string {
	s, err := r.file.String(key)
	if r.keep(err); err != nil {
		return ""
	}
	if b, err := hex.DecodeString(s); err != nil || 2*len(b) != n {
		r.keep(tandem.Errorf(op, tandem.Corrupt, "%s: key %q is %.80q: want %d hexadecimal digits", r.file.Path(), key, s, n))
	}
	return s
}

func (r *reader) draft(d *Draft) {
	d.Blocks = r.count("block_count", MaxBlocks)
	d.Context = r.count("context_length", maxContext)
	d.FFN = r.count("feed_forward_length", maxDim)
	d.Heads, d.KVHeads = r.count("attention.head_count", maxLayers), r.count("attention.head_count_kv", maxLayers)
	d.Eps, d.RopeBase = r.number("attention.layer_norm_rms_epsilon"), r.number("rope.freq_base")
	d.Width = r.spec.Dim
	if r.spec.Kind == Eagle3 {
		d.Width = r.count("draft_length", maxDim)
		d.IDs = r.ints("d2t", 0, maxVocab)
		if n := r.count("draft_vocab_size", maxVocab); r.err == nil && n != len(d.IDs) {
			r.keep(tandem.Errorf(op, tandem.Corrupt, "%s: key %q is %d, but %q has %d ids", r.file.Path(), r.key("draft_vocab_size"), n,
				r.key("d2t"), len(d.IDs)))
		}
	}
	if r.err != nil {
		return
	}
	var err error
	d.HeadDim, err = r.file.IntOr(r.key("attention.key_length"), 1, maxDim, d.Width/d.Heads)
	r.keep(err)
	values, err := r.file.IntOr(r.key("attention.value_length"), 1, maxDim, d.HeadDim)
	if r.keep(err); err == nil && values != d.HeadDim {
		r.keep(tandem.Errorf(op, tandem.Corrupt, "%s: key %q is %d, but heads have keys of %d: want as many", r.file.Path(),
			r.key("attention.value_length"), values, d.HeadDim))
	}
	d.RopeDim, err = r.file.IntOr(r.key("rope.dimension_count"), 2, maxDim, d.HeadDim)
	r.keep(err)
}

// Check refuses a spec that contradicts itself or the format's limits. The error has no kind: who calls knows whom to blame.
func (s *Spec) Check() error {
	want := 1
	switch s.Kind {
	case PPD:
		want = 0
	case Eagle3:
		want = 3
	}
	if len(s.Taps) != want {
		return fmt.Errorf("%d taps %d: %s wants %d", len(s.Taps), s.Taps, s.Kind, want)
	}
	for _, t := range s.Taps {
		if t != LastNorm && (t < 1 || t > maxLayers) {
			return fmt.Errorf("tap %d: want a number of layers from 1 on, or %d for the state after the final norm", t, LastNorm)
		}
	}
	for _, n := range []struct {
		what       string
		is         int
		from, most int
	}{
		{"width", s.Dim, 1, maxDim}, {"vocabulary", s.Vocab, 1, maxVocab},
	} {
		if n.is < n.from || n.is > n.most {
			return fmt.Errorf("%s %d: want %d to %d", n.what, n.is, n.from, n.most)
		}
	}
	switch s.Kind {
	case Medusa:
		if s.Heads < 1 || s.Heads > MaxHeads || s.Residual < 1 || s.Residual > MaxResidual {
			return fmt.Errorf("%d heads of %d residual blocks: want 1 to %d of 1 to %d", s.Heads, s.Residual, MaxHeads, MaxResidual)
		}
		if s.Taps[0] != LastNorm {
			return fmt.Errorf("tap %d: heads want %d, the state after the final norm", s.Taps[0], LastNorm)
		}
		return nil
	case PPD:
		if s.Tokens < 1 || s.Tokens > MaxTokens || s.Ensemble < 1 || s.Ensemble > MaxPrompts || s.Tokens*s.Ensemble > MaxPrompts {
			return fmt.Errorf("%d prompt tokens of %d ensemble members: want 1 to %d tokens, and at most %d embeddings in all", s.Tokens,
				s.Ensemble, MaxTokens, MaxPrompts)
		}
		return nil
	}
	return s.checkDraft()
}

func (s *Spec) checkDraft() error {
	d := &s.Draft
	switch {
	case d.Blocks < 1 || d.Blocks > MaxBlocks || s.Kind == Eagle3 && d.Blocks != 1:
		return fmt.Errorf("%d blocks: want 1, or up to %d for dovetail and eagle", d.Blocks, MaxBlocks)
	case d.Width < 1 || d.Width > maxDim || s.Kind != Eagle3 && d.Width != s.Dim:
		return fmt.Errorf("a draft of width %d for a target of %d: want the same", d.Width, s.Dim)
	case d.Context < 1 || d.Context > maxContext || d.FFN < 1 || d.FFN > maxDim:
		return fmt.Errorf("context %d and feed-forward size %d: want 1 to %d and 1 to %d", d.Context, d.FFN, maxContext, maxDim)
	case d.Heads < 1 || d.KVHeads < 1 || d.Heads > maxLayers || d.Heads%d.KVHeads != 0:
		return fmt.Errorf("%d heads are no multiple of %d key heads", d.Heads, d.KVHeads)
	case d.HeadDim < 1 || d.HeadDim > maxDim || d.Heads*d.HeadDim > maxDim:
		return fmt.Errorf("%d heads of %d elements: want at least one, and at most %d in all", d.Heads, d.HeadDim, maxDim)
	case d.RopeDim < 2 || d.RopeDim > d.HeadDim || d.RopeDim%2 != 0:
		return fmt.Errorf("RoPE over %d elements of a head: want an even number up to %d", d.RopeDim, d.HeadDim)
	case !(d.Eps > 0) || !(d.Eps < 1) || !(d.RopeBase >= 1) || math.IsInf(d.RopeBase, 0):
		return fmt.Errorf("norm epsilon %g and RoPE base %g: want numbers between 0 and 1 and of at least 1", d.Eps, d.RopeBase)
	}
	if s.Kind == Eagle3 {
		return s.checkIDs()
	}
	return nil
}

// checkIDs refuses ids outside of the target's vocabulary, and one twice.
func (s *Spec) checkIDs() error {
	if len(s.Draft.IDs) == 0 || len(s.Draft.IDs) > s.Vocab {
		return fmt.Errorf("a draft vocabulary of %d tokens: want 1 to the target's %d", len(s.Draft.IDs), s.Vocab)
	}
	seen := make([]bool, s.Vocab)
	for i, id := range s.Draft.IDs {
		if id < 0 || id >= s.Vocab {
			return fmt.Errorf("draft token %d is the target's %d: want 0 to %d", i, id, s.Vocab-1)
		}
		if seen[id] {
			return fmt.Errorf("draft token %d is the target's %d, as an earlier one is", i, id)
		}
		seen[id] = true
	}
	return nil
}

// Fits refuses a target that the side file was not made for. Errors: Invalid, with what would be right.
func (s *Spec) Fits(path string, t Target) error {
	fail := func(format string, args ...any) error {
		return tandem.Errorf(op, tandem.Invalid, "%s does not belong to %s: %w", path, t.Path, fmt.Errorf(format, args...))
	}
	switch {
	case s.Lineage != t.Lineage:
		return fail("it was made for a target of lineage %s, this one has %s", s.Lineage, t.Lineage)
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
