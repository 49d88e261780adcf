package httpapi

import (
	"context"
	"net/http"
	"time"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/services/public/httpapi/bodies"
	"github.com/tandem-llm/tandem/services/public/httpapi/oai"
	"github.com/tandem-llm/tandem/services/public/httpapi/ollama"
	"github.com/tandem-llm/tandem/services/public/httpapi/sse"
)

// Models fetches and removes models for clients. Safe for concurrent use.
type Models interface {
	// Pull fetches the model of that name unless it is here, and ends with ctx. told gets what is done now and, of a transfer, the file's
	// digest and how many bytes of how many are there. Errors: Invalid for a name that is none or not allowed, Exhausted, Unavailable.
	Pull(ctx context.Context, name string, told func(status, digest string, done, total int64)) error
	// Delete removes a model that was fetched. found is false if there is none of that name. Errors: Invalid, Unavailable.
	Delete(name string) (found bool, err error)
}

// storing answers /api/pull and /api/delete.
type storing struct {
	models      Models // nil: clients may not
	reading     *reading
	stall, ping time.Duration
	counters    *tandem.Counters
}

// named reads a body with the name of a model.
func (s storing) named(c *call) (p bodies.Pull, err error) {
	if s.models == nil {
		return p, oai.Refusal(http.StatusForbidden, "pull_not_allowed",
			"clients may not fetch or remove models here: --allow-pull SIZE lets them, or run 'tandem pull NAME' on the server")
	}
	b, err := s.reading.body(c, func(b *body, l bodies.Limits) (string, error) {
		p, err = bodies.OllamaPull(b, l)
		return "", err // it need not be the model that is served
	})
	if err == nil {
		b.done()
	}
	return p, err
}

const pullStep = 100 * time.Millisecond // between two lines about a transfer

// pull answers /api/pull. An error before the first line has its own status, as elsewhere in this API; a later one is a line. When the
// client leaves, the transfer ends, and the next pull goes on there: as in Ollama.
func (s storing) pull(c *call) error {
	p, err := s.named(c)
	if err != nil {
		return err
	}
	if !p.Stream {
		if err := s.models.Pull(c.Context(), p.Name, func(string, string, int64, int64) {}); err != nil {
			return err
		}
		return c.reply(ollama.Status{Status: ollama.Success})
	}
	stream := sse.New(c.w, s.stall, s.ping).Lines()
	defer stream.Close()
	ctx, cancel := context.WithCancelCause(c.Context())
	defer cancel(nil)
	var last time.Time
	err = s.models.Pull(ctx, p.Name, func(status, digest string, done, total int64) {
		if now := time.Now(); total == 0 || done == total || now.Sub(last) >= pullStep {
			last = now
			if err := stream.Send("", ollama.Status{Status: status, Digest: digest, Total: total, Completed: done}); err != nil {
				cancel(err)
			}
		}
	})
	if err == nil {
		return stream.Last("", ollama.Status{Status: ollama.Success}, nil)
	}
	if begun, broken := stream.State(); begun && broken == nil && !c.left() {
		s.counters.Add("http.stream_errors", 1)
		_ = stream.Last("", ollama.Error(c.told(err)), nil) // nobody listens any more
	}
	return err
}

// delete answers /api/delete.
func (s storing) delete(c *call) error {
	p, err := s.named(c)
	if err != nil {
		return err
	}
	found, err := s.models.Delete(p.Name)
	if err == nil && !found {
		return oai.Refusal(http.StatusNotFound, "model_not_found", "model %.200q was not pulled here", p.Name)
	}
	if err != nil {
		return err
	}
	c.w.WriteHeader(http.StatusOK)
	return nil
}
