package gateway

import (
	"fmt"
	"slices"
	"time"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/gateway/round"
)

// simClient asks one request after the other. If the gateway dies it takes its text up again at another.
type simClient struct {
	number   int
	busy     bool
	silent   bool
	unread   int
	seed     uint64
	prompt   []tandem.Token
	max      int
	got      []tandem.Token
	identity tandem.Identity // of the verifier that began the text
	begun    bool
	session  *simSession
	requests int
}

// ask asks the next request.
func (w *sim) ask(c *simClient) {
	if w.now > w.horizon {
		return
	}
	c.requests++
	c.busy, c.seed, c.max, c.got, c.identity, c.begun = true, w.rng.Uint64(), 1+w.rng.IntN(48), nil, "", false
	c.prompt = c.prompt[:0:0]
	for range 1 + w.rng.IntN(8) {
		c.prompt = append(c.prompt, 2+tandem.Token(w.rng.IntN(256)))
	}
	w.start(c)
}

// start sends the request to a gateway.
func (w *sim) start(c *simClient) {
	g := w.gateways[w.rng.IntN(simGateways)]
	if g.down {
		w.after(500*time.Millisecond, w.world, "client tries again", 0, func() { w.start(c) })
		return
	}
	w.ids++
	s := &simSession{w: w, g: g, client: c, id: w.ids, seed: c.seed, box: newMailbox(), identity: c.identity, held: c.begun,
		text: round.Text{Session: w.ids, Tokens: slices.Clone(c.prompt), Hash: tandem.EmptyPrefix.Add(c.prompt...),
			Prompt: len(c.prompt), Limit: len(c.prompt) + c.max},
		rules: round.Rules{Wait: DefaultTimeouts.Round, VerifierWait: DefaultTimeouts.VerifierWait, Nodes: simNodes, Vocab: vocabSize}}
	s.hash = s.text.Hash
	c.session, c.unread = s, 0
	g.sessions = append(g.sessions, s)
	s.state = "begun"
	s.timer(0, "begins", s.open)
}

// take gets what the session has committed, and reports whether too much of it is unread.
func (c *simClient) take(w *sim, s *simSession) (unread bool) {
	c.identity, c.begun = s.identity, true
	out := s.text.Tokens[s.text.Prompt:]
	for i, t := range out {
		if i < len(c.got) && c.got[i] != t {
			w.fail("client %d: token %d was %d and is %d now", c.number, i, c.got[i], t)
		}
	}
	if new := len(out) - len(c.got); new > 0 {
		c.got = append(c.got, out[len(c.got):]...)
		c.unread += new
	}
	if !c.silent {
		c.unread = 0
	}
	return c.unread > 8
}

// read reads all that is there.
func (w *sim) read(c *simClient) {
	c.unread = 0
	if s := c.session; s != nil {
		w.after(0, s.g.simNode, "is read", s.id, func() {
			if s.state == "parked" {
				s.enter("returns")
				s.timer(0, "returns", s.back)
			}
		})
	}
}

// ended takes the request's end.
func (c *simClient) ended(w *sim, err error) {
	c.busy, c.session = false, nil
	switch {
	case err == nil && len(c.got) != c.max && (len(c.got) == 0 || c.got[len(c.got)-1] != eos):
		w.fail("client %d: the request ended after %d of %d tokens", c.number, len(c.got), c.max)
	case err == nil:
		w.whole++
	default:
		kind := tandem.KindOf(err)
		if w.failed[kind]++; w.allowed != nil && !w.allowed(kind) {
			w.fail("client %d: the faults explain no error, but it is: %v", c.number, err)
		}
	}
	w.after(w.upTo(5*time.Second), w.world, "client asks", 0, func() { w.ask(c) })
}

func (c *simClient) describe() string {
	if c.session == nil {
		return fmt.Sprintf("client %d waits for a gateway", c.number)
	}
	return c.session.describe()
}

// killGateway ends a gateway: its clients' streams break off, and its peers drop its sessions when they have missed it for a while.
func (w *sim) killGateway(g *simGateway) {
	owner := [2]int{g.number, g.instance}
	w.kill(g.simNode)
	for _, c := range w.calls {
		c.over = c.over || c.from == g.simNode
	}
	w.forgetCalls()
	for _, s := range g.sessions {
		c := s.client
		s.finished, c.session = true, nil
		w.after(w.upTo(time.Second), w.world, "client takes up again", 0, func() { w.start(c) })
	}
	g.sessions = nil
	for _, v := range w.verifiers {
		w.after(simDisconnect, v.simNode, "disowns", 0, func() { v.held = disown(v.held, owner) })
	}
	for _, d := range w.drafters {
		w.after(simDisconnect, d.simNode, "disowns", 0, func() { d.held = disown(d.held, owner) })
	}
}

// disconnected lets a peer drop the sessions of a gateway that it has had no connection to.
func (w *sim) disconnected(a, b *simNode) {
	if !w.link(a, b).cut || !w.link(b, a).cut {
		return
	}
	for _, g := range w.gateways {
		owner := [2]int{g.number, g.instance}
		for _, v := range w.verifiers {
			if g.simNode == a && v.simNode == b || g.simNode == b && v.simNode == a {
				v.held = disown(v.held, owner)
			}
		}
		for _, d := range w.drafters {
			if g.simNode == a && d.simNode == b || g.simNode == b && d.simNode == a {
				d.held = disown(d.held, owner)
			}
		}
	}
}
