package published

import (
	"slices"
	"strings"

	"github.com/tandem-llm/tandem"
)

// others are drafts that tandem does not run, by a part of their architecture's name in lower case. What each would need is written in
// docs/published.md.
var others = []struct{ part, what string }{
	{"dspark", "DSpark, a block draft"},
	{"domino", "Domino, a block draft"},
	{"dfly", "DFly, a block draft"},
	{"xpress", "XPress, a block draft"},
	{"peagle", "P-EAGLE, whose states of guessed positions are learned"},
	{"eagle3deepseek", "an EAGLE-3 draft with latent attention (MLA)"},
}

// otherParts are tensors that only drafts have which tandem does not run.
var otherParts = []struct{ tensor, what string }{
	{"markov_w1.weight", "DSpark's Markov head"},
	{"markov_head.markov_w1.weight", "DSpark's Markov head"},
	{"layer_fusion", "DFly's fusion"},
}

// refuseOthers refuses by name the drafts that tandem does not run.
func (t *taker) refuseOthers() error {
	k := t.config
	names := append(slices.Clone(k.Architectures), k.Speculator)
	for _, name := range names {
		for _, o := range others {
			if strings.Contains(strings.ToLower(name), o.part) {
				return t.fail(tandem.Unsupported, "%.60q is %s: tandem imports Medusa, PPD, PARD, EAGLE-1 to EAGLE-3.1, DFlash, "+
					"DFlash2 and Dovetail", name, o.what)
			}
		}
	}
	for _, o := range otherParts {
		if t.has(o.tensor) {
			return t.fail(tandem.Unsupported, "tensor %.80q is of %s: tandem runs DFlash without it", t.named[o.tensor], o.what)
		}
	}
	return nil
}
