package discovery

import (
	"flag"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"
)

var (
	simSeed  = flag.Uint64("sim-seed", 0, "simulate this seed alone")
	simSteps = flag.Int("sim-steps", 1_000_000, "simulate at least so many steps; a tenth of it with -short")
)

// TestSimulation simulates who is a member, a million steps of it, while processes restart, die, stop, vanish and drain, announcements are
// lost, doubled and late, NATS, the registry and the table's own process are away. What is well is a member within seconds,
// what is dead is none after its lease and the time in which a connection breaks, and once an instance was shown its predecessors are not.
// A seed that fails is printed with the faults that it takes.
func TestSimulation(t *testing.T) {
	most := *simSteps
	if testing.Short() {
		most /= 10
	}
	begun, steps, seed := time.Now(), 0, max(*simSeed, 1)
	for ; steps < most; seed++ {
		faults := genFaults(seed)
		w := newSim(seed, faults).run()
		if w.failure != "" {
			t.Fatal(explained(seed, faults))
		}
		if steps += w.steps; *simSeed != 0 {
			break
		}
	}
	t.Logf("%d steps of %d seeds in %v", steps, seed, time.Since(begun).Round(time.Millisecond))
	for seed := uint64(1); seed < 10; seed++ {
		if a, b := newSim(seed, genFaults(seed)).run(), newSim(seed, genFaults(seed)).run(); a.digest != b.digest {
			t.Errorf("seed %d gives two runs: %x and %x", seed, a.digest, b.digest)
		}
	}
}

// explained describes a failure by its shortest list of faults.
func explained(seed uint64, faults []simFault) string {
	least := slices.Clone(faults)
	for i := 0; i < len(least); {
		if without := slices.Delete(slices.Clone(least), i, i+1); newSim(seed, without).run().failure != "" {
			least, i = without, 0
		} else {
			i++
		}
	}
	w := newSim(seed, least)
	w.tell = true
	w.run()
	return fmt.Sprintf("seed %d fails (-run TestSimulation -sim-seed %d): %s\nwith %d of %d faults: %v\n%s", seed, seed, w.failure,
		len(least), len(faults), least, strings.Join(w.story[max(len(w.story)-60, 0):], "\n"))
}
