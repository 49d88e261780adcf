package httpapi

import (
	"encoding/json"
	"net/http"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/services/public"
	"github.com/tandem-llm/tandem/services/public/conversation"
	"github.com/tandem-llm/tandem/services/public/httpapi/oai"
	"github.com/tandem-llm/tandem/services/public/httpapi/sse"
	"github.com/tandem-llm/tandem/text/calls"
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
	sent   *progress    // of all choices
	had    public.Had   // what the client has of this one
}

// part is a choice of a chunk, and how much of the answer it is, as place.text counts it.
type part struct {
	oai.Choice
	units int
}

// send sends a part, with some tokens' log-probabilities or origins, as a chunk.
func (s *streamed) send(p part, tokens int, change func(*oai.Chunk)) error {
	p.Index = s.index
	c := oai.Chunk{Head: s.head, Choices: []oai.Choice{p.Choice}, Usage: s.usage}
	if change != nil {
		change(&c)
	}
	return s.events.SendAt("", c, s.sent.id(s.index, p.units, tokens))
}

// piece returns a part with a piece of text.
func (s *streamed) piece(text string) part {
	if s.call.Chat {
		return part{oai.Choice{Delta: &oai.Turn{Content: text}}, len(text)}
	}
	return part{oai.Choice{Text: &text}, len(text)}
}

// parts returns pieces of a chat's answer that the client has not.
func (s *streamed) parts(pieces []calls.Piece) (out []part) {
	pieces, units := s.had.Pieces(pieces)
	for i, d := range s.turn.turns(pieces) {
		out = append(out, part{oai.Choice{Delta: &d}, units[i]})
	}
	return out
}

// Started implements tandem.Sink.
func (s *streamed) Started(e tandem.Started) error {
	if err := s.sent.by(e.Identity); err != nil {
		return err
	}
	s.head = s.head.By(string(e.Identity))
	if !s.call.Chat || s.had.Skip(1) == 1 {
		return nil
	}
	p := s.piece("")
	p.Delta.Role, p.units = "assistant", 1
	return s.send(p, 0, nil)
}

// Delta implements tandem.Sink.
func (s *streamed) Delta(d tandem.Delta) error {
	report := s.call.Request.Report
	if n := min(s.had.Tokens, len(d.Logprobs)); n > 0 && s.at != nil { // the places in the text go on behind them
		s.server.logprobs(s.call, d.Tokens[:n], d.Logprobs[:n], s.at)
	}
	var parts []part // none of half a character, and of the beginning of a stop sequence or of a marker
	if s.call.Chat {
		parts = s.parts(s.turn.Read(d.Text, len(d.Tokens)))
	} else if d.Text = s.had.RestOf(d.Text); d.Text != "" {
		parts = append(parts, s.piece(d.Text))
	}
	if d = s.had.RestOfTokens(d); len(parts) == 0 && len(d.Tokens) > 0 && (len(d.Logprobs) > 0 || report) {
		parts = append(parts, s.piece(""))
	}
	for i, p := range parts {
		tokens := 0
		if i == 0 && (len(d.Logprobs) > 0 || report) {
			tokens = len(d.Tokens)
		}
		if i == 0 && len(d.Logprobs) > 0 {
			p.Logprobs = s.server.logprobs(s.call, d.Tokens, d.Logprobs, s.at)
		}
		err := s.send(p, tokens, func(c *oai.Chunk) {
			if i == 0 && report {
				c.Tandem = &oai.Account{Tokens: oai.OriginTokens(d, s.server.word), Round: oai.NewRound(d.Round, s.server.word)}
			}
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// end sends the last chunk of a choice.
func (s *streamed) end(x *choice) error {
	finish := string(x.result.Finish)
	if s.call.Chat {
		for _, p := range s.parts(s.turn.End(x.result)) {
			if err := s.send(p, 0, nil); err != nil {
				return err
			}
		}
		finish = s.turn.finish(x.result.Finish)
	}
	last := part{oai.Choice{Delta: &oai.Turn{}}, 1}
	if !s.call.Chat {
		last = s.piece("")
		last.units = 1
	}
	if last.Finish = &finish; s.had.Skip(1) == 1 {
		return nil
	}
	return s.send(last, 0, func(c *oai.Chunk) {
		c.Timings = new(oai.Timings)
		c.Timings.Add(x.result, x.first)
		c.Tandem = &oai.Account{Sampling: oai.NewDrawn(x.request.Sampling), Repeated: x.result.Repeated}
		if s.call.Request.Report {
			c.Tandem.Stats = oai.NewStats(x.result, x.began)
		}
	})
}

// stream runs choices and sends their pieces as they come, behind a mark.
func (s *Server) stream(w http.ResponseWriter, c *call, o *oai.Call, choices []*choice, output conversation.Output, m *mark) error {
	head := s.head(o, true, m.name(), m.created)
	var usage json.RawMessage
	if o.IncludeUsage {
		usage = oai.Null
	}
	e := sse.New(w, s.cfg.Stall, s.cfg.Ping)
	defer e.Close()
	sent := &progress{mark: m}
	for _, x := range choices {
		sink := &streamed{server: s, call: o, events: e, head: head, usage: usage, index: x.index, sent: sent, had: m.had(x.index)}
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
	return s.broken(c, e, err, func(told *oai.Error) error { return e.Last("error", told.Body(), nil) })
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
