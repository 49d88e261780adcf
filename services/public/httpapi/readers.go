package httpapi

import (
	"bytes"
	"cmp"
	"slices"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/services/public/httpapi/anthropic"
	"github.com/tandem-llm/tandem/services/public/httpapi/llamacpp"
	"github.com/tandem-llm/tandem/services/public/httpapi/oai"
	"github.com/tandem-llm/tandem/services/public/httpapi/ollama"
	"github.com/tandem-llm/tandem/services/public/httpapi/responses"
)

// reader reads a body of an API.
type reader func(c *call, b *body, t *textAnswers, l oai.Limits) (*request, error)

// mixed are prompts, by index, that are made of texts and tokens.
type mixed map[int][]llamacpp.Part

func readChat(_ *call, b *body, t *textAnswers, l oai.Limits) (*request, error) {
	o, err := oai.ReadChat(b, t.reading.defaults, l)
	return &request{Call: o, form: openAI}, err
}

func readCompletion(_ *call, b *body, t *textAnswers, l oai.Limits) (*request, error) {
	o, err := oai.ReadCompletion(b, t.reading.defaults, l)
	return &request{Call: o, form: openAI}, err
}

var openAI = form{marked: true, writer: func(a answering) writer {
	o := a.asked.Call
	return &oai.Writer{Head: oai.NewHead(o.Chat, a.stream != nil, a.name, a.texts.model, a.created), Chat: o.Chat,
		IncludeUsage: o.IncludeUsage, Stream: a.stream, Words: a.texts.prompts.words()}
}}

func readMessages(c *call, b *body, t *textAnswers, l oai.Limits) (*request, error) {
	return readAnthropic(c, b, t, l, false)
}

func countMessages(c *call, b *body, t *textAnswers, l oai.Limits) (*request, error) {
	return readAnthropic(c, b, t, l, true)
}

func readAnthropic(c *call, b *body, t *textAnswers, l oai.Limits, countOnly bool) (*request, error) {
	raw, err := b.whole()
	if err != nil {
		return nil, err
	}
	chat, err := anthropic.Chat(c.Context(), raw, anthropic.Options{KeepAttribution: t.reading.keepAttribution, Ignored: l.Ignored,
		CountOnly: countOnly, Strict: l.Strict})
	if err != nil {
		return nil, err
	}
	l.Strict, l.Names = false, anthropic.Names // what was translated has been checked
	o, err := oai.ReadChat(c.translated(chat), t.reading.defaults, l)
	return &request{Call: o, form: form{marked: true, numbered: true, writer: func(a answering) writer {
		return anthropic.NewWriter(a.name, cmp.Or(o.Model, t.model), a.stream)
	}}}, err
}

func readResponses(c *call, b *body, t *textAnswers, l oai.Limits) (*request, error) {
	raw, err := b.whole()
	if err != nil {
		return nil, err
	}
	plan, err := responses.Read(c.Context(), raw, l.Strict, l.Ignored)
	if err != nil {
		return nil, err
	}
	l.Strict, l.Names = false, responses.Names // what was translated has been checked
	o, err := oai.ReadChat(c.translated(plan.Chat), t.reading.defaults, l)
	return &request{Call: o, custom: plan.Custom(), form: form{marked: true, numbered: true, keeps: true, writer: func(a answering) writer {
		return responses.NewWriter(plan, a.name, cmp.Or(o.Model, t.model), a.created, a.stream)
	}}}, err
}

func ollamaReader(translate func([]byte, ollama.Limits, func(string)) (*ollama.Plan, error)) reader {
	return func(c *call, b *body, t *textAnswers, l oai.Limits) (*request, error) {
		raw, err := b.whole()
		if err != nil {
			return nil, err
		}
		plan, err := translate(raw, t.reading.ollama(), l.Ignored)
		if err != nil {
			return nil, err
		}
		l.Strict, l.Names = false, plan.Names // what was translated has been checked
		w := &ollama.Writer{Chat: c.Pattern == "/api/chat", Model: t.model, Begun: c.begun}
		w.Tells = !w.Chat && !plan.Raw
		a := &request{before: plan.Before, form: form{lines: true, writer: func(a answering) writer {
			w.Stream = a.stream
			return w
		}}}
		switch {
		case plan.Load:
			a.Call, a.reply = &oai.Call{}, w.Loaded(plan.Stay)
		case plan.Raw:
			a.Call, err = oai.ReadCompletion(c.translated(plan.Body), t.reading.defaults, l)
		default:
			a.Call, err = oai.ReadChat(c.translated(plan.Body), t.reading.defaults, l)
		}
		return a, err
	}
}

// ollama returns the bounds of bodies of Ollama's API.
func (r *reading) ollama() ollama.Limits {
	return ollama.Limits{Context: r.context, Vocab: r.vocab, Strict: r.limits.Strict}
}

func nativeReader(translate func([]byte, llamacpp.Options) (*llamacpp.Plan, error)) reader {
	return func(c *call, b *body, t *textAnswers, l oai.Limits) (*request, error) {
		raw, err := b.whole()
		if err != nil {
			return nil, err
		}
		encode := func(text string) []tandem.Token { return t.prompts.encode(text, false, false) }
		plan, err := translate(raw, llamacpp.Options{Ignored: l.Ignored, Encode: encode})
		if err != nil {
			return nil, err
		}
		l.Strict = false // what was translated has been checked
		o, err := oai.ReadCompletion(bytes.NewReader(plan.Body), t.reading.defaults, l)
		o.Gap, o.Files = plan.Gap, plan.Files
		stops, parts := slices.Clone(o.Request.Stop), plan.Mixed
		plan.Files, plan.Mixed, plan.Body = nil, nil, nil
		return &request{Call: o, mixed: parts, form: form{tokens: plan.Tokens, writer: func(a answering) writer {
			return &llamacpp.Writer{Plan: plan, Model: t.model, Context: t.limits.Context, Stops: stops, Begun: c.begun,
				Word: t.prompts.word, Prompt: t.prompts.written, Weigh: a.weight.add, Stream: a.stream}
		}}}, err
	}
}
