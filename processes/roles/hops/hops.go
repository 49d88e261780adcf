// Package hops sends empty rounds: rounds through three processes in which nothing is computed. So they show what the messages alone cost;
// tandem-lab hops compares the coordination of real rounds with that.
//
//	Gateway ─Propose─▶ drafter ─ticket─▶ NATS ─▶ verifier ─verdict─▶ Gateway
//
// Sockets, gRPC methods, shared memory, NATS server and the stream of verdicts are those of real processes, and so is all code of package
// services. Only the processes differ: the drafter returns a tree that it has at hand, and the verifier accepts the first nodes of a tree.
// The root's token tells them what to do: see word.
package hops

import (
	"time"

	"github.com/tandem-llm/tandem"
)

const op = "hops"

// Name is the drafter's.
const Name = "hops"

// Shape says how large the messages of a round are.
type Shape struct {
	Bounds   tandem.Bounds // the tree has exactly so many nodes and levels; plain: the round has no draft
	Accepted int           // nodes that a verdict accepts, no more than the tree has levels
	Prompt   int           // tokens with which the session is opened
	// Read is how long the verifier's threads read memory and multiply between ticket and verdict, as a pass of a model does, so that the
	// processes continue with cold caches. It does not count as part of the round.
	Read time.Duration
}

const (
	acceptedBits = 8
	mostAccepted = 1<<acceptedBits - 1
	mostRead     = 1 << (30 - acceptedBits) * time.Microsecond
)

// word returns the token of a round's root, which tells the verifier how many nodes to accept and how long to read memory.
func word(accepted int, read time.Duration) tandem.Token {
	read = min(max(read, 0), mostRead-time.Microsecond)
	return tandem.Token(min(max(accepted, 0), mostAccepted) | int(read/time.Microsecond)<<acceptedBits)
}

// wordOf returns what a root's token says.
func wordOf(t tandem.Token) (accepted int, read time.Duration) {
	return int(t) & mostAccepted, time.Duration(t>>acceptedBits) * time.Microsecond
}

// tree returns a tree within b below root: its first path has all levels, and the other nodes hang below the nodes of this path.
func tree(root tandem.Token, b tandem.Bounds) tandem.Tree {
	t := tandem.Root(root)
	if b.Plain() {
		return t
	}
	depth := min(b.Depth, b.Nodes-1)
	for i := 1; i < b.Nodes; i++ {
		parent := i - 1
		if i > depth {
			parent = (i - depth - 1) % depth
		}
		t.Tokens, t.Parents = append(t.Tokens, tandem.Token(i)), append(t.Parents, int32(parent))
	}
	t.LogProbs = make([]float32, len(t.Tokens))
	for i, p := range t.Parents[1:] {
		t.LogProbs[i+1] = t.LogProbs[p] - 0.5
	}
	return t
}

// verdict returns the verdict on a ticket: as many nodes of the first path as the root says.
func verdict(t tandem.Ticket, busy time.Duration) tandem.Verdict {
	v := tandem.Verdict{Session: t.Session, Epoch: t.Epoch, Base: t.Base, Hash: t.Hash, Nodes: t.Tree.Len(), Batch: 1, Rows: t.Tree.Len(),
		Busy: busy, Path: []int32{}}
	if t.Tree.Len() == 0 { // its lease has ended
		v.Kind, v.Message = tandem.Stale, "the tree could not be read"
		return v
	}
	accepted, _ := wordOf(t.Tree.Tokens[0])
	for at := int32(0); len(v.Path) < accepted && int(at)+1 < t.Tree.Len() && t.Tree.Parents[at+1] == at; at++ {
		v.Path, v.Tokens = append(v.Path, at+1), append(v.Tokens, t.Tree.Tokens[at+1])
	}
	v.Tokens = append(v.Tokens, 0)
	return v
}
