package side

import (
	"fmt"
	"slices"
)

// DFlash is a block draft.
const DFlash Kind = "dflash"

// MaxBlockRows is the most rows of a block: the last token's and those of mask tokens.
const MaxBlockRows = 32

// Block says how a block draft guesses: all tokens of a block in one pass.
type Block struct {
	Rows   int    // of a block: the last token and Rows-1 mask tokens; 0: no block draft
	Mask   int    // the mask token, of the target's vocabulary
	Anchor bool   // the last token's row guesses the next token; else the first mask token's does (sample_from_anchor)
	Local  []bool // layers that attend through Draft.Window; none: all do if there is a window
	Causal []bool // layers whose rows do not see later rows of their block; none: no layer

	// DFlash2. A convolution goes over ConvTaps rows, and ConvGroup neighbouring columns share its weights; 0: no convolutions. A selector
	// has Rank numbers of a token and compares the Best candidates of a level; 0: no selector. Embeddings are multiplied by EmbedScale, and
	// logits by LogitScale, then capped at LogitCap (0: not); a draft of DFlash scales and caps as its target does.
	ConvTaps, ConvGroup, Rank, Best  int
	EmbedScale, LogitScale, LogitCap float64
}

// Levels returns how many tokens a block guesses. b must be that of a block draft.
func (b *Block) Levels() int {
	if b.Anchor {
		return b.Rows
	}
	return b.Rows - 1
}

// Two reports whether the draft is of DFlash2.
func (b *Block) Two() bool { return b.ConvTaps > 0 || b.Rank > 0 }

// Groups returns how many groups of columns have weights of their own in the convolutions, which b must have, of a draft of that width.
func (b *Block) Groups(width int) int { return width / b.ConvGroup }

// DFlash (z-lab, 2026): keys and values of the text are made of the target's states alone; the rows of a block see them, and each other.
var dflash = func() layout {
	l := draftOf(DFlash, completeWidth, dflashTensors)
	l.describe = describeBlocks
	return l
}()

func dflashTensors(l *slots, s *Spec) {
	for i := range s.Taps {
		l.add(FCMatrix(i), Zeros, s.Dim, s.Draft.Width)
	}
	l.add("hidden_norm.weight", Norm, s.Draft.Width)
	known := s.Vocab
	if n := len(s.Draft.IDs); n > 0 {
		known = n
	}
	l.maybe("output.weight", Zeros, s.Draft.Width, known)
	l.maybe("token_embd.weight", Zeros, s.Draft.Width, s.Vocab)
	l.blocks(s)
	l.convolutions(s)
	l.add("output_norm.weight", Norm, s.Draft.Width)
	if b := &s.Draft.Block; b.Rank > 0 {
		l.add(SelectorHidden, Zeros, s.Draft.Width, b.Rank)
		l.add(SelectorBefore, Zeros, b.Rank, s.Vocab)
		l.add(SelectorAfter, Zeros, b.Rank, s.Vocab)
	}
}

// The tensors of a selector, as llama.cpp names them: a matrix for the state, and the numbers of each token before and after a step.
const (
	SelectorHidden = "selector_hidden.weight"
	SelectorBefore = "selector_predecessor.weight"
	SelectorAfter  = "selector_successor.weight"
)

// convolutions adds those around attention and feed-forward of each block, as llama.cpp names them. A base is (2, taps, width), one after
// the other: before the layer's part, and behind it.
func (l *slots) convolutions(s *Spec) {
	b, n := &s.Draft.Block, s.Draft.Width
	if b.ConvTaps == 0 {
		return
	}
	for i := range s.Blocks {
		for _, part := range []string{"attn", "ffn"} {
			l.add(fmt.Sprintf("blk.%d.%s_conv_base", i, part), Zeros, 2*b.ConvTaps*n)
			l.add(fmt.Sprintf("blk.%d.%s_conv_proj.weight", i, part), Zeros, n, 2*b.ConvTaps*b.Groups(n))
		}
	}
}

// FCMatrix names the matrix of entry i of the taps of eagle3 and dflash.
func FCMatrix(i int) string { return fmt.Sprintf("fc.%d.weight", i) }

const (
	keyRows   = "block_size"
	keyMask   = "mask_token_id"
	keyAnchor = "sample_from_anchor"
	keyLocal  = "attention.sliding_window_pattern" // as in llama files
	keyCausal = "attention.causal_layers"
	keyTaps   = "conv_kernel_size" // as in llama files, like the next three
	keyGroup  = "conv_group_size"
	keyRank   = "selector_rank"
	keyBest   = "selector_top_k"

	keyEmbedScale = "draft_embedding_scale"
	keyLogitScale = "draft_logit_scale"
	keyLogitCap   = "draft_logit_cap"
)

// numbers lists the keys of DFlash2. Two and two belong together.
func (b *Block) numbers() []number {
	return []number{{keyTaps, &b.ConvTaps, maxDim}, {keyGroup, &b.ConvGroup, maxDim}, {keyRank, &b.Rank, maxDim},
		{keyBest, &b.Best, maxDim}}
}

// factors lists what DFlash2 scales and caps, with what it usually is.
func (b *Block) factors() []struct {
	key   string
	at    *float64
	usual float64
} {
	return []struct {
		key   string
		at    *float64
		usual float64
	}{{keyEmbedScale, &b.EmbedScale, 1}, {keyLogitScale, &b.LogitScale, 1}, {keyLogitCap, &b.LogitCap, 0}}
}

func (b *Block) read(r *reader) {
	b.Rows = r.count(keyRows, MaxBlockRows)
	var err error
	b.Mask, err = r.file.Int(r.key(keyMask), 0, maxVocab)
	r.keep(err)
	b.Anchor, err = r.file.BoolOr(r.key(keyAnchor), false)
	r.keep(err)
	for _, n := range b.numbers() {
		*n.at = r.countOr(n.name, n.most, 0)
	}
	if b.Two() {
		for _, x := range b.factors() {
			*x.at, err = r.file.FloatOr(r.key(x.key), x.usual)
			r.keep(err)
		}
	}
	for _, l := range b.layers() {
		if r.file.Has(r.key(l.key)) {
			*l.at, err = r.file.Bools(r.key(l.key))
			r.keep(err)
		}
	}
}

// layers lists the keys that say something of each layer.
func (b *Block) layers() []struct {
	key string
	at  *[]bool
} {
	return []struct {
		key string
		at  *[]bool
	}{{keyLocal, &b.Local}, {keyCausal, &b.Causal}}
}

func (b *Block) set(set func(string, any)) {
	set(keyRows, uint32(b.Rows))
	set(keyMask, uint32(b.Mask))
	if b.Anchor {
		set(keyAnchor, true)
	}
	for _, n := range b.numbers() {
		if *n.at > 0 {
			set(n.name, uint32(*n.at))
		}
	}
	for _, x := range b.factors() {
		if b.Two() && *x.at != x.usual {
			set(x.key, float32(*x.at))
		}
	}
	for _, l := range b.layers() {
		if len(*l.at) > 0 {
			set(l.key, *l.at)
		}
	}
}

// check refuses blocks that contradict the rest of the spec.
func (b *Block) check(s *Spec) error {
	local := s.Draft.Window > 0 && (len(b.Local) == 0 || slices.Contains(b.Local, true))
	switch {
	case b.Rows < 1 || b.Rows > MaxBlockRows || b.Levels() < 1:
		return fmt.Errorf("blocks of %d rows: want 2 to %d, or 1 if the last token's row guesses", b.Rows, MaxBlockRows)
	case b.Mask < 0 || b.Mask >= s.Vocab:
		return fmt.Errorf("mask token %d: want one of the target's, 0 to %d", b.Mask, s.Vocab-1)
	case len(b.Local) > 0 && (len(b.Local) != s.Blocks || local != (s.Draft.Window > 0)):
		return fmt.Errorf("windows of %d positions in layers %v: want true or false for each of %d, and a window where one has it",
			s.Draft.Window, b.Local, s.Blocks)
	case len(b.Causal) > 0 && len(b.Causal) != s.Blocks:
		return fmt.Errorf("causal layers %v: want true or false for each of %d", b.Causal, s.Blocks)
	}
	return b.checkNumbers(s)
}

// MaxConvTaps bounds the rows of a DFlash2 convolution, MaxSelected the candidates of a level that its selector compares.
const MaxConvTaps, MaxSelected = 32, 64

// checkNumbers refuses convolutions and a selector that cannot be.
func (b *Block) checkNumbers(s *Spec) error {
	switch {
	case (b.ConvTaps == 0) != (b.ConvGroup == 0) || (b.Rank == 0) != (b.Best == 0):
		return fmt.Errorf("convolutions of %d taps in groups of %d columns and a selector of rank %d for %d candidates: want both "+
			"numbers of each, or none", b.ConvTaps, b.ConvGroup, b.Rank, b.Best)
	case b.ConvTaps < 0 || b.ConvTaps > min(MaxConvTaps, b.Rows):
		return fmt.Errorf("convolutions over %d rows in blocks of %d: want 1 to %d", b.ConvTaps, b.Rows, min(MaxConvTaps, b.Rows))
	case b.ConvTaps > 0 && (b.ConvGroup < 1 || s.Draft.Width%b.ConvGroup != 0):
		return fmt.Errorf("convolutions in groups of %d columns: want a number that divides the draft's width %d", b.ConvGroup,
			s.Draft.Width)
	case b.Best < 0 || b.Best > min(MaxSelected, s.Vocab) || b.Rank < 0 || b.Rank > maxDim:
		return fmt.Errorf("a selector of rank %d for %d candidates: want a rank up to %d and 1 to %d candidates", b.Rank, b.Best, maxDim,
			min(MaxSelected, s.Vocab))
	case b.Two() && (!(b.EmbedScale >= 1e-6 && b.EmbedScale <= 1e6) || !(b.LogitScale >= 1e-6 && b.LogitScale <= 1e6) ||
		b.LogitCap != 0 && !(b.LogitCap >= 1e-3 && b.LogitCap <= 1e6)):
		return fmt.Errorf("embeddings times %g, logits times %g and capped at %g: want 1e-6 to 1e6 each, and 1e-3 to 1e6 or 0 for no cap",
			b.EmbedScale, b.LogitScale, b.LogitCap)
	case b.Best > 0 && b.Anchor:
		return fmt.Errorf("a selector in a draft whose last token's row guesses: DFlash2 guesses from mask tokens alone")
	case b.Best > 0 && len(s.Draft.IDs) > 0:
		return fmt.Errorf("a selector in a draft that knows %d of the target's tokens: DFlash2 knows all", len(s.Draft.IDs))
	}
	return nil
}

// describeBlocks describes a block draft in some words.
func describeBlocks(s *Spec) string {
	b := &s.Draft.Block
	words := fmt.Sprintf("%s draft of %d blocks, reads %v, guesses %d tokens in a pass", s.Kind, s.Blocks, s.Taps, b.Levels())
	if b.ConvTaps > 0 {
		words += fmt.Sprintf(", convolves %d rows", b.ConvTaps)
	}
	if b.Best > 0 {
		words += fmt.Sprintf(", selects among %d candidates", b.Best)
	}
	return words
}

// ownWidth reports whether drafts of a kind may have another width than their target.
func (k Kind) ownWidth() bool { return k == Eagle3 || k == DFlash }
