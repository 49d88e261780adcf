package main

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/engine/token"
	"github.com/tandem-llm/tandem/gateway"
	"github.com/tandem-llm/tandem/services/discovery"
	"github.com/tandem-llm/tandem/services/drafting"
	"github.com/tandem-llm/tandem/services/pool"
	"github.com/tandem-llm/tandem/services/wire"
)

// enlister is the part of a gateway that takes drafters.
type enlister interface {
	Enlist(gateway.Member)
	Dismiss(name string)
	DrafterState(name string, up bool)
}

// members keeps a gateway's drafters as a table of processes says that they are.
//
//  1. A drafter is enlisted when its process can be reached, does not drain, and speaks the target's
//     vocabulary; it is dismissed when its process drains or is gone, or it is no longer in it.
//  2. Its name is the one in its process. If an enlisted one has that already, "#2" is added, or the next
//     number that is free; while it is enlisted it keeps its name, whatever becomes of the others.
//  3. One that does not speak the vocabulary is counted and logged once in its process's life.
type members struct {
	to     enlister
	vocab  *token.Vocab
	pool   *pool.Fallback
	events tandem.Events
	count  *tandem.Counters
	log    *slog.Logger

	mu     sync.Mutex // held by update, which one goroutine calls, and for reading
	peers  []discovery.Peer
	here   map[place]*enlisted
	judged map[place]verdict // of those whose vocabulary is not known by its fingerprint
}

// place is a drafter in a process.
type place struct{ addr, name string }

// enlisted is a drafter that the gateway has.
type enlisted struct {
	name string
	conn *grpc.ClientConn
	up   bool
}

// verdict is what became of a drafter of another vocabulary.
type verdict struct {
	instance    uint64
	fingerprint string
}

func newMembers(to enlister, vocab *token.Vocab, r *role, p *pool.Fallback) *members {
	return &members{to: to, vocab: vocab, pool: p, events: r.events, count: r.counters, log: r.log,
		here: map[place]*enlisted{}, judged: map[place]verdict{}}
}

// update takes the processes that there are: it is discovery.Config.Changed.
func (m *members) update(peers []discovery.Peer) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.peers = peers
	wanted := map[place]bool{}
	for _, p := range peers {
		for _, d := range p.Drafters {
			at := place{p.Addr, d.Name}
			if wanted[at] = !p.Draining && (m.here[at] != nil || p.Up) && m.speaks(p, d); !wanted[at] {
				continue
			}
			m.enter(at, p)
		}
	}
	for at, e := range m.here {
		if !wanted[at] {
			delete(m.here, at)
			m.count.Add("drafters.dismissed", 1)
			m.to.Dismiss(e.name)
		}
	}
	for at := range m.judged {
		if _, there := wanted[at]; !there {
			delete(m.judged, at)
		}
	}
}

// enter enlists the drafter at a place, or tells that its process came or went.
func (m *members) enter(at place, p discovery.Peer) {
	e := m.here[at]
	if e == nil || e.conn != p.Conn {
		var name string
		if e != nil {
			name = e.name
		} else {
			name = m.free(at.name)
		}
		e = &enlisted{name: name, conn: p.Conn, up: true}
		m.here[at] = e
		m.count.Add("drafters.enlisted", 1)
		m.to.Enlist(gateway.Member{Name: name, Drafter: &drafting.Detour{Drafter: drafting.NewClient(p.Conn, at.name), Name: name,
			Pool: m.pool, PoolUp: m.pool.PoolUp, Events: m.events}})
	}
	if e.up != p.Up {
		e.up = p.Up
		m.to.DrafterState(e.name, p.Up)
	}
}

// free returns name, with a number if it is taken.
func (m *members) free(name string) string {
	taken := map[string]bool{}
	for _, e := range m.here {
		taken[e.name] = true
	}
	out := name
	for n := 2; taken[out]; n++ {
		out = fmt.Sprintf("%s#%d", name, n)
	}
	return out
}

// speaks reports whether d's tokens are the target's.
func (m *members) speaks(p discovery.Peer, d wire.Drafter) bool {
	if d.Fingerprint == fingerprint(m.vocab.Fingerprint()) || d.Fingerprint == "" && d.Vocab == 0 {
		return true
	}
	at, now := place{p.Addr, d.Name}, verdict{p.Instance, d.Fingerprint}
	if m.judged[at] != now {
		m.judged[at] = now
		m.count.Add("drafters.other_vocabulary", 1)
		m.log.Warn("drafter is not used: it does not speak the target's vocabulary", "drafter", d.Name, "address", p.Addr, "difference", m.difference(p, d))
	}
	return false
}

// difference says where d's vocabulary differs from the target's.
func (m *members) difference(p discovery.Peer, d wire.Drafter) string {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	theirs, err := drafting.NewClient(p.Conn, d.Name).Vocabulary(ctx)
	if err != nil {
		return fmt.Sprintf("fingerprint %.50s there, %s here", d.Fingerprint, fingerprint(m.vocab.Fingerprint()))
	}
	for t := range min(len(theirs), m.vocab.Size()) {
		if ours := m.vocab.Piece(tandem.Token(t)); !bytes.Equal(theirs[t], []byte(ours)) {
			return fmt.Sprintf("token %d is %.80q there, %.80q here", t, theirs[t], ours)
		}
	}
	if len(theirs) != m.vocab.Size() {
		return fmt.Sprintf("%d tokens there, %d here", len(theirs), m.vocab.Size())
	}
	return "the same pieces, but special tokens, their types or merges differ"
}

// drafterProcess is a process of drafters as a gateway sees it.
type drafterProcess struct {
	discovery.Peer
	used int // of its drafters that are enlisted and can be reached
}

// models names the models in the process.
func (p drafterProcess) models() string {
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

// processes returns the processes that are known.
func (m *members) processes() (out []drafterProcess) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, p := range m.peers {
		x := drafterProcess{Peer: p}
		for _, d := range p.Drafters {
			if e := m.here[place{p.Addr, d.Name}]; e != nil && e.up {
				x.used++
			}
		}
		out = append(out, x)
	}
	return out
}

// names returns the drafters that requests may name and that can be reached, ascending.
func (m *members) names() (out []string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, e := range m.here {
		if e.up {
			out = append(out, e.name)
		}
	}
	slices.Sort(out)
	return out
}
