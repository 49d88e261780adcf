package sequence

import (
	"slices"

	"github.com/tandem-llm/tandem/kernels"
)

// Resume takes over what other sequences have computed of the prompt by now, and returns how many positions that adds. It returns 0 once
// the sequence holds the whole prompt, or anything that is not of the prompt.
func (s *Sequence) Resume() int {
	held := s.length
	if !s.filling() {
		return 0
	}
	s.length = s.pages.Resume(s.prompt, held)
	s.tokens = append(s.tokens, s.prompt[held:s.length]...)
	if s.length > held {
		s.begin(s.length)
	}
	return s.length - held
}

// filling reports whether s holds nothing but a part of its prompt.
func (s *Sequence) filling() bool {
	return s.length < len(s.prompt) && len(s.parents) == 0 && slices.Equal(s.tokens, s.prompt[:s.length])
}

// Follows reports whether s should wait, because o is about to compute the page that s needs next, of the same prompt; Resume will then
// find it. Of sequences with the same prompt, the one that is furthest follows none.
func (s *Sequence) Follows(o *Sequence) bool {
	end := (s.length/kernels.PageRows + 1) * kernels.PageRows // of the page that s needs next
	switch {
	case o.length < s.length || end > len(s.prompt) || end >= len(o.prompt) || !s.pages.SharesWith(o.pages):
		return false
	case o.length == s.length && o.born >= s.born:
		return false
	}
	if s.recurrent() {
		end = o.nextMark(max(s.length, o.length-1)) // the next whose states it has not shared yet
		if end == 0 || end > len(s.prompt) || end >= len(o.prompt) || s.broken || o.broken {
			return false
		}
		return slices.Equal(s.prompt[:end], o.prompt[:end]) && s.filling() && o.filling()
	}
	last := end - kernels.PageRows
	return slices.Equal(s.prompt[last:end], o.prompt[last:end]) && slices.Equal(s.prompt[:last], o.prompt[:last]) && s.filling() &&
		o.filling()
}

// Parts says that other texts begin with the first n tokens of the prompt, and that no states are kept there. So s keeps its states behind
// these tokens for others, as it does behind the kept pages that it has found without states.
func (s *Sequence) Parts(n int) { s.pages.PartsAt(n) }

// Private makes sure that no sequence finds what s computes from now on. It is for rows that do not depend on their tokens alone.
func (s *Sequence) Private() { s.pages.Private() }

// Publish lets other sequences find the first n positions and no later ones, until it is called again. It is for a sequence whose later
// rows do not depend on their tokens alone yet, and will be computed again. Without Publish others find all positions.
func (s *Sequence) Publish(n int) {
	s.withheld, s.public = true, n
	s.pages.Publish(s.shown(len(s.tokens)))
}

// Shares reports whether other sequences find what s computes. They do not after Distrust or Private, or if the cache shares nothing.
func (s *Sequence) Shares() bool { return s.pages.Shares() }
