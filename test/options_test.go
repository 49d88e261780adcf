package test

import (
	"context"
	"errors"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/tandem-llm/tandem/client"
)

// options are three values of every sampling option that are tried together.
var options = []func(r *client.Request, i int){
	func(r *client.Request, i int) { r.Temperature = []*float64{nil, new(0.7), new(1.5)}[i] },
	func(r *client.Request, i int) { r.TopK = []*int{nil, new(5), new(40)}[i] },
	func(r *client.Request, i int) { r.TopP = []*float64{nil, new(0.9), new(0.5)}[i] },
	func(r *client.Request, i int) { r.MinP = []*float64{nil, new(0.02), new(0.1)}[i] },
	func(r *client.Request, i int) { r.RepeatPenalty = []*float64{nil, new(1.2), new(0.9)}[i] },
	func(r *client.Request, i int) { r.RepeatLast = []*int{nil, new(3), new(1000)}[i] },
	func(r *client.Request, i int) { r.FrequencyPenalty = []*float64{nil, new(0.6), new(-0.4)}[i] },
	func(r *client.Request, i int) { r.PresencePenalty = []*float64{nil, new(0.9), new(-0.6)}[i] },
	func(r *client.Request, i int) {
		r.LogitBias = []map[uint32]float32{nil, {13: -100}, {13: 1.5, 293: 2, 4018: -1.5}}[i]
	},
	func(r *client.Request, i int) { r.Logprobs, r.TopLogprobs = i > 0, []int{0, 0, 3}[i] },
	func(r *client.Request, i int) { r.Stop = [][]string{nil, {"()\n"}, {"nowhere", "er"}}[i] },
	func(r *client.Request, i int) {
		r.Seed = []*uint64{new(uint64(0)), new(uint64(1)), new(uint64(1 << 60))}[i]
	},
}

// TestOptions has every pair of values of any two options meet (an orthogonal array of 27 rows) and asks with
// several ways to draft and without: the text, the tokens and the log-probabilities are the same.
func TestOptions(t *testing.T) {
	t.Parallel()
	g := up(t)
	accepted, stopped := 0, 0
	ps := sample(t, 1)
	for n := range 27 {
		r := client.Request{Prompt: ps[n%len(ps)].Prompt, MaxTokens: new(20)}
		x, y, z := n%3, n/3%3, n/9
		for i, c := range [][3]int{{1, 0, 0}, {0, 1, 0}, {0, 0, 1}, {1, 1, 0}, {1, 2, 0}, {1, 0, 1}, {1, 0, 2}, {0, 1, 1}, {0, 1, 2},
			{1, 1, 1}, {1, 2, 1}, {1, 1, 2}, {1, 2, 2}}[:len(options)] {
			options[i](&r, (x*c[0]+y*c[1]+z*c[2])%3)
		}
		want := g.told(t, plain(r))
		for _, speculative := range []client.Request{withTree(r, trees[n%len(trees)]), r} {
			got := g.told(t, speculative)
			if got.text != want.text || !slices.Equal(got.tokens, want.tokens) || !reflect.DeepEqual(got.logprobs, want.logprobs) ||
				got.finished.Reason != want.finished.Reason || got.finished.Stopped != want.finished.Stopped {
				t.Errorf("row %d, tree %v:\n got %q %+v\nwant %q %+v", n, speculative.Tree, got.text, got, want.text, want)
			}
			accepted += got.finished.Statistics.Accepted
		}
		if r.Logprobs && len(want.logprobs) != len(want.tokens) || !r.Logprobs && want.logprobs != nil {
			t.Errorf("row %d: %d log-probabilities of %d tokens", n, len(want.logprobs), len(want.tokens))
		}
		if want.finished.Stopped != "" {
			stopped++
		}
	}
	if t.Logf("%d tokens accepted, %d stopped by a sequence", accepted, stopped); accepted < 27 || stopped == 0 {
		t.Error("the test hardly tests what it is for")
	}
}

// spoken is a generation with its log-probabilities.
type spoken struct {
	result
	logprobs []client.Logprob
}

// told runs one request to its end.
func (g *group) told(t testing.TB, r client.Request) spoken {
	t.Helper()
	out, err := g.heard(t.Context(), r, func(int) {})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// heard runs a request and calls each with the number of tokens that have come so far.
func (g *group) heard(ctx context.Context, r client.Request, each func(tokens int)) (out spoken, err error) {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	for event, err := range g.client.Generate(ctx, r) {
		switch {
		case err != nil:
			return out, err
		case event.Delta != nil:
			out.tokens = append(out.tokens, event.Delta.Tokens...)
			out.logprobs = append(out.logprobs, event.Delta.Logprobs...)
			out.text += event.Delta.Text
			each(len(out.tokens))
		case event.Finished != nil:
			out.finished = *event.Finished
		}
	}
	return out, nil
}

// TestKeysOfClients has a gateway with a key: who has it is served by gRPC, nobody else.
func TestKeysOfClients(t *testing.T) {
	t.Parallel()
	g := up(t, "--no-draft", "--api-key", "alpha-beta")
	addr := "unix://" + g.w.tmp + "/g.sock"
	for _, c := range []struct {
		options []client.Option
		want    error
	}{{nil, client.Unauthenticated}, {[]client.Option{client.WithToken("alpha")}, client.Unauthenticated},
		{[]client.Option{client.WithToken("alpha-beta")}, nil}} {
		conn, err := client.Dial(addr, c.options...)
		if err != nil {
			t.Fatal(err)
		}
		_, err = conn.Describe(t.Context())
		if !errors.Is(err, c.want) {
			t.Errorf("%d options: %v, want %v", len(c.options), err, c.want)
		}
		for _, err := range conn.Generate(t.Context(), client.Request{Prompt: "x", MaxTokens: new(2)}) {
			if !errors.Is(err, c.want) {
				t.Errorf("%d options: %v, want %v", len(c.options), err, c.want)
			}
		}
		_ = conn.Close()
	}
}
