package published

import (
	"slices"
	"strings"

	"github.com/tandem-llm/tandem"
)

// others are drafts that tandem does not run, by a part of their architecture's name in lower case. What each would need is written in
// docs/published.md.
var others = []struct{ part, what string }{
	{"dflash", "DFlash, a block draft: all tokens of a block from one pass that sees in both directions"},
	{"dspark", "DSpark, a block draft"},
	{"domino", "Domino, a block draft"},
	{"peagle", "P-EAGLE, whose states of guessed positions are learned"},
	{"eagle3deepseek", "an EAGLE-3 draft with latent attention (MLA)"},
}

// refuseOthers refuses by name the drafts that tandem does not run.
func (t *taker) refuseOthers() error {
	k := t.config
	names := append(slices.Clone(k.Architectures), k.Speculator)
	if len(k.DFlash) > 0 {
		names = append(names, "dflash")
	}
	for _, name := range names {
		for _, o := range others {
			if strings.Contains(strings.ToLower(name), o.part) {
				return t.fail(tandem.Unsupported, "%.60q is %s: tandem imports Medusa, PPD, PARD, EAGLE-1 to EAGLE-3.1 and Dovetail", name,
					o.what)
			}
		}
	}
	return nil
}
