package side

import (
	"fmt"

	"github.com/tandem-llm/tandem"
)

// Medusa is heads on the target's last hidden state (Cai et al., 2024).
const Medusa Kind = "medusa"

// Limits of medusa heads.
const (
	MaxHeads    = 16
	MaxResidual = 4 // residual blocks in a head
)

// Head k guesses the token k+2 places after the state's. Either all heads have an output matrix of their own, or none has one and they use
// the target's.
var medusa = layout{kind: Medusa, selfDraft: tandem.Medusa, sort: Heads, head: medusaHead, taps: 1, read: readSome, set: setIDs,
	numbers: func(s *Spec) []number {
		return []number{{"head_count", &s.Levels, MaxHeads}, {"block_count", &s.Blocks, MaxResidual}}
	},
	check: func(s *Spec) error {
		if s.Levels < 1 || s.Levels > MaxHeads || s.Blocks < 1 || s.Blocks > MaxResidual {
			return fmt.Errorf("%d heads of %d residual blocks: want 1 to %d of 1 to %d", s.Levels, s.Blocks, MaxHeads, MaxResidual)
		}
		if s.Taps[0] != LastNorm {
			return fmt.Errorf("tap %d: heads want %d, the state after the final norm", s.Taps[0], LastNorm)
		}
		return s.checkSome()
	},
	tensors: func(l *slots, s *Spec) {
		for k := range s.Levels {
			for b := range s.Blocks {
				l.add(MedusaBlock(k, b)+".weight", Zeros, s.Dim, s.Dim)
				l.maybe(MedusaBlock(k, b)+".bias", Zeros, s.Dim)
			}
		}
		for k := range s.Levels {
			l.maybe(MedusaOutput(k), Zeros, s.Dim, s.Vocab)
		}
	},
	complete: func(s *Spec, has func(string) bool) error {
		outputs := 0
		for k := range s.Levels {
			if has(MedusaOutput(k)) {
				outputs++
			}
		}
		if outputs > 0 && outputs < s.Levels {
			return fmt.Errorf("%d of %d heads have an output matrix: want all or none", outputs, s.Levels)
		}
		if outputs > 0 && len(s.Draft.IDs) > 0 {
			return fmt.Errorf("heads with output matrices and key \"%s.d2t\", which names rows of the target's: want one of them", s.Kind)
		}
		return nil
	},
	describe: func(s *Spec) string { return fmt.Sprintf("%d medusa heads of %d blocks", s.Levels, s.Blocks) },
}

func medusaHead(s *Spec, k int) (h Head) {
	for b := range s.Blocks {
		h.Blocks = append(h.Blocks, MedusaBlock(k, b))
	}
	h.Output = MedusaOutput(k)
	return h
}

// MedusaBlock names a residual block, without .weight or .bias.
func MedusaBlock(head, block int) string { return fmt.Sprintf("medusa.%d.%d", head, block) }

// MedusaOutput names a head's own output matrix.
func MedusaOutput(head int) string { return fmt.Sprintf("medusa.%d.output.weight", head) }
