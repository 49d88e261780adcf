// Package pair measures what clients get from a target and its drafts: chat requests over HTTP, each answered in several ways in turn.
//
// A way is a server and the fields that its requests have. The first way is plain decoding; all others are compared with it. Every round
// runs every prompt in all ways, forwards and backwards by turns, and a ratio is of two answers of one round. So what slows the machine
// down for a minute slows both. Two clocks are read: from the first token on, which is decoding alone, and from the request on.
package pair

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"time"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/app/bench/prompts"
)

// Way is one way to answer a prompt.
type Way struct {
	Name string
	URL  string         // of the server, without a path; "": the one that Config.Start starts
	Body map[string]any // fields of its requests besides those of Config
	Peer bool           // another program's server, whose texts may be others
}

// Config says what to measure.
type Config struct {
	Ways    []Way  // the first is plain decoding
	Subject string // the way that the figures are about

	Prompts     []prompts.Prompt
	MaxTokens   int
	Temperature float64
	Seed        uint64
	Raw         bool // prompts are texts to continue, not chats
	Rounds      int

	AtOnce []int         // with so many requests at once, in place of each prompt alone
	Gap    time.Duration // mean time between two of them, whose arrivals are a Poisson process; 0: all come at once

	// After names classes of prompts. Every prompt is then answered by a new server, and by ones that have answered Before prompts of
	// each class.
	After  map[string][]prompts.Prompt
	Before int

	// Start starts a server, calls do with its URL, and ends it. do's ctx ends when the server is gone.
	Start    func(do func(ctx context.Context, url string) error) error
	Progress func(format string, args ...any)
}

// Validate returns Invalid for settings that cannot be measured, in the words of the command line.
func (c *Config) Validate() error {
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
	case c.Rounds < 1:
		return tandem.Errorf("", tandem.Invalid, "--rounds is %d: want 1 or more", c.Rounds)
	case c.MaxTokens < 2:
		return tandem.Errorf("", tandem.Invalid, "--max-tokens is %d: want 2 or more, to time them from the first on", c.MaxTokens)
	case len(c.Prompts) == 0:
		return tandem.Errorf("", tandem.Invalid, "no prompts")
	case slices.ContainsFunc(c.AtOnce, func(n int) bool { return n < 1 || n > 256 }):
		return tandem.Errorf("", tandem.Invalid, "--at-once is %v: want numbers from 1 to 256", c.AtOnce)
	case c.Gap < 0 || c.Gap > 0 && len(c.AtOnce) == 0:
		return tandem.Errorf("", tandem.Invalid, "--gap is %v: want a time, with --at-once", c.Gap)
	case len(c.After) > 0 && (len(c.AtOnce) > 0 || c.Before < 1):
		return tandem.Errorf("", tandem.Invalid, "--after wants no --at-once, and --before of 1 or more")
	}
	return nil
}

// runner is one measurement.
type runner struct {
	*Config
	client http.Client
	models map[string]string // by URL
	texts  map[string]string // the first answer to each prompt by plain decoding
	result Result
}

// Run measures. With an error it returns the rounds that were complete before, nil if none was.
func Run(ctx context.Context, c Config) (*Result, error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	r := &runner{Config: &c, models: map[string]string{}, texts: map[string]string{}}
	r.client.Transport = &http.Transport{DisableKeepAlives: true} // llama-server closes idle connections, and a POST on one of them is lost
	var err error
	switch {
	case len(c.After) > 0:
		err = r.histories(ctx)
	case !slices.ContainsFunc(c.Ways, func(w Way) bool { return w.URL == "" }):
		err = r.measure(ctx)
	default:
		err = c.Start(func(ctx context.Context, url string) error {
			c.Ways = at(c.Ways, url)
			return r.measure(ctx)
		})
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
	for k := range r.Rounds {
		round := make([]answers, len(r.Prompts))
		for i, p := range r.Prompts {
			var err error
			if round[i], err = r.turn(ctx, k+i, r.Ways, p); err != nil {
				return err
			}
		}
		for i, p := range r.Prompts {
			r.result.add(p.ID, round[i])
		}
		r.Progress("round %d of %d: %d prompts in %d ways", k+1, r.Rounds, len(r.Prompts), len(r.Ways))
	}
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
		if _, err := r.ask(ctx, w, r.Prompts[0], warmTokens); err != nil {
			return err
		}
	}
	return nil
}

// turn answers a prompt in all ways, forwards or backwards.
func (r *runner) turn(ctx context.Context, k int, ways []Way, p prompts.Prompt) (answers, error) {
	out := answers{}
	for i := range ways {
		if k%2 == 1 {
			i = len(ways) - 1 - i
		}
		a, err := r.ask(ctx, ways[i], p, r.MaxTokens)
		if err != nil {
			return nil, err
		}
		out[ways[i].Name] = a
	}
	for _, w := range ways {
		r.compare(w, p, out[w.Name])
	}
	return out, nil
}

// compare notes an answer that is not the first one by plain decoding, which is the first way.
func (r *runner) compare(w Way, p prompts.Prompt, a answer) {
	if _, known := r.texts[p.ID]; !known {
		r.texts[p.ID] = a.text
	}
	switch first := r.texts[p.ID]; {
	case w.Peer:
		r.result.peer(w.Name, first == a.text)
	case first != a.text:
		r.result.Differ = append(r.result.Differ, fmt.Sprintf("%s by %s: %q in place of %q", p.ID, w.Name, shown(a.text), shown(first)))
	}
}

// shown returns the end of a text.
func shown(text string) string { return text[max(0, len(text)-60):] }

// histories answers each prompt by servers that have answered nothing, and others of each class before.
func (r *runner) histories(ctx context.Context) error {
	classes := append([]string{""}, slices.Sorted(maps.Keys(r.After))...)
	for k := range r.Rounds {
		for _, p := range r.Prompts {
			all := answers{}
			for _, class := range classes {
				err := r.Start(func(ctx context.Context, url string) error {
					ways := at(r.Ways, url)
					subject := ways[slices.IndexFunc(ways, func(w Way) bool { return w.Name == r.Subject })]
					if err := r.warm(ctx, ways[:1]); err != nil {
						return err
					}
					for i := range r.before(class, p) {
						if _, err := r.ask(ctx, subject, r.before(class, p)[i], r.MaxTokens); err != nil {
							return err
						}
					}
					got, err := r.turn(ctx, k, ways, p)
					for name, a := range got {
						all[after(name, class)] = a
					}
					return err
				})
				if err != nil {
					return err
				}
			}
			r.result.add(p.ID, all)
			r.Progress("round %d of %d: %s by %d new servers", k+1, r.Rounds, p.ID, len(classes))
		}
	}
	return nil
}

// before returns the prompts of a class that a server answers before p.
func (r *runner) before(class string, p prompts.Prompt) (out []prompts.Prompt) {
	all := slices.DeleteFunc(slices.Clone(r.After[class]), func(q prompts.Prompt) bool { return q.ID == p.ID })
	for i := 0; len(all) > 0 && i < r.Before; i++ {
		out = append(out, all[i%len(all)])
	}
	return out
}

// after names a way of a server that has answered prompts of a class.
func after(way, class string) string {
	if class == "" {
		return way
	}
	return way + " after " + class
}
