package ollama

import (
	"time"

	"github.com/tandem-llm/tandem"
)

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
