package rolestest

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/tandem-llm/tandem/client"
	tandemv1 "github.com/tandem-llm/tandem/proto/tandem/v1"
)

const (
	target = "../../models/gopher-19m-q8_0.gguf"
	draft  = "../../models/gopher-draft-all-f16.gguf"
)

// TestRolesInOneProcess: gateway, verifier and drafters, each put together as its process would be, speculate in one process. A
// drafter comes and goes, and the text stays the same.
func TestRolesInOneProcess(t *testing.T) {
	s := Start(t, target)
	request := client.Request{Prompt: "func (r *Reader) Read(", Temperature: new(0.0), NoDraft: true}
	want, _, _, err := s.Generate(request)
	if err != nil || len(want) == 0 {
		t.Fatal(want, err)
	}
	request.NoDraft = false
	check := func(what string, drafts bool) {
		t.Helper()
		// On a busy machine a request may end before its drafter has opened it.
		s.await(fmt.Sprintf("%s: a request with accepted drafts: %v", what, drafts), func() bool {
			got, _, done, err := s.Generate(request)
			if err != nil || !slices.Equal(got, want) || !drafts && done.Statistics.Accepted > 0 {
				t.Fatalf("%s: tokens %v, %v, %d accepted: want %v", what, got, err, done.Statistics.Accepted, want)
			}
			return done.Statistics.Accepted > 0 == drafts
		})
	}
	check("without a drafter", false)
	end := s.Drafter("drafter", draft, "lookup")
	up := func(p *tandemv1.Process) bool {
		return p.GetRole() == "drafter" && p.GetUp() && strings.HasSuffix(p.GetModel(), ", lookup")
	}
	s.Await("the drafter", up)
	check("with a drafter", true)
	end()
	s.Await("the drafter's end", func(p *tandemv1.Process) bool { return p.GetRole() == "drafter" && !p.GetUp() })
	check("after its end", false)
	s.Drafter("drafter", draft, "lookup")
	s.Await("the next drafter", up)
	check("with its successor", true)
	if s.Log.String() != "" {
		t.Errorf("logged %s", s.Log)
	}
}
