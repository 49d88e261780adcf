package verifier_test

import (
	"math"
	"reflect"
	"slices"
	"sync"
	"testing"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/engine"
	"github.com/tandem-llm/tandem/engine/sample"
)

// typicalSampling is lossy, with and without everything that shapes a distribution.
var typicalSampling = []tandem.Sampling{
	{Accept: tandem.AcceptTypical, Temperature: 1, TopP: 1, Seed: 1},
	{Accept: tandem.AcceptTypical, Temperature: 0.7, TopP: 0.9, TopK: 40, Logprobs: true, TopLogprobs: 2, Epsilon: 0.2, Delta: 0.5},
	{Accept: tandem.AcceptTypical, Temperature: 1.5, TopP: 1, RepeatPenalty: 1.3, RepeatLast: 4, FrequencyPenalty: 0.4, Logprobs: true},
}

// TestTypical: every token of a drafted path passes the thresholds by a distribution computed anew from the whole text, every round ends
// with the likeliest token, and log-probabilities are right. The same request gives the same text again.
func TestTypical(t *testing.T) {
	const tokens = 40
	twin := plain{openModel(t, targetFile, 1)}
	r := newRig(t, rigOptions{})
	accepted, other := 0, 0
	for n, p := range typicalSampling {
		a := asked{prompt: twin.prompt(prompts[n]), tokens: tokens, sampling: p, bounds: tandem.Bounds{Nodes: 16, Depth: 5, Width: 6}}
		var drafted []bool
		var logprobs []tandem.Logprob
		a.seen = func(v tandem.Verdict) {
			for range v.Path {
				drafted = append(drafted, true)
			}
			drafted = append(drafted, false)
			logprobs = append(logprobs, v.Logprobs...)
		}
		s, err := r.generate(a)
		if err != nil {
			t.Fatal(err)
		}
		accepted += s.accepted
		other += twin.typical(t, a, s.text, drafted, logprobs)
		a.seen = nil
		again, err := r.generate(a)
		if err != nil || !slices.Equal(again.text, s.text) {
			t.Errorf("%+v: %v\n got %v\nthen %v", p, err, s.text, again.text)
		}
	}
	t.Logf("%d tokens accepted, %d of them not the likeliest", accepted, other)
	if accepted < tokens/2 || other == 0 {
		t.Errorf("%d tokens accepted, %d of them not the likeliest: the test hardly tests the rule", accepted, other)
	}
}

// typical checks a text that was accepted by the rule. It returns how many accepted tokens were not the likeliest.
func (p plain) typical(t *testing.T, a asked, text []tandem.Token, drafted []bool, logprobs []tandem.Logprob) (other int) {
	t.Helper()
	seq, err := p.m.NewSequence(limit, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer seq.Close()
	epsilon, delta := a.sampling.Thresholds()
	var s sample.Sampler
	for at := len(a.prompt); at < len(text); at++ {
		out, err := p.m.Forward([]engine.Part{{Seq: seq, Extend: text[seq.Len():at], Want: engine.WantTail}}, 1)
		if err != nil {
			t.Fatal(err)
		}
		i, x, logits := at-len(a.prompt), text[at], out.Logits(out.First(0))
		if a.sampling.Logprobs && !reflect.DeepEqual(logprobs[i], s.Logprob(logits, x, a.sampling.TopLogprobs)) {
			t.Errorf("token %d: log-probabilities %v: want %v", i, logprobs[i], s.Logprob(logits, x, a.sampling.TopLogprobs))
		}
		shaped := s.Shape(logits, a.sampling, sample.NewHistory(a.sampling, text[:at], len(a.prompt)))
		likeliest := sample.Argmax(shaped)
		if !drafted[i] {
			if x != likeliest {
				t.Errorf("token %d ends a round and is %d: the likeliest is %d", i, x, likeliest)
			}
			continue
		}
		chance, entropy := 0.0, 0.0
		for _, q := range s.Distribution(shaped, a.sampling) {
			if entropy -= q.P * math.Log(q.P); q.Token == x {
				chance = q.P
			}
		}
		if chance <= min(epsilon, delta*math.Exp(-entropy)) {
			t.Errorf("token %d was accepted with probability %v and entropy %v", i, chance, entropy)
		}
		if x != likeliest {
			other++
		}
	}
	return other
}

// TestTypicalAtZero: at temperature 0 the rule accepts what the target would say, and nothing else.
func TestTypicalAtZero(t *testing.T) {
	twin := plain{openModel(t, targetFile, 1)}
	r := newRig(t, rigOptions{})
	for _, p := range []tandem.Sampling{{TopP: 1}, {TopP: 1, RepeatPenalty: 1.2}} {
		a := asked{prompt: twin.prompt(prompts[0]), tokens: 30, sampling: p, bounds: tandem.Bounds{Nodes: 16, Depth: 5, Width: 4}}
		want := twin.generate(t, a)
		a.sampling.Accept = tandem.AcceptTypical
		s, err := r.generate(a)
		if err != nil || !slices.Equal(s.text, want) || s.accepted == 0 {
			t.Errorf("%+v: %v, %d accepted\n got %v\nwant %v", p, err, s.accepted, s.text, want)
		}
	}
}

// TestTypicalBesideExact: exact requests that share their passes with lossy ones have the text that they have alone.
func TestTypicalBesideExact(t *testing.T) {
	const tokens = 40
	twin := plain{openModel(t, targetFile, 1)}
	r := newRig(t, rigOptions{sessions: 4})
	bounds := tandem.Bounds{Nodes: 12, Depth: 4, Width: 4}
	var running sync.WaitGroup
	var mu sync.Mutex
	shared := 0
	for n, prompt := range prompts {
		a := asked{prompt: twin.prompt(prompt), tokens: tokens, bounds: bounds, sampling: typicalSampling[n/2]}
		var want []tandem.Token
		if n%2 == 0 {
			a.sampling = tandem.Sampling{Temperature: float64(n) / 2, TopP: 1, Seed: uint64(n)}
			want = twin.generate(t, a)
			a.seen = func(v tandem.Verdict) {
				mu.Lock()
				defer mu.Unlock()
				if v.Batch > 1 {
					shared++
				}
			}
		}
		running.Go(func() {
			s, err := r.generate(a)
			if err != nil || want != nil && !slices.Equal(s.text, want) {
				t.Errorf("prompt %d: %v\n got %v\nwant %v", n, err, s.text, want)
			}
		})
	}
	running.Wait()
	t.Logf("%d rounds of exact requests shared a pass", shared)
	if shared == 0 {
		t.Error("no pass was shared")
	}
}
