// Package enlist decides which of the processes that there are a gateway works with: which drafters it may ask, and what
// it is told of its verifier. How the processes are found and reached is not its business.
package enlist

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/gateway"
	"github.com/tandem-llm/tandem/text/token"
)

// Process is a process of drafters.
type Process struct {
	Addr     string
	Instance uint64    // another one at each start; 0: it was never heard, only configured
	Drafters []Drafter // empty while a configured process has not told them
	Link     Link
	Up       bool // it can be reached
	Draining bool // it takes no new work
}

// Drafter is what a process tells of one of its drafters.
type Drafter struct {
	Name        string          // within the process
	Model       string          // "" for none
	Vocab       int             // size of the vocabulary; 0: it takes any
	Fingerprint string          // of the vocabulary; "": it takes any
	Identity    tandem.Identity // of what computes its drafts; "" for none
	Features    bool            // it reads hidden states of the target
}

// Link is a connection to a process. Equal links (==) are the same connection.
type Link interface {
	// Drafter returns the drafter that its process knows by a name, for a gateway whose requests know it as enlisted.
	Drafter(name, enlisted string) tandem.Drafter
	// Vocabulary fetches what a drafter's tokens mean, the first most of them; Size may be left out, and Tokenizer is empty if
	// the process is too old to tell. Errors: Unavailable, Deadline and Canceled mean that it may be asked again.
	Vocabulary(ctx context.Context, name string, most int) (token.Listing, error)
	// Target tells a drafter what the target's tokens mean, so that it translates: file is what Config.Tokenizer returned. Errors:
	// Unsupported if it cannot; Unavailable, Deadline and Canceled mean that it may be told again.
	Target(ctx context.Context, name, fingerprint string, file []byte) error
}

// Gateway is the part of a gateway that takes drafters.
type Gateway interface {
	Enlist(gateway.Enlisted)
	Dismiss(name string)
	DrafterState(name string, up bool)
}

// Config is what NewMembers needs.
type Config struct {
	Gateway     Gateway
	Vocab       *token.Vocab // the target's
	Fingerprint string       // of Vocab, as drafters tell theirs
	Counters    *tandem.Counters
	Log         *slog.Logger
	// Compared are the addresses of processes whose vocabularies have been compared already, by whoever started both: what
	// differs without harm is not told again.
	Compared []string
	Taken    []string // names of drafters that the gateway has without a process
	// Tokenizer returns a GGUF file of the target's tokenizer, for drafters of other vocabularies; nil: they are refused.
	Tokenizer func() ([]byte, error)
}

// Members keeps a gateway's drafters as a table of processes says that they are.
//
//  1. A drafter is enlisted when its process can be reached, does not drain, and speaks the target's
//     vocabulary; it is dismissed when its process drains or is gone, or it is no longer in it.
//  2. Its name is the one in its process. If an enlisted one, one of Config.Taken or one of the target's own
//     ways has that already, "#2" is added, or the next
//     number that is free; while it is enlisted it keeps its name, whatever becomes of the others.
//  3. One that can neither speak the vocabulary nor translate is counted and logged once in its process's life. One that speaks it, but
//     with other tokens beside it, is logged once too.
//  4. One whose ids mean other texts is told the target's vocabulary, once in its process's life, and translates. That is logged once.
//  5. So is one that draws by another version of the arithmetic than the target: it guesses less often right, and is used.
//
// Safe for concurrent use, but for Update, which has one caller.
type Members struct {
	cfg Config

	ctx  context.Context // of work
	end  context.CancelFunc
	work sync.WaitGroup // comparing vocabularies

	mu        sync.Mutex // held by Update and refresh, and for reading
	processes []Process
	here      map[place]*enlisted
	judged    map[place]*verdict // of those whose vocabulary is not known by its fingerprint
	target    tandem.Identity    // of the verifier; "" while it is not known
	ways      []string           // of its target, which requests may name
	warned    map[place]warning  // of drafters of another arithmetic
}

// place is a drafter in a process.
type place struct{ addr, name string }

// enlisted is a drafter that the gateway has.
type enlisted struct {
	name      string
	link      Link
	up        bool
	translate bool // its tokens mean other texts than the target's
}

// NewMembers returns an empty table. The caller must Close it, after the last Update.
func NewMembers(c Config) *Members {
	m := &Members{cfg: c, here: map[place]*enlisted{}, judged: map[place]*verdict{}, warned: map[place]warning{}}
	m.ctx, m.end = context.WithCancel(context.Background())
	return m
}

// Close ends what the table does beside its updates.
func (m *Members) Close() {
	m.end()
	m.work.Wait()
}

// Update takes the processes that there are, all of them, whenever one of them has changed.
func (m *Members) Update(processes []Process) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.processes = processes
	m.refresh()
}

// refresh enlists and dismisses as the processes, and what is known of them, have it. m.mu is held.
func (m *Members) refresh() {
	wanted := map[place]bool{}
	for _, p := range m.processes {
		for _, d := range p.Drafters {
			at := place{p.Addr, d.Name}
			if wanted[at] = !p.Draining && (m.here[at] != nil || p.Up) && m.speaks(p, d); !wanted[at] {
				continue
			}
			m.enter(at, p, d)
			m.warn(at, p, d)
		}
	}
	for at, e := range m.here {
		if !wanted[at] {
			delete(m.here, at)
			m.cfg.Counters.Add("drafters.dismissed", 1)
			m.cfg.Gateway.Dismiss(e.name)
		}
	}
	for at := range m.judged {
		if _, there := wanted[at]; !there {
			delete(m.judged, at)
		}
	}
	for at := range m.warned {
		if _, there := wanted[at]; !there {
			delete(m.warned, at)
		}
	}
}

// enter enlists the drafter at a place, or tells that its process came or went.
func (m *Members) enter(at place, p Process, d Drafter) {
	e := m.here[at]
	translate := m.translates(at, d)
	if e == nil || e.link != p.Link || e.translate != translate {
		var name string
		if e != nil {
			name = e.name
		} else {
			name = m.free(at.name)
		}
		e = &enlisted{name: name, link: p.Link, up: true, translate: translate}
		m.here[at] = e
		m.cfg.Counters.Add("drafters.enlisted", 1)
		drafter := p.Link.Drafter(at.name, name)
		if translate {
			drafter = translating{drafter}
		}
		m.cfg.Gateway.Enlist(gateway.Enlisted{Name: name, Drafter: drafter, Features: d.Features})
	}
	if e.up != p.Up {
		e.up = p.Up
		m.cfg.Gateway.DrafterState(e.name, p.Up)
	}
}

// free returns name, with a number if it is taken.
func (m *Members) free(name string) string {
	taken := map[string]bool{}
	for _, name := range append(tandem.SelfDrafts(), m.cfg.Taken...) {
		taken[name] = true
	}
	for _, e := range m.here {
		taken[e.name] = true
	}
	out := name
	for n := 2; taken[out]; n++ {
		out = fmt.Sprintf("%s#%d", name, n)
	}
	return out
}

// Listed is a process of drafters as a gateway sees it.
type Listed struct {
	Process
	Used int // of its drafters that are enlisted and can be reached
}

// Models names the models in the process.
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

// Processes returns the processes that are known.
func (m *Members) Processes() (out []Listed) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, p := range m.processes {
		x := Listed{Process: p}
		for _, d := range p.Drafters {
			if e := m.here[place{p.Addr, d.Name}]; e != nil && e.up {
				x.Used++
			}
		}
		out = append(out, x)
	}
	return out
}

// Names returns the drafters that requests may name and that can be reached, ascending.
func (m *Members) Names() (out []string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	out = append(append(out, m.cfg.Taken...), m.ways...)
	for _, e := range m.here {
		if e.up {
			out = append(out, e.name)
		}
	}
	slices.Sort(out)
	return out
}
