package discovery

import (
	"context"
	"slices"
	"sync"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/services/drafting"
	"github.com/tandem-llm/tandem/services/shm"
	"github.com/tandem-llm/tandem/services/wire"
)

// Claimers implements pool.Claimer over all drafter processes of a table: a payload is claimed from the
// process that owns its segment. Safe for concurrent use; the zero value knows no process.
type Claimers struct {
	mu    sync.Mutex
	peers []*claims // in the order of Update
	work  sync.WaitGroup
}

// claims is one process's Claimer and the claims in progress.
type claims struct {
	Peer
	claimer *drafting.Claimer
	using   sync.WaitGroup // added to under Claimers.mu, while the process is in peers
}

// Update takes the peers that there are: use it as Config.Changed.
func (c *Claimers) Update(peers []Peer) {
	c.mu.Lock()
	defer c.mu.Unlock()
	var now []*claims
	for _, p := range peers {
		if i := slices.IndexFunc(c.peers, func(x *claims) bool { return x.Conn == p.Conn }); i >= 0 {
			c.peers[i].Peer = p
			now = append(now, c.peers[i])
			continue
		}
		now = append(now, &claims{Peer: p, claimer: drafting.NewClaimer(drafting.NewClient(p.Conn, ""))})
	}
	old := c.peers
	c.peers = now
	for _, x := range old {
		if !slices.Contains(now, x) {
			c.work.Go(func() {
				x.using.Wait()
				x.claimer.Close()
			})
		}
	}
}

// Close forgets all processes and waits for the claims in progress. Close it before the table, whose
// connections it uses.
func (c *Claimers) Close() {
	c.Update(nil)
	c.work.Wait()
}

// Claim implements pool.Claimer.Claim: the process that announced h's segment is asked; if none did, each
// that has a drafter of that name, or has not told its drafters.
func (c *Claimers) Claim(ctx context.Context, drafter string, h shm.Handle) ([]byte, error) {
	asked := c.owners(drafter, h)
	defer func() {
		for _, p := range asked {
			p.using.Done()
		}
	}()
	err := tandem.Errorf(op, tandem.Unavailable, "drafter %.210q, whose segment is %016x, is not known", drafter, h.Segment)
	for _, p := range asked {
		var payload []byte
		if payload, err = p.claimer.Claim(ctx, drafter, h); tandem.KindOf(err) != tandem.Stale && tandem.KindOf(err) != tandem.Unavailable {
			return payload, err
		}
	}
	return nil, err
}

// owners returns who may own h, each marked as in use.
func (c *Claimers) owners(drafter string, h shm.Handle) (out []*claims) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if i := slices.IndexFunc(c.peers, func(p *claims) bool { return p.Segment == h.Segment }); i >= 0 {
		out = c.peers[i : i+1 : i+1]
	} else {
		for _, p := range c.peers {
			if len(p.Drafters) == 0 || slices.ContainsFunc(p.Drafters, func(d wire.Drafter) bool { return d.Name == drafter }) {
				out = append(out, p)
			}
		}
	}
	for _, p := range out {
		p.using.Add(1)
	}
	return out
}
