package enlist

import "github.com/tandem-llm/tandem"

// warning is the last warning about a drafter's arithmetic.
type warning struct {
	instance       uint64
	theirs, target tandem.Identity
}

// TargetIs sets the verifier's identity and its target's self-drafts.
func (m *Members) TargetIs(target tandem.Identity, selfDrafts []string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.target, m.selfDrafts = target, selfDrafts
	for _, p := range m.processes {
		for _, d := range p.Drafters {
			if at := (key{p.Addr, d.Name}); m.enlisted[at] != nil {
				m.warn(at, p, d)
			}
		}
	}
}

// warn logs a drafter that draws by another arithmetic than the target.
func (m *Members) warn(at key, p Process, d Drafter) {
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
