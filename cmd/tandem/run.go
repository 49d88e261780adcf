package main

import (
	"context"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/client"
	"github.com/tandem-llm/tandem/models/find"
	"github.com/tandem-llm/tandem/roles"
	"github.com/tandem-llm/tandem/roles/chats"
	"github.com/tandem-llm/tandem/services/conversation"
	"github.com/tandem-llm/tandem/settings"
	"github.com/tandem-llm/tandem/talk"
	"github.com/tandem-llm/tandem/talk/console"
	"github.com/tandem-llm/tandem/text/token"
)

type runCmd struct {
	Addr         string `help:"Use this gateway. Chats need --target too." placeholder:"ADDR"`
	ChatTemplate string `help:"File with the Jinja template of chats." placeholder:"FILE"`

	ChatTemplateKwargs string `help:"Variables of the chat template, as {\"enable_thinking\": false}." placeholder:"JSON"`
	keyFlags
	settings.Sampling
	groupFlags
}

// Run talks with the model until the input ends. Each line of stdin is a turn of a conversation if there is a chat
// template; else it is appended to the text, which the model continues.
func (c *runCmd) Run(a *app) error {
	r, err := c.Request("x")
	if err != nil {
		return err
	}
	chat, name, err := c.chat()
	if err != nil {
		return err
	}
	now := func(prompt string) (tandem.Request, error) { return c.Request(prompt) } // with what /set has changed
	t := console.New(a.stdout, a.stderr)
	t.Chat, t.Request, t.Options, t.Model = chat, now, &c.Sampling, name
	if c.Addr != "" {
		options, err := c.dialing(c.Addr)
		if err != nil {
			return err
		}
		key, err := c.key()
		if err != nil {
			return err
		}
		return c.talk(a.ctx, a, t, c.Addr, append(options, key...)...)
	}
	target, drafts, err := modelPaths(c.Models, c.NoDraft, r)
	if err != nil {
		return err
	}
	l := launch{Group: c.Group, target: target, drafts: drafts, sessions: c.sessionsOr(1)}
	l.Grace, l.ChatTemplate = 0, c.ChatTemplate // which says what ends a turn
	if l, err = a.checked(l, r); err != nil {
		return err
	}
	t.Request = func(prompt string) (tandem.Request, error) {
		r, err := c.Request(prompt)
		l.widen(&r, c.Tree)
		return r, err
	}
	p, err := a.startProcesses(l)
	if err != nil {
		return err
	}
	return p.During(a.ctx, a.force, func(ctx context.Context) error { return c.talk(ctx, a, t, p.Addr) })
}

// chat returns what renders conversations (nil if the text is continued instead) and the model's name.
func (c *runCmd) chat() (conversation.Chat, string, error) {
	if c.Addr != "" && c.Target == "" {
		if c.ChatTemplate != "" {
			return nil, "", tandem.Errorf("", tandem.Invalid,
				"--chat-template with --addr: want --target too, the file of the gateway's model, for its tokenizer")
		}
		return nil, c.Addr, nil
	}
	path, err := find.Target(c.Target)
	if err != nil {
		return nil, "", err
	}
	vocab, err := token.Open(path)
	if err != nil {
		return nil, "", err
	}
	chat, _, err := chats.Open(c.ChatTemplate, c.ChatTemplateKwargs, path, vocab)
	return chat, roles.ModelName(path), err
}

// talk talks through the gateway at addr until the input or ctx ends.
func (c *runCmd) talk(ctx context.Context, a *app, t *console.Conversation, addr string, options ...client.Option) error {
	conn, err := client.Dial(addr, options...)
	if err != nil {
		return talk.Error(err)
	}
	defer conn.Close()
	t.Client = conn
	return t.Run(ctx, a.stdin, a.interrupts)
}
