package httpapi

import (
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/services/public/ask"
	"github.com/tandem-llm/tandem/services/public/budget"
	"github.com/tandem-llm/tandem/services/public/conversation"
	"github.com/tandem-llm/tandem/services/public/httpapi/oai"
)

type defaults = ask.Defaults

// An answer that is sent as a whole is bounded, because it stays in memory until its client has taken it.
const (
	mostAnswer  = 8 << 20   // bytes of JSON, all choices together
	freeAnswer  = 256 << 10 // bytes that every answer may have; more come out of allAnswers
	allAnswers  = 64 << 20  // bytes
	tokenBytes  = 80        // about the JSON of a token's entry in logprobs, its origin, or a node of a round
	answerTakes = 256 << 10 // bytes that are taken at once
)

// weight is the memory that the answer of one call takes so far. Safe for concurrent use.
type weight struct {
	all *budget.Budget

	mu          sync.Mutex
	size, taken int64
	err         error // the first of add
}

// add counts further bytes of an answer. Errors: *oai.Error if it is too large, Exhausted if there is no room for it.
func (w *weight) add(bytes int) error {
	err := w.hold(bytes)
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.size > mostAnswer {
		err = oai.Refusal(http.StatusBadRequest, "answer_too_large",
			"the answer has more than %d MiB: ask for a stream, or for fewer tokens, log-probabilities or choices", mostAnswer>>20)
	}
	if w.err == nil {
		w.err = err
	}
	return err
}

// hold takes room for further bytes. Errors: Exhausted.
func (w *weight) hold(bytes int) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	for w.size += int64(bytes); w.size > freeAnswer+w.taken; w.taken += answerTakes {
		if !w.all.TryTake(answerTakes) {
			return tandem.Errorf(op, tandem.Exhausted, "%d MiB of answers wait to be complete or taken: ask for a stream, or try again",
				allAnswers>>20)
		}
	}
	return nil
}

// failed returns the error of add, if there was one, else err.
func (w *weight) failed(err error) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.err != nil {
		return w.err
	}
	return err
}

// release gives back what was taken.
func (w *weight) release() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.all.Give(w.taken)
	w.taken = 0
}

// collected is the sink of a choice that is answered as a whole.
type collected struct {
	server   *Server
	weight   *weight
	message  *wholeTurn      // of a chat
	text     strings.Builder // of a completion
	report   bool
	tokens   []tandem.Token
	logprobs []tandem.Logprob
	account  oai.Account
}

// Started implements tandem.Sink.
func (c *collected) Started(tandem.Started) error { return nil }

// Delta implements tandem.Sink.
func (c *collected) Delta(d tandem.Delta) error {
	size := len(d.Text)
	for _, p := range d.Logprobs {
		size += (1 + len(p.Top)) * tokenBytes
	}
	if c.report {
		size += len(d.Tokens) * tokenBytes
		if d.Round != nil {
			size += (2 + len(d.Round.Tree.Tokens) + len(d.Round.Lanes)) * tokenBytes
		}
	}
	if err := c.weight.add(size); err != nil {
		return err
	}
	if c.message != nil {
		c.message.add(c.message.deltas(d.Text, len(d.Tokens)))
	} else {
		c.text.WriteString(d.Text)
	}
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
func (s *Server) answer(w http.ResponseWriter, c *call, o *oai.Call, choices []*choice, output conversation.Output) error {
	weight := &weight{all: s.answers}
	defer weight.release()
	for _, x := range choices {
		got := &collected{server: s, weight: weight, report: o.Request.Report}
		if o.Chat {
			x.turn = output.Turn()
			got.message = &wholeTurn{turn: turn{x.turn}}
		}
		x.sink = got
	}
	if err := s.run(c.Context(), c, choices, func(*choice) error { return nil }); err != nil {
		return o.InItsWords(weight.failed(err))
	}
	a := oai.Answer{Head: s.head(o, false, randomHex(12), time.Now().Unix()).By(identities(choices)), Timings: new(oai.Timings)}
	for _, x := range choices {
		a.Choices = append(a.Choices, s.whole(o, x))
		a.Timings.Add(x.result, x.first)
	}
	a.Usage = usageOf(choices)
	if len(choices) == 1 {
		only := a.Choices[0].Tandem
		a.Tandem = &oai.Account{Sampling: only.Sampling, Repeated: only.Repeated, Stats: only.Stats}
	}
	s.reply(w, http.StatusOK, a)
	return nil
}

// identities returns the identities that computed choices: usually one, else each once, in order.
func identities(choices []*choice) string {
	var all []string
	for _, x := range choices {
		if i := string(x.result.Identity); !slices.Contains(all, i) {
			all = append(all, i)
		}
	}
	return strings.Join(all, ",")
}

// whole returns a choice that is complete.
func (s *Server) whole(o *oai.Call, x *choice) oai.Choice {
	got, finish := x.sink.(*collected), string(x.result.Finish)
	out := oai.Choice{Index: x.index, Finish: &finish}
	if o.Chat {
		out.Message = got.message.whole(x.result)
		finish = got.message.finish(x.result.Finish)
	} else {
		text := got.text.String()
		out.Text = &text
	}
	if o.Request.Sampling.Logprobs {
		out.Logprobs = s.logprobs(o, got.tokens, got.logprobs, s.offsets(x))
	}
	got.account.Sampling, got.account.Repeated = oai.NewDrawn(x.request.Sampling), x.result.Repeated
	if got.report {
		got.account.Stats = oai.NewStats(x.result, x.began)
	}
	out.Tandem = &got.account
	return out
}

// logprobs returns log-probabilities in the form of the call's kind.
func (s *Server) logprobs(o *oai.Call, tokens []tandem.Token, logprobs []tandem.Logprob, at *oai.Offsets) any {
	if o.Chat {
		return oai.NewChatLogprobs(tokens, logprobs, s.word)
	}
	return oai.NewLogprobs(tokens, logprobs, at, s.word)
}

// offsets returns the places of a choice's tokens, behind its prompt. A character that begins in the prompt belongs to the output.
func (s *Server) offsets(x *choice) *oai.Offsets {
	return &oai.Offsets{At: x.chars, Text: s.cfg.Vocab.Texts(x.request.Tokens...)}
}

// chars returns how many characters tokens make, without one that is not complete.
func (s *Server) chars(tokens []tandem.Token) (n int) {
	text := s.cfg.Vocab.Texts()
	for _, t := range tokens {
		n += utf8.RuneCountInString(text(t))
	}
	return n
}

// head returns the fields with which every answer to a call begins; its id ends with name.
func (s *Server) head(o *oai.Call, chunk bool, name string, created int64) oai.Head {
	h := oai.Head{ID: "cmpl-" + name, Object: "text_completion", Created: created, Model: s.cfg.Model.Name}
	if o.Chat {
		h.ID, h.Object = "chat"+h.ID, "chat.completion"
		if chunk {
			h.Object += ".chunk"
		}
	}
	return h
}
