package console

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/app/bench/figures"
	"github.com/tandem-llm/tandem/app/talk"
	"github.com/tandem-llm/tandem/client"
	"github.com/tandem-llm/tandem/processes/settings"
)

// Conversation is a conversation on a terminal, made by New. The caller sets the fields, and Request to a function that uses Options.
type Conversation struct {
	talk.Conversation
	Options *settings.Talking // in effect; /set changes them
	Drawn   tandem.Sampling   // how the gateway draws where Options say nothing
	Model   string            // its name
	Context int               // tokens that a session holds; 0: not known
	History string            // file of what was typed; "": none is kept

	asked int   // messages to the model
	wrong int   // of them, those without an answer
	last  error // why the last of these had none
	console
}

// say handles a line, which is a command or a message to the model. Errors that concern this line alone are printed, not returned.
func (t *Conversation) say(ctx context.Context, text string) (bye bool, err error) {
	if name, rest, is := command(text); is {
		return t.command(ctx, name, rest)
	}
	if text == "" {
		return false, nil
	}
	t.asked++
	answer, err := t.Say(ctx, text, func(d *talk.Shown) error { return t.show(ctx, d) })
	if err != nil && ctx.Err() == nil {
		t.wrong, t.last = t.wrong+1, err
	}
	if answer == nil {
		return false, t.explain(err)
	}
	t.endThought()
	t.endAnswer(cmp.Or(answer.Said, answer.Text))
	switch {
	case err != nil && ctx.Err() != nil:
		t.note("stopped after %d tokens", len(answer.Tokens))
		return false, nil
	case err != nil:
		return false, t.explain(err)
	}
	g := talk.NewGeneration(answer)
	t.note("%s", g.Line())
	if gain := talk.Gain(g.Stats); gain != "" {
		t.note("%s", gain)
	}
	if why := t.cut(answer); why != "" {
		t.note("%s", why)
	}
	return false, nil
}

// cut says why an answer ended before the model ended it, and what helps; "" if it did not.
func (t *Conversation) cut(a *talk.Answer) string {
	n := len(a.Tokens)
	switch {
	case a.Finished.Reason != string(tandem.FinishLength) || n < a.Limit:
		return ""
	case n >= a.Request.MaxTokens:
		return fmt.Sprintf("cut at %d: /set max_tokens", n)
	case a.Finished.PromptTokens+n >= t.Context && t.Context > 0:
		return fmt.Sprintf("cut at %d: the context of %d tokens is full; /clear begins anew, /set max_tokens bounds answers", n, t.Context)
	}
	return fmt.Sprintf("cut at %d: the gateway's --max-output-tokens", n)
}

// explain tells why a message has no answer, and what helps if the conversation has become too long.
func (t *Conversation) explain(err error) error {
	if err := t.tell(err); err != nil || !errors.Is(t.last, tandem.Invalid) && !errors.Is(t.last, client.Invalid) || t.Last == nil {
		return err
	}
	t.note("/clear begins a new conversation")
	return nil
}

// failed returns why no message at all was answered; nil if one was, or there was none.
func (t *Conversation) failed() error {
	if t.asked == 0 || t.wrong < t.asked {
		return nil
	}
	return tandem.Errorf("", tandem.KindOf(talk.Error(t.last)), "none of %d messages was answered; the last because: %w", t.asked, t.last)
}

// show prints a piece: drafts come first, and the last token of a round is the target's own. Thoughts are dimmed.
func (t *Conversation) show(ctx context.Context, d *talk.Shown) error {
	if d.Thought {
		return t.think(d.Text)
	}
	t.endThought()
	last := len(d.Tokens) - 1
	if !t.colour || last < 0 || !slices.Contains(d.Drafted, true) {
		return t.print(d.Text, false)
	}
	if d.Drafted[last] {
		return t.print(d.Text, true)
	}
	drafts, own := d.Text, t.Word(ctx, d.Tokens[last])
	if before, ends := strings.CutSuffix(drafts, own); ends {
		drafts = before
	} else {
		own = "" // an incomplete character: it comes with the next piece
	}
	return errors.Join(t.print(drafts, true), t.print(own, false))
}

// measure repeats the latest request with and without speculation, in turn, and compares.
func (t *Conversation) measure(ctx context.Context) error {
	c, err := t.Compare(ctx, t.Options.Speculate, func(run int) { t.progress("run %d of %d …", run, talk.Runs) })
	t.progress("")
	if err != nil && t.Last == nil {
		err = tandem.Errorf("", tandem.Invalid, "/measure: %w", err)
	}
	if err != nil {
		return t.tell(err)
	}
	per := func(d time.Duration) float64 { return figures.Share(float64(c.Tokens), d.Seconds()) }
	t.note("with speculation %.1f tokens/s, plain %.1f tokens/s: %.2f times as fast (decoding, the faster of 2 runs each)", per(c.With),
		per(c.Plain), figures.Share(c.Plain.Seconds(), c.With.Seconds()))
	if c.Differ != "" && c.Lossy {
		t.note("not equal, because typical acceptance is lossy: %s", c.Differ)
		return nil
	}
	if c.Differ != "" {
		t.alarm("NOT EQUAL: %s", c.Differ)
		return nil
	}
	t.note("token ids and bytes are equal: %d tokens, %d runs", c.Tokens, c.Runs)
	return nil
}
