// Package enlist decides which drafters a gateway may ask, and tells it about its verifier. Its callers find the processes and connect to
// them.
package enlist

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/gateway"
)

// Members enlists and dismisses a gateway's drafters, as the list of processes in Update says.
//
//  1. A drafter is enlisted when its process is connected and does not drain, and its vocabulary is the target's or it translates. It is
//     dismissed when its process drains or is gone, or the drafter is no longer in it.
//  2. Its name is the one in its process. If an enlisted drafter, one of MembersConfig.Taken or a self-draft already has that name, it gets
//     "#2", or the next number that is free. It keeps its name while it is enlisted.
//  3. A drafter whose token ids mean other texts than the target's is sent the target's vocabulary, once for each start of its process,
//     and translates. If it cannot, it is not used. Both are logged once.
//  4. A drafter with further tokens beside the target's is used, and logged once.
//  5. A drafter that computes by another version of the arithmetic is used, and logged once: fewer of its tokens will be right.
//
// Safe for concurrent use, except Update, which has one caller.
type Members struct {
	cfg MembersConfig
	end context.CancelFunc // of the goroutines that compare vocabularies

	mu         sync.Mutex // for all below
	processes  []Process
	enlisted   map[key]*enlisted
	selfDrafts []string // of the verifier's target, which requests may name
	arithmetic
	vocabularies
}

// enlisted is a drafter that the gateway may ask.
type enlisted struct {
	name      string
	link      Link
	up        bool
	translate bool // its tokens mean other texts than the target's
	costs     []tandem.Cost
}

// NewMembers returns Members without drafters. The caller must Close it, after the last Update.
func NewMembers(c MembersConfig) *Members {
	m := &Members{cfg: c, enlisted: map[key]*enlisted{}}
	m.arithmetic = arithmetic{counters: c.Counters, log: c.Log, warned: map[key]warning{}}
	m.vocabularies = vocabularies{cfg: &m.cfg, mu: &m.mu, compared: map[key]*comparison{}, judged: m.refresh}
	m.ctx, m.end = context.WithCancel(context.Background())
	return m
}

// Close cancels the goroutines that compare vocabularies, and waits for their end.
func (m *Members) Close() {
	m.end()
	m.work.Wait()
}

// TargetIs sets the verifier's identity and the names of its target's self-drafts. Members keeps the slice: do not change it. Drafters
// that compute by another version of the arithmetic are logged: rule 5 of Members.
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

// Update takes the list of all processes, and enlists and dismisses drafters by it. Call it whenever a process has changed, and do not
// change the list afterwards.
func (m *Members) Update(processes []Process) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.processes = processes
	m.refresh()
}

// refresh enlists and dismisses drafters by the latest list of processes and what is known of them. m.mu must be held.
func (m *Members) refresh() {
	wanted := map[key]bool{}
	for _, p := range m.processes {
		for _, d := range p.Drafters {
			at := key{p.Addr, d.Name}
			if wanted[at] = !p.Draining && (m.enlisted[at] != nil || p.Up) && m.usable(p, d); !wanted[at] {
				continue
			}
			m.enter(at, p, d)
			m.warn(at, p, d)
		}
	}
	for at, e := range m.enlisted {
		if !wanted[at] {
			delete(m.enlisted, at)
			m.cfg.Counters.Add("drafters.dismissed", 1)
			m.cfg.Gateway.Dismiss(e.name)
		}
	}
	for at := range m.compared {
		if _, there := wanted[at]; !there {
			delete(m.compared, at)
		}
	}
	m.keep(wanted)
}

// enter enlists a drafter, or tells the gateway that the drafter's process came or went, or what it has measured. m.mu must be held.
func (m *Members) enter(at key, p Process, d Drafter) {
	e := m.enlisted[at]
	translate := m.translates(at, d)
	if e == nil || e.link != p.Link || e.translate != translate {
		var name string
		if e != nil {
			name = e.name
		} else {
			name = m.free(at.name)
		}
		e = &enlisted{name: name, link: p.Link, up: true, translate: translate, costs: d.Costs}
		m.enlisted[at] = e
		m.cfg.Counters.Add("drafters.enlisted", 1)
		drafter := p.Link.Drafter(at.name, name)
		if translate {
			drafter = translating{drafter}
		}
		m.cfg.Gateway.Enlist(gateway.Enlisted{Name: name, Drafter: drafter, Features: d.Features, Costs: d.Costs, Window: d.Window})
	}
	if !slices.Equal(e.costs, d.Costs) {
		e.costs = d.Costs
		m.cfg.Gateway.PassCosts(e.name, d.Costs)
	}
	if e.up != p.Up {
		e.up = p.Up
		m.cfg.Gateway.DrafterState(e.name, p.Up)
	}
}

// free returns name, with a number if it is taken.
func (m *Members) free(name string) string {
	taken := map[string]bool{}
	for _, name := range append(append(tandem.SelfDrafts(), tandem.Recycling, tandem.Grammar), m.cfg.Taken...) {
		taken[name] = true
	}
	for _, e := range m.enlisted {
		taken[e.name] = true
	}
	out := name
	for n := 2; taken[out]; n++ {
		out = fmt.Sprintf("%s#%d", name, n)
	}
	return out
}

// Listed is a process, and how many of its drafters the gateway uses.
type Listed struct {
	Process
	Used int // drafters that are enlisted and connected
}

// Models returns the names of the models in the process, separated by commas. A drafter without a model counts with its own name.
func (p Listed) Models() string {
	var names []string
	for _, d := range p.Drafters {
		if d.Model != "" {
			names = append(names, d.Model)
		} else {
			names = append(names, d.Name)
		}
	}
	return strings.Join(names, ", ")
}

// Processes returns the processes of the latest Update, in its order. The slice is the caller's.
func (m *Members) Processes() (out []Listed) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, p := range m.processes {
		x := Listed{Process: p}
		for _, d := range p.Drafters {
			if e := m.enlisted[key{p.Addr, d.Name}]; e != nil && e.up {
				x.Used++
			}
		}
		out = append(out, x)
	}
	return out
}

// Names returns the names of all drafters and self-drafts that requests may name and that are connected, ascending.
func (m *Members) Names() (out []string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	out = append(append(out, m.cfg.Taken...), m.selfDrafts...)
	for _, e := range m.enlisted {
		if e.up {
			out = append(out, e.name)
		}
	}
	slices.Sort(out)
	return out
}
