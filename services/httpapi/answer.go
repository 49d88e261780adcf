package httpapi

import (
	"net/http"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/services/httpapi/oai"
	"github.com/tandem-llm/tandem/services/public"
)

type defaults = public.Defaults

// collected is the sink of a choice that is answered as a whole.
type collected struct {
	server   *Server
	text     strings.Builder
	report   bool
	tokens   []tandem.Token
	logprobs []tandem.Logprob
	account  oai.Account
}

// Started implements tandem.Sink.
func (c *collected) Started(tandem.Started) error { return nil }

// Delta implements tandem.Sink.
func (c *collected) Delta(d tandem.Delta) error {
	c.text.WriteString(d.Text)
	if len(d.Logprobs) > 0 {
		c.tokens, c.logprobs = append(c.tokens, d.Tokens...), append(c.logprobs, d.Logprobs...)
	}
	if c.report {
		c.account.Tokens = append(c.account.Tokens, oai.OriginTokens(d, c.server.word)...)
		if r := oai.NewRound(d.Round, c.server.word); r != nil {
			c.account.Rounds = append(c.account.Rounds, *r)
		}
	}
	return nil
}

// answer runs choices and answers with all of them.
func (s *Server) answer(w http.ResponseWriter, c *call, o *oai.Call, choices []*choice) error {
	for _, x := range choices {
		x.sink = &collected{server: s, report: o.Request.Report}
	}
	if err := s.run(c.Context(), c, choices, func(*choice) error { return nil }); err != nil {
		return o.InItsWords(err)
	}
	a := oai.Answer{Head: s.head(o, false), Usage: new(oai.Usage), Timings: new(oai.Timings)}
	for _, x := range choices {
		a.Choices = append(a.Choices, s.whole(o, x))
		a.Usage.Add(x.result, x.first)
		a.Timings.Add(x.result)
	}
	if o.Request.Report && len(choices) == 1 {
		a.Tandem = &oai.Account{Stats: a.Choices[0].Tandem.Stats}
	}
	s.reply(w, http.StatusOK, a)
	return nil
}

// whole returns a choice that is complete.
func (s *Server) whole(o *oai.Call, x *choice) oai.Choice {
	got := x.sink.(*collected)
	text, finish := got.text.String(), string(x.result.Finish)
	out := oai.Choice{Index: x.index, Finish: &finish}
	if o.Chat {
		out.Message = &oai.Turn{Role: "assistant", Content: &text}
	} else {
		out.Text = &text
	}
	if o.Request.Sampling.Logprobs {
		out.Logprobs, _ = s.logprobs(o, got.tokens, got.logprobs, 0)
	}
	if got.report {
		got.account.Stats = oai.NewStats(x.result, x.began)
		out.Tandem = &got.account
	}
	return out
}

// logprobs returns log-probabilities in the form of the call's kind, and the offset behind them.
func (s *Server) logprobs(o *oai.Call, tokens []tandem.Token, logprobs []tandem.Logprob, offset int) (any, int) {
	if o.Chat {
		return oai.NewChatLogprobs(tokens, logprobs, s.word), 0
	}
	return oai.NewLogprobs(tokens, logprobs, offset, s.word)
}

// head returns what the answer to a call begins with.
func (s *Server) head(o *oai.Call, chunk bool) oai.Head {
	h := oai.Head{ID: "cmpl-" + randomHex(12), Object: "text_completion", Created: time.Now().Unix(), Model: s.cfg.Model.Name, Fingerprint: s.cfg.Model.Fingerprint}
	if o.Chat {
		h.ID, h.Object = "chat"+h.ID, "chat.completion"
		if chunk {
			h.Object += ".chunk"
		}
	}
	return h
}

// lossy returns b as text, with U+FFFD for each byte that is not part of a character.
func lossy(b []byte) string {
	if utf8.Valid(b) {
		return string(b)
	}
	return string([]rune(string(b)))
}
