package pair

import (
	"encoding/json"
	"slices"
	"strings"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/app/bench/prompts"
)

// Choose adds to c.Prompts those prompts of the file at path whose id or domain is in only; without any, all. Errors: Invalid, in the words
// of the command line.
func (c *Bench) Choose(path string, only []string) error {
	sets, err := prompts.Read(path)
	if err != nil {
		return err
	}
	for _, set := range sets {
		for _, p := range set.Prompts {
			if len(only) == 0 || slices.Contains(only, p.ID) || slices.Contains(only, p.Domain) {
				c.Prompts = append(c.Prompts, p)
			}
		}
	}
	if len(c.Prompts) == 0 {
		return tandem.Errorf("", tandem.Invalid, "--only %s: %s has no such prompts", strings.Join(only, ","), path)
	}
	return nil
}

// Fixed makes the ways of a benchmark: those that the planner is compared with if no others are named.
type Fixed struct {
	URL    string // of the tandem server; "": the one that Bench.Start starts
	Draft  string // name of the draft of the chains and the tree; "": none
	Lookup string // name of the drafter lookup, as one way more; "": not
}

// speculation returns a way of the tandem server by the fields of "speculation".
func (f Fixed) speculation(name string, fields map[string]any) Way {
	return Way{Name: name, URL: f.URL, Body: map[string]any{"speculation": fields}}
}

// shapes are the fixed ways of a draft: guesses, levels, and guesses a level.
var shapes = []struct {
	name                  string
	nodes, depth, breadth int
}{{"chain of 2", 2, 2, 1}, {"chain of 4", 4, 4, 1}, {"tree of 8", 8, 4, 4}}

// And returns the ways to compare: plain decoding, the planner, then lookup alone as far as it pays and a few fixed shapes, or instead of
// these two the named ways, each as NAME={…}; last the peers, each as NAME=URL {…}. subject is the name of the way that is judged: a named
// way of that name replaces one that has it. Errors: Invalid, in the words of the command line.
func (f Fixed) And(ways, peers []string, subject string) ([]Way, error) {
	out := []Way{f.speculation("plain", map[string]any{"enabled": false}),
		f.speculation("planner", map[string]any{"strategy": string(tandem.StrategyPlanner)})}
	if len(ways) == 0 && f.Lookup != "" {
		out = append(out, f.speculation("lookup", map[string]any{"strategy": "planner", "drafters": []string{f.Lookup}}))
	}
	for _, s := range shapes {
		if len(ways) == 0 && f.Draft != "" {
			out = append(out, f.speculation(s.name, map[string]any{"strategy": "fixed", "drafters": []string{f.Draft},
				"max_nodes": s.nodes + 1, "max_depth": s.depth, "max_branches": s.breadth}))
		}
	}
	for _, text := range ways {
		name, fields, _ := strings.Cut(text, "=")
		w := Way{Name: name, URL: f.URL}
		if err := json.Unmarshal([]byte(fields), &w.Body); err != nil || name == "" {
			return nil, tandem.Errorf("", tandem.Invalid, `--way %s: want NAME={"speculation":{…}}`, text)
		}
		out = append(slices.DeleteFunc(out, func(o Way) bool { return o.Name == name && name == subject }), w)
	}
	for _, text := range peers {
		name, rest, _ := strings.Cut(text, "=")
		url, fields, more := strings.Cut(rest, " ")
		w := Way{Name: name, URL: strings.TrimSuffix(url, "/"), Peer: true}
		if !more {
			fields = "{}"
		}
		if err := json.Unmarshal([]byte(fields), &w.Body); err != nil || name == "" || !strings.HasPrefix(url, "http") {
			return nil, tandem.Errorf("", tandem.Invalid, "--peer %s: want NAME=URL, or NAME=URL {…}", text)
		}
		out = append(out, w)
	}
	return out, nil
}
