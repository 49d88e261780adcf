package httpapi

import (
	"cmp"
	"net/http"
	"time"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/services/public/ask"
	"github.com/tandem-llm/tandem/services/public/budget"
	"github.com/tandem-llm/tandem/services/public/httpapi/bodies"
	"github.com/tandem-llm/tandem/services/public/httpapi/oai"
	"github.com/tandem-llm/tandem/services/public/httpapi/ollama"
)

const (
	mostVectors  = 32 << 20 // bytes of an answer with vectors
	numberBytes  = 13       // about a number of a vector as JSON
	encodedBytes = 6        // a number in base64
)

// vectors answers requests for vectors.
type vectors struct {
	embedder tandem.Embedder // makes vectors; nil: there are none
	width    int             // numbers in a vector; 0: the model makes none
	model    string
	reading  *reading
	prompts  *prompts
	answers  *budget.Budget // memory for answers that are sent as a whole
}

func newVectors(cfg Config, r *reading, p *prompts, answers *budget.Budget) *vectors {
	return &vectors{cfg.Embedder, cfg.Width, cfg.Model.Name, r, p, answers}
}

// wanted is what a body asks for.
type wanted struct {
	*ask.Request
	number int                       // about how many bytes of the answer a number takes
	form   func(tandem.Embedded) any // makes the answer
}

// openAI answers /v1/embeddings.
func (v *vectors) openAI(c *call) error {
	return v.answer(c, func(b *body, l bodies.Limits) (wanted, error) {
		r, base64, err := bodies.Embedding(b, l)
		w := wanted{r, numberBytes, func(made tandem.Embedded) any { return oai.NewVectors(v.model, made, base64) }}
		if base64 {
			w.number = encodedBytes
		}
		return w, err
	})
}

// ollama returns the handler of /api/embed or the older /api/embeddings.
func (v *vectors) ollama(older bool) func(*call) error {
	return func(c *call) error {
		return v.answer(c, func(b *body, l bodies.Limits) (wanted, error) {
			r, err := bodies.OllamaEmbed(b, l, older)
			return wanted{r, numberBytes, func(made tandem.Embedded) any {
				return ollama.NewEmbeddings(v.model, made, time.Since(c.begun), older)
			}}, err
		})
	}
}

// answer answers a request that decode reads.
func (v *vectors) answer(c *call, decode func(*body, bodies.Limits) (wanted, error)) error {
	if err := v.reading.loaded(); err != nil {
		return err
	}
	var w wanted
	b, err := v.reading.body(c, func(b *body, l bodies.Limits) (_ string, err error) {
		if w, err = decode(b, l); err != nil {
			return "", err
		}
		return w.Model, nil
	})
	if err != nil {
		return err
	}
	defer b.done()
	if v.embedder == nil {
		return tandem.Errorf(op, tandem.Unsupported, "this server makes no vectors of texts")
	}
	r := tandem.EmbedRequest{Tenant: c.tenant, Dimensions: w.Dimensions}
	for i, p := range w.Prompts {
		if p.Tokens == nil {
			if p.Tokens, err = v.prompts.input(c.Context(), p.Text, cmp.Or(w.Most, v.prompts.context), w.Cut); err != nil {
				return err
			}
			w.Prompts[i].Text = ""
		}
		r.Inputs = append(r.Inputs, p.Tokens)
	}
	b.done()
	if len(r.Inputs) == 0 {
		return c.reply(w.form(tandem.Embedded{}))
	}
	return v.embed(c, r, w)
}

// embed makes vectors and answers with them.
func (v *vectors) embed(c *call, r tandem.EmbedRequest, w wanted) error {
	width := cmp.Or(min(r.Dimensions, v.width), v.width)
	size := len(r.Inputs) * width * w.number
	if size > mostVectors {
		hint := ""
		if w.number == numberBytes {
			hint = ", or for \"encoding_format\": \"base64\""
		}
		return oai.Refusal(http.StatusBadRequest, "answer_too_large", "%d vectors of %d numbers are an answer of about %d MiB: at most "+
			"%d MiB allowed, ask for fewer texts at once%s", len(r.Inputs), width, size>>20, mostVectors>>20, hint)
	}
	held := &heldBytes{all: v.answers}
	defer held.release()
	if err := held.hold(size); err != nil {
		return err
	}
	made, err := v.embedder.Embed(c.Context(), r)
	if err != nil {
		return err
	}
	c.promptTokens = made.Tokens
	return c.reply(w.form(made))
}
