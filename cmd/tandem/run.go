package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"strings"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/client"
	"github.com/tandem-llm/tandem/models/find"
	"github.com/tandem-llm/tandem/roles"
	"github.com/tandem-llm/tandem/roles/chats"
	"github.com/tandem-llm/tandem/services/httpapi"
	"github.com/tandem-llm/tandem/settings"
	"github.com/tandem-llm/tandem/talk"
	"github.com/tandem-llm/tandem/text/token"
)

type runCmd struct {
	Addr         string `help:"Use the gateway at this address instead of starting processes; chats need --target too, for its tokenizer and template." placeholder:"ADDR"`
	ChatTemplate string `help:"File with the Jinja template of chats, for a model that has none or a wrong one." placeholder:"FILE"`

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
	room, name, err := c.chat()
	if err != nil {
		return err
	}
	now := func(prompt string) (tandem.Request, error) { return c.Request(prompt) } // with what /set has changed
	t := &conversation{Conversation: talk.Conversation{Chat: room, Request: now}, cmd: c, model: name,
		console: newConsole(a.stdout, a.stderr)}
	if c.Addr != "" {
		options, err := c.dialing(c.Addr)
		if err != nil {
			return err
		}
		key, err := c.key()
		if err != nil {
			return err
		}
		return t.with(a.ctx, a, c.Addr, append(options, key...)...)
	}
	target, drafts, err := c.pair(c.NoDraft, r)
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
	return p.During(a.ctx, a.force, func(ctx context.Context) error { return t.with(ctx, a, p.Addr) })
}

// chat returns what renders conversations (nil if the text is continued instead) and the model's name.
func (c *runCmd) chat() (httpapi.Chat, string, error) {
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
	room, _, err := chats.Open(c.ChatTemplate, c.ChatTemplateKwargs, path, vocab)
	return room, roles.ModelName(path), err
}

// with talks through the gateway at addr until the input or ctx ends.
func (t *conversation) with(ctx context.Context, a *app, addr string, options ...client.Option) error {
	conn, err := client.Dial(addr, options...)
	if err != nil {
		return talk.Error(err)
	}
	defer conn.Close()
	t.Client = conn
	typed := isTerminal(a.stdin)
	if typed {
		what := "what you write is continued"
		if t.Chat != nil {
			what = "a chat"
		}
		t.note("%s: %s. /help lists the commands; Ctrl-C stops an answer, Ctrl-D ends.", t.model, what)
		if t.colour {
			fmt.Fprintln(t.err, t.dimmed("Tokens that were drafted and accepted ")+drafted+"look like this"+
				reset+t.dimmed(", the target's own like the rest."))
		}
	}
	lines, release := readLines(a.stdin)
	defer release()
	for {
		if typed {
			fmt.Fprint(t.out, ">>> ")
		}
		restore := a.interrupts.set(func() { t.note("\nCtrl-D or /bye ends the chat.") })
		line, ok, err := nextMessage(ctx, lines)
		restore()
		if err != nil || !ok {
			if typed && err == nil {
				fmt.Fprintln(t.out)
			}
			if !typed && err == nil {
				err = t.failed()
			}
			return err
		}
		answer, stop := context.WithCancel(ctx)
		restore = a.interrupts.set(stop)
		bye, err := t.say(answer, line)
		restore()
		stop()
		if gone := context.Cause(ctx); gone != nil {
			return gone
		}
		if err != nil || bye {
			return err
		}
	}
}

// maxLine bounds one line of input in bytes.
const maxLine = 4 << 20

// line is one line of input, or why there are no more.
type line struct {
	text string
	err  error
}

// readLines reads lines until the input ends. If release is called before, its goroutine stays in a read of in that cannot
// be cancelled.
func readLines(in io.Reader) (lines <-chan line, release func()) {
	out, done := make(chan line), make(chan struct{})
	go func() {
		defer close(out)
		s := bufio.NewScanner(in)
		s.Buffer(nil, maxLine)
		for s.Scan() {
			select {
			case out <- line{text: strings.TrimSuffix(s.Text(), "\r")}:
			case <-done:
				return
			}
		}
		if err := s.Err(); err != nil {
			select {
			case out <- line{err: tandem.Errorf("", tandem.Invalid, "stdin: %w", err)}:
			case <-done:
			}
		}
	}()
	return out, func() { close(done) }
}

// quotes marks the begin and the end of a message of several lines.
const quotes = `"""`

// nextMessage returns what the user says next: a line, or several between quotes. ok is false at the end of the input.
func nextMessage(ctx context.Context, lines <-chan line) (text string, ok bool, err error) {
	next := func() (line, bool) {
		select {
		case l, more := <-lines:
			return l, more
		case <-ctx.Done():
			return line{err: context.Cause(ctx)}, true
		}
	}
	l, more := next()
	if l.err != nil || !more {
		return "", false, l.err
	}
	rest, several := strings.CutPrefix(l.text, quotes)
	if !several {
		return l.text, true, nil
	}
	for {
		if before, ended := strings.CutSuffix(rest, quotes); ended {
			return before, true, nil
		}
		if l, more = next(); l.err != nil || !more {
			return rest, l.err == nil, l.err
		}
		rest += "\n" + l.text
	}
}
