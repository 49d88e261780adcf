package httpapi

import (
	"bytes"
	"io"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/services/public/ask"
	"github.com/tandem-llm/tandem/services/public/httpapi/llamacpp"
	"github.com/tandem-llm/tandem/services/public/httpapi/oai"
	"github.com/tandem-llm/tandem/services/public/httpapi/sse"
)

// nativeRoutes are the paths at which llama.cpp's server generates by its own API. Its /completions is OpenAI's here: clients whose base
// address lacks /v1 mean that.
var nativeRoutes = map[string]route{
	"/completion": {post: true, dialect: "llama.cpp", errors: llamacpp.Error, handle: (*Server).native},
	"/infill":     {post: true, dialect: "llama.cpp", errors: llamacpp.Error, handle: (*Server).infill},
	"/slots":      {errors: llamacpp.Error, handle: (*Server).slots},
}

// native answers /completion, infill /infill.
func (s *Server) native(w http.ResponseWriter, c *call) error {
	return s.completeNative(w, c, llamacpp.Completion)
}

func (s *Server) infill(w http.ResponseWriter, c *call) error {
	return s.completeNative(w, c, llamacpp.Infill)
}

// completeNative answers a body that translate makes a completion of.
func (s *Server) completeNative(w http.ResponseWriter, c *call,
	translate func([]byte, llamacpp.Options) (*llamacpp.Plan, error)) error {
	var plan *llamacpp.Plan
	o, b, err := s.read(w, c, func(body io.Reader, d ask.Defaults, l oai.Limits) (*oai.Call, error) {
		raw, err := readWhole(body)
		if err != nil {
			return nil, err
		}
		encode := func(text string) []tandem.Token { return s.cfg.Vocab.Encode(text, false) }
		if plan, err = translate(raw, llamacpp.Options{Ignored: c.ignored.add, Encode: encode}); err != nil {
			return nil, err
		}
		l.Strict = false // what was translated has been checked
		return oai.ReadCompletion(bytes.NewReader(plan.Body), d, l)
	})
	if err != nil {
		return err
	}
	defer b.done()
	o.Gap, o.Files = plan.Gap, plan.Files
	stops := slices.Clone(o.Request.Stop)
	for i, p := range o.Prompts {
		if parts := plan.Mixed[i]; parts != nil {
			o.Prompts[i].Tokens, err = s.mixed(c, o, parts)
		} else {
			o.Prompts[i].Tokens, err = s.tokens(c.Context(), o, p)
		}
		if err != nil {
			return err
		}
		o.Prompts[i].Text = ""
	}
	o.Files, plan.Files, plan.Mixed, plan.Body = nil, nil, nil, nil
	b.done()
	choices, err := s.choices(w, o, o.Prompts)
	if err != nil {
		return err
	}
	defer c.count(choices)
	return s.sendNative(w, c, &nativeCall{server: s, call: o, plan: plan, stops: stops, begun: c.begun,
		weight: &weight{all: s.answers}}, choices)
}

// mixed returns the tokens of a prompt of texts and tokens. Only a text at its beginning gets the token of the beginning of a text.
func (s *Server) mixed(c *call, o *oai.Call, parts []llamacpp.Part) (out []tandem.Token, err error) {
	for i, p := range parts {
		switch n := len(out); {
		case n >= s.cfg.Limits.Context:
			return nil, oai.TooLong("prompt", n, false, s.cfg.Limits.Context)
		case c.Context().Err() != nil:
			return nil, tandem.Errorf(op, tandem.Canceled, "the client left while its prompt was read")
		case p.Text == nil:
			out = append(out, p.Token)
			continue
		}
		if err := s.hopeless("prompt", *p.Text); err != nil {
			return nil, err
		}
		giveBack, err := s.texts(c.Context(), len(*p.Text))
		if err != nil {
			return nil, err
		}
		encode := s.cfg.Vocab.Encode
		if o.ParseSpecial {
			encode = s.cfg.Vocab.EncodeWithControl
		}
		out = append(out, encode(*p.Text, i == 0)...)
		giveBack()
	}
	return out, nil
}

// nativeCall is one call of llama.cpp's API.
type nativeCall struct {
	server *Server
	call   *oai.Call
	plan   *llamacpp.Plan
	stops  []string // the client's own
	begun  time.Time
	weight *weight
	events *sse.Writer // nil: the answer is sent as a whole
}

// sendNative runs choices and sends their answers: one, or an array of several.
func (s *Server) sendNative(w http.ResponseWriter, c *call, n *nativeCall, choices []*choice) error {
	defer n.weight.release()
	if n.call.Stream {
		n.events = sse.New(w, s.cfg.Stall, s.cfg.Ping)
		defer n.events.Close()
	}
	for _, x := range choices {
		x.sink = &nativeSink{nativeCall: n, x: x}
	}
	err := n.call.InItsWords(s.run(c.Context(), c, choices, func(x *choice) error { return x.sink.(*nativeSink).end() }))
	if n.events == nil {
		if err != nil {
			return n.weight.failed(err)
		}
		answers := make([]any, len(choices))
		for i, x := range choices {
			answers[i] = x.sink.(*nativeSink).answer
		}
		if len(answers) == 1 {
			s.reply(w, http.StatusOK, answers[0])
		} else {
			s.reply(w, http.StatusOK, answers)
		}
		return nil
	}
	return s.broken(c, n.events, err, func(e *oai.Error) error { return n.events.Last("", llamacpp.Error(e), nil) })
}

// nativeSink is the sink of one choice.
type nativeSink struct {
	*nativeCall
	x      *choice
	answer any // once it is complete

	text    strings.Builder // of an answer that is sent as a whole
	newLine bool
	tokens  []tandem.Token // that were not sent yet
	probs   []llamacpp.Prob
	count   int       // tokens
	first   time.Time // the first of them came
}

// Started implements tandem.Sink.
func (n *nativeSink) Started(tandem.Started) error { return nil }

// Delta implements tandem.Sink.
func (n *nativeSink) Delta(d tandem.Delta) error {
	if n.first.IsZero() {
		n.first = time.Now()
	}
	n.count += len(d.Tokens)
	n.newLine = n.newLine || strings.Contains(d.Text, "\n")
	size := len(d.Text)
	for _, p := range d.Logprobs {
		size += (1 + len(p.Top)) * tokenBytes
	}
	if n.plan.Tokens {
		size += 8 * len(d.Tokens)
	}
	if n.events == nil {
		if err := n.weight.add(size); err != nil {
			return err
		}
	}
	if n.plan.Tokens || n.events != nil {
		n.tokens = append(n.tokens, d.Tokens...)
	}
	n.probs = append(n.probs, llamacpp.NewProbs(d.Tokens, d.Logprobs, n.server.word)...)
	if n.events == nil {
		n.text.WriteString(d.Text)
		return nil
	}
	if d.Text == "" { // half a character, or the beginning of a stop sequence
		return nil
	}
	return n.piece(d.Text)
}

// piece sends what has come.
func (n *nativeSink) piece(text string) error {
	p := llamacpp.Piece{Index: n.x.index, Content: text, Tokens: n.tokens, Slot: -1, Predicted: n.count,
		Evaluated: len(n.x.request.Tokens), Probs: n.probs}
	if n.plan.Times { // how much of the prompt was in the cache is known at the end
		p.Timings = new(oai.Timings)
		p.Timings.Add(tandem.Result{PromptTokens: p.Evaluated, OutputTokens: n.count, Stats: tandem.Stats{Prefill: n.first.Sub(n.begun),
			Decode: time.Since(n.first)}}, true)
	}
	n.tokens, n.probs = nil, nil
	return n.events.Send("", p)
}

// end completes the answer.
func (n *nativeSink) end() error {
	if n.events != nil && (len(n.tokens) > 0 || len(n.probs) > 0) {
		if err := n.piece(""); err != nil {
			return err
		}
	}
	x, s := n.x, n.server
	word := x.result.Stopped
	if !slices.Contains(n.stops, word) { // a marker that ends a gap
		word = ""
	}
	prompt := tandem.Lossy(s.cfg.Vocab.DecodeWritten(x.request.Tokens))
	if err := n.weight.add(len(prompt)); err != nil && n.events == nil {
		return err
	}
	a := llamacpp.Answer{Index: x.index, Content: n.text.String(), Tokens: append([]tandem.Token{}, n.tokens...), Model: s.cfg.Model.Name,
		Settings: llamacpp.NewSettings(x.request, n.plan, n.stops, n.call.Stream, s.cfg.Limits.Context), Prompt: prompt,
		NewLine: n.newLine, Probs: n.probs}
	n.answer = llamacpp.Only(n.plan.Fields, a.Ended(x.result, word, s.cfg.Limits.Context))
	if n.events != nil {
		return n.events.Send("", n.answer)
	}
	return nil
}
