package side

import (
	"fmt"
	"math"

	"github.com/tandem-llm/tandem"
)

// Drafts with states.
const (
	Dovetail Kind = "dovetail"
	Eagle    Kind = "eagle"
	Eagle3   Kind = "eagle3"
)

// Limits of drafts: transformer blocks, and states of the target that they read.
const (
	MaxBlocks = 8
	MaxTaps   = 8
)

// Draft is the shape of a draft's blocks.
type Draft struct {
	Context, FFN            int
	Heads, KVHeads, HeadDim int
	RopeDim                 int     // leading elements of a head that RoPE turns
	RopeBase, Eps           float64 // Eps: of the norms

	Scaling Scaling // of RoPE
	Window  int     // positions that its layers attend to; 0: all

	Width int    // of its hidden states; of eagle3 and dflash it may differ from the target's
	IDs   []int  // the target's id of each token that it knows; none: it knows all. eagle3 always has them, medusa and ppd may
	Norms Norms3 // eagle3
	Block Block  // dflash
}

// draftOf returns the layout of a kind of draft. complete may be nil: then only what all drafts want is checked.
func draftOf(kind Kind, complete func(s *Spec, has func(string) bool) error, tensors func(l *slots, s *Spec)) layout {
	return layout{kind: kind, taps: MaxTaps, numbers: draftNumbers, read: readDraft, set: setDraft, check: checkDraft,
		describe: describeDraft, tensors: tensors, complete: complete}
}

// TapMatrix names the matrix of entry i of the taps of dovetail and eagle. Their state is the sum of all taps, each times its matrix; one
// tap may be without a matrix, and is then added as it is.
func TapMatrix(i int) string { return fmt.Sprintf("taps.%d.weight", i) }

// Dovetail (Zhang et al., 2024): a gate mixes the target's state with the embedding of the next token.
var dovetail = draftOf(Dovetail, completeSum, func(l *slots, s *Spec) {
	for _, name := range []string{"fuse.hidden", "fuse.embd", "fuse.gate.hidden", "fuse.gate.embd"} {
		l.add(name+".weight", Zeros, s.Dim, s.Dim)
	}
	for _, name := range []string{"fuse.hidden", "fuse.embd", "fuse.gate"} {
		l.maybe(name+".bias", Zeros, s.Dim)
	}
	l.around(s)
})

// EAGLE (Li et al., 2024): one matrix reads both side by side.
var eagle = draftOf(Eagle, completeSum, func(l *slots, s *Spec) {
	l.add("fc.embd.weight", Zeros, s.Dim, s.Dim)
	l.add("fc.hidden.weight", Zeros, s.Dim, s.Dim)
	l.maybe("fc.bias", Zeros, s.Dim)
	l.around(s)
})

// EAGLE-3 (Li et al., 2025): several states of the target, a width and a vocabulary of its own, and a block that reads the embedding and
// the hidden state side by side.
var eagle3 = draftOf(Eagle3, completeWidth, func(l *slots, s *Spec) {
	for i := range s.Taps {
		l.add(FCMatrix(i), Zeros, s.Dim, s.Draft.Width)
		if s.Draft.Norms.States != "" {
			l.add(StateNorm(i), Norm, s.Dim)
		}
	}
	l.maybe("fc.bias", Zeros, s.Draft.Width)
	l.maybe("output.weight", Zeros, s.Draft.Width, len(s.Draft.IDs))
	l.maybe("token_embd.weight", Zeros, s.Draft.Width, s.Vocab)
	l.blocks(s)
	l.add("output_norm.weight", Norm, s.Draft.Width)
})

// around adds what dovetail and eagle have before and after their fusion: the matrices of taps, the blocks, and what follows them.
func (l *slots) around(s *Spec) {
	for i := range s.Taps {
		l.maybe(TapMatrix(i), Zeros, s.Dim, s.Dim)
	}
	l.blocks(s)
	l.maybe("output_norm.weight", Norm, s.Draft.Width)
	if n := len(s.Draft.IDs); n > 0 {
		l.maybe("output.weight", Zeros, s.Draft.Width, n)
	}
}

// completeSum refuses a sum of taps of which two have no matrix, and an output matrix whose rows belong to no tokens.
func completeSum(s *Spec, has func(tensor string) bool) error {
	without := -1
	for i := range s.Taps {
		switch {
		case has(TapMatrix(i)):
		case without >= 0:
			return fmt.Errorf("taps %d and %d have no matrix: want %q or %q, for at most one may be without", s.Taps[without], s.Taps[i],
				TapMatrix(without), TapMatrix(i))
		default:
			without = i
		}
	}
	if has("output.weight") && len(s.Draft.IDs) == 0 {
		return fmt.Errorf("tensor \"output.weight\" without key \"%s.d2t\": want the target's id of each of its rows", s.Kind)
	}
	return nil
}

// completeWidth refuses a draft that would need the target's matrices and is not as wide.
func completeWidth(s *Spec, has func(tensor string) bool) error {
	if s.Draft.Width == s.Dim {
		return nil
	}
	for _, name := range []string{"token_embd.weight", "output.weight"} {
		if !has(name) {
			return fmt.Errorf("a draft of width %d has no %q, and the rows of the target's have %d", s.Draft.Width, name, s.Dim)
		}
	}
	return nil
}

func draftNumbers(s *Spec) []number {
	d := &s.Draft
	return []number{{"block_count", &s.Blocks, MaxBlocks}, {"context_length", &d.Context, maxContext},
		{"feed_forward_length", &d.FFN, maxDim}, {"attention.head_count", &d.Heads, maxLayers},
		{"attention.head_count_kv", &d.KVHeads, maxLayers}}
}

func readDraft(r *reader) {
	d := &r.spec.Draft
	d.Eps, d.RopeBase = r.number("attention.layer_norm_rms_epsilon"), r.number("rope.freq_base")
	if d.Width = r.spec.Dim; r.spec.Kind.ownWidth() {
		d.Width = r.count("draft_length", maxDim)
	}
	if r.err != nil {
		return
	}
	d.HeadDim = r.countOr("attention.key_length", maxDim, d.Width/d.Heads)
	if values := r.countOr("attention.value_length", maxDim, d.HeadDim); r.err == nil && values != d.HeadDim {
		r.fail(tandem.Corrupt, "key %q is %d, but heads have keys of %d: want as many", r.key("attention.value_length"), values, d.HeadDim)
	}
	var err error
	d.RopeDim, err = r.file.IntOr(r.key("rope.dimension_count"), 2, maxDim, d.HeadDim)
	r.keep(err)
	d.Window = r.countOr("attention.sliding_window", maxContext, 0)
	d.Scaling.read(r)
	switch r.spec.Kind {
	case Eagle3:
		d.Norms.read(r)
	case DFlash:
		d.Block.read(r)
	}
	if r.spec.Kind == Eagle3 {
		readIDs(r)
	} else {
		readSome(r)
	}
}

// readSome reads which of the target's tokens a file knows whose kind may know all.
func readSome(r *reader) {
	if r.hasIDs() {
		readIDs(r)
	}
}

// hasIDs reports whether a draft knows some of the target's tokens only.
func (r *reader) hasIDs() bool {
	return r.file.Has(r.key("d2t")) || r.file.Has(r.key("draft_vocab_size"))
}

// readIDs reads which of the target's tokens a draft knows.
func readIDs(r *reader) {
	d := &r.spec.Draft
	if d.IDs = r.ints("d2t", 0, maxVocab); r.err != nil {
		return
	}
	if n := r.count("draft_vocab_size", maxVocab); r.err == nil && n != len(d.IDs) {
		r.fail(tandem.Corrupt, "key %q is %d, but %q has %d ids", r.key("draft_vocab_size"), n, r.key("d2t"), len(d.IDs))
	}
}

func setDraft(s *Spec, set func(string, any)) {
	d := &s.Draft
	if d.Heads*d.HeadDim != d.Width {
		set("attention.key_length", uint32(d.HeadDim))
		set("attention.value_length", uint32(d.HeadDim))
	}
	set("attention.layer_norm_rms_epsilon", float32(d.Eps))
	set("rope.freq_base", float32(d.RopeBase))
	set("rope.dimension_count", uint32(d.RopeDim))
	if d.Window > 0 {
		set("attention.sliding_window", uint32(d.Window))
	}
	d.Scaling.set(set)
	if s.Kind.ownWidth() {
		set("draft_length", uint32(d.Width))
	}
	switch s.Kind {
	case Eagle3:
		d.Norms.set(set)
	case DFlash:
		d.Block.set(set)
	}
	setIDs(s, set)
}

func setIDs(s *Spec, set func(string, any)) {
	if ids := s.Draft.IDs; len(ids) > 0 {
		set("draft_vocab_size", uint32(len(ids)))
		set("d2t", int32s(ids))
	}
}

func checkDraft(s *Spec) error {
	d := &s.Draft
	switch {
	case s.Blocks < 1 || s.Blocks > MaxBlocks:
		return fmt.Errorf("%d blocks: want 1 to %d", s.Blocks, MaxBlocks)
	case d.Width < 1 || d.Width > maxDim || !s.Kind.ownWidth() && d.Width != s.Dim:
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
	if s.Kind == DFlash {
		if err := d.Block.check(s); err != nil {
			return err
		}
	}
	if s.Kind == Eagle3 {
		return s.checkIDs()
	}
	return s.checkSome()
}

// checkSome is checkIDs for kinds that may know all tokens.
func (s *Spec) checkSome() error {
	if len(s.Draft.IDs) == 0 {
		return nil
	}
	return s.checkIDs()
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

func describeDraft(s *Spec) string {
	return fmt.Sprintf("%s draft of %d blocks, reads %v", s.Kind, s.Blocks, s.Taps)
}

// blocks adds the transformer blocks of a draft, and the factors of RoPE, which all of them share.
func (l *slots) blocks(s *Spec) {
	l.maybe(RopeFactors, Zeros, s.Draft.RopeDim/2)
	for i := range s.Blocks {
		l.block(s, i)
	}
}

// block adds block i of a draft. The first of eagle3 reads the embedding and the hidden state side by side, each after a norm of its own.
func (l *slots) block(s *Spec, i int) {
	d := &s.Draft
	q, kv := d.Heads*d.HeadDim, d.KVHeads*d.HeadDim
	name := func(n string) string { return fmt.Sprintf("blk.%d.%s", i, n) }
	twofold, whole := i == 0 && s.Kind == Eagle3, s.Kind == DFlash
	if i == 0 && !twofold && !whole {
		l.maybe(name("attn_norm.weight"), Norm, d.Width)
	} else {
		l.add(name("attn_norm.weight"), Norm, d.Width)
	}
	if twofold {
		l.add(name("hidden_norm.weight"), Norm, d.Width)
	}
	for _, m := range []struct {
		name string
		rows int
	}{{"attn_q", q}, {"attn_k", kv}, {"attn_v", kv}} {
		if twofold {
			l.add(name(m.name+".embd.weight"), Random, d.Width, m.rows)
			l.add(name(m.name+".hidden.weight"), Random, d.Width, m.rows)
		} else {
			l.add(name(m.name+".weight"), Random, d.Width, m.rows)
		}
		l.maybe(name(m.name+".bias"), Zeros, m.rows)
	}
	norm := l.maybe
	if whole {
		norm = l.add
	}
	norm(name("attn_q_norm.weight"), Zeros, d.HeadDim)
	norm(name("attn_k_norm.weight"), Zeros, d.HeadDim)
	l.add(name("attn_output.weight"), Zeros, q, d.Width)
	l.maybe(name("attn_output.bias"), Zeros, d.Width)
	l.add(name("ffn_norm.weight"), Norm, d.Width)
	l.add(name("ffn_gate.weight"), Random, d.Width, d.FFN)
	l.add(name("ffn_up.weight"), Random, d.Width, d.FFN)
	l.add(name("ffn_down.weight"), Zeros, d.FFN, d.Width)
	l.maybe(name("ffn_gate.bias"), Zeros, d.FFN)
	l.maybe(name("ffn_up.bias"), Zeros, d.FFN)
	l.maybe(name("ffn_down.bias"), Zeros, d.Width)
}
