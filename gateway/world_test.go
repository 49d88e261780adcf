package gateway

import (
	"context"
	"fmt"
	"math"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/spec"
	"github.com/tandem-llm/tandem/test/testkit"
)

// next is the model: the token after a prefix depends on nothing but the prefix and the seed.
func (w *world) next(h tandem.PrefixHash, n int, seed uint64) tandem.Token {
	if w.eosAt != 0 && n >= w.eosAt {
		return eos
	}
	if w.loop != 0 && n >= w.loopFrom && n != w.loopBreak {
		h = tandem.PrefixHash((n - w.loopFrom) % w.loop)
	}
	x := mix(uint64(h) ^ seed ^ w.weights)
	if w.eosEvery != 0 && x%w.eosEvery == 0 {
		return eos
	}
	return 2 + tandem.Token(x>>20%256)
}

func mix(x uint64) uint64 {
	x = (x ^ x>>31) * 0x9e3779b97f4a7c15
	x = (x ^ x>>29) * 0xbf58476d1ce4e5b9
	return x ^ x>>32
}

// plain is what r must produce: decoding one token after the other.
func (w *world) plain(r tandem.Request, context int) (tokens []tandem.Token, str string, finish tandem.FinishReason) {
	all := r.Tokens
	if all == nil {
		all = fakeVocab{}.Encode(r.Prompt, true)
	}
	h, n := tandem.EmptyPrefix.Add(all...), len(all)
	var d fakeDecoder
	var out strings.Builder
	for len(tokens) < r.MaxTokens && n < context {
		t := w.next(h, n, r.Sampling.Seed)
		tokens, h, n = append(tokens, t), h.Add(t), n+1
		if t == eos && !r.IgnoreEOS {
			return tokens, out.String() + d.Flush(), tandem.FinishStop
		}
		if t != eos {
			out.WriteString(d.Next(t))
		}
		if repeated(tokens, r.Repeats) {
			break
		}
	}
	return tokens, out.String() + d.Flush(), tandem.FinishLength
}

// fault is what happens to the n-th operation of a kind.
type fault struct {
	do   string
	kind tandem.Kind
	wait time.Duration
}

// world is a drafter, a pool and a verifier of the fake model, and everything that can go wrong with
// them. Its times are those of the bubble it runs in.
type world struct {
	gw                                           *Gateway
	then                                         func() // called once gw is there
	eosAt                                        int
	loop, loopFrom, loopBreak                    int // from there on the text repeats so many tokens, but for one
	eosEvery, weights                            uint64
	openV, openD, propose, carry, verify, closes time.Duration
	faults                                       map[string]fault // by "operation n"

	mu         sync.Mutex
	began      time.Time
	lines      []string
	quiet      bool
	counts     map[string]int
	names      map[tandem.SessionID]string
	verifier   map[tandem.SessionID]*heldSession
	drafter    map[tandem.SessionID]*heldSession
	others     map[string]map[tandem.SessionID]*heldSession // of more drafters, by name
	slower     map[string]time.Duration                     // than the first at drafting
	knows      map[string]float64                           // chance that a drafter has the next token in its level; default 3/4
	costs      func(rows int) time.Duration                 // of a pass; nil: verify
	selfDrafts []tandem.SelfDraft                           // the target's own
	memory     int                                          // tokens that the verifier may hold, trees included; 0: any number
	violations []string                                     // contracts that the gateway broke
	flights    sync.WaitGroup
}

type heldSession struct {
	open   tandem.Opening
	tokens []tandem.Token
	hash   tandem.PrefixHash
	last   tandem.Verdict
}

func newWorld() *world {
	return &world{
		openV: 10 * time.Millisecond, openD: 6270 * time.Microsecond, propose: 3 * time.Millisecond,
		carry: time.Millisecond, verify: 5 * time.Millisecond, closes: 1100 * time.Microsecond,
		faults: map[string]fault{}, began: time.Now(), counts: map[string]int{}, names: map[tandem.SessionID]string{},
		verifier: map[tandem.SessionID]*heldSession{}, drafter: map[tandem.SessionID]*heldSession{},
		others: map[string]map[tandem.SessionID]*heldSession{}, slower: map[string]time.Duration{},
		knows: map[string]float64{},
	}
}

func (w *world) logf(format string, args ...any) {
	if !w.quiet {
		w.lines = append(w.lines, fmt.Sprintf("%7.1fms  ", float64(time.Since(w.began).Microseconds())/1000)+fmt.Sprintf(format, args...))
	}
}

func (w *world) log(format string, args ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.logf(format, args...)
}

func (w *world) violate(format string, args ...any) {
	w.violations = append(w.violations, fmt.Sprintf(format, args...))
}

// fault counts an operation and returns what is to happen to it.
func (w *world) fault(operation string) fault {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.counts[operation]++
	return w.faults[fmt.Sprintf("%s %d", operation, w.counts[operation])]
}

func (w *world) name(id tandem.SessionID) string {
	if w.names[id] == "" {
		w.names[id] = fmt.Sprintf("s%d", len(w.names)+1)
	}
	return w.names[id]
}

func (w *world) later(d time.Duration, f func()) {
	w.flights.Add(1)
	time.AfterFunc(d, func() {
		defer w.flights.Done()
		f()
	})
}

func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (f fault) err() error {
	return tandem.Errorf("fake", f.kind, "as the script says: %s", f.do)
}

// peer is one model process as the gateway sees it.
type process struct {
	w     *world
	who   string
	held  map[tandem.SessionID]*heldSession
	opens time.Duration
}

func (p process) Open(ctx context.Context, o tandem.Opening) (tandem.Opened, error) {
	w := p.w
	f := w.fault("open-" + p.who)
	if f.do == "fail" {
		if err := pause(ctx, p.opens/30); err != nil {
			return tandem.Opened{}, err
		}
		w.log("%s fails to open: %v", p.who, f.kind)
		return tandem.Opened{}, f.err()
	}
	tokens := slices.Clone(o.Tokens)
	if f.do == "deaf" { // to its context: the cancelled Open is carried out all the same
		ctx = context.WithoutCancel(ctx)
	}
	if err := pause(ctx, p.opens+f.wait); err != nil {
		w.log("%s stops opening: %v", p.who, err)
		return tandem.Opened{}, err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if !slices.Equal(tokens, o.Tokens) || len(tokens) > int(o.Limit) {
		w.violate("opening of %s changed under way or is beyond its limit", p.who)
	}
	if old := p.held[o.Session]; old != nil && old.open.Epoch > o.Epoch {
		w.violate("%s opened in epoch %d after %d", p.who, o.Epoch, old.open.Epoch)
	}
	if p.who == "verifier" && w.lacks(o.Session, len(tokens)) {
		w.logf("verifier has no room for %s", w.name(o.Session))
		return tandem.Opened{}, tandem.Errorf("fake", tandem.Exhausted, "no room for %d tokens", len(tokens))
	}
	p.held[o.Session] = &heldSession{open: o, tokens: tokens, hash: tandem.EmptyPrefix.Add(tokens...)}
	w.logf("%s holds %s, epoch %d: %d tokens of at most %d", p.who, w.name(o.Session), o.Epoch, len(tokens), o.Limit)
	if p.who != "verifier" {
		return tandem.Opened{}, nil
	}
	h := p.held[o.Session]
	return tandem.Opened{Guesses: w.guess(h, tandem.Root(tokens[len(tokens)-1]), 0, o.SelfDrafts)}, nil
}

// Submit implements tandem.Verifier.
func (p process) Submit(ctx context.Context, t tandem.Ticket) error { return fakePool{p.w}.Put(ctx, t) }

// Verdicts implements tandem.Verifier: this one gives the gateway its verdicts itself.
func (p process) Verdicts(ctx context.Context, _ tandem.Subscription) error {
	<-ctx.Done()
	return ctx.Err()
}

func (p process) Describe(context.Context) (tandem.Description, error) {
	return tandem.Description{}, nil
}

func (p process) Close(ctx context.Context, id tandem.SessionID) error {
	d := p.w.closes
	if p.who != "verifier" {
		d = 2*d + p.w.lag(p.who)
	}
	if err := pause(ctx, d); err != nil {
		return err
	}
	p.w.mu.Lock()
	defer p.w.mu.Unlock()
	delete(p.held, id)
	p.w.logf("%s closes %s", p.who, p.w.name(id))
	return nil
}

// restart makes a peer forget all it holds, as a new process does.
func (w *world) restart(who string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.logf("%s restarts", who)
	w.peer(who).forget()
}

func (p process) forget() { clear(p.held) }

func (w *world) peer(who string) process {
	if who == "verifier" {
		return process{w, who, w.verifier, w.openV}
	}
	if who != "drafter" {
		if w.others[who] == nil {
			w.others[who] = map[tandem.SessionID]*heldSession{}
			w.slower[who] += time.Duration(who[0]-'a') * 100 * time.Microsecond // tells apart what would happen at once
		}
		return process{w, who, w.others[who], w.openD + w.slower[who]}
	}
	return process{w, who, w.drafter, w.openD}
}

func (w *world) lag(who string) time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.slower[who]
}

// enlisted returns a drafter of the world, as it is enlisted; the first, "drafter" in scripts, is "fake" to the gateway.
func (w *world) enlisted(who string) Enlisted {
	w.mu.Lock()
	defer w.mu.Unlock()
	name := who
	if who == "drafter" {
		name = "fake"
	}
	return Enlisted{Name: name, Drafter: fakeDrafter{w.peer(who)}}
}

// hint tells the gateway that a peer went down and came up.
func (w *world) hint(who string) {
	state := w.gw.VerifierState
	if who != "verifier" {
		name := w.enlisted(who).Name
		state = func(up bool) { w.gw.DrafterState(name, up) }
	}
	state(false)
	state(true)
}

// held returns how many sessions the peers hold.
func (w *world) held() int {
	n := len(w.verifier) + len(w.drafter)
	for _, h := range w.others {
		n += len(h)
	}
	return n
}

type fakeDrafter struct{ process }

// Propose implements tandem.Drafter, strictly: it holds the gateway to From and Suffix.
func (d fakeDrafter) Propose(ctx context.Context, p tandem.Proposal) (tandem.Proposed, error) {
	w, who := d.w, "propose"
	if d.who != "drafter" {
		who += "-" + d.who
	}
	f := w.fault(who)
	if f.do == "fail" {
		w.log("%s at %d fails: %v", who, p.Base, f.kind)
		return tandem.Proposed{}, f.err()
	}
	busy := w.propose + w.lag(d.who)
	if err := pause(ctx, busy+f.wait); err != nil {
		if p.Return {
			testkit.Sleep(50 * time.Microsecond) // tells apart what would happen at once
		}
		w.log("%s at %d ends: %v", who, p.Base, err)
		return tandem.Proposed{}, err
	}
	w.mu.Lock()
	tree, err := d.draft(p, f.do == "deep")
	hindsight := d.hindsight(p.Session)
	w.mu.Unlock()
	if err != nil {
		w.log("%s at %d: %v", who, p.Base, err)
		return tandem.Proposed{}, err
	}
	if p.Plan.Verify != nil {
		tree, _ = spec.Cut(tree, p.Plan, busy)
	}
	_, depth := tree.Depths()
	done := tandem.Proposed{Nodes: tree.Len(), Depth: depth, Busy: busy, Passes: depth, Tree: tree, Hindsight: hindsight}
	if p.Ahead && depth > 1 {
		done.Reused, done.Ahead = 1, w.propose
	}
	t := p.Ticket("fake", tandem.Tree{Tokens: slices.Clone(tree.Tokens), Parents: slices.Clone(tree.Parents)})
	switch f.do {
	case "lose":
		if !p.Return {
			w.log("%s at %d: %d nodes, depth %d; ticket lost", who, p.Base, done.Nodes, depth)
			return done, nil
		}
	case "bad-tree":
		if t.Tree.Parents[0] = 0; p.Return {
			done.Tree = t.Tree
		}
	case "vocab", "cycle", "other-root", "nan", "million", "hindsight":
		done = spoil(done, f.do)
		t.Tree = done.Tree
	case "root":
		t.Tree, done.Tree, done.Nodes, done.Depth, done.Reused = tandem.Root(tree.Tokens[0]), tandem.Root(tree.Tokens[0]), 1, 0, 0
	}
	w.log("%s at %d: %d nodes, depth %d%s", who, p.Base, done.Nodes, done.Depth, map[bool]string{true: ", returned"}[p.Return])
	if !p.Return {
		w.fault("ticket that asks " + strings.Join(t.SelfDrafts, ","))
		if err := (fakePool{w}).Put(ctx, t); err != nil {
			return tandem.Proposed{}, err
		}
	}
	switch f.do {
	case "die":
		w.restart(d.who)
		return tandem.Proposed{}, tandem.Errorf("fake", tandem.Unavailable, "connection closed")
	case "garbage":
		done.Nodes = -1
	}
	return done, nil
}

// spoil returns what no drafter may say.
func spoil(done tandem.Proposed, how string) tandem.Proposed {
	t := tandem.Tree{Tokens: slices.Clone(done.Tree.Tokens), Parents: slices.Clone(done.Tree.Parents),
		LogProbs: slices.Clone(done.Tree.LogProbs)}
	last := t.Len() - 1
	switch how {
	case "vocab":
		t.Tokens[last] = vocabSize
	case "cycle":
		t.Parents[last] = int32(last)
	case "other-root":
		t.Tokens[0] = (t.Tokens[0] + 1) % vocabSize
	case "nan":
		t.LogProbs[last] = float32(math.NaN())
	case "hindsight":
		done.Hindsight = tandem.Hindsight{Tokens: 3, Hits: 8}
	case "million":
		t = tandem.Tree{Tokens: make([]tandem.Token, 1e6), Parents: make([]int32, 1e6)}
		done.Nodes = 1e6
	}
	done.Tree = t
	return done
}

// draft makes the drafter hold what p says and returns a tree that is right now and then; a deep one
// is always right and goes beyond the depth asked for.
func (d fakeDrafter) draft(p tandem.Proposal, deep bool) (tandem.Tree, error) {
	w, h := d.w, d.held[p.Session]
	if int(p.Base)-int(p.From) != len(p.Suffix) || p.Bounds.Plain() {
		w.violate("proposal at %d from %d has %d tokens, bounds %v", p.Base, p.From, len(p.Suffix), p.Bounds)
	}
	switch {
	case h == nil:
		return tandem.Tree{}, tandem.Errorf("fake", tandem.UnknownSession, "session unknown")
	case h.open.Epoch != p.Epoch:
		return tandem.Tree{}, tandem.Errorf("fake", tandem.Stale, "epoch is %d", h.open.Epoch)
	case int(p.From) > len(h.tokens):
		w.violate("proposal from %d, but %d tokens are held", p.From, len(h.tokens))
		return tandem.Tree{}, tandem.Errorf("fake", tandem.Stale, "from %d", p.From)
	}
	h.tokens = append(h.tokens[:p.From], p.Suffix...)
	h.hash = tandem.EmptyPrefix.Add(h.tokens...)
	if h.hash != p.Hash {
		w.violate("proposal at %d has another hash than its tokens", p.Base)
	}
	if int(p.Base)+p.Bounds.Depth+1 > int(h.open.Limit) {
		w.violate("proposal at %d of depth %d is beyond the limit %d", p.Base, p.Bounds.Depth, h.open.Limit)
	}
	if deep {
		p.Bounds = tandem.Bounds{Nodes: h.open.MaxNodes, Depth: h.open.MaxNodes, Width: 1}
	}
	tree := tandem.Root(h.tokens[p.Base-1])
	tree.LogProbs = []float32{0}
	hash, n, parent := h.hash, len(h.tokens), int32(0)
	for range p.Bounds.Depth {
		right := w.next(hash, n, h.open.Sampling.Seed)
		x, known := d.knows(hash)
		next := int32(-1)
		for j := range p.Bounds.Width {
			if tree.Len() >= p.Bounds.Nodes {
				return tree, nil
			}
			t := (right + 1 + tandem.Token(j)) % vocabSize
			if (deep || known) && j == int(x>>8)%p.Bounds.Width {
				t, next = right, int32(tree.Len())
			}
			tree.Tokens, tree.Parents = append(tree.Tokens, t), append(tree.Parents, parent)
			tree.LogProbs = append(tree.LogProbs, tree.LogProbs[parent]-0.3*float32(p.Bounds.Width))
		}
		if next < 0 {
			return tree, nil
		}
		parent, hash, n = next, hash.Add(right), n+1
	}
	return tree, nil
}

// knows reports whether the drafter guesses right after the tokens with that hash, and a number by which it varies.
func (d fakeDrafter) knows(hash tandem.PrefixHash) (x uint64, known bool) {
	salt := uint64(7) // others guess right elsewhere
	if d.who != "drafter" {
		salt = mix(uint64(d.who[0]))
	}
	x = mix(uint64(hash) + salt)
	if q, set := d.w.knows[d.who]; set {
		return x, float64(x>>40) < q*(1<<24)
	}
	return x, x%4 != 0
}

func (d fakeDrafter) hindsight(id tandem.SessionID) (out tandem.Hindsight) {
	h := d.held[id]
	if h == nil {
		return out
	}
	out.Tokens = min(len(h.tokens)-1, tandem.MaxHindsight)
	hash := tandem.EmptyPrefix.Add(h.tokens[:len(h.tokens)-out.Tokens]...)
	for _, t := range h.tokens[len(h.tokens)-out.Tokens:] {
		out.Hits <<= 1
		if _, known := d.knows(hash); known {
			out.Hits |= 1
		}
		hash = hash.Add(t)
	}
	return out
}

// config returns a configuration of the gateway in this world.
func (w *world) config() Config {
	return Config{Vocab: fakeVocab{}, Verifier: w.peer("verifier"),
		Drafters: []Enlisted{{Name: "fake", Drafter: fakeDrafter{w.peer("drafter")}}},
		Counters: new(tandem.Counters), ModelName: "model",
		Timeouts: Timeouts{ProposeMin: 20 * time.Millisecond, ProposeMax: 100 * time.Millisecond, Round: 50 * time.Millisecond,
			Stall: time.Second, VerifierWait: 5 * time.Second, Close: 100 * time.Millisecond}}
}
