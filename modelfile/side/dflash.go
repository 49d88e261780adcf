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
}

// Levels returns how many tokens a block guesses.
func (b *Block) Levels() int {
	if b.Anchor {
		return b.Rows
	}
	return b.Rows - 1
}

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
	l.add("output_norm.weight", Norm, s.Draft.Width)
}

// FCMatrix names the matrix of entry i of the taps of eagle3 and dflash.
func FCMatrix(i int) string { return fmt.Sprintf("fc.%d.weight", i) }

const (
	keyRows   = "block_size"
	keyMask   = "mask_token_id"
	keyAnchor = "sample_from_anchor"
	keyLocal  = "attention.sliding_window_pattern" // as in llama files
	keyCausal = "attention.causal_layers"
)

func (b *Block) read(r *reader) {
	b.Rows = r.count(keyRows, MaxBlockRows)
	var err error
	b.Mask, err = r.file.Int(r.key(keyMask), 0, maxVocab)
	r.keep(err)
	b.Anchor, err = r.file.BoolOr(r.key(keyAnchor), false)
	r.keep(err)
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
	return nil
}

// describeBlocks describes a block draft in some words.
func describeBlocks(s *Spec) string {
	return fmt.Sprintf("%s draft of %d blocks, reads %v, guesses %d tokens in a pass", s.Kind, s.Blocks, s.Taps, s.Draft.Block.Levels())
}

// ownWidth reports whether drafts of a kind may have another width than their target.
func (k Kind) ownWidth() bool { return k == Eagle3 || k == DFlash }
