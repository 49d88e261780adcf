package httpapi

import (
	"bufio"
	"bytes"
	"net/http"
	"strconv"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/services/public/ask"
	"github.com/tandem-llm/tandem/services/public/budget"
	"github.com/tandem-llm/tandem/services/public/httpapi/bodies"
	"github.com/tandem-llm/tandem/services/public/httpapi/oai"
)

// tokenizer answers llama.cpp's requests for tokens and templates.
type tokenizer struct {
	reading *reading
	prompts *prompts
	answers *budget.Budget // memory for answers that are sent as a whole
}

// mostTokenized bounds the texts of /tokenize, /detokenize and /apply-template in bytes.
const mostTokenized = 1 << 20

// tokenized is how many times the size of a text its tokens take, with what is left of their making.
const tokenized = 12

// tokenize answers /tokenize.
func (t tokenizer) tokenize(c *call) error {
	var asked bodies.Tokenize
	b, err := t.reading.body(c, func(b *body, l bodies.Limits) (_ string, err error) {
		l.Text = min(l.Text, mostTokenized)
		asked, err = bodies.ReadTokenize(b, l)
		return "", err
	})
	if err != nil {
		return err
	}
	defer b.done() // once the answer is written: up to then there are its tokens
	if n := int64(len(asked.Content)); n > smallBody {
		if err := b.hold(tokenized * n); err != nil {
			return err
		}
	}
	giveBack, err := t.prompts.texts(c.Context(), len(asked.Content))
	if err != nil {
		return err
	}
	defer giveBack()
	tokens := t.prompts.encode(asked.Content, asked.AddSpecial, asked.ParseSpecial)
	asked.Content = ""
	giveBack()
	return t.listed(c, tokens, asked.WithPieces)
}

// listed answers with tokens, written piece by piece, because the whole list in JSON has fifty times their size.
func (t tokenizer) listed(c *call, tokens []tandem.Token, pieces bool) error {
	held := &heldBytes{all: t.answers}
	defer held.release()
	if err := held.hold(4 * len(tokens)); err != nil {
		return err
	}
	c.allow(16 * len(tokens))
	c.w.Header().Set("Content-Type", "application/json; charset=utf-8")
	out := bufio.NewWriterSize(c.w, 32<<10)
	_, _ = out.WriteString(`{"tokens":[`)
	for i, id := range tokens {
		if i > 0 {
			_ = out.WriteByte(',')
		}
		if !pieces {
			_, _ = out.Write(strconv.AppendInt(out.AvailableBuffer(), int64(id), 10))
			continue
		}
		if _, err := out.Write(bytes.TrimSpace(encode(oai.NewPiece(id, t.prompts.word(id))))); err != nil {
			return nil // the client is gone
		}
	}
	_, _ = out.WriteString("]}\n")
	_ = out.Flush()
	return nil
}

// held answers with v, whose JSON takes at most size bytes. Errors: Exhausted.
func (t tokenizer) held(c *call, v any, size int) error {
	held := &heldBytes{all: t.answers}
	defer held.release()
	if err := held.hold(size); err != nil {
		return err
	}
	return c.reply(v)
}

// detokenize answers /detokenize.
func (t tokenizer) detokenize(c *call) error {
	var asked []tandem.Token
	b, err := t.reading.body(c, func(b *body, l bodies.Limits) (_ string, err error) {
		l.Text = min(l.Text, mostTokenized)
		asked, err = bodies.ReadDetokenize(b, l)
		return "", err
	})
	if err != nil {
		return err
	}
	defer b.done()
	size := 0
	var piece []byte
	for i, id := range asked {
		if id < 0 || int(id) >= t.reading.limits.Vocab {
			return &tandem.Error{Kind: tandem.Invalid, Field: "tokens", Err: tandem.Errorf("tokens", tandem.Invalid,
				"token %d is %d: vocabulary has %d", i, id, t.reading.limits.Vocab)}
		}
		piece = t.prompts.vocab.AppendWritten(piece[:0], id)
		if size += len(piece); size > mostTokenized {
			e := oai.Refusal(http.StatusRequestEntityTooLarge, "answer_too_large",
				"the first %d of %d tokens make more than %d bytes of text: send fewer", i+1, len(asked), mostTokenized)
			e.Param = "tokens"
			return e
		}
	}
	return t.held(c, map[string]any{"content": t.prompts.written(asked)}, 6*size)
}

// applyTemplate answers /apply-template: with the prompt that a chat with the same body has.
func (t tokenizer) applyTemplate(c *call) error {
	var o *ask.Request
	b, err := t.reading.body(c, func(b *body, l bodies.Limits) (_ string, err error) {
		l.Text = min(l.Text, mostTokenized)
		if o, err = bodies.Chat(b, t.reading.defaults, l); err != nil {
			return "", err
		}
		return o.Model, nil
	})
	if err != nil {
		return err
	}
	defer b.done()
	of := o.Conversation()
	giveBack, err := t.prompts.texts(c.Context(), of.Size())
	if err != nil {
		return err
	}
	p, err := t.prompts.room.Render(c.Context(), of)
	giveBack()
	if err != nil {
		return err
	}
	return t.held(c, map[string]any{"prompt": p.Text}, 6*len(p.Text))
}
