package httpapi

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/services/public/ask"
	"github.com/tandem-llm/tandem/services/public/budget"
	"github.com/tandem-llm/tandem/services/public/conversation"
	"github.com/tandem-llm/tandem/services/public/httpapi/oai"
)

// prompts makes tokens of what requests say. What cannot fit into the context is refused before it is tokenised. Safe for concurrent use.
type prompts struct {
	vocab   Vocab
	memory  *budget.Texts
	wait    time.Duration // for memory, at most
	context int           // positions of a session
	model   string
	room    conversation.Room
}

func newPrompts(cfg Config) *prompts {
	p := &prompts{vocab: cfg.Vocab, memory: cfg.Texts, wait: cfg.Body, context: cfg.Limits.Context, model: cfg.Model.Name}
	p.room = conversation.Room{Chat: cfg.Chat, Model: cfg.Model.Name, Instead: "/v1/completions", Texts: cfg.Texts, Wait: cfg.Body,
		Refuse: func(text string) error { return p.hopeless("messages", text) }}
	return p
}

// texts waits for the memory in which a text of n bytes becomes tokens. Errors: Exhausted, Canceled.
func (p *prompts) texts(ctx context.Context, n int) (giveBack func(), err error) {
	return p.memory.Within(ctx, n, p.wait)
}

// tokenise makes tokens of all prompts of a call, of which no text is kept. It returns how the answer is read.
func (p *prompts) tokenise(ctx context.Context, a *request) (output conversation.Output, err error) {
	o := a.Request
	if o.Kind == ask.Chat {
		var tokens []tandem.Token
		tokens, output, err = p.room.Tokens(ctx, o.Conversation())
		o.Prompts, o.Messages = []ask.Prompt{{Tokens: p.behind(a.before, tokens)}}, nil
		o.Request.Written = o.Request.Written || output.Written
		return output, cmp.Or(err, o.Constrain(output))
	}
	for i := range o.Prompts {
		q := &o.Prompts[i]
		if o.Request.Sampling.Logprobs {
			q.Chars = p.chars(*q)
		}
		if q.Parts != nil {
			q.Tokens, err = p.mixed(ctx, o.ParseSpecial, q.Parts)
		} else {
			q.Tokens, err = p.tokens(ctx, o, *q)
		}
		if err != nil {
			return output, err
		}
		q.Text, q.Parts = "", nil
	}
	o.Files = nil
	return output, o.Constrain(output)
}

// behind returns the tokens of a prompt behind those of an earlier answer. A text begins once.
func (p *prompts) behind(before, tokens []tandem.Token) []tandem.Token {
	if len(before) == 0 {
		return tokens
	}
	if begin := p.vocab.Encode("", true); len(begin) > 0 && len(tokens) > 0 && tokens[0] == begin[0] {
		tokens = tokens[1:]
	}
	return slices.Concat(before, tokens)
}

// tokens returns the tokens of a completion's prompt.
func (p *prompts) tokens(ctx context.Context, o *ask.Request, of ask.Prompt) ([]tandem.Token, error) {
	if of.Tokens != nil || of.Text == "" && !o.FillIn() {
		return of.Tokens, nil
	}
	all := []string{of.Text, o.Suffix}
	size := len(of.Text) + len(o.Suffix)
	for _, f := range o.Files {
		all = append(all, f.Text)
		size += len(f.Name) + len(f.Text)
	}
	err := cmp.Or(p.hopeless("prompt", of.Text), p.hopeless("suffix", o.Suffix), p.hopeless("input_extra", all[2:]...),
		p.hopeless("prompt", all...))
	if err != nil {
		return nil, err
	}
	giveBack, err := p.texts(ctx, size)
	if err != nil {
		return nil, err
	}
	defer giveBack()
	var tokens []tandem.Token
	if o.FillIn() {
		tokens, err = p.fillIn(o, of.Text)
	} else {
		tokens = p.encode(of.Text, true, o.ParseSpecial)
	}
	if n := len(tokens); err == nil && n >= p.context { // before the next prompt is tokenised
		err = oai.TooLong("prompt", n, true, p.context)
	}
	return tokens, err
}

// encode returns the tokens of a text, with those of the beginning of one if it begins. special: control tokens written in it are taken.
func (p *prompts) encode(text string, begins, special bool) []tandem.Token {
	if special {
		return p.vocab.EncodeWithControl(text, begins)
	}
	return p.vocab.Encode(text, begins)
}

// mixed returns the tokens of a prompt of texts and tokens. Only a text at its beginning gets the token of the beginning of a text.
func (p *prompts) mixed(ctx context.Context, special bool, parts []ask.Part) (out []tandem.Token, err error) {
	for i, part := range parts {
		switch n := len(out); {
		case n >= p.context:
			return nil, oai.TooLong("prompt", n, false, p.context)
		case ctx.Err() != nil:
			return nil, tandem.Errorf(op, tandem.Canceled, "the client left while its prompt was read")
		case part.Text == nil:
			out = append(out, part.Token)
			continue
		}
		if err := p.hopeless("prompt", *part.Text); err != nil {
			return nil, err
		}
		giveBack, err := p.texts(ctx, len(*part.Text))
		if err != nil {
			return nil, err
		}
		out = append(out, p.encode(*part.Text, i == 0, special)...)
		giveBack()
	}
	return out, nil
}

// fillIn returns the tokens after which the model fills a gap. Markers that end what it writes show in the text, and stop it there.
func (p *prompts) fillIn(o *ask.Request, before string) ([]tandem.Token, error) {
	tokens, lacking := p.vocab.FillIn(before, o.Suffix, o.Files...)
	if lacking != nil {
		field := "suffix"
		if o.Gap {
			field = "input_suffix"
		}
		return nil, &tandem.Error{Kind: tandem.Unsupported, Field: field, Err: tandem.Errorf(field, tandem.Unsupported,
			"model %s cannot fill in text: its file has no token for %s (tokenizer.ggml.fim_pre_token_id, fim_suf_token_id, "+
				"fim_mid_token_id)", p.model, strings.Join(lacking, ", "))}
	}
	if r := &o.Request; !r.IgnoreEOS && !r.Written {
		r.Written = true
		for _, end := range p.vocab.GapEnds() {
			if len(r.Stop) < tandem.MostStops && !slices.Contains(r.Stop, end) {
				r.Stop = append(r.Stop, end)
			}
		}
	}
	return tokens, nil
}

// hopeless refuses texts that together cannot fit into the context. Short texts are tokenised anyway, so that the client is told the number
// of tokens.
func (p *prompts) hopeless(field string, texts ...string) error {
	size, n := 0, 0
	for _, text := range texts {
		size += len(text)
	}
	if size <= smallBody {
		return nil
	}
	for _, text := range texts {
		if n += p.vocab.AtLeast(text); n >= p.context {
			return oai.TooLong(field, n, false, p.context)
		}
	}
	return nil
}

// input returns the tokens of a text that is embedded, with those that the model wants around a text. A text of more than most tokens is
// refused, or cut before the tokens behind it.
func (p *prompts) input(ctx context.Context, text string, most int, cut bool) ([]tandem.Token, error) {
	if n := 0; !cut && len(text) > smallBody {
		if n = p.vocab.AtLeast(text); n > most {
			return nil, oai.InputTooLong("input", n, false, most)
		}
	}
	giveBack, err := p.texts(ctx, len(text))
	if err != nil {
		return nil, err
	}
	defer giveBack()
	tokens := p.encode(text, true, true)
	switch n := len(tokens); {
	case n <= most:
		return tokens, nil
	case !cut:
		return nil, oai.InputTooLong("input", n, true, most)
	}
	bare := p.encode(text, false, true)
	behind := 0
	for first := range len(tokens) - len(bare) + 1 {
		if slices.Equal(tokens[first:first+len(bare)], bare) {
			behind = min(len(tokens)-len(bare)-first, most)
			break
		}
	}
	return slices.Concat(tokens[:most-behind], tokens[len(tokens)-behind:]), nil
}

// chars returns how many characters a prompt has, without one that is not complete.
func (p *prompts) chars(of ask.Prompt) int {
	n, text := utf8.RuneCountInString(of.Text), p.vocab.Texts()
	for _, t := range of.Tokens {
		n += utf8.RuneCountInString(text(t))
	}
	return n
}

// written returns how tokens are written.
func (p *prompts) written(tokens []tandem.Token) string {
	return tandem.Lossy(p.vocab.DecodeWritten(tokens))
}

// words returns how tokens are written.
func (p *prompts) words() oai.Words {
	return oai.Words{Of: p.word, Texts: p.vocab.Texts}
}

func (p *prompts) word(t tandem.Token) oai.Word {
	return oai.Word{Text: tandem.Lossy(p.vocab.AppendWritten(make([]byte, 0, 16), t)), Bytes: p.vocab.AppendBytes(make([]byte, 0, 16), t)}
}
