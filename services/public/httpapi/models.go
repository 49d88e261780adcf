package httpapi

import (
	"io"
	"net/http"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/services/public/conversation"
	"github.com/tandem-llm/tandem/services/public/httpapi/bodies"
	"github.com/tandem-llm/tandem/services/public/httpapi/oai"
	"github.com/tandem-llm/tandem/services/public/httpapi/ollama"
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

// catalog tells of the model, in each API's form.
type catalog struct {
	model  Model
	limits tandem.Limits
	width  int               // numbers in a vector; 0: the model makes none
	chat   conversation.Chat // renders chats; nil: the model has no chat template
}

func (g catalog) object(name string) modelObject {
	m, context := g.model, g.limits.Context
	return modelObject{ID: name, Object: "model", Created: m.Created.Unix(), OwnedBy: "tandem", Most: context, Context: context,
		Meta: modelMeta{m.Architecture, g.limits.Vocab, context, m.Trained, m.Parameters, m.Bytes}}
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

// lacks returns the error of a name that is none of the model's.
func (m Model) lacks(name string) error {
	e := oai.Refusal(http.StatusNotFound, "model_not_found", "model %.200q does not exist: this server has %s", name,
		strings.Join(m.names(), ", "))
	e.Param = "model"
	return e
}

// list answers /v1/models, one /v1/models/{model}.
func (g catalog) list(c *call) error {
	var all []modelObject
	for _, name := range g.model.names() {
		all = append(all, g.object(name))
	}
	return c.reply(map[string]any{"object": "list", "data": all})
}

func (g catalog) one(c *call) error {
	if !slices.Contains(g.model.names(), c.below) {
		return g.model.lacks(c.below)
	}
	return c.reply(g.object(c.below))
}

// details says what the model is, as far as its file told.
func (g catalog) details() ollama.Details {
	m := g.model
	return ollama.Details{Format: "gguf", Family: m.Architecture, Families: []string{m.Architecture},
		Parameters: ollama.Short(m.Parameters), Quantization: m.Stored}
}

// ollama lists the model under all of its names.
func (g catalog) ollama() (all []ollama.Model) {
	m := g.model
	for _, name := range m.names() {
		all = append(all, ollama.Model{Name: name, Model: name, Modified: m.Created.Format(time.RFC3339), Details: g.details(),
			Size: m.Bytes, Digest: m.Digest()})
	}
	return all
}

// tags answers /api/tags, running /api/ps, show /api/show.
func (g catalog) tags(c *call) error { return c.reply(map[string]any{"models": g.ollama()}) }

func (g catalog) running(c *call) error {
	all := g.ollama()[:1]
	all[0].Modified, all[0].Expires, all[0].Video = "", "9999-12-31T00:00:00Z", new(int64)
	all[0].Context = g.limits.Context
	return c.reply(map[string]any{"models": all})
}

func (g catalog) show(r *reading) func(*call) error {
	return func(c *call) error {
		b, err := r.body(c, func(b *body, _ bodies.Limits) (string, error) {
			_, err := io.Copy(io.Discard, b) // there is one model, which answers to any name
			return "", err
		})
		if err != nil {
			return err
		}
		b.done()
		m, can := g.model, []string{"completion", "structured_outputs"}
		if g.width > 0 {
			can = append(can, "embedding")
		}
		if g.chat != nil {
			can = append(can, "tools")
			if g.chat.Reads("enable_thinking") || g.chat.Reads("reasoning_effort") {
				can = append(can, "thinking")
			}
		}
		return c.reply(ollama.Show{Template: m.Template, System: r.defaults.System,
			Parameters: ollama.Parameters(r.defaults, g.limits.Context), Details: g.details(),
			Capabilities: can, Modified: m.Created.Format(time.RFC3339),
			Info: map[string]any{"general.architecture": m.Architecture, m.Architecture + ".context_length": g.limits.Context,
				"tokenizer.ggml.vocab_size": g.limits.Vocab, "general.parameter_count": m.Parameters}})
	}
}
