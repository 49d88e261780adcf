package client

import (
	"context"
	"fmt"
	"iter"
	"unicode/utf8"

	tandemv1 "github.com/tandem-llm/tandem/proto/tandem/v1"
)

// Message is a turn of a conversation without tools.
type Message struct {
	Role    string // "system", "user" or "assistant"
	Content string
	Thought string // what the assistant thought before; the chat template keeps it or drops it
}

// Piece is an event of Converse: exactly one field is set. Of an Event, Started comes first but for Progress, and Finished last. With
// Report or Logprobs, a Delta says what the model wrote before the pieces that it adds.
type Piece struct {
	Event
	Text    string // what the model says
	Thought string // what it thinks before
}

// Converse answers a conversation by the chat template of the gateway's model. How to answer is as in Generate; the request's prompt and
// Written are not used. variables are further variables of the template, a JSON object as text; "" for none. Chat has tools besides. The
// sequence ends as Chat's.
func (c *Client) Converse(ctx context.Context, messages []Message, variables string, r Request) iter.Seq2[Piece, error] {
	return func(yield func(Piece, error) bool) {
		err := r.check()
		for i, m := range messages {
			if !utf8.ValidString(m.Role + m.Content + m.Thought) {
				err = &Error{Kind: Invalid, Field: "messages", Message: fmt.Sprintf("request: message %d is not valid UTF-8", i+1)}
			}
		}
		if err != nil {
			yield(Piece{}, err)
			return
		}
		for m, err := range c.Chat(ctx, r.chat(messages, variables)) {
			p := piece(m)
			if known := p != (Piece{}) || err != nil; known && (!yield(p, err) || err != nil) {
				return
			}
		}
	}
}

// chat is r as a request of ChatService.
func (r Request) chat(messages []Message, variables string) *tandemv1.ChatRequest {
	g := r.encode()
	out := &tandemv1.ChatRequest{MaxTokens: g.MaxTokens, Sampling: g.GetSampling(), Speculation: g.GetSpeculation(), IgnoreEos: g.IgnoreEos,
		FullTrace: g.FullTrace, Stop: g.GetStop(), Report: g.Report, CacheSalt: g.GetCacheSalt(),
		ReturnProgress: g.ReturnProgress, Constraint: g.GetConstraint()}
	for _, m := range messages {
		out.Messages = append(out.Messages, &tandemv1.ChatMessage{Role: m.Role, Content: m.Content, Thought: m.Thought})
	}
	if variables != "" {
		out.TemplateVariables = &variables
	}
	return out
}

// piece is m as an event of Converse; zero for calls, which nothing without tools has.
func piece(m *tandemv1.ChatResponse) (p Piece) {
	switch e := m.GetEvent().(type) {
	case *tandemv1.ChatResponse_PromptProgress:
		p.Progress = progress(e.PromptProgress)
	case *tandemv1.ChatResponse_Started:
		p.Started = started(e.Started.GetStarted())
	case *tandemv1.ChatResponse_Text:
		p.Text = e.Text
	case *tandemv1.ChatResponse_Thought:
		p.Thought = e.Thought
	case *tandemv1.ChatResponse_Output:
		p.Delta = delta(e.Output)
	case *tandemv1.ChatResponse_Finished:
		f := e.Finished
		p.Finished = finished(&tandemv1.Finished{Reason: f.GetReason(), Usage: f.GetUsage(), Statistics: f.GetStatistics(),
			Stopped: f.GetStopped()})
	}
	return p
}
