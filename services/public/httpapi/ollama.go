package httpapi

import (
	"io"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/services/public/ask"
	"github.com/tandem-llm/tandem/services/public/conversation"
	"github.com/tandem-llm/tandem/services/public/httpapi/oai"
	"github.com/tandem-llm/tandem/services/public/httpapi/ollama"
	"github.com/tandem-llm/tandem/services/public/httpapi/sse"
	"github.com/tandem-llm/tandem/text/calls"
)

// ollamaRoutes are Ollama's paths that need no model of their own kind: pulling, creating and deleting models are not served.
var ollamaRoutes = map[string]route{
	"/api/version":  {errors: ollama.Error, handle: (*Server).ollamaVersion},
	"/api/tags":     {errors: ollama.Error, handle: (*Server).ollamaTags},
	"/api/ps":       {errors: ollama.Error, handle: (*Server).ollamaRunning},
	"/api/show":     {post: true, errors: ollama.Error, handle: (*Server).ollamaShow},
	"/api/chat":     {post: true, dialect: "ollama", errors: ollama.Error, handle: (*Server).ollamaChat},
	"/api/generate": {post: true, dialect: "ollama", errors: ollama.Error, handle: (*Server).ollamaGenerate},

	"/api/embed":      {post: true, dialect: "ollama", errors: ollama.Error, handle: (*Server).ollamaEmbed},
	"/api/embeddings": {post: true, dialect: "ollama", errors: ollama.Error, handle: (*Server).ollamaEmbeddings},
}

func (s *Server) ollamaVersion(w http.ResponseWriter, _ *call) error {
	s.reply(w, http.StatusOK, map[string]string{"version": ollama.Level})
	return nil
}

// details says what the model is, as far as its file told.
func (s *Server) details() ollama.Details {
	m := s.cfg.Model
	return ollama.Details{Format: "gguf", Family: m.Architecture, Families: []string{m.Architecture},
		Parameters: ollama.Short(m.Parameters), Quantization: m.Stored}
}

// ollamaModels lists the model under all of its names.
func (s *Server) ollamaModels() (all []ollama.Model) {
	for _, name := range s.cfg.Model.names() {
		all = append(all, ollama.Model{Name: name, Model: name, Modified: s.cfg.Model.Created.Format(time.RFC3339), Details: s.details(),
			Size: s.cfg.Model.Bytes, Digest: s.cfg.Model.Digest()})
	}
	return all
}

func (s *Server) ollamaTags(w http.ResponseWriter, _ *call) error {
	s.reply(w, http.StatusOK, map[string]any{"models": s.ollamaModels()})
	return nil
}

func (s *Server) ollamaRunning(w http.ResponseWriter, _ *call) error {
	all := s.ollamaModels()[:1]
	all[0].Modified, all[0].Expires, all[0].Video = "", "9999-12-31T00:00:00Z", new(int64)
	all[0].Context = s.cfg.Limits.Context
	s.reply(w, http.StatusOK, map[string]any{"models": all})
	return nil
}

func (s *Server) ollamaShow(w http.ResponseWriter, c *call) error {
	b, err := s.open(w, c)
	if err != nil {
		return err
	}
	defer b.done()
	if _, err := io.Copy(io.Discard, b); err != nil { // there is one model, which answers to any name
		return b.refused(w, err)
	}
	m := s.cfg.Model
	can := []string{"completion"}
	if s.cfg.Width > 0 {
		can = append(can, "embedding")
	}
	if s.cfg.Chat != nil {
		can = append(can, "tools")
		if s.cfg.Chat.Reads("enable_thinking") || s.cfg.Chat.Reads("reasoning_effort") {
			can = append(can, "thinking")
		}
	}
	s.reply(w, http.StatusOK, ollama.Show{Template: m.Template, Details: s.details(), Capabilities: can,
		Modified: m.Created.Format(time.RFC3339),
		Info: map[string]any{"general.architecture": m.Architecture, m.Architecture + ".context_length": s.cfg.Limits.Context,
			"tokenizer.ggml.vocab_size": s.cfg.Limits.Vocab, "general.parameter_count": m.Parameters}})
	return nil
}

// ollamaChat answers /api/chat, ollamaGenerate /api/generate.
func (s *Server) ollamaChat(w http.ResponseWriter, c *call) error { return s.ollama(w, c, ollama.Chat) }

func (s *Server) ollamaGenerate(w http.ResponseWriter, c *call) error {
	return s.ollama(w, c, ollama.Generate)
}

// ollama answers a body that translate makes a chat or a completion of.
func (s *Server) ollama(w http.ResponseWriter, c *call,
	translate func([]byte, ollama.Limits, func(string)) (*ollama.Plan, error)) error {
	var plan *ollama.Plan
	o, b, err := s.read(w, c, func(body io.Reader, d ask.Defaults, l oai.Limits) (*oai.Call, error) {
		raw, err := readWhole(body)
		if err == nil {
			plan, err = translate(raw, s.ollamaLimits(), c.ignored.add)
		}
		if err != nil {
			return nil, err
		}
		l.Strict, l.Names = false, plan.Names // what was translated has been checked
		switch {
		case plan.Load:
			return &oai.Call{}, nil
		case plan.Raw:
			return oai.ReadCompletion(c.translated(plan.Body), d, l)
		}
		return oai.ReadChat(c.translated(plan.Body), d, l)
	})
	if err != nil {
		return err
	}
	defer b.done()
	r := &ollamaSink{chat: strings.HasSuffix(c.Pattern, "chat"), model: s.cfg.Model.Name, weight: &weight{all: s.answers}}
	defer r.weight.release()
	if plan.Load {
		s.reply(w, http.StatusOK, r.loaded(plan.Stay))
		return nil
	}
	prompts, output := o.Prompts, conversation.Output{}
	if plan.Raw {
		prompts[0].Tokens, err = s.tokens(c.Context(), o, prompts[0])
	} else {
		prompts = []oai.Prompt{{}}
		prompts[0].Tokens, output, err = s.room().Tokens(c.Context(), o.Conversation())
		prompts[0].Tokens = s.goesOn(plan.Before, prompts[0].Tokens)
	}
	if err != nil {
		return err
	}
	o.Messages, prompts[0].Text = nil, ""
	o.Request.Written = o.Request.Written || output.Written
	b.done()
	choices, err := s.choices(w, o, prompts)
	if err != nil {
		return err
	}
	x := choices[0]
	defer c.count(choices)
	r.turn, x.sink = output.Turn(), r
	if !r.chat && !plan.Raw {
		r.context = slices.Clone(x.request.Tokens)
	}
	return s.sendOllama(w, c, o, x, r)
}

// goesOn returns the tokens of a prompt behind those of an earlier answer. A text begins once.
func (s *Server) goesOn(before, tokens []tandem.Token) []tandem.Token {
	if begin := s.cfg.Vocab.Encode("", true); len(before) > 0 && len(begin) > 0 && len(tokens) > 0 && tokens[0] == begin[0] {
		tokens = tokens[1:]
	}
	return slices.Concat(before, tokens)
}

// ollamaLimits bound bodies of Ollama's API.
func (s *Server) ollamaLimits() ollama.Limits {
	return ollama.Limits{Context: s.cfg.Limits.Context, Vocab: s.cfg.Limits.Vocab, Strict: s.cfg.Strict}
}

// sendOllama runs a choice and sends its answer, as it comes or whole.
func (s *Server) sendOllama(w http.ResponseWriter, c *call, o *oai.Call, x *choice, r *ollamaSink) error {
	if o.Stream {
		r.lines = sse.New(w, s.cfg.Stall, s.cfg.Ping).Lines()
		defer r.lines.Close()
	}
	err := o.InItsWords(s.run(c.Context(), c, []*choice{x}, func(x *choice) error { return r.end(x, time.Since(c.begun)) }))
	if r.lines == nil {
		if err != nil {
			return r.weight.failed(err)
		}
		s.reply(w, http.StatusOK, r.last)
		return nil
	}
	return s.broken(c, r.lines, err, func(told *oai.Error) error { return r.lines.Last("", ollama.Error(told), nil) })
}

// ollamaSink is the sink of an answer of Ollama's API: lines with pieces, or one with all. Calls are sent whole.
type ollamaSink struct {
	chat   bool
	model  string
	turn   *conversation.Turn
	lines  *sse.Writer // nil: the answer is sent as a whole
	weight *weight
	last   ollama.Chunk

	text, thought strings.Builder // of an answer that is sent as a whole
	calls         []ollama.Call
	name, id      string // of the call that is open; "" for none
	arguments     []byte
	began         int // calls

	context []tandem.Token // of prompt and answer; nil if the answer does not tell it
}

// chunk returns a line without text.
func (r *ollamaSink) chunk() ollama.Chunk {
	c := ollama.Chunk{Model: r.model, Created: time.Now().UTC().Format(time.RFC3339Nano)}
	if r.chat {
		c.Message = &ollama.Message{Role: "assistant"}
	} else {
		c.Response = new(string)
	}
	return c
}

// loaded returns the answer to a body that asks for no text.
func (r *ollamaSink) loaded(stay bool) ollama.Chunk {
	last := r.chunk()
	if last.Done, last.Reason = true, "load"; !stay {
		last.Reason = "unload"
	}
	return last
}

// with returns a line with a piece.
func (r *ollamaSink) with(text, thought string, all []ollama.Call) ollama.Chunk {
	c := r.chunk()
	if r.chat {
		c.Message.Content, c.Message.Thinking, c.Message.ToolCalls = text, thought, all
	} else {
		c.Response, c.Thinking = &text, thought
	}
	return c
}

// Started implements tandem.Sink.
func (r *ollamaSink) Started(tandem.Started) error { return nil }

// Delta implements tandem.Sink.
func (r *ollamaSink) Delta(d tandem.Delta) error {
	if err := r.weight.add(len(d.Text)); err != nil && r.lines == nil {
		return err
	}
	if r.context != nil {
		r.context = append(r.context, d.Tokens...)
	}
	return r.add(r.turn.Read(d.Text, len(d.Tokens)))
}

// add takes pieces of the answer.
func (r *ollamaSink) add(pieces []calls.Piece) error {
	for _, p := range pieces {
		if p.Kind == calls.Arguments {
			r.arguments = append(r.arguments, p.Text...)
			continue
		}
		if err := r.called(); err != nil {
			return err
		}
		var err error
		switch p.Kind {
		case calls.Begin:
			r.name, r.id, r.arguments = p.Text, r.turn.ID(), r.arguments[:0]
		case calls.Text:
			err = r.send(p.Text, "", nil)
		case calls.Thought:
			err = r.send("", p.Text, nil)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// called sends the call that is open.
func (r *ollamaSink) called() error {
	if r.id == "" {
		return nil
	}
	c := ollama.NewCall(r.id, r.began, r.name, string(r.arguments))
	r.id = ""
	r.began++
	return r.send("", "", []ollama.Call{c})
}

// send sends a piece, or keeps it.
func (r *ollamaSink) send(text, thought string, all []ollama.Call) error {
	switch {
	case text == "" && thought == "" && len(all) == 0:
		return nil
	case r.lines != nil:
		return r.lines.Send("", r.with(text, thought, all))
	}
	r.text.WriteString(text)
	r.thought.WriteString(thought)
	r.calls = append(r.calls, all...)
	return nil
}

// end completes the answer.
func (r *ollamaSink) end(x *choice, took time.Duration) error {
	if err := r.add(r.turn.End(x.result)); err != nil {
		return err
	}
	if err := r.called(); err != nil {
		return err
	}
	r.last = r.with(r.text.String(), r.thought.String(), r.calls)
	r.last.Context = r.context
	r.last.Done, r.last.Reason, r.last.Figures = true, string(x.result.Finish), ollama.NewFigures(x.result, took)
	r.last.Tandem = oai.Repeated(x.result)
	if r.lines != nil {
		return r.lines.Last("", r.last, nil)
	}
	return nil
}
