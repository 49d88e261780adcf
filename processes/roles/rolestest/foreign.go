package rolestest

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/tandem-llm/tandem/modelfile/gguf"
)

// Turned writes a shipped model into a file of that name with its tokens in the opposite order, and their rows with them, and returns its
// path: the same function of texts, with another meaning of each id.
func Turned(t testing.TB, model, name string) string {
	t.Helper()
	return translated(t, model, name, func(pieces []string) (order []int, keys map[string]any) {
		for i := range pieces {
			order = append(order, len(pieces)-1-i)
		}
		last := uint32(len(pieces) - 1)
		return order, map[string]any{"bos_token_id": last - 1, "eos_token_id": last - 2, "unknown_token_id": last}
	})
}

// Bytewise writes a shipped model into a file of that name whose tokens are single bytes, and a few merges of them: each has the row of
// the old token with its text.
func Bytewise(t testing.TB, model, name string) string {
	t.Helper()
	return translated(t, model, name, func(pieces []string) (order []int, keys map[string]any) {
		row := map[string]int{}
		for i, p := range pieces {
			row[strings.ReplaceAll(p, "\u2581", " ")] = i
		}
		var own, merges []string
		kinds := make([]int32, len(pieces))
		next := 0x100
		spelt := map[byte]string{}
		for b := range 0x100 {
			text := string([]byte{byte(b)})
			piece := text
			if b <= ' ' || b > '~' && b <= 0xA0 || b == 0xAD {
				piece = string(rune(next))
				next++
			} else if b > '~' {
				piece = string(rune(b))
			}
			spelt[byte(b)] = piece
			at, ok := row[text]
			if !ok {
				at = row[fmt.Sprintf("<0x%02X>", b)]
			}
			own, order = append(own, piece), append(order, at)
		}
		for _, two := range []string{" t", "in", "er", "on", "re", "\n\t", "\t\t", "()", "fu"} {
			own, order = append(own, spelt[two[0]]+spelt[two[1]]), append(order, row[two])
			merges = append(merges, spelt[two[0]]+" "+spelt[two[1]])
		}
		for i := range pieces {
			kinds[i] = 1
			if i >= len(own) {
				own, order, kinds[i] = append(own, fmt.Sprintf("[PAD%d]", i)), append(order, 0), UnusedType
			}
		}
		own[300], kinds[300] = "<end>", ControlType
		return order, map[string]any{"model": "gpt2", "pre": "gpt-2", "tokens": own, "merges": merges, "token_type": kinds, "scores": nil,
			"bos_token_id": nil, "eos_token_id": uint32(300), "unknown_token_id": nil, "add_bos_token": nil, "add_space_prefix": nil}
	})
}

// translated writes model with other tokens: of returns, by id, whose row a token has, and the tokenizer's keys that change.
func translated(t testing.TB, model, name string, of func(pieces []string) (order []int, keys map[string]any)) string {
	t.Helper()
	f, err := gguf.Open(model)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	pieces, err1 := f.Strings("tokenizer.ggml.tokens")
	scores, err2 := f.Floats("tokenizer.ggml.scores")
	types, err3 := f.Ints("tokenizer.ggml.token_type", 0, 6)
	if err1 != nil || err2 != nil || err3 != nil {
		t.Fatal(err1, err2, err3)
	}
	w := gguf.KeysOf(f)
	order, keys := of(pieces)
	turned, ranks, kinds := make([]string, len(order)), make([]float32, len(order)), make([]int32, len(order))
	for i, at := range order {
		turned[i], ranks[i], kinds[i] = pieces[at], scores[at], int32(types[at])
	}
	w.Set("tokenizer.ggml.tokens", turned)
	w.Set("tokenizer.ggml.scores", ranks)
	w.Set("tokenizer.ggml.token_type", kinds)
	for key, value := range keys {
		if w.DropKey("tokenizer.ggml." + key); value != nil {
			w.Set("tokenizer.ggml."+key, value)
		}
	}
	for _, x := range f.Tensors() {
		data, err := x.Bytes()
		if err != nil {
			t.Fatal(err)
		}
		if len(x.Shape) == 2 && x.Shape[1] == len(pieces) {
			size, old := len(data)/len(pieces), data
			data = nil
			for _, at := range order {
				data = append(data, old[at*size:(at+1)*size]...)
			}
		}
		w.Tensor(x.Name, x.Type, slices.Clone(x.Shape), data)
	}
	out, err := os.Create(filepath.Join(t.TempDir(), name+".gguf"))
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	if _, err := w.WriteTo(out); err != nil {
		t.Fatal(err)
	}
	return out.Name()
}
