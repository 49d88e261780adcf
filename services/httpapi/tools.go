package httpapi

import (
	"net/http"
	"strings"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/services/httpapi/oai"
)

// modelObject is a model as /v1/models lists it; meta is llama.cpp's.
type modelObject struct {
	ID      string    `json:"id"`
	Object  string    `json:"object"`
	Created int64     `json:"created"`
	OwnedBy string    `json:"owned_by"`
	Meta    modelMeta `json:"meta"`
}

type modelMeta struct {
	Architecture string `json:"architecture,omitempty"`
	Vocab        int    `json:"n_vocab"`
	Context      int    `json:"n_ctx"`
}

func (s *Server) modelObject() modelObject {
	m := s.cfg.Model
	return modelObject{ID: m.Name, Object: "model", Created: m.Created.Unix(), OwnedBy: "tandem",
		Meta: modelMeta{m.Architecture, s.cfg.Limits.Vocab, s.cfg.Limits.Context}}
}

// models answers /v1/models.
func (s *Server) models(w http.ResponseWriter, _ *call) error {
	s.reply(w, http.StatusOK, map[string]any{"object": "list", "data": []modelObject{s.modelObject()}})
	return nil
}

// model answers /v1/models/{model}.
func (s *Server) model(w http.ResponseWriter, c *call) error {
	name := strings.TrimPrefix(c.URL.Path, "/v1/models/")
	if name != s.cfg.Model.Name {
		return s.noModel(name)
	}
	s.reply(w, http.StatusOK, s.modelObject())
	return nil
}

// tokenize answers /tokenize.
func (s *Server) tokenize(w http.ResponseWriter, c *call) error {
	body, done, err := s.body(w, c)
	if err != nil {
		return err
	}
	defer done()
	t, err := oai.ReadTokenize(body)
	if err != nil {
		return err
	}
	if len(t.Content) > s.cfg.Limits.PromptBytes {
		return oai.Refusal(http.StatusRequestEntityTooLarge, "prompt_too_large", "content has %d bytes: at most %d allowed", len(t.Content), s.cfg.Limits.PromptBytes)
	}
	encode := s.cfg.Vocab.Encode
	if t.ParseSpecial {
		encode = s.cfg.Vocab.EncodeWithControl
	}
	tokens := encode(t.Content, t.AddSpecial)
	if !t.WithPieces {
		s.reply(w, http.StatusOK, map[string]any{"tokens": append([]tandem.Token{}, tokens...)})
		return nil
	}
	pieces := make([]oai.Piece, len(tokens))
	for i, id := range tokens {
		pieces[i] = oai.NewPiece(id, s.word(id))
	}
	s.reply(w, http.StatusOK, map[string]any{"tokens": pieces})
	return nil
}

// detokenize answers /detokenize.
func (s *Server) detokenize(w http.ResponseWriter, c *call) error {
	body, done, err := s.body(w, c)
	if err != nil {
		return err
	}
	defer done()
	d, err := oai.ReadDetokenize(body)
	if err != nil {
		return err
	}
	for i, t := range d.Tokens {
		if t < 0 || int(t) >= s.cfg.Limits.Vocab {
			return &tandem.Error{Kind: tandem.Invalid, Field: "tokens", Err: tandem.Errorf("tokens", tandem.Invalid,
				"token %d is %d: vocabulary has %d", i, t, s.cfg.Limits.Vocab)}
		}
	}
	s.reply(w, http.StatusOK, map[string]any{"content": lossy([]byte(s.cfg.Vocab.Decode(d.Tokens)))})
	return nil
}

// applyTemplate answers /apply-template.
func (s *Server) applyTemplate(w http.ResponseWriter, c *call) error {
	body, done, err := s.body(w, c)
	if err != nil {
		return err
	}
	defer done()
	a, err := oai.ReadApplyTemplate(body)
	if err != nil {
		return err
	}
	p, err := s.conversation(c.Context(), a.Messages)
	if err != nil {
		return err
	}
	s.reply(w, http.StatusOK, map[string]any{"prompt": p.Text})
	return nil
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
