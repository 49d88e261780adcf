package system

import (
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"math/rand/v2"
	"strings"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/app/bench/prompts"
)

type (
	benchPrompt = prompts.Prompt
	promptSet   = prompts.Set
)

// Classes of prompts that are made, not read.
const (
	setHostile  = "hostile"  // nothing that a drafter could have learned
	setMixed    = "mixed"    // one prompt of each domain in turn
	setChanging = "changing" // texts that change domain in the middle
	setCopy     = "copy"     // texts whose continuation copies them
)

// hostileCount is how many hostile prompts there are at most.
const hostileCount = 24

// allSets adds the made classes to the domains read.
func allSets(domains []promptSet, vocab int) []promptSet {
	sets := append(domains[:len(domains):len(domains)], promptSet{Name: setHostile, Prompts: hostilePrompts(hostileCount, vocab)},
		promptSet{Name: setCopy, Prompts: copyPrompts()})
	if len(domains) > 1 {
		sets = append(sets, promptSet{Name: setMixed, Prompts: mixedPrompts(domains)},
			promptSet{Name: setChanging, Prompts: changingPrompts(domains)})
	}
	return sets
}

// hostilePrompts makes n prompts, the same at every call: random tokens of a vocabulary, base64, hex dumps and random characters in turn.
func hostilePrompts(n, vocab int) []benchPrompt {
	out := make([]benchPrompt, n)
	for i := range out {
		r := rand.New(rand.NewPCG(0x7461_6e64_656d, uint64(i)))
		raw := make([]byte, 96+r.IntN(96))
		for j := range raw {
			raw[j] = byte(r.Uint32())
		}
		p := benchPrompt{Domain: setHostile}
		switch i % 4 {
		case 0:
			p.ID = "tokens"
			first := min(3, vocab-1) // beyond what usually begins and ends texts
			for range 64 + r.IntN(128) {
				p.Tokens = append(p.Tokens, tandem.Token(first+r.IntN(vocab-first)))
			}
		case 1:
			p.ID, p.Prompt = "base64", base64.StdEncoding.EncodeToString(raw)
		case 2:
			p.ID, p.Prompt = "hex", hex.Dump(raw[:64])
		case 3:
			p.ID, p.Prompt = "unicode", randomText(r, 64+r.IntN(32))
		}
		p.ID = fmt.Sprintf("hostile-%s-%02d", p.ID, i/4+1)
		out[i] = p
	}
	return out
}

// randomText returns n characters of scripts all over Unicode.
func randomText(r *rand.Rand, n int) string {
	blocks := [][2]rune{{0x21, 0x7e}, {0xa1, 0x24f}, {0x391, 0x3c9}, {0x410, 0x44f}, {0x5d0, 0x5ea}, {0x905, 0x939},
		{0x2190, 0x22ff}, {0x3041, 0x3096}, {0x4e00, 0x9fff}, {0xac00, 0xd7a3}, {0x1f600, 0x1f64f}}
	var b strings.Builder
	for range n {
		k := blocks[r.IntN(len(blocks))]
		b.WriteRune(k[0] + rune(r.IntN(int(k[1]-k[0])+1)))
	}
	return b.String()
}

// mixedPrompts returns one prompt of each domain in turn, for as long as all have one.
func mixedPrompts(domains []promptSet) []benchPrompt {
	var out []benchPrompt
	for i := range shortest(domains) {
		for _, d := range domains {
			out = append(out, d.Prompts[i])
		}
	}
	return out
}

// changingPrompts returns texts that begin in one domain and go on in another, all pairs in turn.
func changingPrompts(domains []promptSet) []benchPrompt {
	var out []benchPrompt
	n := shortest(domains)
	for i := range n {
		from := domains[i%len(domains)]
		to := domains[(i+1+i/len(domains)%(len(domains)-1))%len(domains)]
		a, b := from.Prompts[i], to.Prompts[n-1-i]
		out = append(out, benchPrompt{ID: a.ID + "+" + b.ID, Domain: setChanging, Prompt: a.Prompt + "\n\n" + b.Prompt})
	}
	return out
}

func shortest(domains []promptSet) int {
	n := len(domains[0].Prompts)
	for _, d := range domains {
		n = min(n, len(d.Prompts))
	}
	return n
}
