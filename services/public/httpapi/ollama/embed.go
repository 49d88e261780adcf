package ollama

import (
	"bytes"
	"encoding/json"
	"strings"
	"time"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/services/public/httpapi/oai"
)

// Embed is a decoded body of /api/embed or of the older /api/embeddings.
type Embed struct {
	Model      string
	Texts      []string // none: Ollama's way to load a model
	Whole      bool     // a text that is too long is refused, not cut
	Most       int      // tokens of a text
	Dimensions int      // 0: not said
}

// embed is a body of either path.
type embed struct {
	Model      string                     `json:"model"`
	Input      json.RawMessage            `json:"input"`
	Prompt     string                     `json:"prompt"`
	Truncate   *bool                      `json:"truncate"`
	Dimensions oai.Int                    `json:"dimensions"`
	Options    map[string]json.RawMessage `json:"options"`
}

// ReadEmbed decodes a body of /api/embed; older: of /api/embeddings. Errors as Chat's.
func ReadEmbed(body []byte, l Limits, older bool, ignored func(string)) (e Embed, err error) {
	var r embed
	if err := oai.Unmarshal(body, &r); err != nil {
		return e, err
	}
	shape := oai.Shape{Body: r, Inner: map[string]any{"prompt": nil}, Strict: l.Strict, Ignored: ignored}
	if older {
		shape.Inner = map[string]any{"input": nil, "truncate": nil}
	}
	rest, err := shape.Rest(body)
	if err != nil {
		return e, err
	}
	for name := range rest { // of texts that are made
		ignored(name)
	}
	e = Embed{Model: strings.TrimSuffix(r.Model, ":latest"), Most: l.Context, Dimensions: int(r.Dimensions)}
	if e.Dimensions < 0 {
		return e, oai.Bad("dimensions", "dimensions is %d: want at least 1", e.Dimensions)
	}
	for name, raw := range r.Options {
		if name != "num_ctx" {
			ignored("options." + name)
			continue
		}
		n, err := contextSize(raw, l.Context)
		if err != nil {
			return e, err
		}
		if n > 0 {
			e.Most = n
		}
	}
	if older {
		if r.Prompt != "" {
			e.Texts = []string{r.Prompt}
		}
		return e, nil
	}
	e.Whole = r.Truncate != nil && !*r.Truncate
	return e, e.read(bytes.TrimSpace(r.Input))
}

// read reads a text, or a list of texts.
func (e *Embed) read(raw []byte) error {
	switch {
	case len(raw) == 0 || string(raw) == "null" || string(raw) == `""`:
		return nil
	case raw[0] == '"':
		e.Texts = make([]string, 1)
		return oai.Unmarshal(raw, &e.Texts[0])
	case raw[0] != '[':
		return oai.Bad("input", "input is %.50s: want a string or a list of strings", raw)
	}
	d := json.NewDecoder(bytes.NewReader(raw))
	_, _ = d.Token()
	for d.More() {
		if len(e.Texts) == tandem.MostInputs {
			return oai.Bad("input", "input has more than %d texts", tandem.MostInputs)
		}
		i, text := len(e.Texts), ""
		if err := d.Decode(&text); err != nil {
			return oai.Bad("input", "input[%d] is no string: want a list of strings", i)
		}
		if text == "" {
			return oai.Bad("input", "input[%d] is empty: want at least one character", i)
		}
		e.Texts = append(e.Texts, text)
	}
	return nil
}

// Embeddings is what /api/embed answers. Times are nanoseconds.
type Embeddings struct {
	Model   string      `json:"model"`
	Vectors [][]float32 `json:"embeddings"`
	Total   int64       `json:"total_duration"`
	Load    int64       `json:"load_duration"`
	Prompt  int         `json:"prompt_eval_count"`
}

// NewEmbeddings returns the answer of /api/embed, which took so long, or of the older /api/embeddings, which is one vector.
func NewEmbeddings(model string, made tandem.Embedded, total time.Duration, older bool) any {
	switch all := made.Vectors; {
	case older && len(all) == 0:
		return oldEmbedding{[]float32{}}
	case older:
		return oldEmbedding{all[0]}
	case all == nil:
		made.Vectors = [][]float32{}
	}
	return Embeddings{Model: model, Vectors: made.Vectors, Total: int64(total), Prompt: made.Tokens}
}

type oldEmbedding struct {
	Vector []float32 `json:"embedding"`
}
