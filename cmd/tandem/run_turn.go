package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/client"
	httpapi "github.com/tandem-llm/tandem/services/httpapi"
	"github.com/tandem-llm/tandem/services/httpapi/oai"
)

// conversation is what tandem run knows of a chat.
type conversation struct {
	cmd    *runCmd // options in effect; /set changes them
	client *client.Client
	model  string
	room   httpapi.Chat // nil: text is continued
	console

	messages []oai.Message     // with a room
	text     string            // without
	last     *turn             // the latest answer
	words    map[uint32]string // of tokens, as the gateway writes them
}

// turn is one answer.
type turn struct {
	request tandem.Request
	text    string
	tokens  []tandem.Token
	stats   statistics
	whole   bool // it was not stopped
}

// say answers a line: a command, or something for the model. Errors that concern this line alone are told, not
// returned.
func (t *conversation) say(ctx context.Context, text string) (bye bool, err error) {
	if name, rest, is := command(text); is {
		return t.command(ctx, name, rest)
	}
	if text == "" {
		return false, nil
	}
	r, undo, err := t.ask(ctx, text)
	if err != nil {
		return false, t.tell(err)
	}
	answer, err := t.generate(ctx, r, t.show)
	if len(answer.tokens) == 0 && err != nil {
		undo()
		return false, t.tell(err)
	}
	t.endAnswer(answer.text)
	t.last = answer
	if t.room != nil {
		t.messages = append(t.messages, oai.Message{Role: "assistant", Content: answer.text})
	} else {
		t.text += answer.text
	}
	switch {
	case err != nil && ctx.Err() != nil:
		t.note("stopped after %d tokens", len(answer.tokens))
		return false, nil
	case err != nil:
		return false, t.tell(err)
	}
	t.note("%s", answer.stats.line(len(answer.tokens)))
	return false, nil
}

// ask adds what the user says to the conversation and returns the request for an answer, and how to take it back.
func (t *conversation) ask(ctx context.Context, said string) (r tandem.Request, undo func(), err error) {
	messages, text := t.messages, t.text
	undo = func() { t.messages, t.text = messages, text }
	if t.room == nil {
		if t.text != "" && !strings.HasSuffix(t.text, "\n") {
			t.text += "\n"
		}
		t.text += said
		r, err = t.cmd.request(t.text)
	} else {
		t.messages = append(slices.Clip(messages), oai.Message{Role: "user", Content: said})
		var p httpapi.Prompt
		if p, err = t.room.Prompt(ctx, t.messages); err == nil {
			r, err = t.cmd.request("x")
			r.Prompt, r.Tokens = "", p.Tokens
		}
	}
	if err != nil {
		undo()
	}
	return r, undo, err
}

// generate runs a request and hands each piece to show; what has come is returned with an error too.
func (t *conversation) generate(ctx context.Context, r tandem.Request, show func(ctx context.Context, d *client.Delta) error) (*turn, error) {
	out := &turn{request: r, tokens: []tandem.Token{}}
	var text strings.Builder
	defer func() { out.text = text.String() }()
	w := wireRequest(r)
	for _, id := range r.Tokens {
		w.Tokens = append(w.Tokens, uint32(id))
	}
	begun, first := time.Now(), time.Duration(0)
	for event, err := range t.client.Generate(ctx, w) {
		switch {
		case err != nil:
			return out, fromClient(err)
		case event.Delta != nil:
			if first == 0 {
				first = time.Since(begun)
			}
			out.tokens = append(out.tokens, fromIDs(event.Delta.Tokens)...)
			text.WriteString(event.Delta.Text)
			if err := show(ctx, event.Delta); err != nil {
				return out, err
			}
		case event.Finished != nil:
			out.stats, out.whole = summarise(event.Finished.Statistics, len(out.tokens), first), true
		}
	}
	return out, nil
}

// show prints a piece: drafts come first, and the last token of a round is the target's own.
func (t *conversation) show(ctx context.Context, d *client.Delta) error {
	last := len(d.Tokens) - 1
	if !t.colour || last < 0 || !slices.Contains(d.Drafted, true) {
		return t.print(d.Text, false)
	}
	if d.Drafted[last] {
		return t.print(d.Text, true)
	}
	drafts, own := d.Text, t.word(ctx, d.Tokens[last])
	if before, ends := strings.CutSuffix(drafts, own); ends {
		drafts = before
	} else {
		own = "" // an incomplete character: it comes with the next piece
	}
	return errors.Join(t.print(drafts, true), t.print(own, false))
}

// word returns the text of a token, "" if the gateway does not say.
func (t *conversation) word(ctx context.Context, token uint32) string {
	if word, known := t.words[token]; known {
		return word
	}
	if t.words == nil {
		t.words = map[uint32]string{}
	}
	word, err := t.client.Detokenize(ctx, []uint32{token})
	if err != nil {
		return ""
	}
	t.words[token] = word
	return word
}

// measure repeats the latest request with and without speculation, in turn, and compares.
func (t *conversation) measure(ctx context.Context) error {
	if t.last == nil {
		return t.tell(tandem.Errorf("", tandem.Invalid, "/measure: nothing was asked yet"))
	}
	with := t.last.request
	if with.Bounds.Plain() {
		if err := t.cmd.speculate(&with); err != nil {
			return t.tell(err)
		}
	}
	plain := with
	plain.Bounds = tandem.Bounds{}
	var runs []*turn
	took := map[bool]float64{}                                   // ms to decode, of the faster run: what else the machine does only makes one slower
	for i, speculate := range []bool{true, false, false, true} { // so that neither is always first
		r := plain
		if speculate {
			r = with
		}
		t.progress("run %d of 4 …", i+1)
		run, err := t.generate(ctx, r, func(context.Context, *client.Delta) error { return nil })
		t.progress("")
		if err != nil {
			return t.tell(err)
		}
		runs = append(runs, run)
		if before, known := took[speculate]; !known || run.stats.DecodeMS < before {
			took[speculate] = run.stats.DecodeMS
		}
	}
	n := len(runs[0].tokens)
	per := func(ms float64) float64 { return share(1000*float64(n), ms) }
	t.note("with speculation %.1f tokens/s, plain %.1f tokens/s: %.2f times as fast (decoding, the faster of 2 runs each)", per(took[true]), per(took[false]), share(took[false], took[true]))
	if t.last.whole {
		runs = append(runs, t.last)
	}
	if d := difference(runs); d != "" {
		t.alarm("NOT EQUAL: %s", d)
		return nil
	}
	t.note("token ids and bytes are equal: %d tokens, %d runs", n, len(runs))
	return nil
}

// difference says where runs differ, "" for nowhere.
func difference(runs []*turn) string {
	a := runs[0]
	for _, b := range runs[1:] {
		for i := range max(len(a.tokens), len(b.tokens)) {
			if i >= len(a.tokens) || i >= len(b.tokens) {
				return fmt.Sprintf("one run has %d tokens, another %d", len(a.tokens), len(b.tokens))
			}
			if a.tokens[i] != b.tokens[i] {
				return fmt.Sprintf("token %d is %d in one run and %d in another", i+1, a.tokens[i], b.tokens[i])
			}
		}
		if a.text != b.text {
			return "the token ids are equal, but the text is not"
		}
	}
	return ""
}
