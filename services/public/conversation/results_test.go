package conversation

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
)

// TestPaired: a result belongs to the call of its id, or without one to the first of its name that has none; results of one turn stand in
// the order of their calls.
func TestPaired(t *testing.T) {
	// "call f=1 g" are calls with and without an id; "tool 1 f text" a result, "-" for no id and no name
	talk := func(turns string) (out []Message) {
		for _, turn := range strings.Split(turns, "; ") {
			words := strings.SplitN(turn, " ", 4)
			m := Message{Role: words[0]}
			switch m.Role {
			case "call":
				m.Role = "assistant"
				var all []ToolCall
				for _, c := range strings.Fields(turn)[1:] {
					name, id, _ := strings.Cut(c, "=")
					all = append(all, ToolCall{ID: id, Function: FunctionCall{Name: name, Arguments: "{}"}})
				}
				m.ToolCalls, _ = Marshal(all)
			case "tool":
				m.ToolCallID, m.Name, m.Content = strings.Trim(words[1], "-"), strings.Trim(words[2], "-"), words[3]
			}
			out = append(out, m)
		}
		return out
	}
	show := func(all []Message) string {
		var out []string
		for _, m := range all {
			var calls []ToolCall
			_ = json.Unmarshal(m.ToolCalls, &calls)
			text := m.Role
			for _, c := range calls {
				text += " " + c.Function.Name + "=" + c.ID
			}
			if m.Role == "tool" {
				text = fmt.Sprintf("tool %s %s %s", m.ToolCallID, m.Name, m.Content)
			}
			out = append(out, text)
		}
		return strings.Join(out, "; ")
	}
	for _, c := range []struct{ turns, want string }{
		{"user; call f=1 g=2; tool 2 - b; tool 1 - a; user", "user; assistant f=1 g=2; tool 1 f a; tool 2 g b; user"},
		{"call f g f; tool - g b; tool - f a; tool - f c",
			"assistant f=call00000 g=call00001 f=call00002; tool call00000 f a; tool call00001 g b; tool call00002 f c"},
		{"call f g; tool - - a; tool - - b", "assistant f=call00000 g=call00001; tool call00000 f a; tool call00001 g b"},
		{"call f=1; call f=2; tool - f a; tool - f b", "assistant f=1; assistant f=2; tool 1 f a; tool 2 f b"},
		{"call f=1; user; call f=2; tool - f b", "assistant f=1; user; assistant f=2; tool 2 f b"},
		{"call f=1; user; tool - f a", "assistant f=1; user; tool 1 f a"},
		{"call f=1; tool 1 - a; call g=1; tool 1 - b", "assistant f=1; tool 1 f a; assistant g=1; tool 1 g b"},
		{"call f=1 g=1; tool 1 - a; tool 1 - b; tool 1 - c", "assistant f=1 g=1; tool 1 f a; tool 1 g b; tool 1 g c"},
		{"call f=1; tool 9 - x; tool - h y; tool 1 named a", "assistant f=1; tool 1 named a; tool 9  x; tool  h y"},
		{"tool - - a; user", "tool   a; user"},
	} {
		turns := talk(c.turns)
		before := show(turns)
		if got := show(paired(turns)); got != c.want {
			t.Errorf("%s: got\n%s\nwant\n%s", c.turns, got, c.want)
		}
		if show(turns) != before {
			t.Errorf("%s: the caller's messages are %s now", c.turns, show(turns))
		}
	}
	kept := []Message{{Role: "assistant", ToolCalls: json.RawMessage(`[{"id":"1" , "x":1,"function":{"name":"f"}}]`)}, {Role: "tool", ToolCallID: "1"}}
	if got := paired(kept); string(got[0].ToolCalls) != string(kept[0].ToolCalls) || got[1].Name != "f" {
		t.Errorf("calls with ids keep their bytes: %s, the result is named %q", got[0].ToolCalls, got[1].Name)
	}
}
