package verifier_test

import (
	"sync"
	"testing"
	"time"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/drafter"
	"github.com/tandem-llm/tandem/test/testkit"
	"github.com/tandem-llm/tandem/verifier"
)

// pulse notes what a supervisor would see.
type pulse struct {
	mu       sync.Mutex
	finished int
	passes   []tandem.Cost // as they were expected
	open     int           // passes that have begun and not ended
}

func (p *pulse) Finished() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.finished, p.open = p.finished+1, 0
}

func (p *pulse) Expect(rows int, time time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.passes, p.open = append(p.passes, tandem.Cost{Rows: rows, Time: time}), p.open+1
}

// TestPulse: each pass is told before it begins, with what it should take as soon as anything is known, and who has nothing to do
// shows that as well.
func TestPulse(t *testing.T) {
	var target, draft pulse
	costs := []tandem.Cost{{Rows: 1, Time: time.Millisecond}, {Rows: 64, Time: 10 * time.Millisecond}}
	r := newRig(t, rigOptions{verifier: verifier.Config{Pulse: &target, Costs: costs}, drafter: drafter.Config{Pulse: &draft}})
	before := r.counters.Snapshot()["passes"]
	s := asked{prompt: plain{openModel(t, targetFile, 1)}.prompt(prompts[0]), tokens: 20,
		bounds: tandem.Bounds{Nodes: 8, Depth: 4, Width: 3}, sampling: tandem.Sampling{TopP: 1}}
	if _, err := r.generate(s); err != nil {
		t.Fatal(err)
	}
	ran := int(r.counters.Snapshot()["passes"] - before)
	if n := len(target.passes) + len(draft.passes); n != ran {
		t.Errorf("%d passes were told: %d ran", n, ran)
	}
	for name, p := range map[string]*pulse{"target": &target, "draft": &draft} {
		for i, c := range p.passes {
			if c.Rows < 1 || c.Time <= 0 && (i > 0 || name == "target") {
				t.Errorf("pass %d of the %s: %d rows in %v: want some of each", i, name, c.Rows, c.Time)
			}
		}
		p.mu.Lock()
		if p.open != 0 || p.finished < len(p.passes) {
			t.Errorf("%s: %d passes, %d of them open, %d operations finished", name, len(p.passes), p.open, p.finished)
		}
		was := p.finished
		p.mu.Unlock()
		testkit.Eventually(t, "an idle "+name+" shows that it lives", func() bool {
			p.mu.Lock()
			defer p.mu.Unlock()
			return p.finished > was+1
		})
	}
}
