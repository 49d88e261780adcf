package oai

import (
	"encoding/base64"
	"encoding/binary"
	"math"

	"github.com/tandem-llm/tandem"
)

// Vectors is an answer of /v1/embeddings.
type Vectors struct {
	Object string      `json:"object"`
	Data   []Vector    `json:"data"`
	Model  string      `json:"model"`
	Usage  VectorUsage `json:"usage"`
}

// Vector is one vector of an answer.
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

// NewVectors returns an answer; inBase64: with the bytes of f32, not numbers.
func NewVectors(model string, made tandem.Embedded, inBase64 bool) Vectors {
	out := Vectors{Object: "list", Model: model, Usage: VectorUsage{made.Tokens, made.Tokens}}
	for i, x := range made.Vectors {
		v := Vector{Object: "embedding", Index: i, Values: x}
		if inBase64 {
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
