package httpapi

import (
	"context"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/services/public/answer"
	"github.com/tandem-llm/tandem/services/public/ask"
	"github.com/tandem-llm/tandem/services/public/budget"
	"github.com/tandem-llm/tandem/services/public/conversation"
	"github.com/tandem-llm/tandem/services/public/httpapi/bodies"
	"github.com/tandem-llm/tandem/services/public/httpapi/oai"
	"github.com/tandem-llm/tandem/services/public/httpapi/sse"
)

// textAnswers answers requests for texts, in every API.
type textAnswers struct {
	generator   tandem.Generator
	limits      tandem.Limits
	model       string
	reading     *reading
	prompts     *prompts
	answers     *budget.Budget // memory of answers that are sent as a whole
	stall, ping time.Duration
}

func newTextAnswers(cfg Config, s common, r *reading, p *prompts) *textAnswers {
	return &textAnswers{generator: cfg.Generator, limits: cfg.Limits, model: cfg.Model.Name, reading: r, prompts: p,
		answers: s.answers, stall: cfg.Stall, ping: cfg.Ping}
}

// writer writes the answer to one request in the form of an API: as a stream, or as a whole.
type writer interface {
	// Sink returns what takes the events of a choice. It is called for each choice before any runs.
	Sink(*answer.Choice) func(*answer.Event) error
	// Body returns an answer that is sent as a whole, once all choices have ended.
	Body() any
	// End ends a stream whose choices have ended, Fail one with an error.
	End() error
	Fail(*oai.Error) error
}

// request is what a request asks for, and how its answer is written.
type request struct {
	*ask.Request
	before []tandem.Token // tokens of an earlier answer, which this one continues
	form   form
	reply  any // the answer to a request for no text; nil: a text is asked for
}

// form is the form of an API's answers.
type form struct {
	writer   func(answering) writer
	marked   bool // its streams can be taken up again
	numbered bool // streams have ids that count events: there is one choice, whose calls have ids that follow from the answer's name
	lines    bool // its streams are lines of JSON
	keeps    bool // its streams end with the whole answer, which is kept up to then
	tokens   bool // its answers tell all tokens
}

// answering is the answer that a writer writes.
type answering struct {
	name    string      // what ids are made of
	created int64       // Unix time
	stream  *sse.Stream // takes the events; nil: the answer is sent as a whole
	held    *heldBytes
}

// answer returns the handler of requests that read reads.
func (t *textAnswers) answer(read reader) func(*call) error {
	return func(c *call) error {
		a, output, err := t.read(c, read)
		if err != nil {
			return err
		}
		if a.reply != nil {
			return c.reply(a.reply)
		}
		with := answering{name: randomHex(12), created: time.Now().Unix(), held: &heldBytes{all: t.answers}}
		var m *sse.Cursor
		if a.Stream && a.form.marked {
			if m, err = c.takenUp(a.Request.Sampling.Seed); err != nil {
				return err
			}
			a.Request.Sampling.Seed, with.name, with.created = m.Seed, m.Name(), m.Created
		}
		choices, err := t.choices(c, a)
		if err != nil {
			return err
		}
		if m != nil && m.Resumed && m.Choices() != len(choices) {
			return oai.Refusal(http.StatusConflict, "other_request", "Last-Event-ID is of a stream with %d choices: this request has %d",
				m.Choices(), len(choices))
		}
		defer c.count(choices)
		if a.Stream {
			with.stream = sse.NewStream(c.w, t.stall, t.ping, m, len(choices), a.form.numbered)
			defer with.stream.Close()
			if a.form.lines {
				with.stream.Lines()
			}
		}
		defer with.held.release()
		return t.send(c, a, with, choices, output)
	}
}

// read reads a request, and makes tokens of its prompts. Nothing of its body is kept.
func (t *textAnswers) read(c *call, read reader) (a *request, output conversation.Output, err error) {
	if err := t.reading.loaded(); err != nil {
		return nil, output, err
	}
	b, err := t.reading.body(c, func(b *body, l bodies.Limits) (string, error) {
		got, err := read(c, b, t, l)
		if err != nil {
			return "", err
		}
		a = got
		a.Request.Tenant = c.tenant
		return a.Model, nil
	})
	if err != nil {
		return nil, output, err
	}
	defer b.done()
	if a.reply == nil {
		output, err = t.prompts.tokenise(c.Context(), a)
		t.reading.log.loose(c, output.Loose)
	}
	return a, output, err
}

// count answers how many tokens a request's prompt has.
func (t *textAnswers) count(c *call) error {
	a, _, err := t.read(c, countMessages)
	if err != nil {
		return err
	}
	return c.reply(map[string]int{"input_tokens": len(a.Prompts[0].Tokens)})
}

// drawnHeader tells in every API how the first choice is drawn, as JSON with the names of a request's fields; choice i has the seed plus i.
const drawnHeader = "X-Tandem-Sampling"

// choices returns the generations of a call, all validated, and tells how they are drawn.
func (t *textAnswers) choices(c *call, a *request) ([]*choice, error) {
	var all []*choice
	for _, p := range a.Prompts {
		r := a.Request.Request
		r.Prompt, r.Tokens = p.Text, p.Tokens
		if n := len(r.Tokens); n >= t.limits.Context {
			field := "prompt"
			if a.Kind == ask.Chat {
				field = "messages"
			}
			return nil, oai.TooLong(field, n, true, t.limits.Context)
		}
		if r.Tokens != nil {
			r.MaxTokens = a.Until(len(r.Tokens), t.limits.Context)
		}
		if err := r.Validate(t.limits); err != nil {
			return nil, a.InItsWords(err)
		}
		for i := range a.N {
			x := &choice{Choice: answer.Choice{Index: len(all), First: i == 0, Chars: p.Chars, Request: r}}
			x.Request.Sampling.Seed += uint64(i)
			all = append(all, x)
		}
	}
	c.w.Header().Set(drawnHeader, strings.TrimSpace(string(encode(oai.NewDrawn(all[0].Request.Sampling)))))
	return all, nil
}

// send runs choices and sends their answer: each event as it comes or, without a stream, all when the choices have ended.
func (t *textAnswers) send(c *call, a *request, with answering, choices []*choice, output conversation.Output) error {
	w, name := a.form.writer(with), ""
	if a.form.numbered {
		name = with.name
	}
	for _, x := range choices {
		sink := w.Sink(&x.Choice)
		x.sink = answer.New(output, name, func(e *answer.Event) error {
			switch {
			case e.Kind == answer.Started && with.stream != nil:
				if err := with.stream.By(e.Identity); err != nil {
					return err
				}
			case e.Output != nil && (with.stream == nil || a.form.keeps):
				if err := with.held.add(deltaBytes(e.Output, &x.Request, a.form.tokens)); err != nil {
					return err
				}
			}
			return sink(e)
		})
	}
	ctx := c.Context()
	if early, ok := w.(interface{ Open() error }); ok {
		ctx = tandem.WithAdmitted(ctx, early.Open)
	}
	err := a.InItsWords(with.held.failed(t.run(ctx, c, choices)))
	switch {
	case err != nil && with.stream == nil:
		return err
	case with.stream == nil:
		return c.reply(w.Body())
	case err == nil:
		err = w.End()
	}
	return c.broken(with.stream, err, t.reading.log.counters, w.Fail)
}

// run runs all choices, each in a goroutine of its own. The first error ends all. The later choices of a prompt begin when the first has
// its first token, so that they reuse its prefill. It is no error if the client leaves when all are complete: Codex hangs up when it has
// the last event, before it sees that the body ends.
func (t *textAnswers) run(ctx context.Context, c *call, choices []*choice) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var (
		wg    sync.WaitGroup
		once  sync.Once
		first error
		warm  chan struct{}
	)
	failed := func(err error) {
		once.Do(func() {
			first = err
			cancel(err)
		})
	}
	for _, x := range choices {
		if x.First {
			warm = make(chan struct{})
		}
		prompt := warm
		wg.Go(func() {
			ready := sync.OnceFunc(func() { close(prompt) })
			if x.First {
				defer ready()
			} else {
				ready = func() {}
				select {
				case <-prompt:
				case <-ctx.Done():
					failed(context.Cause(ctx))
					return
				}
			}
			if err := t.one(ctx, x, timed{x, c.begun, ready}); err != nil {
				failed(err)
			}
		})
	}
	wg.Wait()
	return first
}

// one runs one choice, and returns a panic as an error: a server recovers only in its own goroutines.
func (t *textAnswers) one(ctx context.Context, x *choice, sink tandem.Sink) (err error) {
	defer func() {
		if p := recover(); p != nil {
			t.reading.log.counters.Add("http.panics", 1)
			err = tandem.Panicked(op, p)
		}
	}()
	if x.result, err = t.generator.Generate(ctx, x.Request, sink); err != nil {
		return err
	}
	return x.sink.End(x.result)
}

// timed is a choice's sink that notes when the first token comes.
type timed struct {
	x     *choice
	begun time.Time
	ready func()
}

// Started implements tandem.Sink.
func (t timed) Started(e tandem.Started) error { return t.x.sink.Started(e) }

// Progress implements tandem.Sink.
func (t timed) Progress(p tandem.PromptProgress) error { return t.x.sink.Progress(p) }

// Delta implements tandem.Sink.
func (t timed) Delta(d tandem.Delta) error {
	if t.x.Began == 0 {
		t.x.Began = time.Since(t.begun)
		t.ready()
	}
	return t.x.sink.Delta(d)
}
