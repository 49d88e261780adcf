package enlist

import "github.com/tandem-llm/tandem"

// warning is the last warning about a drafter's arithmetic.
type warning struct {
	instance       uint64
	theirs, target tandem.Identity
}

// TargetIs tells the table the verifier's identity, and by which ways its target guesses by itself.
func (m *Members) TargetIs(target tandem.Identity, ways []string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.target, m.ways = target, ways
	for _, p := range m.processes {
		for _, d := range p.Drafters {
			if at := (place{p.Addr, d.Name}); m.here[at] != nil {
				m.warn(at, p, d)
			}
		}
	}
}

// warn logs a drafter that draws by another arithmetic than the target.
func (m *Members) warn(at place, p Process, d Drafter) {
	ours, known := m.target.Parts()
	theirs, told := d.Identity.Parts()
	now := warning{p.Instance, d.Identity, m.target}
	if !known || !told || ours.Arithmetic == theirs.Arithmetic || m.warned[at] == now {
		return
	}
	m.warned[at] = now
	m.cfg.Counters.Add("drafters.other_arithmetic", 1)
	m.cfg.Log.Warn("drafter computes by another arithmetic than the verifier: fewer of its drafts will be accepted; run the same release",
		"drafter", d.Name, "address", p.Addr, "arithmetic", theirs.Arithmetic, "verifier's", ours.Arithmetic)
}
