package pair

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/tandem-llm/tandem/app/bench/figures"
)

// judge makes rows and figures of the rounds.
func (r *Result) judge(c *Bench) {
	for _, w := range c.Ways {
		r.Ways = append(r.Ways, w.Name)
	}
	if len(r.prompts) > 0 {
		r.Ways = append(r.Ways, again(c.Subject))
	}
	r.Suites = []suiteResult{{Name: "pair"}}
	r.rows(c)
	if len(r.prompts) > 0 {
		r.judgePrompts(c)
	}
	r.judgeCrowds(c)
}

// figure adds a ratio as a figure.
func (r *Result) figure(name string, s figures.Spread) {
	r.Suites[0].Figures = append(r.Suites[0].Figures, figure{name, s.Median, s.String()})
}

// ratios returns the spread of a over b, round by round.
func ratios(a, b []float64) figures.Spread {
	out := make([]float64, min(len(a), len(b)))
	for i := range out {
		out[i] = figures.Share(a[i], b[i])
	}
	return figures.SpreadOf(out)
}

// below returns how far the lower end of the interval of the subject over plain decoding is below the ratio of all prompts together, or
// of the number of requests at once where it is furthest.
func (r *Result) below(c *Bench) (most float64) {
	if len(r.prompts) > 0 {
		most = ratios(rates(r.prompts, 0, always(c.Subject)), rates(r.prompts, 0, always(c.Ways[0].Name))).Below()
	}
	for _, p := range r.crowds {
		most = max(most, ratios(p.series(speeds, c.Subject), p.series(speeds, c.Ways[0].Name)).Below())
	}
	return most
}

// rows fills in the rows of prompts and crowds.
func (r *Result) rows(c *Bench) {
	own, _ := others(c)
	row := func(name string, of []promptRounds) {
		out := promptRow{Prompt: name, Cells: map[string][]cell{}}
		for clock, read := range clocks {
			plain := rates(of, clock, always(r.Ways[0]))
			for _, w := range r.Ways {
				mine := rates(of, clock, always(w))
				out.Cells[w] = append(out.Cells[w], cell{read.name, figures.Median(mine), ratios(mine, plain), aRound(of, w)})
			}
			if len(own) < 2 || len(of[0].rounds) < 2 {
				continue // nothing to choose from, or to choose on
			}
			best := r.best(own, clock)
			b := bestCell{Clock: read.name, Ratio: ratios(rates(of, clock, always(c.Subject)), rates(of, clock, best))}
			if len(of) == 1 {
				b.Ways = []string{best(of[0].id, 0), best(of[0].id, 1)}
			}
			out.Best = append(out.Best, b)
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
			out.Cells[w.Name] = crowdCell{figures.Median(speed), ratios(speed, p.series(speeds, plain)), figures.Median(wait),
				ratios(p.series(waits, plain), wait), p.rounds[0][w.Name].tokens}
		}
		r.Crowds = append(r.Crowds, out)
	}
}

// aRound returns the tokens that a round of a way decided, over several prompts.
func aRound(of []promptRounds, way string) float64 {
	tokens, accepted := 0, 0
	for _, p := range of {
		for _, round := range p.rounds {
			tokens, accepted = tokens+round[way].tokens, accepted+round[way].accepted
		}
	}
	return figures.Share(float64(tokens), float64(tokens-accepted))
}

// What is read of a run: tokens per second, and seconds of a request.
func speeds(r run) float64 { return figures.Share(float64(r.tokens), r.took.Seconds()) }
func waits(r run) float64  { return figures.Share(r.waited.Seconds(), float64(len(r.answers))) }

// series returns a value of each round of a way.
func (p crowdRounds) series(of func(run) float64, way string) (out []float64) {
	for _, k := range p.rounds {
		out = append(out, of(k[way]))
	}
	return out
}

// judgePrompts sets the subject beside plain decoding, the best fixed way and the best peer of each prompt: each of them, all together, the
// median and the least. What a repetition brings is the subject asked again over itself.
func (r *Result) judgePrompts(c *Bench) {
	_, peers := others(c)
	for clock, read := range clocks {
		over := func(rival string, of func(promptRow) figures.Spread) {
			var each []float64
			for _, p := range r.Prompts {
				r.figure(fmt.Sprintf("%s, %s: %s over %s", p.Prompt, read.name, c.Subject, rival), of(p))
				if p.Prompt != "all" {
					each = append(each, of(p).Median)
				}
			}
			r.Suites[0].Figures = append(r.Suites[0].Figures,
				figure{fmt.Sprintf("median prompt, %s: %s over %s", read.name, c.Subject, rival), figures.Median(each), ""},
				figure{fmt.Sprintf("least prompt, %s: %s over %s", read.name, c.Subject, rival), slices.Min(each), ""})
		}
		over("plain", func(p promptRow) figures.Spread { return p.Cells[c.Subject][clock].Ratio })
		if len(r.Prompts[0].Best) > 0 {
			over("the best fixed way", func(p promptRow) figures.Spread { return p.Best[clock].Ratio })
		}
		all := func(way func(string, int) string) []float64 { return rates(r.prompts, clock, way) }
		if len(peers) > 0 {
			r.figure(fmt.Sprintf("all, %s: %s over the best peer of each prompt", read.name, c.Subject),
				ratios(all(always(c.Subject)), all(r.best(peers, clock))))
		}
		r.figure(fmt.Sprintf("all, %s: %s over asked once", read.name, again(c.Subject)),
			ratios(all(always(again(c.Subject))), all(always(c.Subject))))
	}
}

// others returns the fixed ways, which are those of tandem's own servers besides the subject, and those of peers.
func others(c *Bench) (own, peers []string) {
	for _, w := range c.Ways {
		switch {
		case w.Peer:
			peers = append(peers, w.Name)
		case w.Name != c.Subject:
			own = append(own, w.Name)
		}
	}
	return own, peers
}

// best returns, for each prompt and round, the way of the highest median in the other half of the rounds, of even and of odd ones; with
// one round, in this.
func (r *Result) best(ways []string, clock int) func(id string, round int) string {
	return func(id string, round int) string {
		p := r.prompts[slices.IndexFunc(r.prompts, func(p promptRounds) bool { return p.id == id })]
		half := promptRounds{id: id}
		for k, a := range p.rounds {
			if k%2 != round%2 || len(p.rounds) == 1 {
				half.rounds = append(half.rounds, a)
			}
		}
		return slices.MaxFunc(ways, func(a, b string) int {
			one := []promptRounds{half}
			return cmp.Compare(figures.Median(rates(one, clock, always(a))), figures.Median(rates(one, clock, always(b))))
		})
	}
}

// judgeCrowds sets the subject beside plain decoding and each peer.
func (r *Result) judgeCrowds(c *Bench) {
	how := "at once"
	if c.Gap > 0 {
		how = fmt.Sprintf("arriving every %v", c.Gap)
	}
	for _, p := range r.crowds {
		for _, w := range c.Ways {
			if w.Name == c.Subject || w.Name != c.Ways[0].Name && !w.Peer {
				continue
			}
			r.figure(fmt.Sprintf("%d %s: tokens/s of %s over %s", p.n, how, c.Subject, w.Name),
				ratios(p.series(speeds, c.Subject), p.series(speeds, w.Name)))
			r.figure(fmt.Sprintf("%d %s: time of a request of %s over %s", p.n, how, w.Name, c.Subject),
				ratios(p.series(waits, w.Name), p.series(waits, c.Subject)))
		}
	}
}
