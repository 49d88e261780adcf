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

// MaxBlocks bounds the transformer blocks of a draft.
const MaxBlocks = 8

// Draft is the shape of a draft's blocks.
type Draft struct {
	Context, FFN            int
	Heads, KVHeads, HeadDim int
	RopeDim                 int     // leading elements of a head that RoPE turns
	RopeBase, Eps           float64 // Eps: of the norms

	Width int   // of its hidden states; eagle3 alone may differ from the target
	IDs   []int // eagle3: the target's id of each token that it knows
}

// Dovetail (Zhang et al., 2024): a gate mixes one state of the target with the embedding of the next token.
var dovetail = layout{kind: Dovetail, taps: 1, numbers: draftNumbers, read: readDraft, set: setDraft, check: checkDraft,
	describe: describeDraft,
	tensors: func(l *slots, s *Spec) {
		for _, name := range []string{"fuse.hidden", "fuse.embd", "fuse.gate.hidden", "fuse.gate.embd"} {
			l.add(name+".weight", Zeros, s.Dim, s.Dim)
		}
		for _, name := range []string{"fuse.hidden", "fuse.embd", "fuse.gate"} {
			l.maybe(name+".bias", Zeros, s.Dim)
		}
		l.blocks(s)
		l.maybe("output_norm.weight", Norm, s.Draft.Width)
	},
}

// EAGLE (Li et al., 2024): one matrix reads both side by side.
var eagle = layout{kind: Eagle, taps: 1, numbers: draftNumbers, read: readDraft, set: setDraft, check: checkDraft,
	describe: describeDraft,
	tensors: func(l *slots, s *Spec) {
		l.add("fc.embd.weight", Zeros, s.Dim, s.Dim)
		l.add("fc.hidden.weight", Zeros, s.Dim, s.Dim)
		l.maybe("fc.bias", Zeros, s.Dim)
		l.blocks(s)
		l.maybe("output_norm.weight", Norm, s.Draft.Width)
	},
}

// EAGLE-3 (Li et al., 2025): three states of the target, a width and a vocabulary of its own, and a block that reads the embedding and
// the hidden state side by side.
var eagle3 = layout{kind: Eagle3, taps: 3, numbers: draftNumbers, describe: describeDraft,
	read: func(r *reader) {
		d := &r.spec.Draft
		readDraft(r)
		if d.IDs = r.ints("d2t", 0, maxVocab); r.err != nil {
			return
		}
		if n := r.count("draft_vocab_size", maxVocab); r.err == nil && n != len(d.IDs) {
			r.fail(tandem.Corrupt, "key %q is %d, but %q has %d ids", r.key("draft_vocab_size"), n, r.key("d2t"), len(d.IDs))
		}
	},
	set: func(s *Spec, set func(string, any)) {
		setDraft(s, set)
		set("draft_length", uint32(s.Draft.Width))
		set("draft_vocab_size", uint32(len(s.Draft.IDs)))
		set("d2t", int32s(s.Draft.IDs))
	},
	check: func(s *Spec) error {
		if err := checkDraft(s); err != nil {
			return err
		}
		return s.checkIDs()
	},
	tensors: func(l *slots, s *Spec) {
		for i := range s.Taps {
			l.add(fmt.Sprintf("fc.%d.weight", i), Zeros, s.Dim, s.Draft.Width)
		}
		l.add("output.weight", Zeros, s.Draft.Width, len(s.Draft.IDs))
		l.maybe("token_embd.weight", Zeros, s.Draft.Width, s.Vocab)
		l.blocks(s)
		l.add("output_norm.weight", Norm, s.Draft.Width)
	},
	complete: func(s *Spec, has func(string) bool) error {
		if s.Draft.Width != s.Dim && !has("token_embd.weight") {
			return fmt.Errorf("a draft of width %d has no \"token_embd.weight\", and the target's embeddings have %d", s.Draft.Width, s.Dim)
		}
		return nil
	},
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
	if d.Width = r.spec.Dim; r.spec.Kind == Eagle3 {
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
}

func checkDraft(s *Spec) error {
	d := &s.Draft
	switch {
	case s.Blocks < 1 || s.Blocks > MaxBlocks || s.Kind == Eagle3 && s.Blocks != 1:
		return fmt.Errorf("%d blocks: want 1, or up to %d for dovetail and eagle", s.Blocks, MaxBlocks)
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

func describeDraft(s *Spec) string {
	return fmt.Sprintf("%s draft of %d blocks, reads %v", s.Kind, s.Blocks, s.Taps)
}

// blocks adds the transformer blocks of a draft.
func (l *slots) blocks(s *Spec) {
	for i := range s.Blocks {
		l.block(s, i)
	}
}

// block adds block i of a draft. That of eagle3 reads the embedding and the hidden state side by side, each after a norm of its own.
func (l *slots) block(s *Spec, i int) {
	d := &s.Draft
	q, kv := d.Heads*d.HeadDim, d.KVHeads*d.HeadDim
	name := func(n string) string { return fmt.Sprintf("blk.%d.%s", i, n) }
	if i == 0 && s.Kind != Eagle3 {
		l.maybe(name("attn_norm.weight"), Norm, d.Width)
	} else {
		l.add(name("attn_norm.weight"), Norm, d.Width)
	}
	if s.Kind == Eagle3 {
		l.add(name("hidden_norm.weight"), Norm, d.Width)
	}
	for _, m := range []struct {
		name string
		rows int
	}{{"attn_q", q}, {"attn_k", kv}, {"attn_v", kv}} {
		if s.Kind == Eagle3 {
			l.add(name(m.name+".embd.weight"), Random, d.Width, m.rows)
			l.add(name(m.name+".hidden.weight"), Random, d.Width, m.rows)
		} else {
			l.add(name(m.name+".weight"), Random, d.Width, m.rows)
		}
		l.maybe(name(m.name+".bias"), Zeros, m.rows)
	}
	l.add(name("attn_output.weight"), Zeros, q, d.Width)
	l.maybe(name("attn_output.bias"), Zeros, d.Width)
	l.add(name("ffn_norm.weight"), Norm, d.Width)
	l.add(name("ffn_gate.weight"), Random, d.Width, d.FFN)
	l.add(name("ffn_up.weight"), Random, d.Width, d.FFN)
	l.add(name("ffn_down.weight"), Zeros, d.FFN, d.Width)
}
