package main

import (
	"fmt"
	"maps"
	"slices"
	"sync"
	"text/tabwriter"
	"time"

	"github.com/tandem-llm/tandem"
)

// counters returns the counters of the processes of a role, added up; nil if the gateway cannot tell.
func (b *bench) counters(role string) map[string]int64 {
	d, err := b.conn.Describe(b.ctx)
	if err != nil {
		return nil
	}
	out := map[string]int64{}
	for _, p := range d.GetProcesses() {
		if p.GetRole() == role {
			for name, n := range p.GetCounters() {
				out[name] += n
			}
		}
	}
	return out
}

// busyCounter is the verifier's: microseconds of passes since its start.
const busyCounter = "passes.busy_us"

// flow is a stretch of time in which a number of sessions decoded, all of them all the time.
type flow struct {
	Sessions     int       `json:"sessions"`
	Tokens       int       `json:"tokens"`
	Seconds      float64   `json:"seconds"`
	TokS         float64   `json:"tok_s"`
	VerifierBusy float64   `json:"verifier_busy"` // pass times ÷ time, at the verifier
	Whole        float64   `json:"tok_s_whole"`   // tokens ÷ time of whole generations, prompts included
	Coordination quantiles `json:"coordination_us"`

	busy, sampled, wall time.Duration
	all                 int
	coordination        []time.Duration
}

func (f *flow) join(o flow) {
	f.Sessions = o.Sessions
	f.Tokens += o.Tokens
	f.all += o.all
	f.Seconds += o.Seconds
	f.busy += o.busy
	f.sampled += o.sampled
	f.wall += o.wall
	f.coordination = append(f.coordination, o.coordination...)
	f.TokS, f.Whole = share(float64(f.Tokens), f.Seconds), share(float64(f.all), f.wall.Seconds())
	f.VerifierBusy = share(float64(f.busy), float64(f.sampled))
	f.Coordination = quantiles{us(quantile(f.coordination, 0.5)), us(quantile(f.coordination, 0.99))}
}

// sessionsResult compares many sessions at once with one.
type sessionsResult struct {
	One  flow `json:"one"`
	Many flow `json:"many"`
}

// arrivals is when tokens came, of several generations at once. Safe for concurrent use.
type arrivals struct {
	mu     sync.Mutex
	want   int
	began  int
	from   time.Time // all have begun
	to     time.Time // the first has ended
	tokens []arrival
	opened chan struct{} // closed at from
	closed chan struct{} // closed at to, after from
}

type arrival struct {
	at     time.Time
	tokens int
}

func newArrivals(want int) *arrivals {
	return &arrivals{want: want, opened: make(chan struct{}), closed: make(chan struct{})}
}

// begin takes the first tokens of a generation, which count for the time before.
func (a *arrivals) begin(now time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.began++; a.began == a.want && a.to.IsZero() {
		a.from = now
		close(a.opened)
	}
}

func (a *arrivals) add(now time.Time, tokens int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.tokens = append(a.tokens, arrival{now, tokens})
}

// end takes the end of a generation.
func (a *arrivals) end(now time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.to.IsZero() {
		a.to = now
		close(a.closed)
	}
}

// window returns the tokens that came while all generations ran, and for how long they did.
func (a *arrivals) window() (tokens int, d time.Duration) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.from.IsZero() {
		return 0, 0
	}
	for _, t := range a.tokens {
		if t.at.After(a.from) && !t.at.After(a.to) {
			tokens += t.tokens
		}
	}
	return tokens, a.to.Sub(a.from)
}

// together runs prompts at once and measures while all of them decode.
func (b *bench) together(v variant, prompts []benchPrompt) (flow, bool, error) {
	a := newArrivals(len(prompts))
	out := make([]*outcome, len(prompts))
	errs := make([]error, len(prompts))
	start := time.Now()
	var wg sync.WaitGroup
	for i, p := range prompts {
		wg.Go(func() {
			first := true
			out[i], errs[i] = b.generate(v, p, func(tokens int) {
				now := time.Now()
				if a.add(now, tokens); first {
					a.begin(now)
				}
				first = false
			})
			a.end(time.Now())
		})
	}
	var busy [2]int64
	var sampled [2]time.Time
	sample := func(i int) { sampled[i], busy[i] = time.Now(), b.counters("verifier")[busyCounter] }
	select {
	case <-a.opened:
		sample(0)
		<-a.closed
		sample(1)
	case <-a.closed:
	}
	wg.Wait()
	f, equal := flow{Sessions: len(prompts), wall: time.Since(start)}, true
	var d time.Duration
	f.Tokens, d = a.window()
	f.Seconds, f.busy, f.sampled = d.Seconds(), time.Duration(busy[1]-busy[0])*time.Microsecond, sampled[1].Sub(sampled[0])
	for i, o := range out {
		if errs[i] != nil {
			return flow{}, false, errs[i]
		}
		f.all += len(o.tokens)
		f.coordination = append(f.coordination, o.finished.Statistics.Coordination...)
		equal = b.agrees(v, prompts[i], o) && equal
	}
	return f, equal, nil
}

// sessionsSuite compares eight sessions at once with one: half of the prompts one after the other, all at
// once, the other half one after the other.
func (b *bench) sessionsSuite() (*suiteResult, error) {
	res := &sessionsResult{}
	r := &suiteResult{Sessions: res}
	v := b.as("sessions", func(r *tandem.Request) { r.MaxTokens = max(r.MaxTokens, 256) }) // long enough for all to decode at once
	i := slices.IndexFunc(b.sets, func(s promptSet) bool { return s.Name == setMixed })
	if len(b.cmd.Scenario) > 0 || i < 0 {
		i = slices.IndexFunc(b.sets, func(s promptSet) bool { return s.Name == b.pick(b.domains()...)[0].Name })
	}
	all := b.sets[i].Prompts
	for k := range b.cmd.Repeat {
		if k > 0 && b.over() {
			b.note("time is over after %d of %d repetitions", k, b.cmd.Repeat)
			break
		}
		var prompts []benchPrompt
		for j := range manySessions {
			prompts = append(prompts, all[(k*manySessions+j)%len(all)])
		}
		alone := func(part []benchPrompt) error {
			for i, p := range part {
				if i > 0 && b.over() {
					b.note("time is over: %d of %d prompts ran alone", i, len(part))
					return nil
				}
				f, _, err := b.together(v, []benchPrompt{p})
				if err != nil {
					return err
				}
				res.One.join(f)
			}
			return nil
		}
		if err := alone(prompts[:manySessions/2]); err != nil {
			return r, err
		}
		f, _, err := b.together(v, prompts)
		if err != nil {
			return r, err
		}
		if f.Tokens == 0 {
			b.note("the eight sessions never decoded all at once: want a larger --max-tokens")
		}
		res.Many.join(f)
		if err := alone(prompts[manySessions/2:]); err != nil {
			return r, err
		}
	}
	r.Bars = append(r.Bars,
		atLeast("8 sessions over 1: tokens/s", share(res.Many.TokS, res.One.TokS), 2),
		atLeast("8 sessions: verifier busy", res.Many.VerifierBusy, 0.95),
		figure("1 session: tokens/s", res.One.TokS, ""),
		figure("8 sessions: tokens/s", res.Many.TokS, ""),
		figure("8 sessions over 1: tokens/s, prompts included", share(res.Many.Whole, res.One.Whole), ""),
		figure("1 session: verifier busy", res.One.VerifierBusy, ""),
		figure("8 sessions: coordination p50, µs", res.Many.Coordination.P50, "waiting for the others' pass included"))
	return r, nil
}

// memorySample is what the processes held at one moment.
type memorySample struct {
	Rounds int              `json:"rounds"`
	RSS    map[string]int64 `json:"rss_bytes"`        // by process
	Gauges map[string]int64 `json:"gauges,omitempty"` // by process and name: pages of the KV cache, tickets in the pool
	Texts  int              `json:"texts"`            // finished
}

// memoryResult is how memory went over many rounds.
type memoryResult struct {
	Sessions int                `json:"sessions"`
	Rounds   int                `json:"rounds"`
	Growth   map[string]float64 `json:"growth"` // by process: largest size in the second half ÷ in the first, its first tenth excepted
	Samples  []memorySample     `json:"samples"`
}

// gauges are the counters that go up and down with what a process holds.
var gauges = []string{"kv.pages", "pool.depth"}

func (b *bench) sample(rounds, texts int) memorySample {
	s := memorySample{Rounds: rounds, Texts: texts, RSS: map[string]int64{}, Gauges: map[string]int64{}}
	for name, pid := range b.group.group.Pids() {
		s.RSS[name] = residentBytes(pid)
	}
	if d, err := b.conn.Describe(b.ctx); err == nil {
		for _, p := range d.GetProcesses() {
			for _, g := range gauges {
				if n, ok := p.GetCounters()[g]; ok {
					s.Gauges[p.GetRole()+"."+g] += n
				}
			}
		}
	}
	return s
}

// growth returns, for each process, its largest size in the second half of the samples over that in the
// first half without its first fifth, in which caches and heaps fill.
func growth(samples []memorySample) map[string]float64 {
	out := map[string]float64{}
	n := len(samples)
	if n < 10 {
		return out
	}
	for name := range samples[0].RSS {
		var early, late int64
		for i, s := range samples[n/10:] {
			if i+n/10 < n/2 {
				early = max(early, s.RSS[name])
			} else {
				late = max(late, s.RSS[name])
			}
		}
		out[name] = share(float64(late), float64(early))
	}
	return out
}

// memoryVariants are policies that change from text to text.
func (b *bench) memoryVariants() []variant {
	minionsTree := b.strategy(tandem.StrategyMinions)
	minionsTree.request.Vote = tandem.VoteTree
	return []variant{b.strategy(tandem.StrategyPlanner), b.strategy(tandem.StrategyLLMCad), b.strategy(tandem.StrategyMinions), b.strategy(tandem.StrategyFixed), minionsTree, b.plainly()}
}

// memorySuite keeps many sessions at work for many rounds, with strategies that change from text to text,
// and looks at what the processes hold meanwhile.
func (b *bench) memorySuite() (*suiteResult, error) {
	res := &memoryResult{Sessions: memorySessions}
	r := &suiteResult{Memory: res}
	variants := b.memoryVariants()
	var prompts []benchPrompt
	for _, s := range b.sets {
		if s.Name != setMixed {
			prompts = append(prompts, s.Prompts...)
		}
	}
	const samples = 50
	var mu sync.Mutex
	rounds, texts, next, sampled := 0, 0, 0, 0
	var failed error
	more := func() (v variant, p benchPrompt, ok bool) {
		mu.Lock()
		defer mu.Unlock()
		if rounds >= b.cmd.Rounds || failed != nil || b.over() {
			return
		}
		next++
		return variants[next%len(variants)], prompts[(next*7)%len(prompts)], true
	}
	done := func(o *outcome, err error) {
		mu.Lock()
		defer mu.Unlock()
		if err != nil {
			failed = err
			return
		}
		texts++
		rounds += o.finished.Statistics.Rounds
		if want := rounds * samples / b.cmd.Rounds; want > sampled {
			sampled = want
			res.Samples = append(res.Samples, b.sample(rounds, texts))
		}
	}
	res.Samples = append(res.Samples, b.sample(0, 0))
	var wg sync.WaitGroup
	for range memorySessions {
		wg.Go(func() {
			for {
				v, p, ok := more()
				if !ok {
					return
				}
				o, err := b.generate(v, p, nil)
				if err == nil {
					b.agrees(v, p, o)
				}
				done(o, err)
			}
		})
	}
	wg.Wait()
	if failed != nil {
		return r, failed
	}
	time.Sleep(pause)
	res.Samples = append(res.Samples, b.sample(rounds, texts))
	if rounds < b.cmd.Rounds {
		b.note("time is over after %d of %d rounds", rounds, b.cmd.Rounds)
	}
	res.Rounds, res.Growth = rounds, growth(res.Samples)
	worst, name := 0.0, ""
	for n, g := range res.Growth {
		if g > worst {
			worst, name = g, n
		}
	}
	if name == "" {
		r.Bars = append(r.Bars, figure("memory: second half over first", 0, "too few rounds to tell"))
	} else {
		r.Bars = append(r.Bars, atMost(fmt.Sprintf("memory of %s: second half over first, %d rounds", name, rounds), worst, 1.05))
	}
	end := res.Samples[len(res.Samples)-1].Gauges
	for _, key := range sortedKeys(end) {
		r.Bars = append(r.Bars, atMost(key+" after the last text", float64(end[key]), 0))
	}
	return r, nil
}

func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }

// print shows the samples at the start, the middle and the end.
func (m *memoryResult) print(t *tabwriter.Writer) {
	if m == nil || len(m.Samples) == 0 {
		return
	}
	last := len(m.Samples) - 1
	fmt.Fprintln(t, "\tstart\tmiddle\tend\t")
	row := func(name string, of func(memorySample) string) {
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t\n", name, of(m.Samples[0]), of(m.Samples[last/2]), of(m.Samples[last]))
	}
	row("rounds", func(s memorySample) string { return fmt.Sprint(s.Rounds) })
	for _, name := range sortedKeys(m.Samples[0].RSS) {
		row(name, func(s memorySample) string { return mib(s.RSS[name]) })
	}
	for _, name := range sortedKeys(m.Samples[last].Gauges) {
		row(name, func(s memorySample) string { return fmt.Sprint(s.Gauges[name]) })
	}
	_ = t.Flush()
}
