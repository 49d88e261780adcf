package main

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/app/bench"
	"github.com/tandem-llm/tandem/app/find"
	"github.com/tandem-llm/tandem/app/start"
	"github.com/tandem-llm/tandem/app/terminal"
	"github.com/tandem-llm/tandem/engine"
	"github.com/tandem-llm/tandem/kernels"
	"github.com/tandem-llm/tandem/processes/settings"
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
	start.Compute
	settings.Loading
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
	if err := c.Validate(); err != nil {
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
	m, closed, err := c.Load(a.say, func(d kernels.Device) (*engine.Model, error) {
		return a.openModel(path, engine.Options{Device: d, KVType: c.KVType, Lock: c.Lock, MaxRows: 64,
			KVPages: engine.PagesFor(1, total, 0)})
	})
	if err != nil {
		return err
	}
	defer closed()
	r, err := bench.LogitsOf(a.ctx, m, tokens, c.Top, c.Generate)
	if err != nil {
		return err
	}
	if c.JSON {
		return terminal.PrintJSON(a.stdout, r)
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
