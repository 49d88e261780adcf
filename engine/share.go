package engine

import (
	"slices"

	"github.com/tandem-llm/tandem"
	kernels "github.com/tandem-llm/tandem/kernels/cpu"
)

// NewShared returns a sequence as NewSequence does, with the same errors, which will hold prompt and shares
// memory with the other shared sequences of its tenant, those that are closed included: it begins with as much of
// the prompt as is found with them (Len), and what it computes is found by later ones. Every bit is as if
// it had computed all by itself. Nothing passes from one tenant to another; within a tenant the time that a prompt takes
// tells whether another has begun alike.
func (m *Model) NewShared(tenant string, prompt []tandem.Token, capacity, nodes int) (*Sequence, error) {
	if err := m.checkSequence(capacity, nodes); err != nil {
		return nil, err
	}
	pages, found, err := m.cache.ReserveShared(tenant, prompt, capacity, nodes)
	if err != nil {
		return nil, err
	}
	m.shared++
	return &Sequence{model: m, pages: pages, born: m.shared, capacity: capacity, maxNodes: nodes, taken: make([]bool, nodes), length: found,
		tokens: slices.Clone(prompt[:found]), prompt: slices.Clone(prompt[:min(len(prompt), capacity)])}, nil
}

// Resume goes on to as much of the prompt as is found by now, and returns how many positions that are. It does nothing once
// the sequence holds all of it, or anything else.
func (s *Sequence) Resume() int {
	held := s.length
	if !s.filling() {
		return 0
	}
	s.length = s.pages.Resume(s.prompt, held)
	s.tokens = append(s.tokens, s.prompt[held:s.length]...)
	return s.length - held
}

// filling reports whether s holds nothing but a part of its prompt.
func (s *Sequence) filling() bool {
	return s.length < len(s.prompt) && len(s.parents) == 0 && slices.Equal(s.tokens, s.prompt[:s.length])
}

// Follows reports whether s had better wait: o is about to compute the same page of the same prompt, which Resume will then
// find. Of several sequences that follow each other one does not.
func (s *Sequence) Follows(o *Sequence) bool {
	end := (s.length/kernels.PageRows + 1) * kernels.PageRows // of the page that s needs next
	switch {
	case o.length < s.length || end > len(s.prompt) || end >= len(o.prompt) || !s.pages.SharesWith(o.pages):
		return false
	case o.length == s.length && o.born >= s.born:
		return false
	}
	last := end - kernels.PageRows
	return slices.Equal(s.prompt[last:end], o.prompt[last:end]) && slices.Equal(s.prompt[:last], o.prompt[:last]) && s.filling() && o.filling()
}

// Distrust keeps what s holds, and what it shares with others, from being found by anybody after a failure that may
// have to do with it. Those that share it go on.
func (s *Sequence) Distrust() { s.pages.Distrust() }

// BoundPrefixes sets how many pages may be kept that no sequence uses: 0 for all that are free, negative for none; then
// shared sequences share nothing. Call it before there are any.
func (m *Model) BoundPrefixes(pages int) { m.cache.Bound(pages) }

// DropPrefixes forgets all that is kept.
func (m *Model) DropPrefixes() { m.cache.Drop() }

// PrefixPages returns how many of FreePages hold what was kept, EvictedPages how many that did were taken for sequences
// or the bound so far. Safe for concurrent use.
func (m *Model) PrefixPages() int    { return m.cache.Kept() }
func (m *Model) EvictedPages() int64 { return m.cache.Evicted() }
