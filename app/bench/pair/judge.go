package pair

import (
	"cmp"
	"fmt"
	"maps"
	"slices"

	"github.com/tandem-llm/tandem/app/bench/figures"
)

// judge makes rows and figures of the rounds.
func (r *Result) judge(c *Config) {
	r.Rounds = c.Rounds
	classes := append([]string{""}, slices.Sorted(maps.Keys(c.After))...)
	for _, class := range classes {
		for _, w := range c.Ways {
			r.Ways = append(r.Ways, after(w.Name, class))
		}
	}
	r.Suites = []suiteResult{{Name: "pair"}}
	r.rows(c)
	switch {
	case len(r.crowds) > 0:
		r.judgeCrowds(c)
	case len(c.After) > 0:
		r.judgeHistories(c, classes[1:])
	default:
		r.judgePrompts(c)
	}
}

// figure adds a ratio, round by round, as a figure.
func (r *Result) figure(name string, a, b []float64) {
	s := figures.SpreadOf(ratios(a, b))
	r.Suites[0].Figures = append(r.Suites[0].Figures, figure{name, s.Median, s.String()})
}

// ratios returns a over b, one by one.
func ratios(a, b []float64) []float64 {
	out := make([]float64, min(len(a), len(b)))
	for i := range out {
		out[i] = figures.Share(a[i], b[i])
	}
	return out
}

// rows fills in the rows of prompts and crowds.
func (r *Result) rows(c *Config) {
	row := func(name string, of []promptRounds) {
		out := promptRow{Prompt: name, Cells: map[string][]cell{}}
		for _, w := range r.Ways {
			for clock := range clocks {
				mine, plain := rates(of, clock, always(w)), rates(of, clock, always(r.Ways[0]))
				out.Cells[w] = append(out.Cells[w], cell{clocks[clock].name, figures.Median(mine), figures.SpreadOf(ratios(mine, plain))})
			}
		}
		r.Prompts = append(r.Prompts, out)
	}
	for i, p := range r.prompts {
		row(p.id, r.prompts[i:i+1])
	}
	if len(r.prompts) > 1 {
		row("all", r.prompts)
	}
	for _, p := range r.crowds {
		out := crowdRow{AtOnce: p.n, Cells: map[string]crowdCell{}}
		for _, w := range c.Ways {
			speed, wait, plain := p.series(speeds, w.Name), p.series(waits, w.Name), c.Ways[0].Name
			out.Cells[w.Name] = crowdCell{figures.Median(speed), figures.SpreadOf(ratios(speed, p.series(speeds, plain))),
				figures.Median(wait), figures.SpreadOf(ratios(p.series(waits, plain), wait)), p.rounds[0][w.Name].tokens}
		}
		r.Crowds = append(r.Crowds, out)
	}
}

// What is read of a run: tokens per second, and seconds of a request.
func speeds(r run) float64 { return figures.Share(float64(r.tokens), r.took.Seconds()) }
func waits(r run) float64  { return r.waited.Seconds() }

// series returns a value of each round of a way.
func (p crowdRounds) series(of func(run) float64, way string) (out []float64) {
	for _, k := range p.rounds {
		out = append(out, of(k[way]))
	}
	return out
}

// judgePrompts sets the subject beside plain decoding, the best other way of the same server, and the best peer; in all with the best of
// each prompt. The best is known only afterwards, which favours it.
func (r *Result) judgePrompts(c *Config) {
	own, peers := others(c)
	for clock, read := range clocks {
		subject := func(all []promptRounds) []float64 { return rates(all, clock, always(c.Subject)) }
		plain := func(all []promptRounds) []float64 { return rates(all, clock, always(c.Ways[0].Name)) }
		for i, p := range r.prompts {
			one := r.prompts[i : i+1]
			r.figure(fmt.Sprintf("%s, %s: %s over plain", p.id, read.name, c.Subject), subject(one), plain(one))
			if len(own) > 0 {
				best := r.best(own, clock)(p.id)
				r.figure(fmt.Sprintf("%s, %s: %s over the best other way, %s", p.id, read.name, c.Subject, best), subject(one),
					rates(one, clock, always(best)))
			}
		}
		r.figure(fmt.Sprintf("all, %s: %s over plain", read.name, c.Subject), subject(r.prompts), plain(r.prompts))
		for _, of := range []struct {
			name string
			ways []string
		}{{"the best other way of each prompt", own}, {"the best peer of each prompt", peers}} {
			if len(of.ways) > 0 {
				r.figure(fmt.Sprintf("all, %s: %s over %s", read.name, c.Subject, of.name), subject(r.prompts),
					rates(r.prompts, clock, r.best(of.ways, clock)))
			}
		}
	}
}

// others returns the ways of the subject's server besides it and plain decoding, and those of peers.
func others(c *Config) (own, peers []string) {
	for _, w := range c.Ways[1:] {
		switch {
		case w.Peer:
			peers = append(peers, w.Name)
		case w.Name != c.Subject:
			own = append(own, w.Name)
		}
	}
	return own, peers
}

// best returns, for each prompt, the way of the highest median.
func (r *Result) best(ways []string, clock int) func(id string) string {
	return func(id string) string {
		i := slices.IndexFunc(r.prompts, func(p promptRounds) bool { return p.id == id })
		return slices.MaxFunc(ways, func(a, b string) int {
			one := r.prompts[i : i+1]
			return cmp.Compare(figures.Median(rates(one, clock, always(a))), figures.Median(rates(one, clock, always(b))))
		})
	}
}

// judgeHistories sets the subject's gain over plain decoding after other prompts beside its gain on a new server.
func (r *Result) judgeHistories(c *Config, classes []string) {
	for clock, read := range clocks {
		for i, p := range r.prompts {
			gain := func(class string) []float64 {
				one := r.prompts[i : i+1]
				return ratios(rates(one, clock, always(after(c.Subject, class))), rates(one, clock, always(after(c.Ways[0].Name, class))))
			}
			for _, class := range classes {
				name := fmt.Sprintf("%s, %s: %s over plain, after %s over fresh", p.id, read.name, c.Subject, class)
				r.figure(name, gain(class), gain(""))
			}
		}
	}
}

// judgeCrowds sets the subject beside plain decoding and each peer.
func (r *Result) judgeCrowds(c *Config) {
	how := "at once"
	if c.Gap > 0 {
		how = fmt.Sprintf("arriving every %v", c.Gap)
	}
	for _, p := range r.crowds {
		for _, w := range c.Ways {
			if w.Name == c.Subject || w.Name != c.Ways[0].Name && !w.Peer {
				continue
			}
			r.figure(fmt.Sprintf("%d %s: tokens/s of %s over %s", p.n, how, c.Subject, w.Name), p.series(speeds, c.Subject),
				p.series(speeds, w.Name))
			r.figure(fmt.Sprintf("%d %s: time of a request of %s over %s", p.n, how, w.Name, c.Subject), p.series(waits, w.Name),
				p.series(waits, c.Subject))
		}
	}
}
