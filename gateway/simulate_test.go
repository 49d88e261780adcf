package gateway

import (
	"flag"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/tandem-llm/tandem"
)

var (
	simSeed  = flag.Uint64("sim-seed", 0, "simulate this seed alone, and tell its story")
	simSteps = flag.Int("sim-steps", 0, "simulate at least so many steps; 0: a million, a tenth with -short, ten times as many with -long")
)

// simulate runs the world of a seed with those faults.
func simulate(seed uint64, faults []simFault, planted string) *sim {
	w := newSim(seed, faults, planted)
	w.allowed = func(k tandem.Kind) bool { return !simMild(seed) && simCause(faults, k) }
	if simMild(seed) { // an Open whose answer was lost stalls first, then the text goes on
		w.bound = DefaultTimeouts.Stall + 15*time.Second
	}
	w.run()
	if w.failure == "" {
		w.leaks()
	}
	return w
}

// TestSimulation runs the worlds of one seed after the other, until that was a million steps: see sim. A seed that fails is printed with
// the faults that it takes, without those that it does not.
func TestSimulation(t *testing.T) {
	most := *simSteps
	if most == 0 {
		most = 1_000_000
		if f := flag.Lookup("long"); f != nil && f.Value.String() == "true" {
			most *= 10
		} else if testing.Short() { // the race detector is slow, and finds nothing in one goroutine
			most /= 10
		}
	}
	begun, steps, seeds, whole, commits, failed := time.Now(), 0, uint64(0), 0, 0, map[tandem.Kind]int{}
	reached := map[string]int{}
	first := max(*simSeed, 1)
	for seed := first; steps < most; seed++ {
		faults := genSimFaults(seed)
		w := simulate(seed, faults, "")
		if w.failure != "" {
			t.Fatal(explained(seed, faults, ""))
		}
		steps, seeds, whole, commits = steps+w.steps, seeds+1, whole+w.whole, commits+w.commits
		for k, n := range w.failed {
			failed[k] += n
		}
		for k, n := range w.reached {
			reached[k] += n
		}
		if *simSeed != 0 {
			t.Log(w.story(len(w.last)))
			break
		}
	}
	t.Logf("%d steps of %d seeds in %v: %d requests whole, %v not, %d commits", steps, seeds, time.Since(begun).Round(time.Millisecond),
		whole, failed, commits)
	t.Logf("reached: %v", reached)
	for _, what := range []string{"make room", "park", "arrived", "missed", "suspicious", "garbage", "pool.exhausted", "pool.unavailable",
		"pool.deadline", "tickets.repeated", "verifier.silent", "verifier.stale", "verifier.unknown_session", "verdicts.garbage"} {
		if steps > 500_000 && reached[what] == 0 {
			t.Errorf("no round of %d steps came to %q", steps, what)
		}
	}
}

// shrink drops faults as long as the run still fails, and makes the others shorter.
func shrink(seed uint64, faults []simFault, planted string) []simFault {
	fails := func(f []simFault) bool { return simulate(seed, f, planted).failure != "" }
	for n := (len(faults) + 1) / 2; n > 0; {
		shorter := false
		for from := 0; from+n <= len(faults); {
			without := append(append([]simFault{}, faults[:from]...), faults[from+n:]...)
			if fails(without) {
				faults, shorter = without, true
			} else {
				from += n
			}
		}
		if !shorter {
			n /= 2
		}
	}
	return faults
}

// explained describes a failure by its shortest list of faults.
func explained(seed uint64, faults []simFault, planted string) string {
	least := shrink(seed, faults, planted)
	w := simulate(seed, least, planted)
	var out strings.Builder
	fmt.Fprintf(&out, "seed %d fails (-run TestSimulation -sim-seed %d): %s\nwith %d of %d faults:\n", seed, seed, w.failure, len(least),
		len(faults))
	for _, f := range least {
		fmt.Fprintf(&out, "\t%v\n", f)
	}
	fmt.Fprintf(&out, "the last steps:\n%s", w.story(60))
	return out.String()
}

// TestSimulationIsDeterministic: a seed gives the same run, to the last event, and another seed another.
func TestSimulationIsDeterministic(t *testing.T) {
	digests := map[uint64]uint64{}
	for seed := uint64(1); seed <= 20; seed++ {
		a, b := simulate(seed, genSimFaults(seed), ""), simulate(seed, genSimFaults(seed), "")
		if a.digest != b.digest || a.steps != b.steps {
			t.Errorf("seed %d: digests %x after %d steps and %x after %d", seed, a.digest, a.steps, b.digest, b.steps)
		}
		if before, same := digests[a.digest]; same {
			t.Errorf("seeds %d and %d give the same run", before, seed)
		}
		digests[a.digest] = seed
	}
}

// TestSimulationFindsBugs plants bugs: each is found soon, and the faults that it takes are few.
func TestSimulationFindsBugs(t *testing.T) {
	for planted, most := range map[string]int{"any verdict": 2, "no timer": 2} {
		found := false
		for seed := uint64(1); seed <= 100 && !found; seed++ {
			faults := genSimFaults(seed)
			if w := simulate(seed, faults, planted); w.failure == "" {
				continue
			}
			found = true
			least := shrink(seed, faults, planted)
			t.Logf("%s: seed %d, %d of %d faults", planted, seed, len(least), len(faults))
			if len(least) > most {
				t.Errorf("%s takes %d faults: want at most %d\n%s", planted, len(least), most, explained(seed, faults, planted))
			}
		}
		if !found {
			t.Errorf("%s is not found", planted)
		}
	}
}
