package strategy

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/tandem-llm/tandem"
)

// TestKinds: every strategy can be asked for by its name, says what it does, and is the one that is made; those of a server that names none
// are among them.
func TestKinds(t *testing.T) {
	limits := tandem.Limits{Strategies: Names()}
	for _, k := range kinds {
		r := tandem.Request{Prompt: "a", MaxTokens: 1, Sampling: tandem.Sampling{TopP: 1}, Strategy: k.name,
			Bounds: tandem.DefaultBounds(k.name)}
		if err := r.Validate(limits); err != nil {
			t.Error(err)
		}
		x, _ := New(r, 1, newTestShared(t))
		if x.Several() == AsksOne(k.name) {
			t.Errorf("%s asks several drafters: %v", k.name, x.Several())
		}
		if d := x.Decide([]string{"a"}, r.Bounds); d.Choice == "" || Help(k.name) == "" {
			t.Errorf("%s drafts %q, and its help is %q", k.name, d.Choice, Help(k.name))
		}
	}
	for _, name := range tandem.DefaultLimits.Strategies {
		if !slices.Contains(Names(), name) {
			t.Errorf("there is no strategy %q, which tandem.DefaultLimits allows", name)
		}
	}
	bogus := tandem.Request{Prompt: "a", MaxTokens: 1, Sampling: tandem.Sampling{TopP: 1}, Strategy: "bogus"}
	last := Names()[len(kinds)-1]
	err := bogus.Validate(limits)
	if !errors.Is(err, tandem.Invalid) || !strings.Contains(err.Error(), `"bogus": want planner, `) ||
		!strings.HasSuffix(err.Error(), " or "+string(last)) {
		t.Errorf("%v, want the names of all", err)
	}
	if AsksOne("bogus") || AsksOne("") || Help("bogus") != "" {
		t.Error("a strategy that is not there asks or says something")
	}
}
