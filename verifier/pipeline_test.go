package verifier_test

import (
	"cmp"
	"flag"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/drafter"
	"github.com/tandem-llm/tandem/engine"
	"github.com/tandem-llm/tandem/kernels/testdevice"
	"github.com/tandem-llm/tandem/spec/worth"
	"github.com/tandem-llm/tandem/text/token"
	"github.com/tandem-llm/tandem/verifier"
)

var dear = flag.String("dear", "", "draft model of the benchmark of the pipeline; without it the shipped one takes as long as dearly says")

// elsewhere is how long passes of a target take that leaves this machine's cores idle: 0.97 b at Q8_0, as in the benchmark of drafting
// ahead.
func elsewhere(rows int) time.Duration {
	return 40*time.Millisecond + time.Duration(max(rows-8, 0))*3*time.Millisecond
}

// zen5 are measured costs of the same target with two threads of a Zen 5, whose memory is faster: by rows.
var zen5 = worth.NewCosts([]tandem.Cost{{Rows: 1, Time: 15100e3}, {Rows: 2, Time: 16900e3}, {Rows: 4, Time: 19700e3},
	{Rows: 8, Time: 25400e3}, {Rows: 16, Time: 40e6}, {Rows: 32, Time: 67e6}, {Rows: 64, Time: 111e6}})

// dearly is how long passes of a draft of the shape 12,1024,16,8,3072 take on one core: 6 ms for one row, 11 ms for ten.
func dearly(rows int) time.Duration {
	return 6*time.Millisecond + time.Duration(rows-1)*5*time.Millisecond/9
}

// timedModel opens a model whose passes take as long as took says; as long as they do if it is nil.
func timedModel(t testing.TB, file string, sessions int, took func(rows int) time.Duration) *engine.Model {
	t.Helper()
	if took == nil {
		took = func(int) time.Duration { return 0 }
	}
	m, err := engine.Open(file, engine.Options{Device: testdevice.Slow(testdevice.CPU(t, 1), took),
		KVPages: engine.PagesFor(sessions, limit, drafter.DefaultTreeRows)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(m.Close)
	return m
}

// crowd is a rig in which many sessions decode at once.
type crowd struct {
	*rig
	vocab            *token.Vocab
	sessions, length int
	ahead            bool // the drafter may go ahead
}

func newCrowd(t testing.TB, sessions, length int, target, draft func(rows int) time.Duration) crowd {
	var costs []tandem.Cost
	for _, rows := range []int{1, 8, 64, 256} {
		costs = append(costs, tandem.Cost{Rows: rows, Time: target(rows)})
	}
	m := timedModel(t, targetFile, sessions, target)
	r := newRig(t, rigOptions{sessions: sessions, verifier: verifier.Config{Model: m, Costs: costs},
		drafter: drafter.Config{Model: timedModel(t, cmp.Or(*dear, draftFile), sessions, draft)}})
	return crowd{rig: r, vocab: m.Vocab(), sessions: sessions, length: length}
}

// flow is a period in which all sessions of a crowd decoded.
type flow struct {
	tokens, rounds int
	passes         float64
	busy, time     time.Duration
	from, to       time.Time
	began, ended   int
}

// whatPays as a number of batches means two while that is expected to be faster.
const whatPays = -1

// decode divides the sessions into batches and has all decode until the first of them has that many tokens.
func (c crowd) decode(t testing.TB, batches, tokens int) (f flow, texts [][]tandem.Token) {
	t.Helper()
	weighed := batches == whatPays
	if weighed {
		batches = 2
	}
	if err := c.v.SetBatches(batches, weighed); err != nil {
		t.Fatal(err)
	}
	texts = make([][]tandem.Token, c.sessions)
	var mu sync.Mutex
	var all sync.WaitGroup
	for n := range c.sessions {
		first := true
		all.Go(func() {
			s, err := c.generate(asked{prompt: c.prompt(prompts[n%len(prompts)]), tokens: tokens, sampling: tandem.Sampling{TopP: 1},
				bounds: tandem.Bounds{Nodes: c.length + 1, Depth: c.length, Width: 1}, how: tandem.Proposal{Ahead: c.ahead},
				enough: func() bool {
					mu.Lock()
					defer mu.Unlock()
					return f.ended > 0
				},
				seen: func(v tandem.Verdict) {
					mu.Lock()
					defer mu.Unlock()
					if first {
						f.began, first = f.began+1, false
					}
					switch {
					case f.began < c.sessions || f.ended > 0:
					case f.from.IsZero():
						f.from = time.Now()
					default:
						f.to, f.tokens, f.rounds = time.Now(), f.tokens+len(v.Tokens), f.rounds+1
						f.passes, f.busy = f.passes+1/float64(v.Batch), f.busy+v.Busy/time.Duration(v.Batch)
					}
				}})
			mu.Lock()
			defer mu.Unlock()
			f.ended++
			if texts[n] = s.text[len(s.prompt):]; err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	f.time = f.to.Sub(f.from)
	return f, texts
}

func (f *flow) join(o flow) {
	f.tokens, f.rounds, f.passes = f.tokens+o.tokens, f.rounds+o.rounds, f.passes+o.passes
	f.busy, f.time = f.busy+o.busy, f.time+o.time
}

func (f flow) rate() float64 { return float64(f.tokens) / f.time.Seconds() }

// BenchmarkPipeline has 2 to 32 sessions decode with a draft that has a processor of its own, in turn in lockstep, in passes that take
// what waits, in two batches, and in two while that is expected to be faster; -dear FILE runs that draft.
func BenchmarkPipeline(b *testing.B) {
	draft := dearly
	if *dear != "" {
		draft = nil
	}
	targets := map[string]func(rows int) time.Duration{"zen4": elsewhere, "zen5": zen5.Time}
	for _, x := range []struct {
		target           string
		sessions, length int
	}{{"zen4", 2, 4}, {"zen5", 2, 4}, {"zen5", 8, 4}, {"zen5", 16, 4}, {"zen5", 32, 4}, {"zen5", 8, 8}, {"zen5", 16, 8}, {"zen5", 32, 8},
		{"zen4", 8, 4}, {"zen4", 16, 4}, {"zen4", 32, 4}, {"zen4", 8, 8}, {"zen4", 16, 8}, {"zen4", 32, 8}} {
		b.Run(fmt.Sprintf("%s/sessions=%d/length=%d", x.target, x.sessions, x.length), func(b *testing.B) {
			c := newCrowd(b, x.sessions, x.length, targets[x.target], draft)
			c.decode(b, 0, 8) // prompts are known from here on
			divisions := []struct {
				name    string
				batches int
			}{{"lockstep", 1}, {"as-they-come", 0}, {"two", 2}, {"what-pays", whatPays}}
			sums := make([]flow, len(divisions))
			for b.Loop() {
				for i, d := range divisions {
					f, _ := c.decode(b, d.batches, 100)
					sums[i].join(f)
				}
			}
			for i, d := range divisions {
				f := sums[i]
				b.ReportMetric(f.rate(), d.name+"-tokens/s")
				b.ReportMetric(float64(f.rounds)/f.passes, d.name+"-batch")
				b.ReportMetric(f.busy.Seconds()/f.time.Seconds(), d.name+"-busy")
				if i > 0 {
					b.ReportMetric(f.rate()/sums[0].rate(), d.name+"-over-lockstep")
				}
			}
		})
	}
}

// TestBatchesDoNotChangeText: however the verifier divides the sessions, each has the text that it has alone.
func TestBatchesDoNotChangeText(t *testing.T) {
	const sessions, tokens = 6, 24
	fast := func(int) time.Duration { return 2 * time.Millisecond }
	c := newCrowd(t, sessions, 4, fast, fast)
	alone := plain{openModel(t, targetFile, 2)}
	var want [][]tandem.Token
	for _, p := range prompts {
		prompt := c.prompt(p)
		want = append(want, alone.generate(t, asked{prompt: prompt, tokens: tokens, sampling: tandem.Sampling{TopP: 1}})[len(prompt):])
	}
	for _, batches := range []int{whatPays, 0, 1, 2, 3, 100} {
		f, texts := c.decode(t, batches, tokens)
		for n, text := range texts {
			if full := want[n%len(prompts)]; len(text) == 0 || fmt.Sprint(text) != fmt.Sprint(full[:len(text)]) {
				t.Errorf("%d batches, session %d: %v, want %v", batches, n, text, full)
			}
		}
		if mean := float64(f.rounds) / f.passes; batches > 1 && mean > float64((sessions+batches-1)/batches)+0.01 {
			t.Errorf("%d batches of %d sessions: %.2f sessions in a pass", batches, sessions, mean)
		}
	}
}

// prompt returns the tokens of a text.
func (c crowd) prompt(text string) []tandem.Token { return c.vocab.Encode(text, true) }
