package token

import (
	"slices"
	"sort"
	"strings"

	"github.com/tandem-llm/tandem"
)

// users finds the longest user-defined token that a text begins with. They lie in a sorted list, so that
// those with a common beginning are neighbours.
type users struct {
	list  []user
	first [256]struct{ lo, hi int32 } // by first byte: list[lo:hi]
}

type user struct {
	text string // not empty
	id   tandem.Token
}

// newUsers sorts list; of equal texts the lowest id stays. It returns nil for an empty list.
func newUsers(list []user) *users {
	if len(list) == 0 {
		return nil
	}
	slices.SortStableFunc(list, func(a, b user) int { return strings.Compare(a.text, b.text) })
	u := &users{list: slices.CompactFunc(list, func(a, b user) bool { return a.text == b.text })}
	for i, e := range u.list {
		span := &u.first[e.text[0]]
		if span.hi == 0 {
			span.lo = int32(i)
		}
		span.hi = int32(i + 1)
	}
	return u
}

// match returns the token and its length in s, which is not empty; length 0 for none.
func (u *users) match(s string) (id tandem.Token, length int) {
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
		group = group[sort.Search(len(group), func(i int) bool { return group[i].text[depth] >= b }):]
		group = group[:sort.Search(len(group), func(i int) bool { return group[i].text[depth] > b })]
	}
	return id, length
}
