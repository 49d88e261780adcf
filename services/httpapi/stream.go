package httpapi

import (
	"encoding/json"
	"net/http"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/services/conversation"
	"github.com/tandem-llm/tandem/services/httpapi/oai"
	"github.com/tandem-llm/tandem/services/httpapi/sse"
)

// streamed is the sink of a choice that is sent piece by piece.
type streamed struct {
	server *Server
	call   *oai.Call
	events *sse.Writer
	head   oai.Head
	usage  json.RawMessage // the usage field of chunks
	index  int
	at     *oai.Offsets // of its next token; nil in chats
	turn   turn         // of a chat
}

// chunk returns a chunk with this choice.
func (s *streamed) chunk(c oai.Choice) oai.Chunk {
	c.Index = s.index
	return oai.Chunk{Head: s.head, Choices: []oai.Choice{c}, Usage: s.usage}
}

// piece returns a choice with a piece of text.
func (s *streamed) piece(text string) oai.Choice {
	if s.call.Chat {
		return oai.Choice{Delta: &oai.Turn{Content: text}}
	}
	return oai.Choice{Text: &text}
}

// pieces returns the choices of what has been generated: several where it is text and calls.
func (s *streamed) pieces(text string, tokens int) (out []oai.Choice) {
	if !s.call.Chat {
		return []oai.Choice{s.piece(text)}
	}
	for _, d := range s.turn.deltas(text, tokens) {
		out = append(out, oai.Choice{Delta: &d})
	}
	return out
}

// Started implements tandem.Sink.
func (s *streamed) Started(e tandem.Started) error {
	s.head = s.head.By(string(e.Identity))
	if !s.call.Chat {
		return nil
	}
	c := s.piece("")
	c.Delta.Role = "assistant"
	return s.events.Send("", s.chunk(c))
}

// Delta implements tandem.Sink.
func (s *streamed) Delta(d tandem.Delta) error {
	report := s.call.Request.Report
	var choices []oai.Choice // none of half a character, and of the beginning of a stop sequence or of a marker
	if d.Text != "" || s.call.Chat {
		choices = s.pieces(d.Text, len(d.Tokens))
	}
	if len(choices) == 0 && (len(d.Logprobs) > 0 || report) {
		choices = append(choices, s.piece(""))
	}
	for i, choice := range choices {
		if i == 0 && len(d.Logprobs) > 0 {
			choice.Logprobs = s.server.logprobs(s.call, d.Tokens, d.Logprobs, s.at)
		}
		c := s.chunk(choice)
		if i == 0 && report {
			c.Tandem = &oai.Account{Tokens: oai.OriginTokens(d, s.server.word), Round: oai.NewRound(d.Round, s.server.word)}
		}
		if err := s.events.Send("", c); err != nil {
			return err
		}
	}
	return nil
}

// end sends the last chunk of a choice.
func (s *streamed) end(x *choice) error {
	finish := string(x.result.Finish)
	if s.call.Chat {
		for _, d := range s.turn.rest() {
			if err := s.events.Send("", s.chunk(oai.Choice{Delta: &d})); err != nil {
				return err
			}
		}
		finish = s.turn.finish(x.result.Finish)
	}
	last := oai.Choice{Delta: &oai.Turn{}, Finish: &finish}
	if !s.call.Chat {
		last = s.piece("")
		last.Finish = &finish
	}
	c := s.chunk(last)
	c.Timings = new(oai.Timings)
	c.Timings.Add(x.result, x.first)
	c.Tandem = &oai.Account{Sampling: oai.NewDrawn(x.request.Sampling)}
	if s.call.Request.Report {
		c.Tandem.Stats = oai.NewStats(x.result, x.began)
	}
	return s.events.Send("", c)
}

// stream runs choices and sends their pieces as they come.
func (s *Server) stream(w http.ResponseWriter, c *call, o *oai.Call, choices []*choice, output conversation.Output) error {
	head := s.head(o, true)
	var usage json.RawMessage
	if o.IncludeUsage {
		usage = oai.Null
	}
	e := sse.New(w, s.cfg.Stall, s.cfg.Ping)
	defer e.Close()
	for _, x := range choices {
		sink := &streamed{server: s, call: o, events: e, head: head, usage: usage, index: x.index}
		if o.Chat {
			x.turn = output.Turn()
			sink.turn = turn{x.turn}
		}
		if o.Request.Sampling.Logprobs && !o.Chat {
			sink.at = s.offsets(x)
		}
		x.sink = sink
	}
	err := o.InItsWords(s.run(c.Context(), c, choices, func(x *choice) error { return x.sink.(*streamed).end(x) }))
	if err == nil && o.IncludeUsage {
		err = e.Send("", total(head.By(identities(choices)), choices))
	}
	if err == nil {
		err = e.Done()
	}
	return s.broken(c, e, err, func(told *oai.Error) error { return e.Send("error", told.Body()) })
}

// usageOf counts the tokens of all choices.
func usageOf(choices []*choice) *oai.Usage {
	u := new(oai.Usage)
	for _, x := range choices {
		u.Add(x.result, x.first)
		if x.turn != nil {
			u.AddThoughts(x.turn.Thoughts())
		}
	}
	return u
}

// total returns the chunk that counts the tokens of all choices.
func total(head oai.Head, choices []*choice) oai.Chunk {
	timings := new(oai.Timings)
	for _, x := range choices {
		timings.Add(x.result, x.first)
	}
	raw, _ := json.Marshal(usageOf(choices)) // of integers alone
	return oai.Chunk{Head: head, Choices: []oai.Choice{}, Usage: raw, Timings: timings}
}
