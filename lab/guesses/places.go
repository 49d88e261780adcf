package guesses

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/tandem-llm/tandem/app/bench/figures"
	"github.com/tandem-llm/tandem/engine"
)

// Place is somewhere a target can compute.
type Place struct {
	Name string
	Open Opener
}

// Places compares the speed of real rounds where a target can compute.
type Places struct {
	Target string  `json:"target"`
	Tokens int     `json:"tokens"` // decoded at each place, with each size of trees
	Places []Rates `json:"places"`
}

// Rates are the speeds at one place.
type Rates struct {
	Place string `json:"place"`
	Rates []Rate `json:"rates"`
}

// Rate is the speed with one way's trees of one size.
type Rate struct {
	Way       string  `json:"way"`   // "": plain decoding
	Width     int     `json:"width"` // nodes of a tree; 1: none
	Tau       float64 `json:"tau"`   // tokens a round
	PerSecond float64 `json:"tokens_per_second"`
}

// Compare has the target say texts at the first place, without speculation, and then say them again at each place, plain and with trees of
// all sizes, guesses included. Only Config's first temperature counts, and Open is not used. Errors: Run's, and Internal if a place says
// another text.
func Compare(ctx context.Context, c Config, places []Place) (*Places, error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	var options engine.Options
	c.Open = func(path string, o engine.Options) (*engine.Model, error) {
		options = o
		return places[0].Open(path, o)
	}
	b := &bench{Config: &c, ctx: ctx}
	defer func() { b.close() }()
	if err := b.open(); err != nil {
		return nil, err
	}
	j, err := b.trees()
	if err != nil {
		return nil, err
	}
	r := &Places{Target: name(c.Target)}
	for _, x := range j.judged {
		r.Tokens += len(x.Text) - x.Prompt
	}
	for i, p := range places {
		if i > 0 {
			if err := b.move(p, options); err != nil {
				return nil, err
			}
		}
		rates, err := j.rates(p.Name)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", p.Name, err)
		}
		r.Places = append(r.Places, Rates{p.Name, rates})
	}
	return r, nil
}

// trees has the target say its texts, and makes the trees of all sizes.
func (b *bench) trees() (*judging, error) {
	b.total = len(b.domains) * (b.Count + b.Calibrate)
	t := b.Temperatures[0]
	j := &judging{bench: b, fits: map[string][]*fitted{}, sampling: b.sampling(t)}
	var err error
	if j.judged, j.cal, err = b.texts(t); err != nil {
		return nil, err
	}
	return j, j.fit()
}

// move closes the target and opens it at another place.
func (b *bench) move(p Place, o engine.Options) (err error) {
	b.target.Close()
	if b.target, err = p.Open(b.Target, o); err != nil {
		return err
	}
	for _, h := range b.Heads {
		if err := b.target.OpenSide(h); err != nil {
			return err
		}
	}
	return nil
}

// rates decodes the judged texts, plain and with the trees of all ways.
func (j *judging) rates(place string) (rates []Rate, err error) {
	type timed struct {
		Rate
		plan plan
	}
	all := []timed{{Rate{Width: 1}, plain}}
	for _, w := range j.ways {
		for _, f := range j.fits[w.Name] {
			all = append(all, timed{Rate{Way: w.Name, Width: f.width}, f.plan()})
		}
	}
	for _, x := range all {
		var took time.Duration
		tokens, rounds := 0, 0
		for _, text := range j.judged {
			j.tell(fmt.Sprintf("%s, %d rows", place, x.Width))
			said, t, err := j.decode(text, j.sampling, x.plan)
			if err != nil {
				return nil, err
			}
			took, rounds = took+t, rounds+len(said)
			for _, n := range said {
				tokens += n
			}
		}
		x.Tau, x.PerSecond = float64(tokens)/float64(rounds), float64(tokens)/took.Seconds()
		rates = append(rates, x.Rate)
	}
	return rates, nil
}

// Print writes the result as text.
func (r *Places) Print(to io.Writer) error {
	fmt.Fprintf(to, "%s: tokens per second of real rounds by the rows of a pass, %d tokens each; all places say the same\n", r.Target,
		r.Tokens)
	names := []string{"place"}
	tau := []string{"tokens a round"}
	for _, x := range r.Places[0].Rates {
		names, tau = append(names, fmt.Sprintf("%s %d", x.Way, x.Width)), append(tau, number(x.Tau))
	}
	rows := [][]string{tau}
	for _, p := range r.Places {
		row := []string{p.Place}
		for i, x := range p.Rates {
			row = append(row, fmt.Sprintf("%.1f (%.2f)", x.PerSecond, figures.Share(x.PerSecond, r.Places[0].Rates[i].PerSecond)))
		}
		rows = append(rows, row)
	}
	table(to, names, rows)
	_, err := fmt.Fprintf(to, "in brackets: of the speed of %s\n", r.Places[0].Place)
	return err
}
