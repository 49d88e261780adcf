package httpapi

import (
	"cmp"
	"context"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/services/public/conversation"
	"github.com/tandem-llm/tandem/services/public/httpapi/oai"
)

// choice is one generation of a call.
type choice struct {
	index   int
	first   bool // of its prompt
	chars   int  // of its prompt, if log-probabilities are told by their places
	request tandem.Request

	sink   tandem.Sink
	turn   *conversation.Turn // of a chat of OpenAI's API, once it runs
	began  time.Duration      // the first token, from the request's arrival; 0 before
	result tandem.Result
}

// chat answers /v1/chat/completions.
func (s *Server) chat(w http.ResponseWriter, c *call) error {
	o, prompts, output, err := s.readChat(w, c, oai.ReadChat)
	if err != nil {
		return err
	}
	return s.complete(w, c, o, prompts, output)
}

// readChat reads a conversation. It returns what it asks for, its tokens, and how its answer is read; nothing of the body is kept.
func (s *Server) readChat(w http.ResponseWriter, c *call, decode func(io.Reader, defaults, oai.Limits) (*oai.Call, error)) (*oai.Call,
	[]oai.Prompt, conversation.Output, error) {
	o, b, err := s.read(w, c, decode)
	if err != nil {
		return nil, nil, conversation.Output{}, err
	}
	defer b.done()
	tokens, output, err := s.room().Tokens(c.Context(), o.Conversation())
	o.Messages = nil
	o.Request.Written = output.Written
	return o, []oai.Prompt{{Tokens: tokens}}, output, err
}

// completion answers /v1/completions.
func (s *Server) completion(w http.ResponseWriter, c *call) error {
	o, b, err := s.read(w, c, oai.ReadCompletion)
	if err != nil {
		return err
	}
	defer b.done()
	for i, p := range o.Prompts {
		if o.Prompts[i].Tokens, err = s.tokens(c.Context(), o, p); err != nil {
			return err
		}
		if o.Request.Sampling.Logprobs {
			o.Prompts[i].Chars = utf8.RuneCountInString(p.Text)
			if p.Tokens != nil {
				o.Prompts[i].Chars = s.chars(p.Tokens)
			}
		}
		o.Prompts[i].Text = ""
	}
	b.done()
	return s.complete(w, c, o, o.Prompts, conversation.Output{})
}

// read decodes the body of a call that generates; done must be called once its texts are tokens.
func (s *Server) read(w http.ResponseWriter, c *call, decode func(io.Reader, defaults, oai.Limits) (*oai.Call, error)) (*oai.Call, *body,
	error) {
	if reason := s.cfg.Loading(); reason != "" {
		return nil, nil, tandem.Errorf(op, tandem.Unavailable, "the model is loading: %s", reason)
	}
	b, err := s.open(w, c)
	if err != nil {
		return nil, nil, err
	}
	o, err := decode(b, s.cfg.Defaults, s.limits(c))
	s.tellIgnored(w, c)
	if err == nil {
		err = cmp.Or(s.strictly(c), s.served(o.Model))
	}
	if err != nil {
		b.done()
		return nil, nil, b.refused(w, err)
	}
	o.Request.Tenant = c.tenant
	c.digest = digest(c.URL.Path, b.sum.Sum(nil))
	return o, b, nil
}

// tokens returns the tokens of a completion's prompt. One that is too long is refused before any is made.
func (s *Server) tokens(ctx context.Context, o *oai.Call, p oai.Prompt) ([]tandem.Token, error) {
	if p.Tokens != nil || p.Text == "" && !o.FillIn() {
		return p.Tokens, nil
	}
	all := []string{p.Text, o.Suffix}
	size := len(p.Text) + len(o.Suffix)
	for _, f := range o.Files {
		all = append(all, f.Text)
		size += len(f.Name) + len(f.Text)
	}
	err := cmp.Or(s.hopeless("prompt", p.Text), s.hopeless("suffix", o.Suffix), s.hopeless("input_extra", all[2:]...),
		s.hopeless("prompt", all...))
	if err != nil {
		return nil, err
	}
	giveBack, err := s.texts(ctx, size)
	if err != nil {
		return nil, err
	}
	defer giveBack()
	var tokens []tandem.Token
	switch {
	case o.FillIn():
		tokens, err = s.fillIn(o, p.Text)
	case o.ParseSpecial:
		tokens = s.cfg.Vocab.EncodeWithControl(p.Text, true)
	default:
		tokens = s.cfg.Vocab.Encode(p.Text, true)
	}
	if n := len(tokens); err == nil && n >= s.cfg.Limits.Context { // before the next prompt is tokenised
		err = oai.TooLong("prompt", n, true, s.cfg.Limits.Context)
	}
	return tokens, err
}

// fillIn returns the tokens after which the model fills a gap. Markers that end what it writes show in the text, and stop it there.
func (s *Server) fillIn(o *oai.Call, before string) ([]tandem.Token, error) {
	tokens, lacking := s.cfg.Vocab.FillIn(before, o.Suffix, o.Files...)
	if lacking != nil {
		field := "suffix"
		if o.Gap {
			field = "input_suffix"
		}
		return nil, &tandem.Error{Kind: tandem.Unsupported, Field: field, Err: tandem.Errorf(field, tandem.Unsupported,
			"model %s cannot fill in text: its file has no token for %s (tokenizer.ggml.fim_pre_token_id, fim_suf_token_id, "+
				"fim_mid_token_id)", s.cfg.Model.Name, strings.Join(lacking, ", "))}
	}
	if r := &o.Request; !r.IgnoreEOS && !r.Written {
		r.Written = true
		for _, end := range s.cfg.Vocab.GapEnds() {
			if len(r.Stop) < tandem.MostStops && !slices.Contains(r.Stop, end) {
				r.Stop = append(r.Stop, end)
			}
		}
	}
	return tokens, nil
}

// hopeless refuses texts that together cannot fit into the context, before they are tokenised. Short texts are tokenised
// anyway, so that the client is told the number of tokens.
func (s *Server) hopeless(field string, texts ...string) error {
	size, n := 0, 0
	for _, text := range texts {
		size += len(text)
	}
	if size <= smallBody {
		return nil
	}
	for _, text := range texts {
		if n += s.cfg.Vocab.AtLeast(text); n >= s.cfg.Limits.Context {
			return oai.TooLong(field, n, false, s.cfg.Limits.Context)
		}
	}
	return nil
}

// room is where conversations become prompts.
func (s *Server) room() conversation.Room {
	return conversation.Room{Chat: s.cfg.Chat, Model: s.cfg.Model.Name, Instead: "/v1/completions", Texts: s.cfg.Texts, Wait: s.cfg.Body,
		Refuse: func(text string) error { return s.hopeless("messages", text) }}
}

// served refuses a model that is not this server's, if it is strict: there is one model, which answers under any name and says its own.
func (s *Server) served(model string) error {
	if !s.cfg.Strict || model == "" || slices.Contains(s.cfg.Model.names(), model) {
		return nil
	}
	return s.noModel(model)
}

// strictly refuses a field without an effect in a body of another API than OpenAI's, if the server is strict: the readers of that one do
// so themselves.
func (s *Server) strictly(c *call) error {
	if !s.cfg.Strict || len(c.ignored.all) == 0 || c.dialect == "chat" || c.dialect == "completions" || c.dialect == "embeddings" {
		return nil
	}
	name := c.ignored.all[0]
	return oai.Unsupported(name, "%s has no effect here: leave it out, this server is strict about fields", name)
}

func (s *Server) noModel(model string) error {
	e := oai.Refusal(http.StatusNotFound, "model_not_found", "model %.200q does not exist: this server has %s", model,
		strings.Join(s.cfg.Model.names(), ", "))
	e.Param = "model"
	return e
}

// complete runs every choice of a call and answers it.
func (s *Server) complete(w http.ResponseWriter, c *call, o *oai.Call, prompts []oai.Prompt, output conversation.Output) error {
	if !o.Stream {
		return s.atOnce(w, c, o, prompts, output)
	}
	m, err := takenUp(c, o)
	if err != nil {
		return err
	}
	choices, err := s.choices(w, o, prompts)
	if err != nil {
		return err
	}
	if err := m.fits(len(choices)); err != nil {
		return err
	}
	defer c.count(choices)
	return s.stream(w, c, o, choices, output, m)
}

// atOnce runs every choice of a call and answers when all are complete.
func (s *Server) atOnce(w http.ResponseWriter, c *call, o *oai.Call, prompts []oai.Prompt, output conversation.Output) error {
	choices, err := s.choices(w, o, prompts)
	if err != nil {
		return err
	}
	defer c.count(choices)
	return s.answer(w, c, o, choices, output)
}

// drawnHeader tells in every API how the first choice is drawn, as JSON with the names of a request's fields; choice i has the seed plus i.
const drawnHeader = "X-Tandem-Sampling"

// count notes the tokens of choices that have ended.
func (c *call) count(choices []*choice) {
	for _, x := range choices {
		if c.outputTokens += x.result.OutputTokens; x.first {
			c.promptTokens += x.result.PromptTokens
		}
		c.repeated = max(c.repeated, x.result.Repeated)
	}
}

// choices returns the generations of a call, all validated, and tells how they are drawn.
func (s *Server) choices(w http.ResponseWriter, o *oai.Call, prompts []oai.Prompt) ([]*choice, error) {
	var all []*choice
	for _, p := range prompts {
		r := o.Request
		r.Prompt, r.Tokens = p.Text, p.Tokens
		if n := len(r.Tokens); n >= s.cfg.Limits.Context {
			field := "prompt"
			if o.Chat {
				field = "messages"
			}
			return nil, oai.TooLong(field, n, true, s.cfg.Limits.Context)
		}
		if r.MaxTokens == oai.ToTheEnd && r.Tokens != nil {
			r.MaxTokens = s.cfg.Limits.Context - len(r.Tokens)
		}
		if err := r.Validate(s.cfg.Limits); err != nil {
			return nil, o.InItsWords(err)
		}
		for i := range o.N {
			x := &choice{index: len(all), first: i == 0, chars: p.Chars, request: r}
			x.request.Sampling.Seed += uint64(i)
			all = append(all, x)
		}
	}
	w.Header().Set(drawnHeader, strings.TrimSpace(string(encode(oai.NewDrawn(all[0].request.Sampling)))))
	return all, nil
}

// run runs all choices, each with its sink, and calls end in a choice's goroutine when it is complete. The first error
// ends all. The later choices of a prompt begin when the first has its first token, so that they reuse its prefill. It is no error if the
// client leaves when all are complete: Codex hangs up when it has the last event, before it sees that the body ends.
func (s *Server) run(ctx context.Context, c *call, choices []*choice, end func(*choice) error) error {
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
		if x.first {
			warm = make(chan struct{})
		}
		prompt := warm
		wg.Go(func() {
			ready := sync.OnceFunc(func() { close(prompt) })
			if x.first {
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
			err := s.one(ctx, c, x, ready)
			if err == nil {
				err = end(x)
			}
			if err != nil {
				failed(err)
			}
		})
	}
	wg.Wait()
	return first
}

// one runs one choice, and returns a panic as an error: a server recovers only in its own goroutines.
func (s *Server) one(ctx context.Context, c *call, x *choice, ready func()) (err error) {
	defer func() {
		if p := recover(); p != nil {
			s.cfg.Counters.Add("http.panics", 1)
			err = tandem.Panicked(op, p)
		}
	}()
	x.result, err = s.cfg.Generator.Generate(ctx, x.request, timed{x, c.begun, ready})
	return err
}

// timed is a choice's sink that notes when the first token comes.
type timed struct {
	x     *choice
	begun time.Time
	ready func()
}

// Started implements tandem.Sink.
func (t timed) Started(e tandem.Started) error { return t.x.sink.Started(e) }

// Delta implements tandem.Sink.
func (t timed) Delta(d tandem.Delta) error {
	if t.x.began == 0 {
		t.x.began = time.Since(t.begun)
		t.ready()
	}
	return t.x.sink.Delta(d)
}

// word returns how a token is written.
func (s *Server) word(t tandem.Token) oai.Word {
	v := s.cfg.Vocab
	return oai.Word{Text: tandem.Lossy(v.AppendWritten(make([]byte, 0, 16), t)), Bytes: v.AppendBytes(make([]byte, 0, 16), t)}
}
