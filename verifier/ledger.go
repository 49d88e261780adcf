package verifier

import (
	"strings"
	"time"

	"github.com/tandem-llm/tandem"
)

const (
	fewGarbage   = 3           // garbage trees within garbageTime, after which a drafter is distrusted
	garbageTime  = time.Minute // how long the drafter is distrusted
	mostDrafters = 64          // names that the ledger keeps apart
	longestName  = 64          // bytes of a name that tell it from another
	otherNames   = "others"    // counts further names, and names that do not fit into a counter's
)

// ledger remembers which drafters sent garbage: invalid trees, tokens outside the vocabulary, another root
// than the committed token. Each such tree is answered as Invalid, so that the gateway can put its drafter aside; that
// costs the session a second ticket for the round. After the third within a minute, tickets of that drafter's name are
// verified with the root alone for a minute, whatever their tree: rounds go on at the speed of plain decoding, even with
// a gateway that has not yet noticed, and no tree is read.
//
// It is here and not only in the gateway because the trees of all gateways and sessions meet here. The
// zero value, with counters, is an empty ledger. For one goroutine.
type ledger struct {
	counters *tandem.Counters
	drafters map[string]*blamed
}

// blamed is one drafter's page.
type blamed struct {
	times [fewGarbage]time.Time // of its last garbage, the last first
	until time.Time             // it is distrusted until then
}

// blame notes a garbage tree and counts it as tickets.garbage_from.NAME.
func (l *ledger) blame(name string, now time.Time) {
	name = key(name)
	b := l.drafters[name]
	if b == nil && len(l.drafters) >= mostDrafters {
		l.counters.Add("tickets.garbage_from."+otherNames, 1)
		return
	}
	if b == nil {
		if l.drafters == nil {
			l.drafters = map[string]*blamed{}
		}
		b = &blamed{}
		l.drafters[name] = b
	}
	l.counters.Add("tickets.garbage_from."+label(name), 1)
	copy(b.times[1:], b.times[:])
	b.times[0] = now
	if oldest := b.times[fewGarbage-1]; !oldest.IsZero() && now.Sub(oldest) <= garbageTime {
		b.until, b.times = now.Add(garbageTime), [fewGarbage]time.Time{}
	}
}

// distrusted reports whether the drafter of that name is distrusted now. One that sends garbage under ever
// new names never is: each of its trees is refused by itself.
func (l *ledger) distrusted(name string, now time.Time) bool {
	b := l.drafters[key(name)]
	return b != nil && now.Before(b.until)
}

func key(name string) string { return name[:min(len(name), longestName)] }

// label returns the name if it is fit to be part of a counter's.
func label(name string) string {
	if strings.ContainsFunc(name, func(r rune) bool { return r <= ' ' || r > '~' }) {
		return otherNames
	}
	return name
}
