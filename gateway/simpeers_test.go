package gateway

import (
	"math"
	"slices"
	"time"

	"github.com/tandem-llm/tandem"
)

const (
	simGateways, simVerifiers, simDrafters, simClients = 2, 3, 3, 4

	simNodes      = 8
	simMemory     = 4000
	simIdle       = time.Minute     // after which a verifier or drafter drops a session that nothing was asked for
	simDisconnect = 3 * time.Second // after which it drops the sessions of a gateway without a connection
)

// simNext is the truth.
func simNext(weights, seed uint64, hash tandem.PrefixHash, n int) tandem.Token {
	x := mix(uint64(hash) ^ seed ^ weights<<32 ^ uint64(n)<<48)
	if x%61 == 0 {
		return eos
	}
	return 2 + tandem.Token(x>>20%256)
}

func (w *sim) weightsOf(i tandem.Identity) uint64 {
	if i == "b" {
		return 2
	}
	return 1
}

// simHeld is a session in a verifier or a drafter.
type simHeld struct {
	id     tandem.SessionID
	owner  [2]int // number and instance of its gateway
	epoch  tandem.Epoch
	seed   uint64
	tokens []tandem.Token
	hash   tandem.PrefixHash
	last   tandem.Verdict
	used   time.Duration
}

func simFind(all []*simHeld, id tandem.SessionID) *simHeld {
	for _, h := range all {
		if h.id == id {
			return h
		}
	}
	return nil
}

func simDrop(all []*simHeld, id tandem.SessionID) []*simHeld {
	return slices.DeleteFunc(all, func(h *simHeld) bool { return h.id == id })
}

// disown drops what belongs to a gateway that is gone.
func disown(all []*simHeld, owner [2]int) []*simHeld {
	return slices.DeleteFunc(all, func(h *simHeld) bool { return h.owner == owner })
}

// simVerifier is a verifier: the youngest session is last in held.
type simVerifier struct {
	*simNode
	identity      tandem.Identity
	weights       uint64
	held          []*simHeld
	crowded       []tandem.SessionID
	draining      bool
	full, garbage float64
	memory        int
}

func (v *simVerifier) swap() {
	if v.identity == "a" {
		v.identity, v.weights = "b", 2
	} else {
		v.identity, v.weights = "a", 1
	}
}

// place chooses the verifier for a session: one that is connected, of its identity if there is one, and the same as before if that will do.
func (w *sim) place(s *simSession) *simVerifier {
	var good, any []*simVerifier
	for _, v := range w.verifiers {
		if v.down || v.draining || w.link(s.g.simNode, v.simNode).cut {
			continue
		}
		if any = append(any, v); !s.held || v.identity == s.identity {
			good = append(good, v)
		}
	}
	switch {
	case slices.Contains(good, s.verifier) && w.chance(0.8):
		return s.verifier
	case len(good) > 0:
		any = good
	case len(any) == 0:
		any = w.verifiers
	}
	v := any[w.rng.IntN(len(any))]
	if old := s.verifier; old != nil && old != v {
		w.close(s.g, old.simNode, s.id, 30, func() { old.close(s.id) })
	}
	return v
}

func (v *simVerifier) tokens() (n int) {
	for _, h := range v.held {
		n += len(h.tokens)
	}
	return n
}

// open is an Open: it takes the time of a prefill, and is carried out even if nobody waits any more.
func (v *simVerifier) open(w *sim, s *simSession, epoch tandem.Epoch, tokens []tandem.Token, hash tandem.PrefixHash,
	answer func(tandem.Opened, error)) {
	want, held, g, id, seed := s.identity, s.held, s.g, s.id, s.seed
	owner := [2]int{g.number, g.instance}
	w.after(5*time.Millisecond+w.upTo(20*time.Millisecond), v.simNode, "prefill", id, func() {
		old := simFind(v.held, id)
		switch {
		case v.draining:
			answer(tandem.Opened{}, unavailable("draining"))
		case held && want != v.identity:
			answer(tandem.Opened{}, tandem.OtherIdentity(id, want, v.identity))
		case old != nil && old.epoch > epoch:
			answer(tandem.Opened{}, tandem.Errorf("sim", tandem.Stale, "epoch %d is held", old.epoch))
		case v.tokens()+len(tokens) > v.memory:
			answer(tandem.Opened{}, tandem.Errorf("sim", tandem.Exhausted, "no memory"))
		default:
			v.close(id)
			v.held = append(v.held, &simHeld{id: id, owner: owner, epoch: epoch, seed: seed, tokens: slices.Clone(tokens), hash: hash,
				used: w.now})
			w.after(simIdle, v.simNode, "idle", id, func() { v.idle(w, id) })
			answer(tandem.Opened{Identity: v.identity}, nil)
		}
	})
}

func (v *simVerifier) idle(w *sim, id tandem.SessionID) {
	h := simFind(v.held, id)
	switch {
	case h == nil:
	case w.now-h.used >= simIdle:
		v.close(id)
	default:
		w.after(simIdle-(w.now-h.used), v.simNode, "idle", id, func() { v.idle(w, id) })
	}
}

func (v *simVerifier) close(id tandem.SessionID) {
	v.held = simDrop(v.held, id)
	v.crowded = slices.DeleteFunc(v.crowded, func(x tandem.SessionID) bool { return x == id })
}

// submit takes a ticket.
func (v *simVerifier) submit(w *sim, g *simGateway, t tandem.Ticket) error {
	if w.chance(v.full) {
		return tandem.Errorf("sim", tandem.Exhausted, "the pool is full")
	}
	w.after(50*time.Millisecond+w.upTo(100*time.Millisecond), v.simNode, "pass", t.Session, func() {
		a := v.verify(w, t)
		if w.chance(v.garbage) {
			a = spoiled(w, a)
		}
		w.send(v.simNode, g.simNode, false, "verdict", t.Session, func() { g.deliver(w, a) })
	})
	return nil
}

// verify answers a ticket by the exact rule.
func (v *simVerifier) verify(w *sim, t tandem.Ticket) tandem.Verdict {
	a := tandem.Verdict{Session: t.Session, Epoch: t.Epoch, Base: t.Base, Hash: t.Hash, Nodes: t.Tree.Len(), Batch: 1, Rows: t.Tree.Len()}
	h := simFind(v.held, t.Session)
	switch {
	case h == nil && slices.Contains(v.crowded, t.Session):
		a.Kind = tandem.Exhausted
	case h == nil:
		a.Kind = tandem.UnknownSession
	case h.epoch != t.Epoch:
		a.Kind = tandem.Stale
	case t.Tree.Validate(simNodes, vocabSize) != nil || t.Tree.Tokens[0] != h.root(t.Base):
		a.Kind = tandem.Invalid
	case t.Base == h.last.Base && t.Hash == h.last.Hash:
		return h.last
	case int(t.Base) != len(h.tokens) || t.Hash != h.hash:
		a.Kind = tandem.Stale
	default:
		h.used = w.now
		for v.tokens()+t.Tree.Len() > v.memory {
			youngest := v.held[len(v.held)-1]
			v.close(youngest.id)
			if v.crowded = append(v.crowded, youngest.id); youngest == h {
				a.Kind = tandem.Exhausted
				return a
			}
		}
		v.accept(h, t, &a)
	}
	return a
}

func (h *simHeld) root(base tandem.Position) tandem.Token {
	if base < 1 || int(base) > len(h.tokens) {
		return -1
	}
	return h.tokens[base-1]
}

func (v *simVerifier) accept(h *simHeld, t tandem.Ticket, a *tandem.Verdict) {
	for node := int32(0); node >= 0; {
		x := simNext(v.weights, h.seed, h.hash, len(h.tokens))
		h.tokens, h.hash = append(h.tokens, x), h.hash.Add(x)
		a.Tokens = append(a.Tokens, x)
		at := node
		node = -1
		for i := at + 1; int(i) < t.Tree.Guesses() && x != eos; i++ {
			if t.Tree.Parents[i] == at && t.Tree.Tokens[i] == x {
				node = i
				a.Path = append(a.Path, i)
				break
			}
		}
	}
	h.last = *a
}

// spoiled returns what no verifier may say. Its tokens are still those of the truth, because nobody could tell others apart.
func spoiled(w *sim, a tandem.Verdict) tandem.Verdict {
	a.Tokens, a.Path = slices.Clone(a.Tokens), slices.Clone(a.Path)
	switch w.rng.IntN(8) {
	case 0:
		a.Epoch++
	case 1:
		a.Base++
	case 2:
		a.Hash ^= 1
	case 3:
		a.Tokens = append(a.Tokens, 5)
	case 4:
		a.Tokens = nil
	case 5:
		a.Path = append(a.Path, simNodes)
		a.Tokens = append(a.Tokens, 5)
	case 6:
		for i := range a.Tokens {
			a.Tokens[i] = vocabSize
		}
	case 7:
		a.Kind = passing[w.rng.IntN(len(passing))]
	}
	return a
}

func (w *sim) killVerifier(v *simVerifier) {
	w.kill(v.simNode)
	v.held, v.crowded = nil, nil
}

// startVerifier starts a verifier again. Gateways notice that, if they have a connection and are lucky.
func (w *sim) startVerifier(v *simVerifier) {
	if !v.down {
		return
	}
	v.down = false
	for _, g := range w.gateways {
		if w.link(v.simNode, g.simNode).cut || w.link(g.simNode, v.simNode).cut || w.chance(0.2) {
			continue
		}
		w.after(w.upTo(100*time.Millisecond), g.simNode, "verifier is up", 0, func() {
			for _, s := range slices.Clone(g.sessions) {
				switch {
				case s.state == "waiting for a verifier":
					s.open()
				case s.state == "waiting" && s.verifier == v:
					s.carry(s.round.VerifierUp(g.time(w)))
				}
			}
		})
	}
}

// deliver is Gateway.Deliver.
func (g *simGateway) deliver(w *sim, v tandem.Verdict) {
	s := g.session(v.Session)
	if s == nil {
		return
	}
	if w.planted == "any verdict" {
		v.Epoch, v.Base, v.Hash = s.box.asked.Epoch, s.box.asked.Base, s.box.asked.Hash
	}
	if s.box.offer(v) == "" {
		s.answered()
	}
}

// simDrafter is a drafter process.
type simDrafter struct {
	*simNode
	salt    uint64
	held    []*simHeld
	slow    time.Duration
	garbage float64
}

func (d *simDrafter) open(w *sim, g *simGateway, id tandem.SessionID, epoch tandem.Epoch) {
	d.close(id)
	d.held = append(d.held, &simHeld{id: id, owner: [2]int{g.number, g.instance}, epoch: epoch, used: w.now})
	w.after(simIdle, d.simNode, "idle", id, func() { d.idle(w, id) })
}

func (d *simDrafter) idle(w *sim, id tandem.SessionID) {
	h := simFind(d.held, id)
	switch {
	case h == nil:
	case w.now-h.used >= simIdle:
		d.close(id)
	default:
		w.after(simIdle-(w.now-h.used), d.simNode, "idle", id, func() { d.idle(w, id) })
	}
}

func (d *simDrafter) close(id tandem.SessionID) { d.held = simDrop(d.held, id) }

// propose drafts, and puts the ticket if the tree is not to be returned.
func (d *simDrafter) propose(w *sim, s *simSession, ask proposalOf, inPool bool, answer func(tandem.Proposed, error)) {
	g, v := s.g, s.verifier
	h := simFind(d.held, ask.session)
	if h == nil || h.epoch != ask.Epoch {
		answer(tandem.Proposed{}, tandem.Errorf("sim", tandem.UnknownSession, "not held"))
		return
	}
	h.used = w.now
	w.after(2*time.Millisecond+w.upTo(10*time.Millisecond)+w.upTo(d.slow), d.simNode, "drafts", ask.session, func() {
		tree := d.draft(w, ask)
		_, depth := tree.Depths()
		got := tandem.Proposed{Nodes: tree.Len(), Depth: depth, Busy: time.Millisecond, Tree: tree}
		put := inPool
		if w.chance(d.garbage) {
			got, tree, put = d.spoil(w, got, inPool)
		}
		if put {
			t := tandem.Ticket{Session: ask.session, Epoch: ask.Epoch, Base: ask.Base, Hash: ask.Hash, Tree: tree, Drafter: d.name}
			w.send(d.simNode, v.simNode, false, "drafter's ticket", ask.session, func() { _ = v.submit(w, g, t) })
		}
		answer(got, nil)
	})
}

// draft returns a tree in which the truth is now and then.
func (d *simDrafter) draft(w *sim, ask proposalOf) tandem.Tree {
	t, hash, at := tandem.Root(ask.root), ask.Hash, int32(0)
	t.LogProbs = []float32{0}
	for depth := 0; depth < ask.bounds.Depth && t.Len() < ask.bounds.Nodes; depth++ {
		right := simNext(ask.weights, ask.seed, hash, int(ask.Base)+depth)
		x := mix(uint64(hash) + d.salt)
		if x%4 == 0 {
			right = 2 + (right+1)%256
		}
		t.Tokens, t.Parents, t.LogProbs = append(t.Tokens, right), append(t.Parents, at), append(t.LogProbs, float32(-depth-1))
		next := int32(t.Len() - 1)
		if x%3 == 0 && t.Len() < ask.bounds.Nodes {
			t.Tokens, t.Parents = append(t.Tokens, 2+(right+7)%256), append(t.Parents, at)
			t.LogProbs = append(t.LogProbs, float32(-depth-2))
		}
		at, hash = next, hash.Add(right)
	}
	return t
}

// spoil returns what no drafter may say: to the gateway, to the verifier, or that it has put a ticket which it has not.
func (d *simDrafter) spoil(w *sim, got tandem.Proposed, inPool bool) (tandem.Proposed, tandem.Tree, bool) {
	t := tandem.Tree{Tokens: slices.Clone(got.Tree.Tokens), Parents: slices.Clone(got.Tree.Parents),
		LogProbs: slices.Clone(got.Tree.LogProbs)}
	switch w.rng.IntN(6) {
	case 0:
		got.Nodes = -1
	case 1:
		t.Tokens[0] = (t.Tokens[0] + 1) % vocabSize
	case 2:
		t.Parents[t.Len()-1] = int32(t.Len())
	case 3:
		t.LogProbs[0] = float32(math.NaN())
	case 4:
		t.Tokens[t.Len()-1] = vocabSize
	case 5:
		return got, t, false
	}
	if !inPool || w.chance(0.5) {
		got.Tree = t
	}
	return got, t, inPool
}
