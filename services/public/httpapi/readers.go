package httpapi

import (
	"cmp"
	"io"
	"slices"

	"github.com/tandem-llm/tandem/services/public/ask"
	"github.com/tandem-llm/tandem/services/public/httpapi/anthropic"
	"github.com/tandem-llm/tandem/services/public/httpapi/bodies"
	"github.com/tandem-llm/tandem/services/public/httpapi/llamacpp"
	"github.com/tandem-llm/tandem/services/public/httpapi/oai"
	"github.com/tandem-llm/tandem/services/public/httpapi/ollama"
	"github.com/tandem-llm/tandem/services/public/httpapi/responses"
)

// reader reads a body of an API.
type reader func(c *call, b *body, t *textAnswers, l bodies.Limits) (*request, error)

func readChat(_ *call, b *body, t *textAnswers, l bodies.Limits) (*request, error) {
	r, err := bodies.Chat(b, t.reading.defaults, l)
	return &request{Request: r, form: openAI(r, t)}, err
}

func readCompletion(_ *call, b *body, t *textAnswers, l bodies.Limits) (*request, error) {
	r, err := bodies.Completion(b, t.reading.defaults, l)
	return &request{Request: r, form: openAI(r, t)}, err
}

func openAI(r *ask.Request, t *textAnswers) form {
	chat := r.Kind == ask.Chat
	return form{marked: true, writer: func(a answering) writer {
		return &oai.Writer{Head: oai.NewHead(chat, a.stream != nil, a.name, t.model, a.created), Chat: chat, IncludeUsage: r.IncludeUsage,
			Stream: a.stream, Words: t.prompts.words()}
	}}
}

func readMessages(_ *call, b *body, t *textAnswers, l bodies.Limits) (*request, error) {
	b.times = 2 // blocks are joined
	r, err := bodies.Messages(b, t.reading.defaults, l)
	return &request{Request: r, form: form{marked: true, numbered: true, writer: func(a answering) writer {
		return anthropic.NewWriter(a.name, cmp.Or(r.Model, t.model), a.stream)
	}}}, err
}

func countMessages(c *call, b *body, t *textAnswers, l bodies.Limits) (*request, error) {
	l.CountOnly = true
	return readMessages(c, b, t, l)
}

func readResponses(_ *call, b *body, t *textAnswers, l bodies.Limits) (*request, error) {
	b.times = 3 // likewise, and an item is kept as it is written
	r, of, err := bodies.Responses(b, t.reading.defaults, l)
	return &request{Request: r, form: form{marked: true, numbered: true, keeps: true, writer: func(a answering) writer {
		return responses.NewWriter(of, a.name, cmp.Or(r.Model, t.model), a.created, a.stream)
	}}}, err
}

func ollamaReader(read func(io.Reader, ask.Defaults, bodies.Limits) (*ask.Request, bodies.Ollama, error)) reader {
	return func(c *call, b *body, t *textAnswers, l bodies.Limits) (*request, error) {
		r, of, err := read(b, t.reading.defaults, l)
		w := &ollama.Writer{Chat: c.Pattern == "/api/chat", Model: t.model, Begun: c.begun}
		w.Tells = !w.Chat && r.Kind == ask.Chat
		a := &request{Request: r, before: of.Before, form: form{lines: true, writer: func(a answering) writer {
			w.Stream = a.stream
			return w
		}}}
		if of.Load {
			a.reply = w.Loaded(of.Stay)
		}
		return a, err
	}
}

func nativeReader(read func(io.Reader, ask.Defaults, bodies.Limits) (*ask.Request, bodies.Native, error)) reader {
	return func(c *call, b *body, t *textAnswers, l bodies.Limits) (*request, error) {
		r, of, err := read(b, t.reading.defaults, l)
		stops := slices.Clone(r.Stop)
		return &request{Request: r, form: form{tokens: of.Tokens, writer: func(a answering) writer {
			return &llamacpp.Writer{Of: of, Model: t.model, Context: t.limits.Context, Stops: stops, Begun: c.begun,
				Word: t.prompts.word, Prompt: t.prompts.written, Hold: a.held.add, Stream: a.stream}
		}}}, err
	}
}
