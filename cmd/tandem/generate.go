package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/app/start"
	"github.com/tandem-llm/tandem/app/talk"
	"github.com/tandem-llm/tandem/app/talk/console"
	"github.com/tandem-llm/tandem/app/terminal"
	"github.com/tandem-llm/tandem/client"
	"github.com/tandem-llm/tandem/modelfile/files"
	"github.com/tandem-llm/tandem/processes/settings"
)

type generateCmd struct {
	Prompt     *string `help:"Text to continue." placeholder:"TEXT" setting:"-" group:"Text"`
	PromptFile string  `help:"File with the text to continue; without either, stdin." placeholder:"FILE" setting:"-" group:"Text"`
	Addr       string  `help:"Use the gateway at this address and its models." placeholder:"ADDR" group:"Serving"`
	settings.ClientKeys
	settings.Sampling
	groupFlags
	output
}

// Run continues one prompt.
func (c *generateCmd) Run(a *app) error {
	prompt, err := c.prompt(a)
	if err != nil {
		return err
	}
	r, err := c.Request(prompt)
	if err != nil {
		return err
	}
	if c.Addr != "" {
		return c.generate(a.ctx, a, c.Addr, r)
	}
	if _, err := a.target("", &c.Group); err != nil {
		return err
	}
	s, err := c.setup(r)
	if err != nil {
		return err
	}
	a.unnamed(&s)
	s.Fetch = nil // it ends with the answer
	if s, err = s.Checked(a.env(), r); err != nil {
		return err
	}
	s.Widen(&r, c.Tree)
	p, err := a.start(s)
	if err != nil {
		return err
	}
	return p.During(a.ctx, a.force, func(ctx context.Context) error { return a.settled(ctx, p, c.generate(ctx, a, p.Addr, r)) })
}

// generate runs r on the gateway at addr and prints the result.
func (c *generateCmd) generate(ctx context.Context, a *app, addr string, r tandem.Request) error {
	keys := c.ClientKeys
	if c.Addr == "" {
		keys = settings.ClientKeys{} // of a gateway elsewhere
	}
	conn, err := dial(addr, keys, c.Certificate)
	if err != nil {
		return err
	}
	defer conn.Close()
	show := func(d *client.Delta) error {
		if c.JSON {
			return nil
		}
		_, err := io.WriteString(a.stdout, terminal.On(a.stdout, d.Text))
		return err
	}
	out, err := talk.Generate(ctx, conn, r, console.Reading(a.stderr), show)
	if !c.JSON {
		endLine(a, out.Text)
	}
	if err != nil {
		return err
	}
	result := talk.NewGeneration(out)
	if c.JSON {
		return terminal.PrintJSON(a.stdout, result)
	}
	fmt.Fprintln(a.stderr, result.Line())
	if gain := talk.Gain(result.Stats); gain != "" {
		_, err = fmt.Fprintln(a.stderr, gain)
	}
	return err
}

// setup returns what to start for r. When stopped they have nothing to finish, so Grace
// is 0.
func (c *generateCmd) setup(r tandem.Request) (start.Setup, error) {
	target, drafts, err := modelPaths(c.Models, r.Bounds.Plain(), r)
	s := start.Setup{Group: c.Group, TargetFile: target, DraftFiles: drafts, AtOnce: c.sessionsOr(1)}
	s.Grace = 0
	return s, err
}

// prompt returns the text to continue.
func (c *generateCmd) prompt(a *app) (string, error) {
	switch {
	case c.Prompt != nil && c.PromptFile != "":
		return "", tandem.Errorf("", tandem.Invalid, "--prompt and --prompt-file together: want one")
	case c.Prompt != nil:
		return *c.Prompt, nil
	case c.PromptFile != "":
		f, err := os.Open(c.PromptFile)
		if err != nil {
			return "", tandem.Errorf("", tandem.Invalid, "--prompt-file %s: %w", c.PromptFile, files.Reason(err))
		}
		defer f.Close()
		return readAll(f, "--prompt-file "+c.PromptFile)
	case terminal.Is(a.stdin):
		return "", tandem.Errorf("", tandem.Invalid, "no prompt: give --prompt TEXT, --prompt-file FILE, or text on stdin")
	}
	return readAll(a.stdin, "stdin")
}

// endLine ends the last line of text on a terminal.
func endLine(a *app, text string) {
	if f, ok := a.stdout.(*os.File); ok && terminal.Is(f) && !strings.HasSuffix(text, "\n") {
		fmt.Fprintln(a.stdout)
	}
}
