package httpapi

import (
	"cmp"
	"context"
	"io"
	"net/http"
	"slices"
	"time"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/services/public/httpapi/oai"
	"github.com/tandem-llm/tandem/services/public/httpapi/ollama"
)

const (
	mostVectors  = 32 << 20 // bytes of an answer with vectors
	numberBytes  = 13       // about a number of a vector as JSON
	encodedBytes = 6        // a number in base64
)

// embeddings answers /v1/embeddings.
func (s *Server) embeddings(w http.ResponseWriter, c *call) error {
	var e oai.Embedding
	b, err := s.readEmbedding(w, c, func(body io.Reader) (model string, err error) {
		e, err = oai.ReadEmbedding(body, s.limits(c))
		return e.Model, err
	})
	if err != nil {
		return err
	}
	defer b.done()
	r := tandem.EmbedRequest{Dimensions: e.Dimensions}
	for i, p := range e.Inputs {
		tokens := p.Tokens
		if tokens == nil {
			if tokens, err = s.inputTokens(c.Context(), p.Text, s.cfg.Limits.Context, false); err != nil {
				return err
			}
			e.Inputs[i].Text = ""
		}
		r.Inputs = append(r.Inputs, tokens)
	}
	b.done()
	each := numberBytes
	if e.Base64 {
		each = encodedBytes
	}
	return s.embed(c, r, each, func(made tandem.Embedded) { s.reply(w, http.StatusOK, e.NewVectors(s.cfg.Model.Name, made)) })
}

// readEmbedding decodes a body that asks for vectors; done must be called once its texts are tokens.
func (s *Server) readEmbedding(w http.ResponseWriter, c *call, decode func(io.Reader) (model string, err error)) (*body, error) {
	if reason := s.cfg.Loading(); reason != "" {
		return nil, tandem.Errorf(op, tandem.Unavailable, "the model is loading: %s", reason)
	}
	b, err := s.open(w, c)
	if err != nil {
		return nil, err
	}
	model, err := decode(b)
	s.tellIgnored(w, c)
	if err == nil {
		err = cmp.Or(s.strictly(c), s.served(model))
	}
	if err == nil && s.cfg.Embedder == nil {
		err = tandem.Errorf(op, tandem.Unsupported, "this server makes no vectors of texts")
	}
	if err != nil {
		b.done()
		return nil, b.refused(w, err)
	}
	return b, nil
}

// inputTokens returns the tokens of a text that is embedded, with those that the model wants around a text. A text of more than most
// tokens is refused, or cut before the tokens behind it.
func (s *Server) inputTokens(ctx context.Context, text string, most int, cut bool) ([]tandem.Token, error) {
	if n := 0; !cut && len(text) > smallBody {
		if n = s.cfg.Vocab.AtLeast(text); n > most {
			return nil, oai.InputTooLong("input", n, false, most)
		}
	}
	giveBack, err := s.texts(ctx, len(text))
	if err != nil {
		return nil, err
	}
	defer giveBack()
	tokens := s.cfg.Vocab.EncodeWithControl(text, true)
	switch n := len(tokens); {
	case n <= most:
		return tokens, nil
	case !cut:
		return nil, oai.InputTooLong("input", n, true, most)
	}
	bare := s.cfg.Vocab.EncodeWithControl(text, false)
	behind := 0
	for first := range len(tokens) - len(bare) + 1 {
		if slices.Equal(tokens[first:first+len(bare)], bare) {
			behind = min(len(tokens)-len(bare)-first, most)
			break
		}
	}
	return slices.Concat(tokens[:most-behind], tokens[len(tokens)-behind:]), nil
}

// embed makes vectors and answers with them; each is how many bytes of the answer a number takes.
func (s *Server) embed(c *call, r tandem.EmbedRequest, each int, answer func(tandem.Embedded)) error {
	width := cmp.Or(min(r.Dimensions, s.cfg.Width), s.cfg.Width)
	size := len(r.Inputs) * width * each
	if size > mostVectors {
		hint := ""
		if each == numberBytes {
			hint = ", or for \"encoding_format\": \"base64\""
		}
		return oai.Refusal(http.StatusBadRequest, "answer_too_large", "%d vectors of %d numbers are an answer of about %d MiB: at most "+
			"%d MiB allowed, ask for fewer texts at once%s", len(r.Inputs), width, size>>20, mostVectors>>20, hint)
	}
	weight := &weight{all: s.answers}
	defer weight.release()
	if err := weight.hold(size); err != nil {
		return err
	}
	r.Tenant = c.tenant
	made, err := s.cfg.Embedder.Embed(c.Context(), r)
	if err != nil {
		return err
	}
	c.promptTokens = made.Tokens
	answer(made)
	return nil
}

// ollamaEmbed answers /api/embed, ollamaEmbeddings the older /api/embeddings.
func (s *Server) ollamaEmbed(w http.ResponseWriter, c *call) error {
	return s.ollamaVectors(w, c, false, func(made tandem.Embedded) any {
		return ollama.NewEmbeddings(s.cfg.Model.Name, made, time.Since(c.begun))
	})
}

func (s *Server) ollamaEmbeddings(w http.ResponseWriter, c *call) error {
	return s.ollamaVectors(w, c, true, func(made tandem.Embedded) any {
		if len(made.Vectors) == 0 {
			return ollama.OldEmbedding{Vector: []float32{}}
		}
		return ollama.OldEmbedding{Vector: made.Vectors[0]}
	})
}

// ollamaVectors answers a body of Ollama's.
func (s *Server) ollamaVectors(w http.ResponseWriter, c *call, older bool, form func(tandem.Embedded) any) error {
	var e ollama.Embed
	b, err := s.readEmbedding(w, c, func(body io.Reader) (string, error) {
		raw, err := readWhole(body)
		if err == nil {
			e, err = ollama.ReadEmbed(raw, s.ollamaLimits(), older, c.ignored.add)
		}
		return e.Model, err
	})
	if err != nil {
		return err
	}
	defer b.done()
	if len(e.Texts) == 0 {
		s.reply(w, http.StatusOK, form(tandem.Embedded{}))
		return nil
	}
	r := tandem.EmbedRequest{Dimensions: e.Dimensions}
	for i, text := range e.Texts {
		tokens, err := s.inputTokens(c.Context(), text, e.Most, !e.Whole)
		if err != nil {
			return err
		}
		e.Texts[i] = ""
		r.Inputs = append(r.Inputs, tokens)
	}
	b.done()
	return s.embed(c, r, numberBytes, func(made tandem.Embedded) { s.reply(w, http.StatusOK, form(made)) })
}
