package engine

import (
	"slices"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/kernels"
)

// NewShared returns a sequence as NewSequence does, with the same errors, that will hold prompt and shares
// memory with the other shared sequences of its tenant, also closed ones. It begins with as much of the prompt as
// they have computed (Len), and later sequences find what it computes. Results are the same, bit for bit, as without
// sharing. Tenants share nothing with each other; within a tenant the time that a prompt takes shows whether an earlier
// one began alike.
//
// Memory is reserved for the prompt and one position more; what the sequence needs later it gets when a pass needs it (Reserve).
func (m *Model) NewShared(tenant string, prompt []tandem.Token, capacity, nodes int) (*Sequence, error) {
	if err := m.checkSequence(capacity, nodes); err != nil {
		return nil, err
	}
	prompt = prompt[:min(len(prompt), capacity)]
	pages, found, err := m.cache.ReserveShared(tenant, prompt, min(len(prompt)+1, capacity), 0)
	if err != nil {
		return nil, err
	}
	m.shared++
	s := &Sequence{model: m, pages: pages, born: m.shared, capacity: capacity, maxNodes: nodes, taken: make([]bool, nodes), length: found,
		tokens: slices.Clone(prompt[:found]), prompt: slices.Clone(prompt)}
	s.at = found
	m.records.enter(s)
	return s, nil
}

// Resume takes over what other sequences have computed of the prompt by now, and returns how many positions that adds. It
// does nothing once the sequence holds the whole prompt or anything else.
func (s *Sequence) Resume() int {
	held := s.length
	if !s.filling() {
		return 0
	}
	s.length = s.pages.Resume(s.prompt, held)
	s.tokens = append(s.tokens, s.prompt[held:s.length]...)
	if s.length > held {
		s.drop(&s.pending, 0)
		s.at = s.length
	}
	return s.length - held
}

// filling reports whether s holds nothing but a part of its prompt.
func (s *Sequence) filling() bool {
	return s.length < len(s.prompt) && len(s.parents) == 0 && slices.Equal(s.tokens, s.prompt[:s.length])
}

// Follows reports whether s should wait because o is about to compute the same page of the same prompt, which Resume will then
// find. Among sequences with the same prompt, the one that is furthest follows none.
func (s *Sequence) Follows(o *Sequence) bool {
	end := (s.length/kernels.PageRows + 1) * kernels.PageRows // of the page that s needs next
	switch {
	case o.length < s.length || end > len(s.prompt) || end >= len(o.prompt) || !s.pages.SharesWith(o.pages):
		return false
	case o.length == s.length && o.born >= s.born:
		return false
	}
	if s.model.recurrent() {
		if end = o.nextMark(s.length); end == 0 || end <= o.length || end > len(s.prompt) || end >= len(o.prompt) || s.broken || o.broken {
			return false
		}
		return slices.Equal(s.prompt[:end], o.prompt[:end]) && s.filling() && o.filling()
	}
	last := end - kernels.PageRows
	return slices.Equal(s.prompt[last:end], o.prompt[last:end]) && slices.Equal(s.prompt[:last], o.prompt[:last]) && s.filling() &&
		o.filling()
}

// Distrust, called after a failure that the pages of s may have caused, makes sure that no sequence finds them any more.
// Sequences that share them already go on.
func (s *Sequence) Distrust() { s.pages.Distrust() }

// Private makes sure that no sequence finds what s computes from now on: it is not what its tokens alone say.
func (s *Sequence) Private() { s.pages.Private() }

// BoundPrefixes sets how many pages that no sequence uses may be kept: 0 for all free ones, negative for none, and then
// sequences share nothing. Call it before the first shared sequence.
func (m *Model) BoundPrefixes(pages int) { m.cache.Bound(pages) }

// PrefixStates returns how many kept prefixes have the states of recurrent layers, LostStates how many such states were given up for
// others. Safe for concurrent use.
func (m *Model) PrefixStates() int { return m.cache.KeptStates() }
func (m *Model) LostStates() int64 { return m.cache.LostStates() }

// DropPrefixes forgets all kept pages.
func (m *Model) DropPrefixes() { m.cache.Drop() }

// PrefixPages returns how many of FreePages hold kept prefixes, EvictedPages how many such pages were given up so far, for
// sequences or because of the bound. Safe for concurrent use.
func (m *Model) PrefixPages() int    { return m.cache.Kept() }
func (m *Model) EvictedPages() int64 { return m.cache.Evicted() }
