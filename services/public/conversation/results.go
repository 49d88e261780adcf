package conversation

import (
	"cmp"
	"encoding/json"
	"fmt"
	"math"
	"slices"
)

// asked is a call of a history.
type asked struct {
	at       int // among all calls
	id, name string
	answered bool
}

// answers finds the calls that results belong to.
type answers struct {
	calls int
	by    [3]map[string][]*asked // calls by id, by name, and all under ""; answered ones are removed when they are met
	stale bool                   // the user has spoken since the calls
}

// paired returns messages in which each result of a tool names its call: that of its id or, without an id, the first of its name that has
// none yet, of any name if it has none. Results of one turn stand in the order of their calls, since many templates show nothing else of
// which is whose.
func paired(messages []Message) []Message {
	if !slices.ContainsFunc(messages, func(m Message) bool { return m.Role == "tool" }) {
		return messages
	}
	messages = slices.Clone(messages)
	a := &answers{}
	for i := 0; i < len(messages); i++ {
		m := &messages[i]
		switch {
		case m.Role == "user":
			a.stale = true
		case len(m.ToolCalls) > 0:
			m.ToolCalls = a.ask(m.ToolCalls)
		case m.Role == "tool":
			end := i + 1
			for end < len(messages) && messages[end].Role == "tool" {
				end++
			}
			a.answer(messages[i:end])
			i = end - 1
		}
	}
	return messages
}

// ask notes the calls of a turn, and returns them with an id each. Once the user has spoken, calls
// before it are answered by their id alone.
func (a *answers) ask(calls json.RawMessage) json.RawMessage {
	if a.by[0] == nil {
		a.by[0], a.stale = map[string][]*asked{}, true
	}
	if a.stale {
		a.by[1], a.by[2], a.stale = map[string][]*asked{}, map[string][]*asked{}, false
	}
	var all []map[string]json.RawMessage
	if json.Unmarshal(calls, &all) != nil {
		return calls
	}
	lacking, own := false, map[string]bool{}
	for _, raw := range all {
		c := &asked{at: a.calls}
		var f struct{ Name string }
		_ = json.Unmarshal(raw["id"], &c.id)
		_ = json.Unmarshal(raw["function"], &f)
		if c.name = f.Name; c.id == "" && raw != nil {
			c.id, lacking = fmt.Sprintf("call%05d", a.calls), true
			raw["id"], _ = json.Marshal(c.id)
		}
		if !own[c.id] { // an id that an earlier turn had, too
			own[c.id], a.by[0][c.id] = true, nil
		}
		a.calls++
		for i, key := range []string{c.id, c.name, ""} {
			a.by[i][key] = append(a.by[i][key], c)
		}
	}
	if lacking {
		calls, _ = Marshal(all)
	}
	return calls
}

// answer names the calls of consecutive results, and orders these by them.
func (a *answers) answer(results []Message) {
	type placed struct {
		Message
		at int
	}
	all := make([]placed, len(results))
	for i := range results {
		all[i] = placed{results[i], math.MaxInt}
		m, c := &all[i], (*asked)(nil)
		switch {
		case m.ToolCallID != "":
			c = a.next(0, m.ToolCallID)
		case m.Name != "":
			c = a.next(1, m.Name)
		default:
			c = a.next(2, "")
		}
		if c == nil {
			continue
		}
		m.at, c.answered, m.ToolCallID = c.at, true, c.id
		if m.Name == "" {
			m.Name = c.name
		}
	}
	slices.SortStableFunc(all, func(a, b placed) int { return cmp.Compare(a.at, b.at) })
	for i := range all {
		results[i] = all[i].Message
	}
}

// next returns the first call under a key that has no result; the last one under an id whose calls all have one; nil for none.
func (a *answers) next(by int, key string) *asked {
	all := a.by[by][key]
	for len(all) > 0 && all[0].answered && (by > 0 || len(all) > 1) {
		all = all[1:]
	}
	if len(all) == 0 {
		return nil
	}
	a.by[by][key] = all
	return all[0]
}
