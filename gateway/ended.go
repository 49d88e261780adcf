package gateway

import (
	"context"

	"github.com/tandem-llm/tandem"
)

const op = "generate"

// ended returns the error of a request whose ctx has ended.
func ended(ctx context.Context, at string) error {
	cause := context.Cause(ctx)
	return tandem.Errorf(op, tandem.KindOf(cause), "ended %s: %w", at, cause)
}

func number(key string, n int) tandem.Attr { return tandem.Attr{Key: key, Int: int64(n)} }

func text(key, s string) tandem.Attr { return tandem.Attr{Key: key, Str: s} }
