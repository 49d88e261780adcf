// Package enlist decides which drafters a gateway may ask, and tells it about its verifier. Its callers find the processes and connect to
// them.
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

// Process is a process with drafters in it.
type Process struct {
	Addr     string
	Instance uint64    // differs at each start; 0: it has never announced itself, only the configuration names it
	Drafters []Drafter // empty until the process has announced itself
	Link     Link
	Up       bool // it is connected
	Draining bool // it takes no new work
}

// Drafter is what a process announces about one of its drafters.
type Drafter struct {
	Name        string          // within the process
	Model       string          // "" for none
	Vocab       int             // size of the vocabulary; 0: it takes any
	Fingerprint string          // of the vocabulary; "": it takes any
	Identity    tandem.Identity // of what computes its drafts; "" for none
	Features    bool            // it reads hidden states of the target
	Costs       []tandem.Cost   // of its passes, as it measured them; nil: it did not
	Window      int             // tokens of a text that it reads at most; 0: all
}

// Link is a connection to a process. Equal links (==) are the same connection.
type Link interface {
	// Drafter returns the drafter with a name in the process. enlisted is its name in the gateway.
	Drafter(name, enlisted string) tandem.Drafter
	// Vocabulary fetches the texts of a drafter's first tokens, at most most of them. Size may be missing; Tokenizer is empty if the
	// process is of a version that does not send it. After errors of kind Unavailable, Deadline and Canceled it may be asked again.
	Vocabulary(ctx context.Context, name string, most int) (token.Listing, error)
	// Target sends a drafter the target's tokenizer, as Config.Tokenizer returned it, so that it translates. Unsupported: it cannot.
	// After errors of kind Unavailable, Deadline and Canceled it may be sent again.
	Target(ctx context.Context, name, fingerprint string, file []byte) error
}

// Gateway is the part of a gateway that takes drafters.
type Gateway interface {
	Enlist(gateway.Enlisted)           // sessions may ask it from now on
	Dismiss(name string)               // it is gone for good: sessions drop it
	DrafterState(name string, up bool) // whether it answers now
}

// Config is what NewMembers needs.
type Config struct {
	Gateway     Gateway
	Vocab       *token.Vocab // the target's
	Fingerprint string       // of Vocab
	Counters    *tandem.Counters
	Log         *slog.Logger
	// Compared lists the addresses of processes whose vocabularies the program that started them has compared already. Harmless
	// differences of those are not logged again.
	Compared []string
	Taken    []string // names of drafters inside the gateway's own process
	// Tokenizer returns a GGUF file of the target's tokenizer, for drafters of other vocabularies; nil: they are refused.
	Tokenizer func() ([]byte, error)
}

// Members enlists and dismisses a gateway's drafters, as the list of processes in Update says.
//
//  1. A drafter is enlisted when its process is connected and does not drain, and its vocabulary is the target's or it translates. It is
//     dismissed when its process drains or is gone, or the drafter is no longer in it.
//  2. Its name is the one in its process. If an enlisted drafter, one of Config.Taken or a self-draft already has that name, it gets "#2",
//     or the next number that is free. It keeps its name while it is enlisted.
//  3. A drafter whose token ids mean other texts than the target's is sent the target's vocabulary, once for each start of its process,
//     and translates. If it cannot, it is not used. Both are logged once.
//  4. A drafter with further tokens beside the target's is used, and logged once.
//  5. A drafter that computes by another version of the arithmetic is used, and logged once: fewer of its tokens will be right.
//
// Safe for concurrent use, except Update, which has one caller.
type Members struct {
	cfg Config

	ctx  context.Context // of work
	end  context.CancelFunc
	work sync.WaitGroup // goroutines that compare vocabularies

	mu         sync.Mutex // for all below
	processes  []Process
	enlisted   map[key]*enlisted
	compared   map[key]*comparison // for vocabularies of another fingerprint
	target     tandem.Identity     // of the verifier; "" while it is not known
	selfDrafts []string            // of its target, which requests may name
	warned     map[key]warning     // about drafters of another arithmetic
}

// key is a drafter in a process.
type key struct{ addr, name string }

// enlisted is a drafter that the gateway may ask.
type enlisted struct {
	name      string
	link      Link
	up        bool
	translate bool // its tokens mean other texts than the target's
}

// NewMembers returns Members without drafters. The caller must Close it, after the last Update.
func NewMembers(c Config) *Members {
	m := &Members{cfg: c, enlisted: map[key]*enlisted{}, compared: map[key]*comparison{}, warned: map[key]warning{}}
	m.ctx, m.end = context.WithCancel(context.Background())
	return m
}

// Close ends the goroutines that compare vocabularies.
func (m *Members) Close() {
	m.end()
	m.work.Wait()
}

// Update takes the list of all processes, whenever one of them has changed.
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
	for at := range m.warned {
		if _, there := wanted[at]; !there {
			delete(m.warned, at)
		}
	}
}

// enter enlists a drafter, or tells the gateway that the drafter's process came or went. m.mu must be held.
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
		e = &enlisted{name: name, link: p.Link, up: true, translate: translate}
		m.enlisted[at] = e
		m.cfg.Counters.Add("drafters.enlisted", 1)
		drafter := p.Link.Drafter(at.name, name)
		if translate {
			drafter = translating{drafter}
		}
		m.cfg.Gateway.Enlist(gateway.Enlisted{Name: name, Drafter: drafter, Features: d.Features, Costs: d.Costs, Window: d.Window})
	}
	if e.up != p.Up {
		e.up = p.Up
		m.cfg.Gateway.DrafterState(e.name, p.Up)
	}
}

// free returns name, with a number if it is taken.
func (m *Members) free(name string) string {
	taken := map[string]bool{}
	for _, name := range append(append(tandem.SelfDrafts(), tandem.Recycling), m.cfg.Taken...) {
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

// Listed is a process and how much of it the gateway uses.
type Listed struct {
	Process
	Used int // drafters that are enlisted and connected
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

// Processes returns the list of the latest Update.
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

// Names returns the names, ascending, of the drafters and self-drafts that requests may name and that are connected.
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
