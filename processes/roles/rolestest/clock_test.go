package rolestest

import (
	"slices"
	"testing"
	"time"

	"github.com/tandem-llm/tandem/client"
	tandemv1 "github.com/tandem-llm/tandem/proto/tandem/v1"
)

// TestWrongClocks: the wall clock of one process becomes wrong, by less than an hour or by more than a year, while a text is made, and
// right again. The text stays the same, and then the drafter drafts as before.
func TestWrongClocks(t *testing.T) {
	s := Start(t, target)
	s.Drafter("drafter", draft)
	s.Await("the drafter", func(p *tandemv1.Process) bool {
		return p.GetRole() == "drafter" && p.GetModel() != "lookup" && p.GetUp()
	})
	request := client.Request{Prompt: "func (r *Reader) Read(", Temperature: new(0.0), NoDraft: true}
	want := s.first(request)
	request.NoDraft, request.Drafters = false, []string{draftName}
	drafted := func(when string) bool {
		got, _, done, err := s.Generate(request)
		if err != nil || !slices.Equal(got, want) {
			t.Fatalf("%s: tokens %v, %v: want %v", when, got, err, want)
		}
		all := done.Statistics.Drafters
		return len(all) == 1 && all[0].Name == draftName && all[0].Rounds > 0
	}
	for _, process := range []string{"gateway", "drafter", "verifier"} {
		for _, by := range []time.Duration{50 * time.Minute, -50 * time.Minute, 400 * 24 * time.Hour, -400 * 24 * time.Hour} {
			s.wrong.Store(process, by)
			timer := time.AfterFunc(300*time.Millisecond, func() { s.wrong.Store(process, time.Duration(0)) })
			drafted("the clock of the " + process + " is wrong by " + by.String())
			timer.Stop()
			s.wrong.Store(process, time.Duration(0))
		}
		s.await("drafts again", func() bool { return drafted("the clock of the " + process + " is right again") })
	}
}
