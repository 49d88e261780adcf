package route

import (
	"context"
	"errors"
	"reflect"
	"testing"
	"time"

	"github.com/tandem-llm/tandem"
)

// asked is a drafter that keeps what it was asked last.
type asked struct {
	tandem.Drafter // nil: of the rest nothing is asked
	proposal       tandem.Proposal
	err            error
}

var drafted = tandem.Proposed{Nodes: 2, Depth: 1, Tree: tandem.Tree{Tokens: []tandem.Token{9, 4}, Parents: []int32{-1, 0}}}

func (a *asked) Propose(_ context.Context, p tandem.Proposal) (tandem.Proposed, error) {
	a.proposal = p
	return drafted, a.err
}

// pond is a verifier that keeps the tickets that it gets, after refusing some.
type pond struct {
	tandem.Verifier // nil: of the rest nothing is asked
	got             []tandem.Ticket
	refuse          int
	err             error
}

func (p *pond) Submit(_ context.Context, t tandem.Ticket) error {
	if p.refuse > 0 {
		p.refuse--
		return tandem.Errorf("verifier", tandem.Exhausted, "full")
	}
	if p.err == nil {
		p.got = append(p.got, t)
	}
	return p.err
}

func TestDraftsGoOnWithoutThePool(t *testing.T) {
	f, p, up := new(asked), new(pond), true
	d := Drafter("go", f, New(Config{Verifier: p, Pool: new(counted), PoolUp: func() bool { return up }}))
	ctx := context.Background()
	ask := tandem.Proposal{Session: 3, Epoch: 1, Base: 3, Hash: 7, From: 2, Suffix: []tandem.Token{9}, SelfDrafts: []string{tandem.Medusa}}
	want := tandem.Ticket{Session: 3, Epoch: 1, Base: 3, Hash: 7, Drafter: "go", Tree: drafted.Tree,
		SelfDrafts: ask.SelfDrafts}
	if _, err := d.Propose(ctx, ask); err != nil || f.proposal.Return || len(p.got) != 0 {
		t.Errorf("with a pool: asked %+v, %d tickets, %v", f.proposal, len(p.got), err)
	}
	up, p.refuse = false, 3
	got, err := d.Propose(ctx, ask)
	if err != nil || !f.proposal.Return || !reflect.DeepEqual(got, drafted) || !reflect.DeepEqual(p.got, []tandem.Ticket{want}) {
		t.Errorf("without: asked %+v, got %+v, tickets %+v, %v", f.proposal, got, p.got, err)
	}
	merge := ask
	merge.Return = true
	if _, err := d.Propose(ctx, merge); err != nil || len(p.got) != 1 {
		t.Errorf("a tree to be merged went into the pool: %v, %v", p.got, err)
	}
	p.refuse = 1 << 30
	short, cancel := context.WithTimeout(ctx, 20*time.Millisecond)
	defer cancel()
	if _, err := d.Propose(short, ask); !errors.Is(err, tandem.Deadline) {
		t.Errorf("no room for long: %v", err)
	}
	p.refuse, p.err = 0, tandem.Errorf("rpc", tandem.Unavailable, "no verifier")
	if _, err := d.Propose(ctx, ask); !errors.Is(err, tandem.Unavailable) {
		t.Errorf("nobody there: %v", err)
	}
	// The gateway reaches the pool, the drafter does not.
	up, p.err = true, nil
	f.err = tandem.Errorf("pool", tandem.Unavailable, "not connected")
	if _, err := d.Propose(ctx, ask); !f.proposal.Return || !errors.Is(err, tandem.Unavailable) {
		t.Errorf("a drafter without a pool was asked %+v, %v", f.proposal, err)
	}
	f.err = tandem.Errorf("drafter", tandem.Stale, "another epoch")
	if _, err := d.Propose(ctx, ask); f.proposal.Return || !errors.Is(err, tandem.Stale) {
		t.Errorf("a stale proposal was repeated as %+v, %v", f.proposal, err)
	}
}
