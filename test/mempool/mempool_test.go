package mempool

import (
	"context"
	"errors"
	"reflect"
	"testing"

	"github.com/tandem-llm/tandem"
)

// verifier takes one ticket.
type verifier struct {
	tandem.Verifier
	got []tandem.Ticket
}

func (v *verifier) Submit(_ context.Context, t tandem.Ticket) error {
	if len(v.got) > 0 {
		return tandem.Errorf("verifier", tandem.Exhausted, "a ticket waits")
	}
	v.got = append(v.got, t)
	return nil
}

func TestPool(t *testing.T) {
	v, ctx := new(verifier), context.Background()
	p, k := Pool{v}, tandem.Ticket{Session: 1, Base: 2, Tree: tandem.Root(3)}
	if err := p.Put(ctx, k); err != nil || !reflect.DeepEqual(v.got, []tandem.Ticket{k}) {
		t.Errorf("the verifier got %+v, %v", v.got, err)
	}
	if err := p.Put(ctx, k); !errors.Is(err, tandem.Exhausted) {
		t.Errorf("a full verifier: %v", err)
	}
	if err := (Pool{}).Put(ctx, k); !errors.Is(err, tandem.Unavailable) {
		t.Errorf("without a verifier: %v", err)
	}
}
