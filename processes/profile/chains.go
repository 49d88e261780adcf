package profile

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"slices"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/spec/worth"
)

// Chains returns what a draft's chains bring on texts, without running them: Table.Depths, and the lengths of chains of 1, 2, 4, 8 …
// drafted tokens, up to deepest. Each text has, for each of its places in order, the rank of the next token among what the draft says
// there (0: its first choice). Depths count where rounds with the deepest chain begin: a round at place i that accepts n tokens is
// followed by one at place i + n + 1. They end at a depth that few rounds reached.
func Chains(texts [][]int8, deepest int) (depths []float64, lengths []Length) {
	const fewest = 8 // rounds at a depth: fewer say little
	deepest = min(deepest, tandem.MaxHindsight)
	reached, right := replay(texts, deepest)
	for d := range deepest {
		if reached[d] < fewest {
			break
		}
		depths = append(depths, float64(right[d])/float64(reached[d]))
	}
	for n := 1; n <= len(depths); n *= 2 {
		expected := 1.0
		for _, chance := range worth.Chain(depths, n) {
			expected += chance
		}
		reached, right := replay(texts, n)
		accepted := 0
		for _, hits := range right {
			accepted += hits
		}
		lengths = append(lengths, Length{n + 1, expected, 1 + float64(accepted)/float64(reached[0])})
	}
	return depths, lengths
}

// replay counts the rounds with chains of n tokens that came to each depth, and those whose token there was right. Rounds that
// the text's end cuts off do not count.
func replay(texts [][]int8, n int) (reached, right []int) {
	reached, right = make([]int, n), make([]int, n)
	for _, ranks := range texts {
		for i := 0; i+n <= len(ranks); {
			d := 0
			for ; d < n && ranks[i+d] == 0; d++ {
				reached[d]++
				right[d]++
			}
			if d < n {
				reached[d]++
			}
			i += d + 1
		}
	}
	return reached, right
}

// Digest names tokens: 16 hexadecimal digits.
func Digest(texts ...[]tandem.Token) string {
	var raw []byte
	for _, text := range texts {
		raw = binary.LittleEndian.AppendUint32(raw, uint32(len(text)))
		for _, t := range text {
			raw = binary.LittleEndian.AppendUint32(raw, uint32(t))
		}
	}
	sum := sha256.Sum256(raw)
	return hex.EncodeToString(sum[:8])
}

// Begin returns the plan to add new measurements to: p, without times that were measured on another box or by another version.
func (p *Plan) Begin(box Box, version string) *Plan {
	out := &Plan{Format: Format, Machine: p.Machine, Tables: slices.Clone(p.Tables)}
	if m := p.Machine; m == nil || m.Box != box || m.Version != version {
		out.Machine = &Machine{Box: box, Version: version}
	}
	return out
}

// Time adds a subject, in place of an earlier one. p must have a machine.
func (p *Plan) Time(s Subject) {
	m := *p.Machine
	m.Subjects = append(slices.DeleteFunc(slices.Clone(m.Subjects), func(x Subject) bool { return x.What == s.What }), s)
	p.Machine = &m
}

// Divide adds the divisions of something, in place of earlier ones. p must have a machine.
func (p *Plan) Divide(d Divided) {
	m := *p.Machine
	m.Divided = append(slices.DeleteFunc(slices.Clone(m.Divided), func(x Divided) bool { return x.What == d.What }), d)
	p.Machine = &m
}

// Decide adds a decision, in place of an earlier one for the same target. p must have a machine.
func (p *Plan) Decide(d Decision) {
	m := *p.Machine
	m.Decisions = append(slices.DeleteFunc(slices.Clone(m.Decisions), func(x Decision) bool { return x.File == d.File }), d)
	p.Machine = &m
}

// Put adds a table, in place of an earlier one of the same name, target, temperature and text.
func (p *Plan) Put(t Table) {
	p.Tables = append(slices.DeleteFunc(p.Tables, func(x Table) bool { return x.key() == t.key() }), t)
}
