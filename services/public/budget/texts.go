package budget

import (
	"context"
	"time"

	"github.com/tandem-llm/tandem"
)

const (
	// perByte is the memory that a byte of text may take while a template renders it and the tokenizer splits it: at worst 20
	// bytes for its symbol and 24 for a pair of symbols, besides the text.
	perByte    = 48
	smallText  = 64 << 10  // bytes
	smallTexts = 32 << 20  // bytes of memory: ten such texts at once
	largeTexts = 128 << 20 // a text of 2.7 MB or more is the only one
)

// Texts is the memory in which a process turns texts into tokens. Small texts never wait for large ones.
type Texts struct{ small, large *Budget }

// NewTexts returns the memory of one process.
func NewTexts() *Texts { return &Texts{New(smallTexts), New(largeTexts)} }

// Take waits for the memory that a text of n bytes may take. Holders only compute, so the wait is short. Errors as Budget.Take's.
func (t *Texts) Take(ctx context.Context, n int) (giveBack func(), err error) {
	lane := t.large
	if n <= smallText {
		lane = t.small
	}
	return lane.Take(ctx, int64(n)*perByte)
}

// Within is Take for at most that long. Errors: Exhausted, and those of ctx.
func (t *Texts) Within(ctx context.Context, n int, wait time.Duration) (giveBack func(), err error) {
	within, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	giveBack, err = t.Take(within, n)
	if err != nil && ctx.Err() == nil {
		return nil, tandem.Errorf("memory", tandem.Exhausted,
			"long prompts of others are being turned into tokens, for %v by now: try again", wait)
	}
	return giveBack, err
}
