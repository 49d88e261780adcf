package gateway

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/tandem-llm/tandem"
)

type fakePool struct{ w *world }

// Put implements tandem.Pool.
func (p fakePool) Put(ctx context.Context, t tandem.Ticket) error {
	w := p.w
	f := w.fault("ticket")
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if t.Drafter == "" {
		w.log("ticket at %d, root alone%s", t.Base, note(f))
	} else {
		w.log("ticket at %d, %d nodes%s", t.Base, t.Tree.Len(), note(f))
	}
	n, carry := 1, w.carry
	if t.Drafter == "" {
		carry += carry / 2 // tells apart what would happen at once
	}
	switch f.do {
	case "fail":
		return f.err()
	case "lose":
		return nil
	case "twice":
		n = 2
	}
	for i := range n {
		w.later(carry+f.wait+time.Duration(i)*time.Millisecond, func() { w.arrive(t) })
	}
	return nil
}

// arrive lets the verifier take a ticket.
func (w *world) arrive(t tandem.Ticket) {
	w.mu.Lock()
	busy := w.verify
	if w.costs != nil {
		busy = w.costs(t.Tree.Len())
	}
	v := tandem.Verdict{Session: t.Session, Epoch: t.Epoch, Base: t.Base, Hash: t.Hash, Nodes: t.Tree.Len(), Batch: 1, Rows: t.Tree.Len(),
		Busy: busy}
	h := w.verifier[t.Session]
	switch {
	case h == nil:
		v.Kind = tandem.UnknownSession
	case t.Epoch != h.open.Epoch:
		v.Kind = tandem.Stale
	case t.Tree.Validate(h.open.MaxNodes, vocabSize) != nil:
		v.Kind = tandem.Invalid
	case t.Base == h.last.Base && t.Hash == h.last.Hash:
		v = h.last
	case int(t.Base) != len(h.tokens) || t.Hash != h.hash:
		v.Kind = tandem.Stale
	case w.lacks(t.Session, len(h.tokens)+t.Tree.Len()):
		v.Kind = tandem.Exhausted
	default:
		w.accept(h, t, &v)
	}
	w.mu.Unlock()
	w.later(busy, func() { w.answer(v) })
}

// lacks reports whether a session cannot have that many tokens beside those that the others have. w.mu must be held.
func (w *world) lacks(id tandem.SessionID, tokens int) bool {
	for other, h := range w.verifier {
		if other != id {
			tokens += len(h.tokens)
		}
	}
	return w.memory > 0 && tokens > w.memory
}

// accept applies the exact rule.
func (w *world) accept(h *heldSession, t tandem.Ticket, v *tandem.Verdict) {
	tree, last := t.Tree, int32(0)
	v.Successors = w.successors(h, t)
	for node := int32(0); node >= 0; {
		x := w.next(h.hash, len(h.tokens), h.open.Sampling.Seed)
		h.tokens, h.hash = append(h.tokens, x), h.hash.Add(x)
		v.Tokens = append(v.Tokens, x)
		at := node
		node = -1
		last = at
		for i := int(at) + 1; i < tree.Guesses(); i++ {
			if tree.Parents[i] == at && tree.Tokens[i] == x {
				node = int32(i)
				v.Path = append(v.Path, node)
				break
			}
		}
	}
	if v.Guesses = w.guess(h, tree, last, t.SelfDrafts); len(v.Guesses) > 0 {
		v.Guessing = time.Millisecond
	}
	h.last = *v
}

// answer delivers a verdict, or what the script makes of it.
func (w *world) answer(v tandem.Verdict) {
	f := w.fault("verdict")
	v.Tokens, v.Path = slices.Clone(v.Tokens), slices.Clone(v.Path)
	n := 1
	switch f.do {
	case "lose":
		n = 0
	case "twice":
		n = 2
	case "epoch":
		v.Epoch--
	case "base":
		v.Base--
	case "hash":
		v.Hash++
	case "length":
		v.Tokens = append(v.Tokens, 5)
	case "token":
		v.Tokens = append(v.Tokens[:len(v.Path)], vocabSize)
	case "path":
		v.Path, v.Tokens = append(v.Path, -1), append(v.Tokens, 5)
	case "guess-token", "guess-twice", "guess-levels", "guess-nan", "guess-name":
		v.Guesses = spoilGuesses(v.Guesses, f.do)
	case "successor-token", "successor-few", "successor-unasked":
		v.Successors = spoilSuccessors(v.Successors, f.do)
	case "kind":
		v.Kind, v.Path, v.Tokens, v.Message = f.kind, nil, nil, "as the script says"
	case "restart":
		w.restart("verifier")
		n = 0
	}
	if v.Kind != tandem.OK {
		w.log("verdict at %d: %v%s", v.Base, v.Kind, note(f))
	} else {
		w.log("verdict at %d: %d accepted%s", v.Base, len(v.Path), note(f))
	}
	if f.wait > 0 {
		w.later(f.wait, func() { w.gw.Deliver(v) })
		return
	}
	for range n {
		w.gw.Deliver(v)
	}
}

func note(f fault) string {
	switch {
	case f.do == "":
		return ""
	case f.wait > 0:
		return fmt.Sprintf(" (%s %v)", f.do, f.wait)
	}
	return " (" + f.do + ")"
}
