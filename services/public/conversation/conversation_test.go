package conversation

import (
	"encoding/json"
	"testing"
)

// TestVariables: what says a variable more plainly wins, whatever the order.
func TestVariables(t *testing.T) {
	reads := func(only string) func(string) bool { return func(name string) bool { return name == only } }
	var a, b, c Asked
	a.Set("enable_thinking", json.RawMessage("true"))
	a.Think(false)
	if !a.Effort("none", reads("enable_thinking")) || a.Effort("high", reads("enable_thinking")) {
		t.Error("a template that reads enable_thinking alone knows the effort none, and no other")
	}
	b.Effort("none", reads("enable_thinking"))
	b.Think(true)
	c.Effort("low", reads("reasoning_effort"))
	for i, got := range []Variables{a.Variables(), b.Variables(), c.Variables()} {
		want := []string{`{"enable_thinking":true}`, `{"enable_thinking":true}`, `{"reasoning_effort":"low"}`}[i]
		if is, _ := json.Marshal(got); string(is) != want {
			t.Errorf("variables %d are %s, want %s", i, is, want)
		}
	}
}
