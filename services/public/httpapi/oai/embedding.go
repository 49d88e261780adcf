package oai

import (
	"encoding/base64"
	"encoding/binary"
	"io"
	"math"

	"github.com/tandem-llm/tandem"
)

// Embedding is a decoded body of /v1/embeddings.
type Embedding struct {
	Model      string
	Inputs     []Prompt // none is an empty text
	Base64     bool     // vectors are wanted as bytes of f32, not as numbers
	Dimensions int      // 0: not said
}

// ReadEmbedding decodes a body of /v1/embeddings. Errors as ReadChat's.
func ReadEmbedding(body io.Reader, l Limits) (e Embedding, err error) {
	l.Whole = true
	known := map[string]func(string, *source) error{
		"model": func(name string, s *source) error { return readText(name, s, &e.Model) },
		"input": func(name string, s *source) (err error) {
			e.Inputs, err = promptsIn(name, s, tandem.MostInputs, "text")
			return err
		},
		"encoding_format": func(name string, s *source) error {
			form := ""
			if err := readText(name, s, &form); err != nil {
				return err
			}
			if e.Base64 = form == "base64"; !e.Base64 && form != "float" {
				return bad(name, "%s is %.50q: want float or base64", name, form)
			}
			return nil
		},
		"dimensions": func(name string, s *source) error {
			if err := readInt(name, s, &e.Dimensions); err != nil {
				return err
			}
			if e.Dimensions < 1 {
				return bad(name, "%s is %d: want at least 1", name, e.Dimensions)
			}
			return nil
		},
	}
	if l.Strict {
		known["user"] = func(name string, s *source) error { return label(nil, name, s) }
	}
	if err = fields(body, l, "input", known); err != nil {
		return e, err
	}
	for i, p := range e.Inputs {
		if p.Text == "" && len(p.Tokens) == 0 {
			return e, bad("input", "text %d of input is empty: want at least one character or token", i)
		}
	}
	return e, nil
}

// Vectors is an answer of /v1/embeddings.
type Vectors struct {
	Object string      `json:"object"`
	Data   []Vector    `json:"data"`
	Model  string      `json:"model"`
	Usage  VectorUsage `json:"usage"`
}

// Vector is one of them.
type Vector struct {
	Object string `json:"object"`
	Index  int    `json:"index"`
	Values any    `json:"embedding"` // numbers, or their bytes in base64
}

// VectorUsage counts the tokens that were read.
type VectorUsage struct {
	Prompt int `json:"prompt_tokens"`
	Total  int `json:"total_tokens"`
}

// NewVectors returns the answer to e.
func (e Embedding) NewVectors(model string, made tandem.Embedded) Vectors {
	out := Vectors{Object: "list", Model: model, Usage: VectorUsage{made.Tokens, made.Tokens}}
	for i, x := range made.Vectors {
		v := Vector{Object: "embedding", Index: i, Values: x}
		if e.Base64 {
			b := make([]byte, 0, 4*len(x))
			for _, f := range x {
				b = binary.LittleEndian.AppendUint32(b, math.Float32bits(f))
			}
			v.Values = base64.StdEncoding.EncodeToString(b)
		}
		out.Data = append(out.Data, v)
	}
	return out
}
