package modelinfo

import (
	"fmt"
	"strconv"

	"github.com/tandem-llm/tandem/engine/memory"
	"github.com/tandem-llm/tandem/processes/roles"
)

// Capacity is the memory for keys and values, and what it holds.
type Capacity struct {
	roles.Fit
	Free int64 `json:"free_bytes"` // what everything may take, weights included
}

// Cut reports whether a session has less context than it would have with more memory.
func (c Capacity) Cut() bool { return c.One < c.Context }

// Shortage says, in a sentence for a person, how much context a session has of what it could have. It is for a Capacity that is Cut.
func (c Capacity) Shortage() string {
	return fmt.Sprintf("a session has at most %s of %s tokens: the memory for keys and values, %s, does not hold more", Digits(c.One),
		Digits(c.Context), memory.Bytes(c.Bytes))
}

// String says in one line how many tokens and sessions fit, and into how much memory.
func (c Capacity) String() string {
	each := fmt.Sprintf("%d sessions of %s or 1 of %s", c.Sessions, Digits(c.Each), Digits(c.One))
	switch {
	case c.Sessions == 1 || c.Each == 0:
		each = "a session has up to " + Digits(c.One)
	case c.Each == c.One:
		each = fmt.Sprintf("%d sessions of %s", c.Sessions, Digits(c.Each))
	}
	return fmt.Sprintf("room for %s tokens: %s; %s of the %s that are free", Digits(c.Tokens), each, memory.Bytes(c.Bytes),
		memory.Bytes(c.Free))
}

// Digits returns n in decimal digits with commas between thousands: 32,768.
func Digits(n int) string {
	s := strconv.Itoa(n)
	for i := len(s) - 3; i > 0 && s[i-1] != '-'; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}
