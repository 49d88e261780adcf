package rolestest

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/tandem-llm/tandem/client"
	"github.com/tandem-llm/tandem/processes/roles/gateway"
	tandemv1 "github.com/tandem-llm/tandem/proto/tandem/v1"
)

const (
	target = "../../../models/gopher-19m-q8_0.gguf"
	draft  = "../../../models/gopher-draft-all-f16.gguf"
)

// TestRolesInOneProcess: gateway, verifier and drafters, each put together as its process would be, speculate in one process. A
// drafter comes and goes; while it is away, the gateway's lookup drafts. The text stays the same.
func TestRolesInOneProcess(t *testing.T) {
	s := Start(t, target)
	request := client.Request{Prompt: "func (r *Reader) Read(", Temperature: new(0.0), NoDraft: true}
	want := s.first(request)
	request.NoDraft = false
	check := func(what, drafter string) {
		t.Helper()
		// On a busy machine a request may end before its drafter has opened it.
		s.await(fmt.Sprintf("%s: a request drafted by %s alone", what, drafter), func() bool {
			got, _, done, err := s.Generate(request)
			if err != nil || !slices.Equal(got, want) {
				t.Fatalf("%s: tokens %v, %v: want %v", what, got, err, want)
			}
			all := done.Statistics.Drafters
			return len(all) == 1 && all[0].Name == drafter && all[0].Rounds > 0
		})
	}
	process := func(model string, up bool) func(*tandemv1.Process) bool {
		return func(p *tandemv1.Process) bool {
			return p.GetRole() == "drafter" && (p.GetModel() == "lookup") == (model == "lookup") && p.GetUp() == up
		}
	}
	s.Await("lookup", process("lookup", true))
	check("without a process of drafters", "lookup")
	end := s.Drafter("drafter", draft)
	s.Await("the drafter", process(draftName, true))
	check("with a drafter", draftName)
	end()
	s.Await("the drafter's end", process(draftName, false))
	check("after its end", "lookup")
	s.Drafter("drafter", draft)
	s.Await("the next drafter", process(draftName, true))
	check("with its successor", draftName)
	request.Drafters = []string{"lookup"}
	check("with lookup named", "lookup")
	if s.Log.String() != "" {
		t.Errorf("logged %s", s.Log)
	}
}

// TestEarlierTextsAreDrafted: a text that a tenant had before comes in fewer rounds again, token for token, with any strategy and when
// tokens are drawn.
func TestEarlierTextsAreDrafted(t *testing.T) {
	s := Start(t, target, func(c *gateway.Setup) { c.EarlierTexts = "8192" })
	for _, temperature := range []float64{0, 0.8} {
		request := ask(temperature, true)
		request.IgnoreEOS, request.MaxTokens = true, new(100)
		want, _, _, err := s.Generate(request)
		if err != nil {
			t.Fatal(err)
		}
		for _, strategy := range []string{"fixed", "planner", "minions", "llmcad"} {
			r := request
			r.NoDraft, r.Strategy, r.Tree = false, strategy, &client.Tree{Nodes: 16, Depth: 15, Width: 2}
			// On a busy machine a request may end before lookup has opened it.
			s.await(fmt.Sprintf("100 tokens that came before in few rounds at temperature %v", temperature), func() bool {
				got, _, done, err := s.Generate(r)
				if err != nil || !slices.Equal(got, want) {
					t.Fatalf("%s at temperature %v: tokens %v, %v: want %v", strategy, temperature, got, err, want)
				}
				return strategy != "fixed" || done.Statistics.Rounds <= 20
			})
		}
	}
}

// TestNoLookup: a gateway without lookup decodes plainly if there is no other drafter.
func TestNoLookup(t *testing.T) {
	s := Start(t, target, func(c *gateway.Setup) { c.Lookup = false })
	_, _, done, err := s.Generate(client.Request{Prompt: "a a a a a a a", MaxTokens: new(8)})
	if err != nil || done.Statistics.PlainRounds != done.Statistics.Rounds {
		t.Errorf("%+v, %v", done.Statistics, err)
	}
	if _, _, _, err := s.Generate(client.Request{Prompt: "x", Drafters: []string{"lookup"}}); err == nil ||
		!strings.Contains(err.Error(), "is not there") {
		t.Errorf("lookup by name: %v", err)
	}
}
