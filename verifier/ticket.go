package verifier

import (
	"context"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/verifier/outbox"
)

// check is a ticket on its way to a verdict. It is answered or forgotten once. The schedule's goroutine's.
type check struct {
	ticket tandem.Ticket
	at     *queued        // where it waits for a pass
	out    *outbox.Outbox // where its verdict goes
	owner  uint64         // of its session; 0: unknown
	tree   tandem.Tree    // the part of the ticket's tree that is verified
	nodes  []int32        // per node of tree: its number in the ticket's tree
	depths []int32        // per node of tree; the root's is 0
	deep   int            // the deepest of the guesses

	ctx       context.Context // of the process stage
	end       tandem.End
	verifying tandem.End // ends the verify stage; nil while there is none
}

// begin takes a ticket that is in a queue; the process stage begins.
func begin(t tandem.Ticket, at *queued, owner uint64, out *outbox.Outbox, events *tandem.Events) *check {
	attrs := []tandem.Attr{{Key: "epoch", Int: int64(t.Epoch)}, {Key: "base", Int: int64(t.Base)}}
	if t.Trace != "" {
		attrs = append(attrs, tandem.Link(t.Trace))
	}
	c := &check{ticket: t, at: at, owner: owner, out: out}
	c.ctx, c.end = events.Begin(events.Adopt(context.Background(), t.Trace), tandem.StageProcess, attrs...)
	return c
}

// cut takes over the nodes of a valid tree that are no deeper than deepest, the first most of them and prompt nodes below those.
func (c *check) cut(tree tandem.Tree, deepest, most int) {
	depths, _ := tree.Depths()
	kept := make([]int32, len(depths)) // new numbers; -1: left out
	for i, d := range depths {
		if d > int32(deepest) || i > 0 && kept[tree.Parents[i]] < 0 || i < tree.Guesses() && len(c.nodes) >= most {
			kept[i] = -1
			continue
		}
		kept[i] = int32(len(c.nodes))
		parent := int32(-1)
		if i > 0 {
			parent = kept[tree.Parents[i]]
		}
		c.tree.Tokens, c.tree.Parents = append(c.tree.Tokens, tree.Tokens[i]), append(c.tree.Parents, parent)
		c.nodes, c.depths = append(c.nodes, int32(i)), append(c.depths, d)
		if i < tree.Guesses() {
			c.deep = max(c.deep, int(d))
		} else {
			c.tree.Prompts++
		}
	}
}

// successors returns how many of the target's likeliest tokens after each node the verdict is to carry.
func (c *check) successors() int { return min(max(c.ticket.Successors, 0), tandem.MostSuccessors) }

// verify begins the verify stage, unless it has begun.
func (c *check) verify(events *tandem.Events) {
	if c.verifying == nil {
		_, c.verifying = events.Begin(c.ctx, tandem.StageVerify, tandem.Attr{Key: "width", Int: int64(c.tree.Len())},
			tandem.Attr{Key: "depth", Int: int64(c.deep)})
	}
}

// verified ends the verify stage, if it has begun.
func (c *check) verified(err error, attrs ...tandem.Attr) {
	if c.verifying != nil {
		c.verifying(err, attrs...)
		c.verifying = nil
	}
}

// refuse answers the ticket with the reason why there is no verdict.
func (c *check) refuse(k tandem.Kind, message string) {
	c.answer(tandem.Verdict{Session: c.ticket.Session, Epoch: c.ticket.Epoch, Base: c.ticket.Base, Hash: c.ticket.Hash, Kind: k,
		Message: message})
}

// answer delivers the verdict on the ticket, which is done with.
func (c *check) answer(verdict tandem.Verdict) {
	c.out.Put(c.owner, verdict)
	var err error
	outcome := "rejected"
	switch {
	case verdict.Kind == tandem.Stale:
		outcome = "stale"
	case verdict.Kind != tandem.OK:
		outcome, err = verdict.Kind.String(), tandem.Errorf("verify", verdict.Kind, "%s", verdict.Message)
	case len(verdict.Path) == c.deep:
		outcome = "accepted"
	case len(verdict.Path) > 0:
		outcome = "partial"
	}
	c.forget(err, tandem.Attr{Key: "nodes", Int: int64(verdict.Nodes)}, tandem.Attr{Key: "accepted", Int: int64(len(verdict.Path))},
		tandem.Attr{Key: "batch", Int: int64(verdict.Batch)}, tandem.Attr{Key: "outcome", Str: outcome})
}

// forget ends the ticket's stages and makes room for another.
func (c *check) forget(err error, attrs ...tandem.Attr) {
	c.verified(err)
	c.end(err, attrs...)
	c.at.leave()
}
