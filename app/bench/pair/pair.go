// Package pair measures what clients get from a target and its drafts: chat requests over HTTP, each answered in several ways in turn.
//
// A way is a server and the fields that its requests have. The first way is plain decoding; all others are compared with it. Every round
// runs every prompt in all ways, forwards and then backwards (ABBA), and a ratio is of the answers of one round. So what slows the machine
// down for a minute slows both. Two clocks are read: from the first token on, which is decoding alone, and from the request on.
//
// Every answer is by a tenant of its own, because a prompt that a tenant asks again is answered much faster: lookup, recycling and the
// prefix cache know it. What that brings is measured apart: the subject's last tenant asks once more. There are as many rounds as bring
// the lower end of the interval of the subject over plain decoding, all prompts together, near enough, within bounds.
package pair

import (
	"context"
	"crypto/rand"
	"fmt"
	"net/http"
	"slices"
	"sync/atomic"
	"time"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/app/bench/figures"
	"github.com/tandem-llm/tandem/app/bench/prompts"
)

// Way is one way to answer a prompt.
type Way struct {
	Name string
	URL  string         // of the server, without a path; "": the one that Bench.Start starts
	Body map[string]any // fields of its requests besides those of Bench
	Peer bool           // another program's server: its texts may differ
}

// Bench says what to measure.
type Bench struct {
	Ways    []Way  // the first is plain decoding
	Subject string // the way that the figures are about

	Prompts     []prompts.Prompt
	MaxTokens   int
	Temperature float64
	Seed        uint64
	Raw         bool          // prompts are texts to continue, not chats
	Rounds      int           // at most
	Budget      time.Duration // no round begins after it; 0: no bound
	Keys        []string      // that the servers know, a new one for each answer: at least Tenants() of them; none: Run makes some

	AtOnce []int         // numbers of requests to send at once, instead of each prompt alone; none: alone
	Gap    time.Duration // mean time between two of them, whose arrivals are a Poisson process; 0: all come at once

	// Start starts a server that knows keys, calls do with its URL, and ends it. do's ctx ends when the server is gone.
	Start    func(keys []string, do func(ctx context.Context, url string) error) error
	Progress func(format string, args ...any)
}

// Validate returns Invalid for settings that cannot be measured, in the words of the command line.
func (c *Bench) Validate() error {
	names := map[string]bool{}
	for _, w := range c.Ways {
		if names[w.Name] {
			return tandem.Errorf("", tandem.Invalid, "two ways are named %q: want a name of its own for each", w.Name)
		}
		names[w.Name] = true
	}
	switch {
	case len(c.Ways) < 2:
		return tandem.Errorf("", tandem.Invalid, "%d ways: want plain decoding first, and at least one to compare with it", len(c.Ways))
	case c.Ways[0].Peer:
		return tandem.Errorf("", tandem.Invalid, "the first way, %q, is a peer's: want plain decoding here", c.Ways[0].Name)
	case !names[c.Subject]:
		return tandem.Errorf("", tandem.Invalid, "--subject %q is no way of this run", c.Subject)
	case c.Rounds < 1 || c.Rounds > mostRounds || c.Budget < 0:
		return tandem.Errorf("", tandem.Invalid, "--rounds is %d, --budget %v: want 1 to %d, and a time", c.Rounds, c.Budget, mostRounds)
	case c.MaxTokens < 2:
		return tandem.Errorf("", tandem.Invalid, "--max-tokens is %d: want 2 or more, to time them from the first on", c.MaxTokens)
	case len(c.Prompts) == 0:
		return tandem.Errorf("", tandem.Invalid, "no prompts")
	case slices.ContainsFunc(c.AtOnce, func(n int) bool { return n < 1 || n > 256 }):
		return tandem.Errorf("", tandem.Invalid, "--at-once is %v: want numbers from 1 to 256", c.AtOnce)
	case c.Gap < 0 || c.Gap > 0 && len(c.AtOnce) == 0:
		return tandem.Errorf("", tandem.Invalid, "--gap is %v: want a time, with --at-once", c.Gap)
	case len(c.Keys) > 0 && len(c.Keys) < c.Tenants():
		return tandem.Errorf("", tandem.Invalid, "%d keys: want %d, one for each answer of %d rounds", len(c.Keys), c.Tenants(), c.Rounds)
	}
	return nil
}

// Tenants returns how many answers Run asks for at most, each by a tenant of its own: the number of Keys.
func (c *Bench) Tenants() int {
	round := len(c.Prompts) * (passes*len(c.Ways) + 1)
	for _, n := range c.AtOnce {
		round += n * passes * len(c.Ways)
	}
	return len(c.Ways) + c.Rounds*round
}

// runner is one measurement.
type runner struct {
	*Bench
	client http.Client
	models map[string]string // by URL
	texts  map[string]string // the first answer to each prompt by plain decoding
	used   atomic.Int64      // keys
	began  time.Time
	result Result
}

const (
	mostRounds = 1000 // bounds the number of keys
	near       = 0.02 // how far the lower end of the interval may be below the ratio
)

// Run measures all ways in rounds, as the package comment says. With an error it also returns the result of the rounds that were complete
// before; nil if none was. A text that differs between ways is not such an error: see Result.Err. Errors: Validate's, ctx's, the servers'.
func Run(ctx context.Context, c Bench) (*Result, error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	r := &runner{Bench: &c, models: map[string]string{}, texts: map[string]string{}, began: time.Now()}
	r.client.Transport = &http.Transport{DisableKeepAlives: true} // llama-server closes idle connections, and a POST on one of them is lost
	for n := c.Tenants(); len(c.Keys) < n; {
		c.Keys = append(c.Keys, rand.Text())
	}
	var err error
	if slices.ContainsFunc(c.Ways, func(w Way) bool { return w.URL == "" }) {
		err = c.Start(c.Keys, func(ctx context.Context, url string) error {
			c.Ways = at(c.Ways, url)
			return r.measure(ctx)
		})
	} else {
		err = r.measure(ctx)
	}
	if !r.result.measured() {
		return nil, err
	}
	r.result.judge(&c)
	return &r.result, err
}

// at returns ways whose server has started at url.
func at(ways []Way, url string) []Way {
	out := slices.Clone(ways)
	for i := range out {
		if out[i].URL == "" {
			out[i].URL = url
		}
	}
	return out
}

// measure runs all rounds with servers that run.
func (r *runner) measure(ctx context.Context) error {
	if len(r.AtOnce) > 0 {
		return r.crowds(ctx)
	}
	if err := r.warm(ctx, r.Ways); err != nil {
		return err
	}
	subject := r.Ways[slices.IndexFunc(r.Ways, func(w Way) bool { return w.Name == r.Subject })]
	return r.rounds(func(k int) error {
		round := make([]answers, len(r.Prompts))
		for i, p := range r.Prompts {
			var err error
			if round[i], err = r.turn(ctx, k+i, r.Ways, p); err != nil {
				return err
			}
			a, err := r.ask(ctx, subject, p, r.MaxTokens, round[i][r.Subject].key)
			if err != nil {
				return err
			}
			r.compare(subject, p, a)
			round[i][again(r.Subject)] = a
		}
		for i, p := range r.Prompts {
			r.result.add(p.ID, round[i])
		}
		return nil
	})
}

// again names the answer to a prompt that the same tenant has asked just before.
func again(way string) string { return way + ", asked again" }

// passes is how often a round asks each prompt in each way: forwards and backwards.
const passes = 2

// rounds runs rounds until the ratio is known well enough, or to a bound.
func (r *runner) rounds(do func(k int) error) error {
	for k := range r.Rounds {
		if err := do(k); err != nil {
			return err
		}
		r.result.Rounds = k + 1
		below := r.result.below(r.Bench)
		r.result.Ended = fmt.Sprintf("%d rounds, each there and back; the lower end of the %.0f %% interval is ", k+1, 100*figures.Sure)
		if k == 0 {
			r.result.Ended += "unknown"
		} else {
			r.result.Ended += fmt.Sprintf("%.3f below the ratio, wanted %.3f", below, near)
		}
		r.Progress("%s", r.result.Ended)
		if below <= near {
			return nil
		}
		if r.Budget > 0 && time.Since(r.began) >= r.Budget {
			r.result.Ended += ": ended by --budget"
			return nil
		}
	}
	r.result.Ended += ": ended by --rounds"
	return nil
}

// warmTokens is how much is answered, and not timed, by every server at first: first passes touch new memory.
const warmTokens = 8

// warm has every server answer a little.
func (r *runner) warm(ctx context.Context, ways []Way) error {
	seen := map[string]bool{}
	for _, w := range ways {
		if seen[w.URL] {
			continue
		}
		seen[w.URL] = true
		if _, err := r.ask(ctx, w, r.Prompts[0], warmTokens, r.key()); err != nil {
			return err
		}
	}
	return nil
}

// turn answers a prompt in all ways, forwards and backwards; for odd k it begins backwards.
func (r *runner) turn(ctx context.Context, k int, ways []Way, p prompts.Prompt) (answers, error) {
	out, order := answers{}, abba(ways, k)
	for _, w := range order {
		a, err := r.ask(ctx, w, p, r.MaxTokens, r.key())
		if err != nil {
			return nil, err
		}
		out[w.Name] = out[w.Name].and(a)
	}
	for _, w := range ways {
		r.compare(w, p, out[w.Name])
	}
	return out, nil
}

// abba returns the ways in one order and then in the opposite one, the other way round for odd k.
func abba(ways []Way, k int) []Way {
	there, back := slices.Clone(ways), slices.Clone(ways)
	slices.Reverse(back)
	if k%passes == 1 {
		there, back = back, there
	}
	return append(there, back...)
}

// key returns the key of a tenant that has asked nothing yet.
func (r *runner) key() string { return r.Keys[r.used.Add(1)-1] }

// compare notes texts that are not the first one by plain decoding, which is the first way.
func (r *runner) compare(w Way, p prompts.Prompt, a answer) {
	for _, text := range a.texts {
		if _, known := r.texts[p.ID]; !known {
			r.texts[p.ID] = text
		}
		switch first := r.texts[p.ID]; {
		case w.Peer:
			r.result.peer(w.Name, first == text)
		case first != text:
			r.result.Differ = append(r.result.Differ, fmt.Sprintf("%s by %s: %q in place of %q", p.ID, w.Name, shown(text), shown(first)))
		}
	}
}

// shown returns the end of a text.
func shown(text string) string { return text[max(0, len(text)-60):] }
