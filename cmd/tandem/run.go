package main

import (
	"context"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/app/start"
	"github.com/tandem-llm/tandem/app/talk/console"
	"github.com/tandem-llm/tandem/processes/roles/chats"
	"github.com/tandem-llm/tandem/processes/settings"
)

type runCmd struct {
	Name     string   `arg:"" optional:"" completes:"models" help:"A model's name, file or folder."`
	Question []string `arg:"" optional:"" sep:"none" completes:"none" help:"A question."`

	Addr         string `help:"Use the gateway at this address and its model." placeholder:"ADDR"`
	ChatTemplate string `help:"File with the Jinja template of chats." placeholder:"FILE"`

	ChatTemplateKwargs string `help:"Variables of the chat template, as {\"enable_thinking\": false}." more:"" placeholder:"JSON" group:"Model"`
	NoHistory          bool   `help:"Keep no history of what is typed." more:"" group:"Text"`
	settings.ClientKeys
	settings.Talking
	groupFlags
	system string // of the model's store; "": none
}

// Run talks with the model until the input ends. Each line of stdin is a turn of a conversation if the model chats; else it is appended to
// the text, which the model continues.
func (c *runCmd) Run(a *app) error {
	if c.Addr != "" && c.Name != "" {
		return tandem.Errorf("", tandem.Invalid, "the model %s with --addr: the gateway there has its own", c.Name)
	}
	if c.Addr != "" && c.ChatTemplate != "" {
		return tandem.Errorf("", tandem.Invalid, "--chat-template with --addr: want it at the gateway, whose chat service answers")
	}
	if err := chats.Check(c.ChatTemplate, c.ChatTemplateKwargs); err != nil {
		return err
	}
	r, err := c.Request("x", tandem.ServerSampling)
	if err != nil {
		return err
	}
	if c.Addr != "" {
		return c.talk(a.ctx, a, c.Addr, c.ClientKeys, start.Setup{})
	}
	if err := c.named(a); err != nil {
		return err
	}
	target, drafts, err := modelPaths(c.Models, c.NoDraft, r)
	if err != nil {
		return err
	}
	s := start.Setup{Group: c.Group, TargetFile: target, DraftFiles: drafts, AtOnce: c.sessionsOr(1)}
	s.Grace, s.ChatTemplate = 0, c.ChatTemplate
	a.unnamed(&s)
	if s, err = s.Checked(a.env(), r); err != nil {
		return err
	}
	p, err := a.start(s)
	if err != nil {
		return err
	}
	return p.During(a.ctx, a.force, func(ctx context.Context) error {
		return a.settled(ctx, p, c.talk(ctx, a, p.Addr, settings.ClientKeys{}, s))
	})
}

// talk talks through the gateway at addr until the input or ctx ends. s says what was started for it.
func (c *runCmd) talk(ctx context.Context, a *app, addr string, keys settings.ClientKeys, s start.Setup) error {
	conn, err := dial(addr, keys, c.Certificate)
	if err != nil {
		return err
	}
	defer conn.Close()
	d, err := look(ctx, conn)
	if err != nil {
		return err
	}
	t := console.New(a.stdout, a.stderr)
	t.Client, t.Chat, t.Variables, t.Options = conn, d.GetChat(), c.ChatTemplateKwargs, &c.Talking
	t.Model, t.Context, t.Drawn = d.GetModel(), int(d.GetContext()), drawn(d.GetHttpSampling())
	t.Reading = console.Reading(a.stderr)
	t.Request = func(prompt string) (tandem.Request, error) { // with what /set has changed
		r, err := c.Request(prompt, t.Drawn)
		s.Widen(&r, c.Tree)
		return r, err
	}
	if !c.NoHistory {
		t.History = historyFile()
	}
	if c.system != "" && t.Chat {
		_ = t.System(c.system) // it chats
	}
	in, err := c.input(a.stdin)
	if err != nil {
		return err
	}
	return t.Run(ctx, in, a.interrupts)
}

// named finds or fetches the model that is named, and takes over what its store says of chats and of answers.
func (c *runCmd) named(a *app) error {
	extras, err := a.target(c.Name, &c.Group)
	if err != nil {
		return err
	}
	c.ChatTemplate = or(c.ChatTemplate, extras.ChatTemplate)
	c.Talking.Otherwise(extras.Preset)
	if len(c.Stop) == 0 {
		c.Stop = extras.Stop
	}
	c.system = extras.System
	return nil
}

// input returns where messages come from: stdin, or the question that was given.
func (c *runCmd) input(stdin *os.File) (*os.File, error) {
	if len(c.Question) == 0 {
		return stdin, nil
	}
	question := strings.Join(c.Question, " ")
	if strings.Contains(question, "\n") {
		question = `"""` + question + `"""`
	}
	in, out, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	go func() { // ends when the conversation does, which reads all of it or closes the pipe with the process
		_, _ = io.WriteString(out, question+"\n") // nobody listens any more
		_ = out.Close()
	}()
	return in, nil
}

// historyFile returns where what is typed is kept; "" without a home.
func historyFile() string {
	state := os.Getenv("XDG_STATE_HOME")
	if home, err := os.UserHomeDir(); state == "" && err == nil {
		state = filepath.Join(home, ".local", "state")
	}
	if state == "" {
		return ""
	}
	return filepath.Join(state, "tandem", "history")
}
