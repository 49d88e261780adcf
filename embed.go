package tandem

import (
	"context"
	"math"
)

// Pooling says which hidden states of a text, after the target's final norm, make its vector.
type Pooling string

const (
	PoolingLast Pooling = "last" // that of its last token
	PoolingMean Pooling = "mean" // the mean of all tokens'
)

// ParsePooling returns the pooling of that name. Errors: Invalid.
func ParsePooling(name string) (Pooling, error) {
	switch p := Pooling(name); p {
	case PoolingLast, PoolingMean:
		return p, nil
	}
	return "", Errorf("", Invalid, "pooling is %.50q: want %s or %s", name, PoolingLast, PoolingMean)
}

// Embedder makes vectors of texts. The gateway is one. Safe for concurrent use.
type Embedder interface {
	// Embed returns a vector for each input. It depends on the input's tokens, the model and the pooling alone. Errors: Invalid, with the
	// field; Unsupported for a model of which no pooling is known, or whose states are no numbers; those of Generator.Generate.
	Embed(ctx context.Context, r EmbedRequest) (Embedded, error)
}

// EmbedRequest asks for vectors.
type EmbedRequest struct {
	Tenant     string    // as in Request
	Inputs     [][]Token // 1 to MostInputs, none of them empty
	Dimensions int       // the first so many numbers of each vector, which then has the length 1; 0: all
}

// MostInputs bounds the inputs of one EmbedRequest.
const MostInputs = 2048

// Validate returns Invalid, with the field, for what cannot be embedded within l.
func (r EmbedRequest) Validate(l Limits) error {
	l = l.withDefaults()
	if n := len(r.Inputs); n < 1 || n > MostInputs {
		return invalid("input", "input has %d texts: want 1 to %d", n, MostInputs)
	}
	for i, tokens := range r.Inputs {
		switch n := len(tokens); {
		case n == 0:
			return invalid("input", "text %d of input is empty: want at least one token", i)
		case n > l.Context:
			return invalid("input", "text %d of input has %d tokens: the context holds %d", i, n, l.Context)
		}
		for k, t := range tokens {
			if t < 0 || int(t) >= l.Vocab {
				return invalid("input", "token %d of text %d of input is %d: vocabulary has %d", k, i, t, l.Vocab)
			}
		}
	}
	return nil
}

// Embedded is what Embed returns.
type Embedded struct {
	Vectors  [][]float32 // (inputs, width), each of length 1; the caller's
	Tokens   int         // of all inputs
	Identity Identity    // of what computed them
}

// VectorSource computes vectors: the verifier. Safe for concurrent use.
type VectorSource interface {
	// Vectors returns a vector of each input, before it is given the length 1. Its rows take their turn in passes like those of prompts;
	// nothing of them is kept. Errors: Invalid, Unsupported (the pooling, or states that are no numbers), Exhausted (no memory beside the
	// sessions that are held, or these needed it before the end), Unavailable (also for another vocabulary), ctx's.
	Vectors(ctx context.Context, q VectorQuery) (Vectors, error)
}

// VectorQuery asks for vectors.
type VectorQuery struct {
	Tenant      string
	Inputs      [][]Token // the receiver must not change them
	Pooling     Pooling
	Fingerprint string         // of the vocabulary of Inputs; "": unknown
	Progress    func(Progress) // as Opening.Progress; of the input that is waited for
}

// Vectors are the answer to a VectorQuery.
type Vectors struct {
	Identity Identity
	Rows     [][]float32 // (inputs, width)
}

// Validate returns Corrupt if v does not answer a query of so many inputs. Its values may be any numbers.
func (v Vectors) Validate(inputs int) error {
	if len(v.Rows) != inputs {
		return Errorf("vectors", Corrupt, "%d vectors for %d inputs", len(v.Rows), inputs)
	}
	for i, row := range v.Rows {
		if len(row) == 0 || len(row) != len(v.Rows[0]) {
			return Errorf("vectors", Corrupt, "vector %d has %d numbers, the first %d: want equal widths of at least one", i, len(row),
				len(v.Rows[0]))
		}
	}
	return nil
}

// Unit gives x the length 1. It returns Unsupported for a vector that has no direction: zero, or with what is no number.
func Unit(x []float32) error {
	sum := 0.0
	for _, v := range x {
		sum += float64(v) * float64(v)
	}
	length := math.Sqrt(sum)
	if !(length > 0) || math.IsInf(length, 0) {
		return Errorf("embed", Unsupported, "the model's states of the text make a vector of length %v: want a number above 0", length)
	}
	for i, v := range x {
		x[i] = float32(float64(v) / length)
	}
	return nil
}
