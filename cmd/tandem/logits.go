package main

import (
	"fmt"
	"math"
	"strconv"
	"strings"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/engine"
	"github.com/tandem-llm/tandem/kernels"
	"github.com/tandem-llm/tandem/models/find"
	"github.com/tandem-llm/tandem/settings"
)

type logitsCmd struct {
	Model    string `help:"GGUF file (default: the shipped target)." placeholder:"FILE" setting:"-"`
	Tokens   string `help:"Prompt token ids, separated by commas." required:"" placeholder:"1,2,3" setting:"-"`
	Top      int    `help:"How many of the best logits to print at each position, 1 to 64." default:"5" setting:"-"`
	Generate int    `help:"Continue with this many tokens, always the likeliest." default:"0" placeholder:"N" setting:"-"`
	kernelFlags
	output
}

// kernelFlags choose how one model computes.
type kernelFlags struct {
	computeFlags
	settings.Loading
}

// check refuses values that no model can run with.
func (k kernelFlags) check() error {
	return k.computeFlags.check()
}

type logitsResult struct {
	Tokens    []tandem.Token `json:"tokens"`
	PromptTop [][][2]float64 `json:"prompt_top"` // (positions, top) pairs of id and logit
	Greedy    []tandem.Token `json:"greedy"`
}

// Run prints the best logits at each position and a greedy continuation.
func (c *logitsCmd) Run(a *app) error {
	tokens, err := parseTokens(c.Tokens)
	if err != nil {
		return err
	}
	switch {
	case c.Top < 1 || c.Top > 64:
		return tandem.Errorf("", tandem.Invalid, "--top is %d: want 1 to 64", c.Top)
	case c.Generate < 0:
		return tandem.Errorf("", tandem.Invalid, "--generate is %d: want 0 or more", c.Generate)
	}
	if err := c.check(); err != nil {
		return err
	}
	path, err := find.Target(c.Model)
	if err != nil {
		return err
	}
	total := len(tokens) + c.Generate
	info, err := engine.Inspect(path)
	if err != nil {
		return err
	}
	if total > info.Config.Context {
		return tandem.Errorf("", tandem.Invalid, "%d prompt tokens and %d to generate: the context holds %d", len(tokens), c.Generate,
			info.Config.Context)
	}
	m, closed, err := c.load(a, func(d kernels.Device) (*engine.Model, error) {
		return a.openModel(path, engine.Options{Device: d, KVType: c.KVType, Lock: c.Lock, MaxRows: 64,
			KVPages: engine.PagesFor(1, total, 0)})
	})
	if err != nil {
		return err
	}
	defer closed()
	r, err := evaluate(a, m, tokens, c.Top, c.Generate)
	if err != nil {
		return err
	}
	if c.JSON {
		return printJSON(a.stdout, r)
	}
	for i, top := range r.PromptTop {
		fmt.Fprintf(a.stdout, "%d\t%d", i, tokens[i])
		for _, p := range top {
			fmt.Fprintf(a.stdout, "\t%d:%.5f", int(p[0]), p[1])
		}
		fmt.Fprintln(a.stdout)
	}
	if c.Generate > 0 {
		fmt.Fprintf(a.stdout, "greedy\t%s\n", strings.Trim(fmt.Sprint(r.Greedy), "[]"))
	}
	return nil
}

// evaluate runs tokens and then n more, always the likeliest, through the model.
func evaluate(a *app, m *engine.Model, tokens []tandem.Token, top, n int) (*logitsResult, error) {
	seq, err := m.NewSequence(len(tokens)+n, 0)
	if err != nil {
		return nil, err
	}
	defer seq.Close()
	r := &logitsResult{Tokens: tokens, Greedy: []tandem.Token{}}
	for rest := tokens; len(rest) > 0; {
		if a.ctx.Err() != nil {
			return nil, a.ctx.Err()
		}
		chunk := rest[:min(len(rest), m.MaxRows())]
		rest = rest[len(chunk):]
		out, err := m.Forward([]engine.Part{{Seq: seq, Extend: chunk, Want: engine.WantAll}}, top)
		if err != nil {
			return nil, err
		}
		for i := range chunk {
			if err := out.Sound(out.First(0) + i); err != nil {
				return nil, err
			}
			best := out.Top(out.First(0) + i)
			pairs := make([][2]float64, len(best.IDs))
			for j, id := range best.IDs {
				pairs[j] = [2]float64{float64(id), max(float64(best.Logits[j]), -math.MaxFloat32)} // JSON has no infinity
			}
			r.PromptTop = append(r.PromptTop, pairs)
		}
	}
	if n == 0 {
		return r, nil
	}
	next := tandem.Token(r.PromptTop[len(tokens)-1][0][0])
	for {
		r.Greedy = append(r.Greedy, next)
		if len(r.Greedy) == n {
			return r, nil
		}
		if a.ctx.Err() != nil {
			return nil, a.ctx.Err()
		}
		out, err := m.Forward([]engine.Part{{Seq: seq, Extend: []tandem.Token{next}, Want: engine.WantTail}}, 1)
		if err != nil {
			return nil, err
		}
		if err := out.Sound(0); err != nil {
			return nil, err
		}
		next = tandem.Token(out.Top(0).IDs[0])
	}
}

// parseTokens reads ids separated by commas or spaces.
func parseTokens(s string) ([]tandem.Token, error) {
	fields := strings.FieldsFunc(s, func(r rune) bool { return r == ',' || r == ' ' })
	if len(fields) == 0 {
		return nil, tandem.Errorf("", tandem.Invalid, "--tokens is empty: want ids separated by commas, like 1,2,3")
	}
	tokens := make([]tandem.Token, len(fields))
	for i, f := range fields {
		id, err := strconv.ParseInt(f, 10, 32)
		if err != nil || id < 0 {
			return nil, tandem.Errorf("", tandem.Invalid, "--tokens: %q is no token id: want numbers from 0, separated by commas", f)
		}
		tokens[i] = tandem.Token(id)
	}
	return tokens, nil
}
