package verifier_test

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/drafter"
	"github.com/tandem-llm/tandem/engine"
	"github.com/tandem-llm/tandem/kernels/half"
	"github.com/tandem-llm/tandem/kernels/testdevice"
	"github.com/tandem-llm/tandem/verifier"
)

var taps = []int{3, -1, 1}

func openTapped(t testing.TB, file string, sessions, threads int, taps []int) *engine.Model {
	t.Helper()
	m, err := engine.Open(file, engine.Options{Device: testdevice.CPU(t, threads), MaxRows: 192, Taps: taps,
		KVPages: engine.PagesFor(sessions, limit, drafter.DefaultTreeRows)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(m.Close)
	return m
}

// collector asks for a session's features as a drafter does.
type collector struct {
	t     testing.TB
	v     tandem.FeatureSource
	next  tandem.Position
	rows  map[tandem.Position][]uint16
	stale int
}

// gather asks for all features before position until.
func (c *collector) gather(id tandem.SessionID, epoch tandem.Epoch, until int) {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	for int(c.next) < until {
		q := tandem.FeatureQuery{Session: id, Epoch: epoch, From: c.next, Until: tandem.Position(until)}
		out, err := c.v.Features(ctx, q)
		if errors.Is(err, tandem.Stale) {
			c.stale++
			return
		}
		if err == nil {
			err = out.Validate(q)
		}
		if err != nil {
			c.t.Errorf("%+v: %v", q, err)
			return
		}
		for i := range out.Len() {
			c.rows[out.From+tandem.Position(i)] = out.Rows[i*out.Width:][:out.Width]
		}
		if c.next = out.From + tandem.Position(out.Len()); out.From == q.From && out.Len() == 0 {
			return // not there yet
		}
	}
}

// TestFeaturesAreTheTargets: what drafters are given, prompts in pieces and rounds of eight sessions at a time, is what a pass over the
// text alone computes, to the bit, and nothing is missing but what was found in the prefix cache.
func TestFeaturesAreTheTargets(t *testing.T) {
	const sessions = 8
	m := openTapped(t, targetFile, sessions+1, 1, taps)
	r := newRig(t, rigOptions{sessions: sessions, verifier: verifier.Config{Model: m, Taps: taps, Chunk: 7}})
	texts, all := make([][]tandem.Token, sessions), make([]*collector, sessions)
	var group sync.WaitGroup
	for i := range sessions {
		c := &collector{t: t, v: r.v, rows: map[tandem.Position][]uint16{}}
		all[i] = c
		group.Go(func() {
			a := asked{prompt: m.Vocab().Encode(prompts[i%len(prompts)], true), tokens: 24, tenant: string(rune('a' + i)),
				bounds: tandem.Bounds{Nodes: 8, Depth: 5, Width: 4}, sampling: tandem.Sampling{Temperature: 0.5 * float64(i%2), TopP: 1},
				disturb: func(s *stream) { c.gather(s.id, s.epoch, len(s.text)-1) }}
			s, err := r.generate(a)
			if err != nil {
				t.Error(err)
			}
			texts[i] = s.text
		})
	}
	group.Wait()
	seen := 0
	for i, c := range all {
		seen += len(c.rows)
		compare(t, texts[i], c.rows)
		if len(c.rows) < 20+len(prompts[i%len(prompts)])/10 {
			t.Errorf("session %d has features of %d positions of %d", i, len(c.rows), len(texts[i]))
		}
		for p := range c.next {
			if c.rows[p] == nil && p >= tandem.Position(len(m.Vocab().Encode(prompts[i%len(prompts)], true)))-1 {
				t.Errorf("session %d: no features of position %d", i, p)
			}
		}
	}
	if n := r.counters.Snapshot(); int(n["features.kept"]) < seen || n["faults"] != 0 {
		t.Errorf("%d rows seen, counted %v", seen, n)
	}
}

// compare computes text in one pass and compares its states with rows.
func compare(t *testing.T, text []tandem.Token, rows map[tandem.Position][]uint16) {
	t.Helper()
	m := openTapped(t, targetFile, 2, 1, taps)
	seq, err := m.NewSequence(limit, 0)
	if err != nil {
		t.Fatal(err)
	}
	out, err := m.Forward([]engine.Part{{Seq: seq, Extend: text}}, 1)
	if err != nil {
		t.Fatal(err)
	}
	x, want := make([]float32, m.FeatureWidth()), make([]uint16, m.FeatureWidth())
	for p, got := range rows {
		out.Features(0, int(p), x)
		if half.Pack(want, x); !slices.Equal(got, want) {
			t.Fatalf("position %d of %d has other features", p, len(text))
		}
	}
}

// TestFeaturesOfAReusedPrompt: what was found in memory has none, what comes after it has; and a new epoch's are not the old one's.
func TestFeaturesOfAReusedPrompt(t *testing.T) {
	m := openTapped(t, targetFile, 4, 1, taps)
	r := newRig(t, rigOptions{verifier: verifier.Config{Model: m, Taps: taps}})
	prompt := m.Vocab().Encode(prompts[0]+prompts[1]+prompts[2]+prompts[3], true)
	var first, second collector
	run := func(c *collector, prompt []tandem.Token, before func(*stream)) []tandem.Token {
		*c = collector{t: t, v: r.v, rows: map[tandem.Position][]uint16{}}
		s, err := r.generate(asked{tenant: "t", prompt: prompt, tokens: 12, bounds: tandem.Bounds{Nodes: 8, Depth: 5, Width: 4},
			sampling: tandem.Sampling{TopP: 1}, disturb: func(s *stream) {
				c.gather(s.id, s.epoch, len(s.text)-1)
				before(s)
			}})
		if err != nil {
			t.Fatal(err)
		}
		return s.text
	}
	text := run(&first, prompt, func(*stream) {})
	again := run(&second, text[:len(prompt)+6], func(*stream) {})
	compare(t, text, first.rows)
	compare(t, again, second.rows)
	if len(second.rows) == 0 || second.rows[0] != nil || second.rows[tandem.Position(len(prompt)+5)] == nil {
		t.Errorf("of a text of %d tokens, found up to %d at least, there are features of %d positions", len(again), len(prompt),
			len(second.rows))
	}
	rounds := 0
	text = run(&first, prompt, func(s *stream) {
		if rounds++; rounds == 2 { // the session is opened anew
			old := s.epoch
			s.epoch++
			if err := s.open(context.Background()); err != nil {
				t.Fatal(err)
			}
			first.gather(s.id, old, len(s.text))
			first.next, first.rows = 0, map[tandem.Position][]uint16{}
		}
	})
	if compare(t, text, first.rows); first.stale == 0 {
		t.Error("an old epoch was answered")
	}
}

// TestFeaturesWithoutTaps: a verifier that keeps none says so.
func TestFeaturesWithoutTaps(t *testing.T) {
	r := newRig(t, rigOptions{})
	if _, err := r.v.Features(t.Context(), tandem.FeatureQuery{Session: 1, Until: 1}); tandem.KindOf(err) != tandem.Unsupported {
		t.Error(err)
	}
}

// BenchmarkFeatures measures what keeping features adds to a pass of eight rows of which four are accepted: -big FILE for another target
// than the shipped one. pass-% is the part of the pass.
func BenchmarkFeatures(b *testing.B) {
	for name, taps := range map[string][]int{"one": {-1}, "three": {1, 2, 3}} {
		b.Run(name, func(b *testing.B) {
			m := openTapped(b, cmp.Or(*big, targetFile), 2, 2, taps)
			seq, err := m.NewSequence(limit, 16)
			if err != nil {
				b.Fatal(err)
			}
			text := m.Vocab().Encode(prompts[0], true)
			if _, err = m.Forward([]engine.Part{{Seq: seq, Extend: text}}, 1); err != nil {
				b.Fatal(err)
			}
			x, h := make([]float32, m.FeatureWidth()), make([]uint16, m.FeatureWidth())
			var passes, keeping time.Duration
			for b.Loop() {
				begun := time.Now()
				out, err := m.Forward([]engine.Part{{Seq: seq, Extend: text[:1], Nodes: text[1:8], Parents: []int32{-1, 0, 1, 2, 3, 4, 5},
					Want: engine.WantTail}}, 1)
				if err != nil {
					b.Fatal(err)
				}
				ran := time.Now()
				for row := range 4 {
					out.Features(0, row, x)
					half.Pack(h, x)
				}
				passes, keeping = passes+ran.Sub(begun), keeping+time.Since(ran)
				if err := seq.Truncate(len(text)); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(100*keeping.Seconds()/passes.Seconds(), "pass-%")
			b.ReportMetric(keeping.Seconds()*1e6/float64(b.N), "µs-keeping")
			b.ReportMetric(passes.Seconds()*1e3/float64(b.N), "ms-pass")
		})
	}
}
