package tandem_test

import (
	"reflect"
	"testing"

	"github.com/tandem-llm/tandem"
)

// TestTicketHasAllOfTheProposal: a ticket has every field of the proposal that it answers, as far as a ticket has such a field. So a
// field that both get later cannot be forgotten.
func TestTicketHasAllOfTheProposal(t *testing.T) {
	p := tandem.Proposal{Session: 1, Epoch: 2, Base: 3, Hash: 4, From: 5, Suffix: []tandem.Token{6}, Bounds: tandem.Bounds{Nodes: 7},
		Growth: 1, Branch: 8, Stop: 9, Temper: 10, Plan: tandem.Plan{Round: 11}, Return: true, Ahead: true, SelfDrafts: tandem.SelfDrafts(),
		Successors: 12, Place: tandem.Place{Queue: "13"}}
	tree := tandem.Tree{Tokens: []tandem.Token{13}, Parents: []int32{-1}}
	k := p.Ticket("go", tree)
	if k.Drafter != "go" || k.Queue != "13" || !reflect.DeepEqual(k.Tree, tree) || k.Trace != "" {
		t.Errorf("ticket %+v", k)
	}
	asked, ticket, shared := reflect.ValueOf(p), reflect.ValueOf(k), 0
	for i := range asked.NumField() {
		f := asked.Type().Field(i)
		if asked.Field(i).IsZero() {
			t.Errorf("the test leaves Proposal.%s out", f.Name)
		}
		if got := ticket.FieldByName(f.Name); got.IsValid() {
			shared++
			if !reflect.DeepEqual(got.Interface(), asked.Field(i).Interface()) {
				t.Errorf("Ticket.%s is %v: the proposal has %v", f.Name, got, asked.Field(i))
			}
		}
	}
	if shared < 5 {
		t.Errorf("%d fields in common: want session, epoch, base, hash and self-drafts at least", shared)
	}
}
