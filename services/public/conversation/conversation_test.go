package conversation

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tandem-llm/tandem"
)

// TestOffer: of the tools those are left that the choice allows, in its order, as they were written.
func TestOffer(t *testing.T) {
	const f, g = `{"function":{"name":"f","parameters":{"b":1,"a":2}}}`, `{"type":"function","function":{"name":"g"}}`
	all := "[" + f + "," + g + "]"
	for _, c := range []struct {
		choice      ToolChoice
		tools, want string // want: what is left, or what the error says
	}{
		{ToolChoice{}, all, all},
		{ToolChoice{Must: true}, all, all},
		{ToolChoice{None: true}, all, ""},
		{ToolChoice{}, "", ""},
		{ToolChoice{Only: []string{"g", "f"}}, all, "[" + g + "," + f + "]"},
		{ToolChoice{Only: []string{"h"}}, all, `"h", which is not in tools: want one of f, g`},
		{ToolChoice{Must: true}, "", "no functions in tools"},
	} {
		got, err := c.choice.Offer(json.RawMessage(c.tools))
		if err != nil {
			if tandem.FieldOf(err) != "tool_choice" || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%+v of %s: %v, want an error with %q", c.choice, c.tools, err, c.want)
			}
		} else if string(got) != c.want {
			t.Errorf("%+v of %s: %s, want %s", c.choice, c.tools, got, c.want)
		}
	}
}

// TestOfferOnce: a tool is offered once, however often the choice names it, and a long list of tools is gone through once.
func TestOfferOnce(t *testing.T) {
	tool := `{"type":"function","function":{"name":"f","description":"` + strings.Repeat("x", 4000) + `"}}`
	tools := json.RawMessage("[" + tool + "," + strings.Repeat(`{"function":{"name":"g"}},`, 20_000) + `{"function":{"name":"h"}}]`)
	names := slices.Repeat([]string{"f", "h", "g"}, 20_000)
	begun := time.Now()
	got, err := ToolChoice{Only: names}.Offer(tools)
	if want := "[" + tool + `,{"function":{"name":"h"}},{"function":{"name":"g"}}]`; err != nil || string(got) != want {
		t.Errorf("%d bytes, %v: want %d", len(got), err, len(want))
	}
	if took := time.Since(begun); took > 3*time.Second {
		t.Errorf("60,000 names of 20,002 tools took %v", took)
	}
}

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
