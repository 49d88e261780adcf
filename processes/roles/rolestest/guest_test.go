package rolestest

import (
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/tandem-llm/tandem/kernels/cuda/emulated"
	"github.com/tandem-llm/tandem/kernels/testdevice"
	"github.com/tandem-llm/tandem/processes/roles"
	tandemv1 "github.com/tandem-llm/tandem/proto/tandem/v1"
)

// TestDraftInTheVerifier: a draft that reads states runs in the process of its target. Others see a drafter at an address of its own. The
// text is that of plain decoding: for several requests at once, with a prompt that is in memory, after a restart of the process, and beside
// a drafter in another process that reads states of the same verifier.
func TestDraftInTheVerifier(t *testing.T) {
	for _, kind := range []string{"eagle3", "dovetail", "dflash"} {
		t.Run(kind, func(t *testing.T) { testGuest(t, filepath.Join(sides, kind+".gguf")) })
	}
}

func testGuest(t *testing.T, draft string) {
	s := StartTapped(t, filepath.Join(sides, "target.gguf"), []int{-1, 3, 1, 2})
	want := map[int][]uint32{}
	for n := range 4 {
		var err error
		if want[n], _, _, err = s.Generate(fed(n, float64(n%2), true)); err != nil || len(want[n]) != 30 {
			t.Fatal(want[n], err)
		}
	}
	check := func(what string, drafters ...string) {
		t.Helper()
		var all sync.WaitGroup
		for n, want := range want {
			all.Go(func() {
				r := fed(n, float64(n%2), false)
				r.Drafters = drafters
				if got, _, _, err := s.Generate(r); err != nil || !slices.Equal(got, want) {
					t.Errorf("%s: request %d: tokens %v, %v: want %v", what, n, got, err, want)
				}
			})
		}
		all.Wait()
	}
	up := func(p *tandemv1.Process) bool {
		return p.GetRole() == "drafter" && p.GetModel() != "lookup" && p.GetUp()
	}
	s.guest = draft
	s.RestartVerifier()
	for _, what := range []string{"the first", "the second"} {
		s.Await("the draft beside the target", up)
		drafted, came := s.sum("drafter", "drafts"), s.sum("drafter", "features.came")
		s.await("drafts from the target's states", func() bool {
			check("beside the target, " + what)
			return s.sum("drafter", "drafts") > drafted && s.sum("drafter", "features.came") > came
		})
		if rows, came := s.sum("verifier", "features.rows"), s.sum("drafter", "features.came"); rows != 0 || came == 0 {
			t.Errorf("%d rows were handed out by calls, %d came: want all of them from within the process", rows, came)
		}
		s.RestartVerifier()
	}
	s.Await("the draft beside the target", up)
	s.Drafter("another", filepath.Join(sides, "eagle.gguf"))
	s.awaitEnlisted("eagle")
	s.await("states for a drafter in another process", func() bool {
		check("with another drafter", "eagle")
		return s.sum("verifier", "features.rows") > 0
	})
	for _, bad := range []string{"features.corrupt", "faults", "tickets.invalid"} {
		if n := s.sum("drafter", bad) + s.sum("verifier", bad); n != 0 {
			t.Errorf("%s is %d", bad, n)
		}
	}
	if log := s.Log.String(); strings.Contains(log, "panic") {
		t.Errorf("logged %s", log)
	}
}

// TestGuestOnGPU: a draft in the process of its target on a GPU drafts there, and says what plain decoding on the processor says.
func TestGuestOnGPU(t *testing.T) {
	if testing.Short() {
		t.Skip("an emulated GPU computes slowly: skipped with -short")
	}
	s := StartTapped(t, filepath.Join(sides, "target.gguf"), []int{-1, 3, 1, 2})
	want, _, _, err := s.Generate(fed(0, 0, true))
	if err != nil {
		t.Fatal(err)
	}
	gpu, _ := testdevice.GPU(t, emulated.Options{})
	s.guest = filepath.Join(sides, "dovetail.gguf")
	s.VerifierOn(func() (roles.Device, error) { return gpu, nil })
	s.Await("the draft beside the target", func(p *tandemv1.Process) bool {
		return p.GetRole() == "drafter" && p.GetModel() != "lookup" && p.GetUp() && p.GetDevice() == "cuda"
	})
	s.await("drafts from the target's states", func() bool {
		if got, _, _, err := s.Generate(fed(0, 0, false)); err != nil || !slices.Equal(got, want) {
			t.Fatalf("tokens %v, %v: want %v", got, err, want)
		}
		return s.sum("drafter", "drafts") > 0 && s.sum("drafter", "weights.mapped_bytes")+s.sum("verifier", "weights.mapped_bytes") > 0
	})
}
