package token

import (
	"cmp"
	"slices"
	"sort"
	"strings"

	"github.com/tandem-llm/tandem"
)

// texts finds the tokens of a kind that are written in a text. They lie in a sorted list, so that those
// with a common beginning are neighbours. A nil *texts finds none.
type texts struct {
	list    []written
	longest int                         // bytes
	first   [256]struct{ lo, hi int32 } // by first byte: list[lo:hi]
}

type written struct {
	text string // not empty
	id   tandem.Token
}

// newTexts sorts list; of equal texts the lowest id stays. It returns nil for an empty list.
func newTexts(list []written) *texts {
	if len(list) == 0 {
		return nil
	}
	list = slices.Clone(list)
	slices.SortFunc(list, func(a, b written) int { return cmp.Or(strings.Compare(a.text, b.text), cmp.Compare(a.id, b.id)) })
	u := &texts{list: slices.CompactFunc(list, func(a, b written) bool { return a.text == b.text })}
	for i, e := range u.list {
		u.longest = max(u.longest, len(e.text))
		span := &u.first[e.text[0]]
		if span.hi == 0 {
			span.lo = int32(i)
		}
		span.hi = int32(i + 1)
	}
	return u
}

// find returns the position, token and length of the first token in s, the longest at that position; for none, the end
// of s and length 0.
func (u *texts) find(s string) (at int, id tandem.Token, length int) {
	if u == nil {
		return len(s), 0, 0
	}
	for at := range len(s) {
		if u.first[s[at]].hi == 0 {
			continue
		}
		if id, n := u.match(s[at:]); n > 0 {
			return at, id, n
		}
	}
	return len(s), 0, 0
}

// match returns the longest token that s, which is not empty, begins with, and its length; 0 for none.
func (u *texts) match(s string) (id tandem.Token, length int) {
	span := u.first[s[0]]
	group := u.list[span.lo:span.hi] // those that agree with s in depth bytes
	for depth := 1; len(group) > 0; depth++ {
		if len(group[0].text) == depth {
			id, length = group[0].id, depth
			group = group[1:]
		}
		if depth == len(s) || len(group) == 0 {
			break
		}
		if len(group) == 1 {
			if e := group[0]; strings.HasPrefix(s, e.text) {
				id, length = e.id, len(e.text)
			}
			break
		}
		b := s[depth]
		if lo, hi := group[0].text[depth], group[len(group)-1].text[depth]; lo == b && hi == b {
			continue // as of a run of spaces
		}
		group = group[sort.Search(len(group), func(i int) bool { return group[i].text[depth] >= b }):]
		group = group[:sort.Search(len(group), func(i int) bool { return group[i].text[depth] > b })]
	}
	return id, length
}
