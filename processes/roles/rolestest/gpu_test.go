package rolestest

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tandem-llm/tandem/client"
	"github.com/tandem-llm/tandem/kernels/cuda/emulated"
	"github.com/tandem-llm/tandem/kernels/split"
	"github.com/tandem-llm/tandem/kernels/testdevice"
	"github.com/tandem-llm/tandem/processes/roles"
	tandemv1 "github.com/tandem-llm/tandem/proto/tandem/v1"
)

// TestDraftOnGPU: a draft on a GPU drafts, and the text is that of plain decoding. When the GPU is lost in the
// middle of a request, its process ends and says why, the request goes on, and a successor on the processor drafts.
func TestDraftOnGPU(t *testing.T) {
	if testing.Short() {
		t.Skip("an emulated GPU drafts slowly: skipped with -short")
	}
	s := Start(t, target)
	// Long enough for an emulated GPU to join in: a draft that has read no prompt yet costs the request nothing.
	request := client.Request{Prompt: "func (r *Reader) Read(", Temperature: new(0.0), NoDraft: true, MaxTokens: new(300), IgnoreEOS: true}
	want := s.first(request)
	request.NoDraft = false
	drafted := func(what string) {
		t.Helper()
		s.awaitDrafted(what, request, want)
	}
	up := func(p *tandemv1.Process) bool {
		return p.GetRole() == "drafter" && p.GetModel() != "lookup" && p.GetUp()
	}
	gone := func(p *tandemv1.Process) bool {
		return p.GetRole() == "drafter" && p.GetModel() != "lookup" && !p.GetUp()
	}
	gpu, driver := testdevice.GPU(t, emulated.Options{})
	ended := s.DrafterOn("drafter", func() (roles.Device, error) { return gpu, nil }, draft)
	s.Await("the drafter on the GPU", up)
	drafted("a request drafted on the GPU")
	driver.FailLaunch(160)
	s.await("the GPU's loss", func() bool {
		got, _, _, err := s.Generate(request)
		if err != nil || !slices.Equal(got, want) {
			t.Fatalf("while the GPU is lost: tokens %v, %v: want %v", got, err, want)
		}
		return gpu.Lost() != nil
	})
	select {
	case err := <-ended:
		if err == nil || !strings.Contains(err.Error(), "is lost") {
			t.Errorf("the drafter ended with %v, want that its device is lost", err)
		}
	case <-time.After(patience):
		t.Fatal("the drafter goes on without its device")
	}
	s.Await("the drafter's end", gone)
	s.Drafter("drafter", draft)
	s.Await("its successor", up)
	drafted("a request drafted on the processor")
}

// TestTargetOnPair: a target whose passes are divided between an emulated GPU and the processor says what plain decoding on the processor
// says, with and without drafts. It has no plan, so it guesses how to divide, and its log says so.
func TestTargetOnPair(t *testing.T) {
	if testing.Short() {
		t.Skip("an emulated GPU computes slowly: skipped with -short")
	}
	const small = draft // as a target: an emulated GPU does each product as C++
	s := Start(t, small)
	request := client.Request{Prompt: "func (r *Reader) Read(", Temperature: new(0.0), NoDraft: true, MaxTokens: new(12), IgnoreEOS: true}
	want := s.first(request)
	gpu, _ := testdevice.GPU(t, emulated.Options{})
	pair, err := split.New(gpu, testdevice.CPU(t, 1), nil)
	if err != nil {
		t.Fatal(err)
	}
	s.VerifierOn(func() (roles.Device, error) { return pair, nil })
	for _, noDraft := range []bool{true, false} {
		request.NoDraft = noDraft
		got, _, _, err := s.Generate(request)
		if err != nil || !slices.Equal(got, want) {
			t.Errorf("divided, without drafts %v: tokens %v, %v: want %v", noDraft, got, err, want)
		}
	}
	if log := s.Log.String(); !strings.Contains(log, "divided by a guess") || !strings.Contains(log, "no times of passes were measured") {
		t.Errorf("log %q: want that it guesses, and why", log)
	}
}

// awaitDrafted generates until the draft has had a part in it; the tokens must be those wanted each time.
func (s *System) awaitDrafted(what string, request client.Request, want []uint32) {
	s.t.Helper()
	s.await(what, func() bool {
		got, _, done, err := s.Generate(request)
		if err != nil || !slices.Equal(got, want) {
			s.t.Fatalf("%s: tokens %v, %v: want %v", what, got, err, want)
		}
		all := done.Statistics.Drafters
		return slices.ContainsFunc(all, func(d client.Contribution) bool { return d.Name == draftName && d.Rounds > 0 })
	})
}
