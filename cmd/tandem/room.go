package main

import (
	"fmt"
	"strconv"

	"github.com/tandem-llm/tandem/engine"
	"github.com/tandem-llm/tandem/roles"
)

// kvRoom is the memory for keys and values, as it is divided among the processes. Zero: each process finds its own.
type kvRoom struct {
	roles.Fit
	Free   int64 `json:"free_bytes"` // what all may take, weights included
	target int64 // bytes of the target's pool
	drafts int64 // of all drafts' pools
}

// cut reports whether a session has less than the context that it would have with more memory.
func (r kvRoom) cut() bool { return r.One < r.Context }

// context returns what a session may have at most, as the gateway has it; 0: the model's.
func (l launch) context() int {
	if l.room.cut() {
		return l.room.One
	}
	return l.Ctx
}

// String says what there is room for in one line.
func (r kvRoom) String() string {
	each := fmt.Sprintf("%d sessions of %s or 1 of %s", r.Sessions, digits(r.Each), digits(r.One))
	switch {
	case r.Sessions == 1 || r.Each == 0:
		each = "a session has up to " + digits(r.One)
	case r.Each == r.One:
		each = fmt.Sprintf("%d sessions of %s", r.Sessions, digits(r.Each))
	}
	return fmt.Sprintf("room for %s tokens: %s; %s of the %s that are free", digits(r.Tokens), each, engine.Bytes(r.Bytes),
		engine.Bytes(r.Free))
}

// digits writes a number with its thousands apart: 32,768.
func digits(n int) string {
	s := strconv.Itoa(n)
	for i := len(s) - 3; i > 0 && s[i-1] != '-'; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}
