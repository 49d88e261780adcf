package httpapi

import (
	"net/http"
	"sync"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/services/public/budget"
	"github.com/tandem-llm/tandem/services/public/httpapi/oai"
)

// An answer that is sent as a whole is bounded, because it stays in memory until its client has taken it.
const (
	mostAnswer  = 8 << 20   // bytes of JSON, all choices together
	freeAnswer  = 256 << 10 // bytes that every answer may have; more come out of allAnswers
	allAnswers  = 64 << 20  // bytes
	tokenBytes  = 80        // about the JSON of a token's entry in logprobs, its origin, or a node of a round
	answerTakes = 256 << 10 // bytes that are taken at once
)

// heldBytes counts the memory that the answer of one call takes so far. Safe for concurrent use.
type heldBytes struct {
	all *budget.Budget

	mu          sync.Mutex
	size, taken int64
	err         error // the first of add
}

// add counts further bytes of an answer. Errors: *oai.Error if it is too large, Exhausted if there is no room for it.
func (h *heldBytes) add(bytes int) error {
	err := h.hold(bytes)
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.size > mostAnswer {
		err = oai.Refusal(http.StatusBadRequest, "answer_too_large",
			"the answer has more than %d MiB: ask for a stream, or for fewer tokens, log-probabilities or choices", mostAnswer>>20)
	}
	if h.err == nil {
		h.err = err
	}
	return err
}

// hold takes room for further bytes. Errors: Exhausted.
func (h *heldBytes) hold(bytes int) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	for h.size += int64(bytes); h.size > freeAnswer+h.taken; h.taken += answerTakes {
		if !h.all.TryTake(answerTakes) {
			return tandem.Errorf(op, tandem.Exhausted, "%d MiB of answers wait to be complete or taken: ask for a stream, or try again",
				allAnswers>>20)
		}
	}
	return nil
}

// failed returns the error of add, if there was one, else err.
func (h *heldBytes) failed(err error) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.err != nil {
		return h.err
	}
	return err
}

// release gives back what was taken.
func (h *heldBytes) release() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.all.Give(h.taken)
	h.taken = 0
}

// deltaBytes returns about how many bytes a part of an answer takes that tells what the request asks for.
func deltaBytes(d *tandem.Delta, r *tandem.Request, tokens bool) int {
	size := len(d.Text)
	for _, p := range d.Logprobs {
		size += (1 + len(p.Top)) * tokenBytes
	}
	if tokens {
		size += 8 * len(d.Tokens)
	}
	if r.Report {
		size += len(d.Tokens) * tokenBytes
		if d.Round != nil {
			size += (2 + len(d.Round.Tree.Tokens) + len(d.Round.Lanes)) * tokenBytes
		}
	}
	return size
}
