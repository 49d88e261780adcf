package enlist

import (
	"log/slog"
	"maps"

	"github.com/tandem-llm/tandem"
)

// arithmetic warns of drafters that compute by another one than the verifier. One goroutine uses it at a time.
type arithmetic struct {
	counters *tandem.Counters
	log      *slog.Logger
	target   tandem.Identity // of the verifier; "" while it is not known
	warned   map[key]warning
}

// warning is the last warning about a drafter's arithmetic.
type warning struct {
	instance       uint64
	theirs, target tandem.Identity
}

// warn logs a drafter that draws by another arithmetic than the target.
func (m *arithmetic) warn(at key, p Process, d Drafter) {
	ours, known := m.target.Parts()
	theirs, told := d.Identity.Parts()
	now := warning{p.Instance, d.Identity, m.target}
	if !known || !told || ours.Arithmetic == theirs.Arithmetic || m.warned[at] == now {
		return
	}
	m.warned[at] = now
	m.counters.Add("drafters.other_arithmetic", 1)
	m.log.Warn("drafter computes by another arithmetic than the verifier: fewer of its drafts will be accepted; run the same release",
		"drafter", d.Name, "address", p.Addr, "arithmetic", theirs.Arithmetic, "verifier's", ours.Arithmetic)
}

// keep forgets the warnings about drafters that are not in there.
func (m *arithmetic) keep(there map[key]bool) {
	maps.DeleteFunc(m.warned, func(at key, _ warning) bool { _, known := there[at]; return !known })
}
