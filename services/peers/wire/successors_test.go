package wire

import (
	"errors"
	"slices"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/tandem-llm/tandem"
	peerv1 "github.com/tandem-llm/tandem/proto/peer/v1"
)

// TestSuccessorsSurvive: what a proposal and a ticket ask for and a verdict carries arrives, in about 24 bytes a node of a vocabulary of
// 151,936 tokens; more than a verdict's nodes can have is left out, and the verdict is as good as before.
func TestSuccessorsSurvive(t *testing.T) {
	p, err := ToProposal(over(t, FromProposal(tandem.Proposal{Successors: 3}, "go")))
	if err != nil || p.Successors != 3 {
		t.Errorf("a proposal asks for %d successors, %v: want 3", p.Successors, err)
	}
	e := Envelope{Ticket: tandem.Ticket{Session: 5, Base: 12, Tree: tandem.Root(7), Successors: tandem.MostSuccessors}}
	b, err := e.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	got, err := UnmarshalEnvelope(b)
	if err != nil || got.Ticket.Successors != tandem.MostSuccessors {
		t.Errorf("a ticket asks for %d successors, %v: want %d", got.Ticket.Successors, err, tandem.MostSuccessors)
	}
	v := tandem.Verdict{Session: 5, Base: 9, Path: []int32{1, 3}, Tokens: []tandem.Token{8, 8, 2}, Nodes: 4}
	before := proto.Size(FromVerdict(v))
	v.Successors = slices.Repeat([]tandem.Token{151935}, v.Nodes*tandem.MostSuccessors)
	same(t, ToVerdict(over(t, FromVerdict(v))), v)
	if bytes := proto.Size(FromVerdict(v)) - before; bytes > v.Nodes*3*tandem.MostSuccessors+4 {
		t.Errorf("the successors of %d nodes take %d bytes", v.Nodes, bytes)
	}
	v.Successors = append(v.Successors, 1)
	if got := ToVerdict(over(t, FromVerdict(v))); got.Kind != tandem.OK || got.Successors != nil || len(got.Tokens) != 3 {
		t.Errorf("%d successors of %d nodes became %+v: want none, and the rest as it was", len(v.Successors), v.Nodes, got)
	}
}

// TestTooManySuccessorsAreRefused: nobody can ask for more than MostSuccessors.
func TestTooManySuccessorsAreRefused(t *testing.T) {
	if got, err := ToProposal(&peerv1.ProposeRequest{Successors: tandem.MostSuccessors + 1}); !errors.Is(err, tandem.Invalid) {
		t.Errorf("proposal that asks for %d successors: %v: want invalid", got.Successors, err)
	}
	b, err := Envelope{Ticket: tandem.Ticket{Session: 5, Base: 12, Tree: tandem.Root(7), Successors: tandem.MostSuccessors + 1}}.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := UnmarshalEnvelope(b); !errors.Is(err, tandem.Corrupt) {
		t.Errorf("ticket that asks for one successor too many: %v: want corrupt", err)
	}
}
