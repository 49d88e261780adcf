package rolestest

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/tandem-llm/tandem/modelfile/gguf"
)

// GGUF's numbers of token types.
const (
	NormalType, ControlType, UserType, UnusedType = 1, 3, 4, 5
)

// Refitted is a shipped model whose vocabulary is changed.
type Refitted struct {
	Tokens int // rows of the vocabulary; 0 keeps them
	Copies int // row 4096+i is row 300+i%copies twice as large, so that it is likelier; 0: rows of zeros
	EOS    int // 0 keeps it
	Pieces map[int]string
	Types  map[int]int32
	Chat   string // a chat template; "": none
}

// Refit writes model with its vocabulary changed into a file of its own and returns its path.
func Refit(t testing.TB, model string, c Refitted) string {
	t.Helper()
	f, err := gguf.Open(model)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	w := gguf.KeysOf(f)
	pieces, err1 := f.Strings("tokenizer.ggml.tokens")
	scores, err2 := f.Floats("tokenizer.ggml.scores")
	types, err3 := f.Ints("tokenizer.ggml.token_type", 0, 6)
	if err1 != nil || err2 != nil || err3 != nil {
		t.Fatal(err1, err2, err3)
	}
	n, had := c.Tokens, len(pieces)
	if n == 0 {
		n = had
	}
	var kinds []int32
	for i := range n {
		if i >= len(pieces) {
			pieces, scores, types = append(pieces, fmt.Sprintf("[PAD%d]", i)), append(scores, -1e4), append(types, UnusedType)
		}
		if p, ok := c.Pieces[i]; ok {
			pieces[i] = p
		}
		kinds = append(kinds, int32(types[i]))
		if k, ok := c.Types[i]; ok {
			kinds[i] = k
		}
	}
	w.Set("tokenizer.ggml.tokens", pieces[:n])
	w.Set("tokenizer.ggml.scores", scores[:n])
	w.Set("tokenizer.ggml.token_type", kinds)
	w.Set("llama.vocab_size", uint32(n))
	if c.EOS > 0 {
		w.Set("tokenizer.ggml.eos_token_id", uint32(c.EOS))
	}
	if c.Chat != "" {
		w.Set("tokenizer.chat_template", c.Chat)
	}
	for _, x := range f.Tensors() {
		data, err := x.Bytes()
		if err != nil {
			t.Fatal(err)
		}
		shape := slices.Clone(x.Shape)
		if len(shape) == 2 && shape[1] == had {
			data, shape[1] = rows(data, had, n, c.Copies, x.Type), n
		}
		w.Tensor(x.Name, x.Type, shape, data)
	}
	out, err := os.Create(filepath.Join(t.TempDir(), filepath.Base(model)))
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	if _, err := w.WriteTo(out); err != nil {
		t.Fatal(err)
	}
	return out.Name()
}

// rows returns the first n rows of a matrix that had so many, with more behind them as Refitted.Copies has it.
func rows(data []byte, had, n, copies int, typ gguf.Type) []byte {
	size := len(data) / had
	out := slices.Clone(data[:min(n, had)*size])
	for i := range n - had {
		row := make([]byte, size)
		if copies > 0 {
			copy(row, data[(300+i%copies)*size:][:size])
			for b := 1; typ == gguf.F16 && b < size; b += 2 {
				if e := row[b] >> 2 & 31; e > 0 && e < 30 {
					row[b] += 1 << 2 // the exponent: twice the value
				}
			}
		}
		out = append(out, row...)
	}
	return out
}
