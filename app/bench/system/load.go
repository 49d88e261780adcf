package system

import (
	"slices"
	"sync"
	"time"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/app/bench/figures"
)

// Counters since a process' start: microseconds of passes, passes, and the verifier's verdicts.
const (
	busyCounter     = "passes.busy_us"
	passesCounter   = "passes"
	verdictsCounter = "verdicts"
)

// flow is a period in which a number of sessions decoded, all of them all the time.
type flow struct {
	Division     string    `json:"division,omitempty"` // how the verifier divides sessions, in the suite pipeline
	Sessions     int       `json:"sessions"`
	Tokens       int       `json:"tokens"`
	Seconds      float64   `json:"seconds"`
	TokS         float64   `json:"tok_s"`
	VerifierBusy float64   `json:"verifier_busy"` // pass times ÷ time, at the verifier
	DrafterBusy  float64   `json:"drafter_busy"`  // the same of all drafters together
	Batch        float64   `json:"batch"`         // sessions in a pass, mean
	Whole        float64   `json:"tok_s_whole"`   // tokens ÷ time of whole generations, prompts included
	Coordination quantiles `json:"coordination_us"`

	busy, drafting, sampled, wall time.Duration
	all                           int
	verdicts, passes              int64
	coordination                  []time.Duration
}

func (f *flow) join(o flow) {
	f.Sessions = o.Sessions
	f.Tokens += o.Tokens
	f.all += o.all
	f.Seconds += o.Seconds
	f.busy += o.busy
	f.drafting += o.drafting
	f.verdicts += o.verdicts
	f.passes += o.passes
	f.sampled += o.sampled
	f.wall += o.wall
	f.coordination = append(f.coordination, o.coordination...)
	f.TokS, f.Whole = figures.Share(float64(f.Tokens), f.Seconds), figures.Share(float64(f.all), f.wall.Seconds())
	f.VerifierBusy = figures.Share(float64(f.busy), float64(f.sampled))
	f.DrafterBusy = figures.Share(float64(f.drafting), float64(f.sampled))
	f.Batch = figures.Share(float64(f.verdicts), float64(f.passes))
	f.Coordination = quantilesOf(f.coordination)
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

// begin notes the first tokens of a generation; the period begins with those of the last one.
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
func (b *runner) together(v variant, prompts []benchPrompt) (flow, bool, error) {
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
	var counters [2]map[string]map[string]int64
	var sampled [2]time.Time
	sample := func(i int) { sampled[i], counters[i] = time.Now(), b.processes.Counters(b.ctx) }
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
	f.Seconds, f.sampled = d.Seconds(), sampled[1].Sub(sampled[0])
	grown := func(role, counter string) int64 { return counters[1][role][counter] - counters[0][role][counter] }
	f.busy = time.Duration(grown("verifier", busyCounter)) * time.Microsecond
	f.drafting = time.Duration(grown("drafter", busyCounter)) * time.Microsecond
	f.verdicts, f.passes = grown("verifier", verdictsCounter), grown("verifier", passesCounter)
	for i, o := range out {
		if errs[i] != nil {
			return flow{}, false, errs[i]
		}
		f.all += len(o.tokens)
		f.coordination = append(f.coordination, o.Stats.Coordination...)
		equal = b.agrees(v, prompts[i], o) && equal
	}
	return f, equal, nil
}

// crowd returns the prompts of suites with many sessions: all of the first class that was asked for, else mixed ones.
func (b *runner) crowd() []benchPrompt {
	i := slices.IndexFunc(b.sets, func(s promptSet) bool { return s.Name == setMixed })
	if len(b.cfg.Scenario) > 0 || i < 0 {
		i = slices.IndexFunc(b.sets, func(s promptSet) bool { return s.Name == b.pick(b.domains()...)[0].Name })
	}
	return b.sets[i].Prompts
}

// sessionsSuite compares eight sessions at once with one: half of the prompts one after the other, all at
// once, the other half one after the other.
func (b *runner) sessionsSuite() (*suiteResult, error) {
	res := &sessionsResult{}
	r := &suiteResult{Sessions: res}
	v := b.as("sessions", func(r *tandem.Request) { r.MaxTokens = max(r.MaxTokens, 256) }) // long enough for all to decode at once
	all := b.crowd()
	for k := range b.cfg.Repeat {
		if k > 0 && b.over() {
			b.note("time is over after %d of %d repetitions", k, b.cfg.Repeat)
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
	r.figure("8 sessions over 1: tokens/s", figures.Share(res.Many.TokS, res.One.TokS), "")
	r.figure("8 sessions: verifier busy", res.Many.VerifierBusy, "")
	r.figure("1 session: tokens/s", res.One.TokS, "")
	r.figure("8 sessions: tokens/s", res.Many.TokS, "")
	r.figure("8 sessions over 1: tokens/s, prompts included", figures.Share(res.Many.Whole, res.One.Whole), "")
	r.figure("1 session: verifier busy", res.One.VerifierBusy, "")
	r.figure("8 sessions: coordination p50, µs", res.Many.Coordination.P50, "waiting for the others' pass included")
	return r, nil
}
