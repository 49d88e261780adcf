package tandem_test

import (
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/tandem-llm/tandem"
)

var (
	nan, inf = math.NaN(), math.Inf(1)
	limits   = tandem.Limits{PromptBytes: 1000, Context: 100, Vocab: 50, Nodes: 64, Depth: 16, Width: 8}
)

// request is one that everything is right with.
func request() tandem.Request {
	return tandem.Request{Prompt: "x", MaxTokens: 1, Sampling: tandem.Sampling{TopP: 1}}
}

func TestRangesOfNumbers(t *testing.T) {
	for _, c := range []struct {
		field     string
		set       func(*tandem.Request, float64)
		good, bad []float64
	}{
		{"repeats", func(r *tandem.Request, v float64) { r.Repeats = int(v) }, []float64{0, 128, 1 << 30}, []float64{1, 127, -1}},
		{"max_tokens", func(r *tandem.Request, v float64) { r.MaxTokens = int(v) }, []float64{1, 1 << 30}, []float64{0, -1, math.MinInt32}},
		{"temperature", func(r *tandem.Request, v float64) { r.Sampling.Temperature = v }, []float64{0, 1e-300, 2, 100},
			[]float64{-1e-300, -1, 101, nan, inf, -inf}},
		{"top_k", func(r *tandem.Request, v float64) { r.Sampling.TopK = int(v) }, []float64{-1, 0, 1, 1 << 30}, []float64{-2}},
		{"top_p", func(r *tandem.Request, v float64) { r.Sampling.TopP = v }, []float64{1e-300, 0.5, 1},
			[]float64{0, -1, 1.0000001, nan, inf}},
		{"min_p", func(r *tandem.Request, v float64) { r.Sampling.MinP = v }, []float64{0, 0.05, 1}, []float64{-0.01, 1.01, nan, inf}},
		{"repeat_penalty", func(r *tandem.Request, v float64) { r.Sampling.RepeatPenalty = v }, []float64{0, 0.1, 1, 10},
			[]float64{-0.1, 10.1, nan, inf}},
		{"accept_epsilon", func(r *tandem.Request, v float64) { r.Sampling.Accept, r.Sampling.Epsilon = tandem.AcceptTypical, v },
			[]float64{0, 0.09, 1}, []float64{-0.1, 1.1, nan, inf}},
		{"accept_delta", func(r *tandem.Request, v float64) { r.Sampling.Accept, r.Sampling.Delta = tandem.AcceptTypical, v },
			[]float64{0, 0.3, 1}, []float64{-0.1, 1.1, nan, inf}},
		{"repeat_last", func(r *tandem.Request, v float64) { r.Sampling.RepeatLast = int(v) }, []float64{0, 1, 4096}, []float64{-1, 4097}},
		{"frequency_penalty", func(r *tandem.Request, v float64) { r.Sampling.FrequencyPenalty = v }, []float64{-2, 0, 2},
			[]float64{-2.01, 2.01, nan, inf, -inf}},
		{"presence_penalty", func(r *tandem.Request, v float64) { r.Sampling.PresencePenalty = v }, []float64{-2, 0, 2},
			[]float64{-2.01, 2.01, nan, inf, -inf}},
		{"top_logprobs", func(r *tandem.Request, v float64) { r.Sampling.Logprobs, r.Sampling.TopLogprobs = true, int(v) },
			[]float64{0, 20}, []float64{-1, 21}},
		{"logit_bias", func(r *tandem.Request, v float64) { r.Sampling.Bias = []tandem.Bias{{Token: 3, Add: float32(v)}} },
			[]float64{-100, 0, 100}, []float64{-100.1, 100.1, nan, inf, -inf}},
		{"nodes", func(r *tandem.Request, v float64) { r.Bounds = tandem.Bounds{Nodes: int(v), Depth: 2, Width: 2} }, []float64{2, 64},
			[]float64{1, -1, 65}},
		{"depth", func(r *tandem.Request, v float64) { r.Bounds = tandem.Bounds{Nodes: 9, Depth: int(v), Width: 2} }, []float64{1, 16},
			[]float64{0, 17}},
		{"width", func(r *tandem.Request, v float64) { r.Bounds = tandem.Bounds{Nodes: 9, Depth: 2, Width: int(v)} }, []float64{1, 8},
			[]float64{0, 9}},
	} {
		for _, v := range c.good {
			r := request()
			c.set(&r, v)
			if err := r.Validate(limits); err != nil {
				t.Errorf("%s %v: %v", c.field, v, err)
			}
		}
		for _, v := range c.bad {
			r := request()
			c.set(&r, v)
			err := r.Validate(limits)
			if !errors.Is(err, tandem.Invalid) || tandem.FieldOf(err) != c.field || !strings.Contains(err.Error(), c.field) ||
				!strings.Contains(err.Error(), "want") {
				t.Errorf("%s %v: %v of field %q", c.field, v, err, tandem.FieldOf(err))
			}
			plain := r
			plain.Sampling = request().Sampling
			if alone := r.Sampling.Validate(limits); plain.Validate(limits) == nil && (alone == nil || alone.Error() != err.Error()) {
				t.Errorf("%s %v: the sampling alone is %v, the request %v", c.field, v, alone, err)
			}
		}
	}
}

func TestRequestsThatAreRefused(t *testing.T) {
	long := make([]tandem.Bias, 301)
	for i := range long {
		long[i].Token = tandem.Token(i)
	}
	wide := limits
	wide.Vocab = 1000
	for _, c := range []struct {
		field string
		set   func(*tandem.Request)
		text  string
	}{
		{"prompt", func(r *tandem.Request) { r.Prompt = "" }, "empty"},
		{"prompt", func(r *tandem.Request) { r.Prompt = "ab\xffc" }, "at byte 2"},
		{"prompt", func(r *tandem.Request) { r.Prompt = strings.Repeat("x", 1001) }, "1001 bytes: at most 1000"},
		{"prompt", func(r *tandem.Request) { r.Tokens = []tandem.Token{} }, "empty"},
		{"prompt", func(r *tandem.Request) { r.Tokens = []tandem.Token{1, 1000} }, "token 1 is 1000"},
		{"prompt", func(r *tandem.Request) { r.Tokens = []tandem.Token{-1} }, "token 0 is -1"},
		{"prompt", func(r *tandem.Request) { r.Tokens = make([]tandem.Token, 100) }, "context holds 100"},
		{"tenant", func(r *tandem.Request) { r.Tenant = strings.Repeat("x", 129) }, "129 bytes: want at most 128"},
		{"tenant", func(r *tandem.Request) { r.Tenant = "\xff" }, "UTF-8"},
		{"stop", func(r *tandem.Request) { r.Stop = make([]string, 65) }, "65 sequences: at most 64"},
		{"stop", func(r *tandem.Request) { r.Stop = []string{"a", ""} }, "sequence 1 has 0 bytes: want 1 to 256"},
		{"stop", func(r *tandem.Request) { r.Stop = []string{strings.Repeat("x", 257)} }, "257 bytes"},
		{"stop", func(r *tandem.Request) { r.Stop = []string{"é\xc3"} }, "at byte 2"},
		{"top_logprobs", func(r *tandem.Request) { r.Sampling.TopLogprobs = 1 }, "without logprobs"},
		{"logit_bias", func(r *tandem.Request) { r.Sampling.Bias = long }, "301 tokens: at most 300"},
		{"logit_bias", func(r *tandem.Request) { r.Sampling.Bias = []tandem.Bias{{Token: 1000}} }, "token 1000: vocabulary has 1000"},
		{"logit_bias", func(r *tandem.Request) { r.Sampling.Bias = []tandem.Bias{{Token: -1}} }, "token -1"},
		{"logit_bias", func(r *tandem.Request) { r.Sampling.Bias = []tandem.Bias{{Token: 4}, {Token: 4}} }, "token 4 after token 4"},
		{"logit_bias", func(r *tandem.Request) { r.Sampling.Bias = []tandem.Bias{{Token: 4}, {Token: 3}} }, "token 3 after token 4"},
		{"strategy", func(r *tandem.Request) { r.Strategy = "fast" }, `"fast"`},
		{"vote", func(r *tandem.Request) { r.Vote = "all" }, `"all"`},
		{"drafters", func(r *tandem.Request) { r.Drafters = []string{"go", "go"} }, `"go"`},
		{"drafters", func(r *tandem.Request) { r.Drafters = make([]string, 17) }, "17 drafters"},
		{"without", func(r *tandem.Request) { r.Without = 1 << 7 }, "0x80"},
	} {
		r := request()
		c.set(&r)
		err := r.Validate(wide)
		if !errors.Is(err, tandem.Invalid) || tandem.FieldOf(err) != c.field || !strings.Contains(err.Error(), c.text) {
			t.Errorf("%s: %v of field %q, want %q", c.field, err, tandem.FieldOf(err), c.text)
		}
	}
	r := request()
	r.Tenant, r.Sampling.Bias = strings.Repeat("x", 128), long[:300]
	r.Stop = []string{strings.Repeat("x", 256), "\n", "é", "\x00"}
	if err := r.Validate(wide); err != nil {
		t.Errorf("at the limits: %v", err)
	}
	if _, err := tandem.ParseTechniques([]string{"ahead", "luck"}); tandem.FieldOf(err) != "without" {
		t.Errorf("technique: %v of field %q", err, tandem.FieldOf(err))
	}
}

func TestErrorsAreFoundInChains(t *testing.T) {
	inner := &tandem.Error{Op: "x", Kind: tandem.Invalid, Field: "top_p", RetryAfter: time.Second, Err: errors.New("y")}
	err := fmt.Errorf("a: %w", tandem.Errorf("b", tandem.Internal, "c: %w", inner))
	if tandem.FieldOf(err) != "top_p" || tandem.RetryAfter(err) != time.Second || tandem.KindOf(err) != tandem.Internal {
		t.Errorf("field %q, retry after %v, kind %v", tandem.FieldOf(err), tandem.RetryAfter(err), tandem.KindOf(err))
	}
	if tandem.FieldOf(nil) != "" || tandem.FieldOf(errors.New("x")) != "" {
		t.Error("a field of nothing")
	}
	if tandem.Unauthenticated.String() != "unauthenticated" {
		t.Errorf("kind %v", tandem.Unauthenticated)
	}
}

// TestConstraintForm: a constraint whose form no compiler would give is refused, and so is one behind whose end the text is to go on.
func TestConstraintForm(t *testing.T) {
	right := tandem.Constraint{Spec: "{}", Digest: strings.Repeat("0", 64), Ends: []tandem.Token{2, 5}}
	for _, c := range []struct {
		what  string
		with  func(*tandem.Request, *tandem.Constraint)
		field string
	}{
		{"right", func(*tandem.Request, *tandem.Constraint) {}, ""},
		{"empty", func(_ *tandem.Request, c *tandem.Constraint) { c.Spec = "" }, "constraint"},
		{"long", func(_ *tandem.Request, c *tandem.Constraint) { c.Spec = strings.Repeat("x", tandem.MaxConstraint+1) }, "constraint"},
		{"digest", func(_ *tandem.Request, c *tandem.Constraint) { c.Digest = "0" }, "constraint"},
		{"ends", func(_ *tandem.Request, c *tandem.Constraint) { c.Ends = []tandem.Token{5, 2} }, "constraint"},
		{"vocabulary", func(_ *tandem.Request, c *tandem.Constraint) { c.Ends = []tandem.Token{10} }, "constraint"},
		{"goes on", func(r *tandem.Request, _ *tandem.Constraint) { r.IgnoreEOS = true }, "ignore_eos"},
	} {
		limits := right
		r := tandem.Request{Prompt: "x", MaxTokens: 1, Sampling: tandem.Sampling{TopP: 1, Constraint: &limits}}
		c.with(&r, &limits)
		if got := tandem.FieldOf(r.Validate(tandem.Limits{Vocab: 10})); got != c.field {
			t.Errorf("%s: field %q: want %q", c.what, got, c.field)
		}
	}
}
