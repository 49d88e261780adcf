package main

import (
	"slices"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/app/bench"
	"github.com/tandem-llm/tandem/engine"
	"github.com/tandem-llm/tandem/lab/passes"
	"github.com/tandem-llm/tandem/processes/profiler"
	"github.com/tandem-llm/tandem/processes/roles"
	"github.com/tandem-llm/tandem/text/token"
)

type expertsCmd struct {
	Model   string   `help:"GGUF file of a model with experts." required:"" placeholder:"FILE"`
	Text    []string `help:"Texts whose tokens the passes compute; default: three small ones." placeholder:"FILE" sep:"none"`
	Places  int      `help:"Places in each text at which passes are measured." default:"4"`
	Context int      `help:"Tokens before each place at most." default:"128"`
	Width   []int    `help:"Rows of a pass." default:"8,16" placeholder:"N,…"`
	Rounds  int      `help:"Passes of each kind at each place, in turn; the median counts." default:"3"`
	deviceFlags
	output
}

const mostPlaces = 1000 // in a text

// Run measures what experts cost.
func (c *expertsCmd) Run(a *app) error {
	size := bench.Passes{Widths: c.Width, Rounds: c.Rounds}
	if err := size.Validate(); err != nil {
		return err
	}
	info, err := engine.Inspect(c.Model)
	if err != nil {
		return err
	}
	if c.Places < 1 || c.Places > mostPlaces || c.Context < 1 || c.Context > info.Config.Context {
		return tandem.Errorf("", tandem.Invalid, "--places %d --context %d: want 1 to %d places, 1 to %d tokens", c.Places, c.Context,
			mostPlaces, info.Config.Context)
	}
	b := passes.Experts{Name: roles.ModelName(c.Model), Passes: size}
	if b.Texts, err = c.texts(); err != nil {
		return err
	}
	o, err := b.Options()
	if err != nil {
		return err
	}
	return c.load(a, c.Model, o, func(m *engine.Model) error {
		r, err := b.Run(a.ctx, m)
		if err != nil {
			return err
		}
		return c.show(a, r)
	})
}

// texts returns pieces of the texts as tokens: what lies before a place, and then the rows of a pass.
func (c *expertsCmd) texts() (out [][]tandem.Token, err error) {
	vocab, err := token.Open(c.Model)
	if err != nil {
		return nil, err
	}
	named, err := profiler.ReadTexts(c.Text)
	if err != nil {
		return nil, err
	}
	widest := slices.Max(c.Width)
	for _, t := range named {
		tokens := vocab.Encode(t.Text, false)
		if len(tokens) < 2*widest {
			return nil, tandem.Errorf("", tandem.Invalid, "text %s has %d tokens: want at least %d, twice the rows of a pass", t.Name,
				len(tokens), 2*widest)
		}
		for i := range c.Places {
			end := 2*widest + (len(tokens)-2*widest)*(i+1)/c.Places
			out = append(out, tokens[max(0, end-widest-c.Context):end])
		}
	}
	return out, nil
}
