package httpapi

import (
	"bufio"
	"bytes"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/services/public/httpapi/oai"
)

// modelObject is a model as /v1/models lists it; meta is llama.cpp's.
type modelObject struct {
	ID      string    `json:"id"`
	Object  string    `json:"object"`
	Created int64     `json:"created"`
	OwnedBy string    `json:"owned_by"`
	Most    int       `json:"max_model_len"`  // vLLM's name of the context
	Context int       `json:"context_length"` // OpenRouter's and LM Studio's
	Meta    modelMeta `json:"meta"`
}

type modelMeta struct {
	Architecture string `json:"architecture,omitempty"`
	Vocab        int    `json:"n_vocab"`
	Context      int    `json:"n_ctx"`
	Trained      int    `json:"n_ctx_train,omitempty"`
	Parameters   int64  `json:"n_params,omitempty"`
	Bytes        int64  `json:"size,omitempty"`
}

func (s *Server) modelObject(name string) modelObject {
	m := s.cfg.Model
	return modelObject{ID: name, Object: "model", Created: m.Created.Unix(), OwnedBy: "tandem",
		Most: s.cfg.Limits.Context, Context: s.cfg.Limits.Context,
		Meta: modelMeta{m.Architecture, s.cfg.Limits.Vocab, s.cfg.Limits.Context, m.Trained, m.Parameters, m.Bytes}}
}

// maxAlias bounds the name of a model in bytes.
const maxAlias = 256

// check refuses aliases that clients could not send. Errors: Invalid.
func (m Model) check() error {
	for _, a := range m.Aliases {
		if a == "" || len(a) > maxAlias || !utf8.ValidString(a) || strings.ContainsFunc(a, unicode.IsControl) {
			return tandem.Errorf("", tandem.Invalid, "--alias %.100q: want a name of 1 to %d bytes without control characters", a, maxAlias)
		}
	}
	return nil
}

// names returns all names of the model, each once, its own first.
func (m Model) names() []string {
	out := []string{m.Name}
	for _, a := range m.Aliases {
		if !slices.Contains(out, a) {
			out = append(out, a)
		}
	}
	return out
}

// models answers /v1/models.
func (s *Server) models(w http.ResponseWriter, _ *call) error {
	var all []modelObject
	for _, name := range s.cfg.Model.names() {
		all = append(all, s.modelObject(name))
	}
	s.reply(w, http.StatusOK, map[string]any{"object": "list", "data": all})
	return nil
}

// model answers /v1/models/{model}.
func (s *Server) model(w http.ResponseWriter, c *call) error {
	if !slices.Contains(s.cfg.Model.names(), c.below) {
		return s.noModel(c.below)
	}
	s.reply(w, http.StatusOK, s.modelObject(c.below))
	return nil
}

// readNative decodes the body of a llama.cpp call; done must be called when nothing of it is kept any more.
func readNative[T any](s *Server, w http.ResponseWriter, c *call, decode func(io.Reader, oai.Limits) (T, error)) (out T, b *body,
	err error) {
	if b, err = s.open(w, c); err != nil {
		return out, nil, err
	}
	limits := s.limits(c)
	limits.Text = min(limits.Text, mostTokenized)
	out, err = decode(b, limits)
	s.tellIgnored(w, c)
	if err != nil {
		b.done()
		return out, nil, b.refused(w, err)
	}
	return out, b, nil
}

// mostTokenized bounds the texts of /tokenize, /detokenize and /apply-template in bytes.
const mostTokenized = 1 << 20

// tokenized is how many times the size of a text its tokens take, with what is left of their making.
const tokenized = 12

// tokenize answers /tokenize.
func (s *Server) tokenize(w http.ResponseWriter, c *call) error {
	t, b, err := readNative(s, w, c, oai.ReadTokenize)
	if err != nil {
		return err
	}
	defer b.done() // once the answer is written: up to then there are its tokens
	if n := int64(len(t.Content)); n > smallBody {
		if err := b.hold(tokenized * n); err != nil {
			return err
		}
	}
	giveBack, err := s.texts(c.Context(), len(t.Content))
	if err != nil {
		return err
	}
	defer giveBack()
	encode := s.cfg.Vocab.Encode
	if t.ParseSpecial {
		encode = s.cfg.Vocab.EncodeWithControl
	}
	tokens := encode(t.Content, t.AddSpecial)
	t.Content = ""
	giveBack()
	return s.listed(w, tokens, t.WithPieces)
}

// listed answers with tokens, written piece by piece, because the whole list in JSON has fifty times their size.
func (s *Server) listed(w http.ResponseWriter, tokens []tandem.Token, pieces bool) error {
	held := &weight{all: s.answers}
	defer held.release()
	if err := held.hold(4 * len(tokens)); err != nil {
		return err
	}
	s.allow(w, 16*len(tokens))
	w.Header().Set("Content-Type", "application/json; charset=utf-8")
	out := bufio.NewWriterSize(w, 32<<10)
	_, _ = out.WriteString(`{"tokens":[`)
	for i, id := range tokens {
		if i > 0 {
			_ = out.WriteByte(',')
		}
		if !pieces {
			_, _ = out.Write(strconv.AppendInt(out.AvailableBuffer(), int64(id), 10))
			continue
		}
		if _, err := out.Write(bytes.TrimSpace(encode(oai.NewPiece(id, s.word(id))))); err != nil {
			return nil // the client is gone
		}
	}
	_, _ = out.WriteString("]}\n")
	_ = out.Flush()
	return nil
}

// send answers with v, whose JSON takes at most size bytes. Errors: Exhausted.
func (s *Server) send(w http.ResponseWriter, v any, size int) error {
	held := &weight{all: s.answers}
	defer held.release()
	if err := held.hold(size); err != nil {
		return err
	}
	s.reply(w, http.StatusOK, v)
	return nil
}

// detokenize answers /detokenize.
func (s *Server) detokenize(w http.ResponseWriter, c *call) error {
	d, b, err := readNative(s, w, c, oai.ReadDetokenize)
	if err != nil {
		return err
	}
	defer b.done()
	size := 0
	var piece []byte
	for i, t := range d.Tokens {
		if t < 0 || int(t) >= s.cfg.Limits.Vocab {
			return &tandem.Error{Kind: tandem.Invalid, Field: "tokens", Err: tandem.Errorf("tokens", tandem.Invalid,
				"token %d is %d: vocabulary has %d", i, t, s.cfg.Limits.Vocab)}
		}
		piece = s.cfg.Vocab.AppendWritten(piece[:0], t)
		if size += len(piece); size > mostTokenized {
			e := oai.Refusal(http.StatusRequestEntityTooLarge, "answer_too_large",
				"the first %d of %d tokens make more than %d bytes of text: send fewer", i+1, len(d.Tokens), mostTokenized)
			e.Param = "tokens"
			return e
		}
	}
	return s.send(w, map[string]any{"content": tandem.Lossy(s.cfg.Vocab.DecodeWritten(d.Tokens))}, 6*size)
}

// applyTemplate answers /apply-template: with the prompt that a chat with the same body has.
func (s *Server) applyTemplate(w http.ResponseWriter, c *call) error {
	o, b, err := readNative(s, w, c, func(body io.Reader, l oai.Limits) (*oai.Call, error) {
		o, err := oai.ReadChat(body, s.cfg.Defaults, l)
		if err == nil {
			err = s.served(o.Model)
		}
		return o, err
	})
	if err != nil {
		return err
	}
	defer b.done()
	of := o.Conversation()
	giveBack, err := s.texts(c.Context(), of.Size())
	if err != nil {
		return err
	}
	p, err := s.room().Render(c.Context(), of)
	giveBack()
	if err != nil {
		return err
	}
	return s.send(w, map[string]any{"prompt": p.Text}, 6*len(p.Text))
}

// livez answers whether this process runs, whatever the engine does.
func (s *Server) livez(w http.ResponseWriter, _ *call) error {
	s.reply(w, http.StatusOK, map[string]any{"status": "ok"})
	return nil
}

// readyz answers whether requests are answered now.
func (s *Server) readyz(w http.ResponseWriter, c *call) error {
	h := s.cfg.Health(c.Context())
	if s.draining.Load() {
		h = Health{Reason: "the gateway is shutting down"}
	}
	if !h.Ready {
		return tandem.Errorf("", tandem.Unavailable, "not ready: %s", h.Reason)
	}
	s.reply(w, http.StatusOK, map[string]any{"status": "ok"})
	return nil
}

// health answers as readyz does: a gateway whose engine is dead is not healthy.
func (s *Server) health(w http.ResponseWriter, c *call) error { return s.readyz(w, c) }
