// Package roster knows which drafters may draft: their names, when they come and go, and how each behaves.
package roster

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tandem-llm/tandem"
)

// Enlisted is a drafter that a gateway may ask, under the name that requests know it by.
type Enlisted struct {
	Name    string
	Drafter tandem.Drafter
	// Self, if set, makes it one of the target's self-drafts. Their guesses come with verdicts, so there is no Drafter, and Last does not
	// count. Where one source is asked, and the request names none, it comes after drafters and before those that are Last.
	Self *tandem.SelfDraft
	// Features says that it reads the target's hidden states (tandem.FeatureSource), so the verifier keeps those of its sessions.
	Features bool
	// Costs are what its passes cost by their rows, as it has measured: from one row to as many as read a prompt. nil: not measured.
	Costs []tandem.Cost
	// Window is the most tokens of a text that it reads, however long the text is; 0: all.
	Window int
	// Recycling makes it the drafter that drafts from earlier verdicts (tandem.Recycling): there is no Drafter.
	Recycling bool
	// Grammar makes it the drafter that drafts by the request's constraint (tandem.Grammar): there is no Drafter.
	Grammar bool
	Last    bool // where one source is asked, and the request names none, it is asked only if there is no other
}

const (
	offences   = 3                // garbage answers within offenceAge, after which nobody asks a drafter
	offenceAge = time.Minute      //
	firstAside = 30 * time.Second // the first time; doubles
	longAside  = 10 * time.Minute //
	mostNames  = 256              // names remembered, those that are gone included
)

// Roster lists the drafters that may draft. A name stays known after its drafter is gone, until mostNames are. So a request may name a
// drafter that is being restarted, and what a drafter did before its restart counts against it. Safe for concurrent use.
type Roster struct {
	version atomic.Uint64 // changes whenever a drafter is enlisted or dismissed

	mu      sync.Mutex
	records []*Record // in the order in which the names were first enlisted
}

// Record is what is known of a drafter under one name, also after its process has ended.
type Record struct {
	name    string
	Up      Recovery
	Conduct Conduct
	Pace    atomic.Int64 // a recent mean of the time of a Propose in some session, ns
	Silent  atomic.Bool  // its latest Propose in some session was not answered in time
	entry   *Entry       // nil: gone or draining
}

// Entry is a drafter from its Enlist to its Dismiss, or to the Enlist that replaces it. It does not change; equal pointers are one entry.
type Entry struct {
	Enlisted
	Record *Record
}

// Enlist puts a drafter on the roster, in place of the one of that name. To enlist the same drafter again keeps its Entry. Whoever waits
// for the drafter wakes.
func (r *Roster) Enlist(e Enlisted) {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := r.record(e.Name)
	if s == nil {
		if len(r.records) >= mostNames {
			r.records = slices.DeleteFunc(r.records, func(s *Record) bool { return s.entry == nil })
		}
		s = &Record{name: e.Name}
		r.records = append(r.records, s)
	}
	if s.entry == nil || !same(s.entry.Enlisted, e) {
		s.entry = &Entry{Enlisted: e, Record: s}
		r.version.Add(1)
	}
	s.Up.Set(false)
	s.Up.Set(true)
}

// same reports whether both are one drafter, so that to enlist it again changes nothing.
func same(a, b Enlisted) bool {
	if a.Self != nil && b.Self != nil {
		return *a.Self == *b.Self
	}
	return a.Self == b.Self && a.Recycling == b.Recycling && a.Grammar == b.Grammar && reflect.ValueOf(a.Drafter).Comparable() &&
		a.Drafter == b.Drafter
}

// Dismiss takes a drafter off the roster. Its name stays known; a name that is not enlisted is ignored.
func (r *Roster) Dismiss(name string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if s := r.record(name); s != nil && s.entry != nil {
		s.entry = nil
		s.Up.Set(false)
		r.version.Add(1)
	}
}

// record returns the record of a name, nil if it is not known. r.mu must be held.
func (r *Roster) record(name string) *Record {
	for _, s := range r.records {
		if s.name == name {
			return s
		}
	}
	return nil
}

// State is a hint that a drafter has come up or gone down. A name that is not known is ignored.
func (r *Roster) State(name string, up bool) {
	r.mu.Lock()
	s := r.record(name)
	r.mu.Unlock()
	if s != nil {
		s.Up.Set(up)
	}
}

// List returns the enlisted drafters among names, in the order of names, and the version of the roster for which this is true. If names is
// nil it returns all: first drafters, then the target's self-drafts, then those that are Last.
func (r *Roster) List(names []string) ([]*Entry, uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	var out []*Entry
	if names == nil {
		var own, last []*Entry
		for _, s := range r.records {
			switch {
			case s.entry == nil:
			case s.entry.Self != nil:
				own = append(own, s.entry)
			case s.entry.Last:
				last = append(last, s.entry)
			default:
				out = append(out, s.entry)
			}
		}
		out = append(append(out, own...), last...)
	}
	for _, n := range names {
		if s := r.record(n); s != nil && s.entry != nil {
			out = append(out, s.entry)
		}
	}
	return out, r.version.Load()
}

// Check returns an error of kind Invalid if one of names is not known, because no drafter of that name was enlisted.
func (r *Roster) Check(names []string) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, n := range names {
		if r.record(n) != nil {
			continue
		}
		var known []string
		for _, s := range r.records {
			known = append(known, s.name)
		}
		if known == nil {
			return tandem.Errorf("request", tandem.Invalid, "drafter %q is not there: no drafter is", n)
		}
		return &tandem.Error{Op: "request", Kind: tandem.Invalid, Field: "drafters",
			Err: fmt.Errorf("drafter %q is not there: want some of %s", n, strings.Join(known, ", "))}
	}
	return nil
}

// Conduct counts a drafter's offences. An offence is an answer with a tree or a figure that no drafter may send. The session that gets it
// gives the drafter up at once; after several offences in a short time all sessions do for a while. That time doubles with each
// repetition, until a good answer comes after it. Safe for concurrent use; the zero value has no offences.
type Conduct struct {
	marked atomic.Bool // anything below is set

	mu    sync.Mutex
	times []time.Time // of the latest offences
	term  time.Duration
	until time.Time
}

// Offend counts an offence, and reports whether all sessions put the drafter aside for it.
func (c *Conduct) Offend(now time.Time) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.marked.Store(true)
	c.times = append(slices.DeleteFunc(c.times, func(t time.Time) bool { return now.Sub(t) > offenceAge }), now)
	if len(c.times) < offences {
		return false
	}
	c.times = nil
	c.term = min(max(2*c.term, firstAside), longAside)
	c.until = now.Add(c.term)
	return true
}

// Aside reports whether the drafter is put aside now: no session is to ask it.
func (c *Conduct) Aside() bool {
	if !c.marked.Load() {
		return false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return time.Now().Before(c.until)
}

// Good notes a correct answer. If the drafter was put aside, and is no more, the next time will be short again.
func (c *Conduct) Good() {
	if !c.marked.Load() {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.term > 0 && !time.Now().Before(c.until) {
		c.term, c.until = 0, time.Time{}
		c.marked.Store(len(c.times) > 0)
	}
}

// Version changes whenever a drafter is enlisted or dismissed.
func (r *Roster) Version() uint64 { return r.version.Load() }
