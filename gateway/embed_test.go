package gateway

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/test/testkit"
)

// vectorSource is a verifier that makes vectors of width 2 of the first token of each text, a millisecond a token.
type vectorSource struct {
	mu       sync.Mutex
	batches  [][]int                   // lengths of the texts of each that was answered
	fail     map[int]error             // of the n-th call
	identity func(int) tandem.Identity // of the n-th call; nil: "one"
	calls    int
	silent   bool // never answers
}

func (v *vectorSource) Vectors(ctx context.Context, q tandem.VectorQuery) (tandem.Vectors, error) {
	v.mu.Lock()
	v.calls++
	n := v.calls
	v.mu.Unlock()
	out, lengths, tokens := tandem.Vectors{Identity: "one"}, []int{}, 0
	if v.identity != nil {
		out.Identity = v.identity(n)
	}
	for _, x := range q.Inputs {
		lengths, tokens = append(lengths, len(x)), tokens+len(x)
		out.Rows = append(out.Rows, []float32{3 * float32(x[0]), 4 * float32(x[0])})
	}
	if err := v.fail[n]; err != nil {
		return out, err
	}
	for range tokens {
		if q.Progress != nil {
			q.Progress(tandem.Progress{Steps: uint64(time.Now().UnixNano())})
		}
		if err := pause(ctx, time.Millisecond); err != nil || v.silent {
			<-ctx.Done()
			return out, tandem.Errorf("fake", tandem.KindOf(ctx.Err()), "%w", ctx.Err())
		}
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	v.batches = append(v.batches, lengths)
	return out, nil
}

// embeds returns a gateway, and what stops it.
func embeds(t *testing.T, v *vectorSource, change func(*Config)) (w *world, stop func()) {
	w = newWorld()
	w.quiet = true
	c := w.config()
	c.Limits.Context = 4096
	c.Embedding = Embedding{Source: v, Pooling: tandem.PoolingLast, Width: 2}
	if change != nil {
		change(&c)
	}
	var err error
	if w.gw, err = New(c); err != nil {
		t.Fatal(err)
	}
	return w, func() {
		if p := unsettled(w.gw); p != "" {
			t.Error(p)
		}
		if err := w.gw.Shutdown(context.Background()); err != nil {
			t.Error(err)
		}
		w.flights.Wait()
	}
}

// inputsOf returns texts of these lengths; the first token of each is its place, from 1 on.
func inputsOf(lengths ...int) (all [][]tandem.Token) {
	for i, n := range lengths {
		all = append(all, slices.Repeat([]tandem.Token{tandem.Token(1 + i)}, n))
	}
	return all
}

// TestEmbedInBatches: the verifier gets as many texts at once as its passes can use, and no more; every text has its own vector of
// length 1.
func TestEmbedInBatches(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v := &vectorSource{}
		w, stop := embeds(t, v, nil)
		lengths := append(slices.Repeat([]int{3}, 70), 1000, 20, 10, 2000, 5)
		got, err := w.gw.Embed(t.Context(), tandem.EmbedRequest{Inputs: inputsOf(lengths...), Dimensions: 2})
		if err != nil || len(got.Vectors) != len(lengths) || got.Tokens != 3*70+3035 || got.Identity != "one" {
			t.Fatalf("%d vectors, %d tokens, identity %q: %v", len(got.Vectors), got.Tokens, got.Identity, err)
		}
		for i, x := range got.Vectors {
			if !slices.Equal(x, []float32{0.6, 0.8}) {
				t.Errorf("vector %d is %v", i, x)
			}
		}
		if got, err = w.gw.Embed(t.Context(), tandem.EmbedRequest{Inputs: inputsOf(3, 4), Dimensions: 1}); err != nil ||
			fmt.Sprint(got.Vectors) != "[[1] [1]]" { // the first number alone, of length 1 again
			t.Errorf("one dimension: %v, %v", got.Vectors, err)
		}
		v.batches = v.batches[:len(v.batches)-1]
		want := [][]int{slices.Repeat([]int{3}, 64), append(slices.Repeat([]int{3}, 6), 1000), {20, 10}, {2000}, {5}}
		if fmt.Sprint(v.batches) != fmt.Sprint(want) {
			t.Errorf("batches %v: want %v", v.batches, want)
		}
		stop()
	})
}

// TestEmbedSurvives: a batch that the verifier lost, or had no memory for, is asked for again; a verifier of another identity ends the
// request, as does one that is away or silent for too long.
func TestEmbedSurvives(t *testing.T) {
	away := tandem.Errorf("fake", tandem.Unavailable, "away")
	full := tandem.Errorf("fake", tandem.Exhausted, "full")
	broken := tandem.Errorf("fake", tandem.Internal, "broken")
	always := map[int]error{}
	for i := range 1000 {
		always[i] = away
	}
	for name, c := range map[string]struct {
		source *vectorSource
		kind   tandem.Kind
		says   string
	}{
		"lost once":  {&vectorSource{fail: map[int]error{2: away}}, tandem.OK, ""},
		"full twice": {&vectorSource{fail: map[int]error{1: full, 2: full}}, tandem.OK, ""},
		"away":       {&vectorSource{fail: always}, tandem.Unavailable, "made no vectors"},
		"silent":     {&vectorSource{silent: true}, tandem.Unavailable, "made no vectors"},
		"another identity": {&vectorSource{identity: func(n int) tandem.Identity { return tandem.Identity(fmt.Sprint(n)) }},
			tandem.Unavailable, "ask again"},
		"broken": {&vectorSource{fail: map[int]error{1: broken}}, tandem.Internal, "broken"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w, stop := embeds(t, c.source, nil)
				got, err := w.gw.Embed(t.Context(), tandem.EmbedRequest{Inputs: inputsOf(600, 700)})
				if tandem.KindOf(err) != c.kind || err != nil && !strings.Contains(err.Error(), c.says) {
					t.Errorf("%v: want %s with %q", err, c.kind, c.says)
				}
				if err == nil && len(got.Vectors) != 2 {
					t.Errorf("%d vectors: want 2", len(got.Vectors))
				}
				stop()
			})
		})
	}
}

// TestEmbedRefused: what cannot be embedded is refused by its field before the verifier is asked.
func TestEmbedRefused(t *testing.T) {
	one := tandem.EmbedRequest{Inputs: inputsOf(1)}
	for name, c := range map[string]struct {
		change func(*Config)
		r      tandem.EmbedRequest
		kind   tandem.Kind
		field  string
		says   string
	}{
		"no source":    {func(c *Config) { c.Embedding.Source = nil }, one, tandem.Unsupported, "", "no vectors"},
		"no pooling":   {func(c *Config) { c.Embedding.Pooling, c.Embedding.Unknown = "", "say" }, one, tandem.Unsupported, "model", "say"},
		"more":         {nil, tandem.EmbedRequest{Inputs: inputsOf(1), Dimensions: 3}, tandem.Invalid, "dimensions", "want 1 to 2"},
		"below zero":   {nil, tandem.EmbedRequest{Inputs: inputsOf(1), Dimensions: -1}, tandem.Invalid, "dimensions", "want 1 to 2"},
		"none":         {nil, tandem.EmbedRequest{}, tandem.Invalid, "input", "0 texts"},
		"an empty one": {nil, tandem.EmbedRequest{Inputs: inputsOf(1, 0)}, tandem.Invalid, "input", "text 1 of input is empty"},
		"too long":     {nil, tandem.EmbedRequest{Inputs: inputsOf(4097)}, tandem.Invalid, "input", "4097"},
		"a wrong id":   {nil, tandem.EmbedRequest{Inputs: [][]tandem.Token{{-1}}}, tandem.Invalid, "input", "-1"},
		"no direction": {nil, tandem.EmbedRequest{Inputs: [][]tandem.Token{{0}}}, tandem.Unsupported, "", "length 0"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w, stop := embeds(t, &vectorSource{}, c.change)
				got, err := w.gw.Embed(t.Context(), c.r)
				if tandem.KindOf(err) != c.kind || tandem.FieldOf(err) != c.field || !strings.Contains(fmt.Sprint(err), c.says) {
					t.Errorf("%v, field %q, %d vectors: want %s of %q with %q", err, tandem.FieldOf(err), len(got.Vectors), c.kind,
						c.field, c.says)
				}
				stop()
			})
		})
	}
}

// TestEmbedLetsOthersIn: a tenant with all slots embeds for minutes; requests of another tenant get a slot soon, and every text still has
// its vector, the long one included.
func TestEmbedLetsOthersIn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v := &vectorSource{}
		w, stop := embeds(t, v, func(c *Config) { c.Sessions, c.Queue = 1, 8 })
		var all sync.WaitGroup
		all.Go(func() {
			got, err := w.gw.Embed(context.Background(), tandem.EmbedRequest{Tenant: "many",
				Inputs: inputsOf(append(slices.Repeat([]int{900}, 30), 4000)...)})
			if err != nil || len(got.Vectors) != 31 {
				t.Errorf("%d vectors: %v", len(got.Vectors), err)
			}
		})
		for i := range 8 {
			testkit.Sleep(4 * time.Second)
			asked := time.Now()
			_, err := w.gw.Generate(context.Background(), tandem.Request{Tenant: "other", Prompt: "please", MaxTokens: 2,
				Sampling: tandem.Sampling{TopP: 1}}, &sink{})
			if took := time.Since(asked); err != nil || took > 6*time.Second {
				t.Errorf("request %d took %v: %v", i, took, err)
			}
		}
		all.Wait()
		stop()
	})
}
