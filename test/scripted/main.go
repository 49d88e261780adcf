// Command scripted writes a model that says given texts, and the chat template that chooses among them, so that tests drive the whole
// program with a model whose words they know:
//
//	go run ./test/scripted -script FILE -out FOLDER
//	tandem up --target FOLDER/scripted.gguf --chat-template FOLDER/scripted.jinja
//
// The script is a JSON array of objects {"when", "says"}: the model says the text of the first whose "when", an expression of the
// template, holds. The expressions may use "messages", "tools", and what the template has set: "names", the tools' names between bars, as
// in "|read|write|"; "results", how many results of tools there are; "said", the text of all messages.
//
// The model is real, of one layer that adds nothing: each of its tokens has one successor. Every text has tokens of its own, which lead
// from a marker that the template writes at the end of the prompt to the end of the text. So engine, verifier, gateway and the parser of
// calls do with it what they do with every model.
package main

import (
	"encoding/binary"
	"encoding/json"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/tandem-llm/tandem/kernels/half"
	"github.com/tandem-llm/tandem/modelfile/gguf"
)

// line is one entry of a script.
type line struct {
	When string `json:"when"`
	Says string `json:"says"`
}

func main() {
	script := flag.String("script", "", "JSON `file` with the texts")
	vocab := flag.String("vocab", "models/gopher-19m-q8_0.gguf", "GGUF `file` whose vocabulary the prompts are written in")
	out := flag.String("out", "", "`folder` for scripted.gguf and scripted.jinja")
	flag.Parse()
	if err := write(*script, *vocab, *out); err != nil {
		fmt.Fprintln(os.Stderr, "scripted:", err)
		os.Exit(1)
	}
}

func write(script, vocab, out string) error {
	b, err := os.ReadFile(script)
	if err != nil {
		return err
	}
	var lines []line
	if err := json.Unmarshal(b, &lines); err != nil {
		return fmt.Errorf("%s: %w", script, err)
	}
	if err := os.WriteFile(filepath.Join(out, "scripted.jinja"), []byte(template(lines)), 0o600); err != nil {
		return err
	}
	f, err := gguf.Open(vocab)
	if err != nil {
		return err
	}
	defer f.Close()
	w, err := model(f, lines)
	if err != nil {
		return err
	}
	to, err := os.Create(filepath.Join(out, "scripted.gguf"))
	if err != nil {
		return err
	}
	defer to.Close()
	_, err = w.WriteTo(to)
	return err
}

func marker(i int) string { return fmt.Sprintf("<|says %d|>", i) }

// template renders a conversation in the form of Hermes 2 Pro, whose markers say how calls are read, and ends with the marker of a text.
func template(lines []line) string {
	var b strings.Builder
	b.WriteString(`{%- set ns = namespace(names="|", said="", results=0) -%}
{%- for t in tools or [] -%}{%- set ns.names = ns.names + t.function.name + "|" -%}{%- endfor -%}
{%- if tools -%}{{- "<tools>" + (tools | tojson) + "</tools>\n" -}}{%- endif -%}
{%- for m in messages -%}
{{- m.role + ": " + (m.content or "") + "\n" -}}
{%- set ns.said = ns.said + (m.content or "") -%}
{%- if m.role == "tool" -%}{%- set ns.results = ns.results + 1 -%}{%- endif -%}
{%- for c in m.tool_calls or [] -%}
{{- "<tool_call>\n" + ({"name": c.function.name, "arguments": c.function.arguments} | tojson) + "\n</tool_call>\n" -}}
{%- endfor -%}
{%- endfor -%}
{%- set names = ns.names -%}{%- set said = ns.said -%}{%- set results = ns.results -%}
`)
	for i, l := range lines {
		word := "elif"
		if i == 0 {
			word = "if"
		}
		fmt.Fprintf(&b, "{%%- %s %s -%%}%s\n", word, l.When, marker(i))
	}
	b.WriteString("{%- endif -%}\n")
	return b.String()
}

const (
	normal, control = int32(1), int32(3) // types of tokens

	dim     = 128
	ffn     = 32
	context = 1 << 17
	longest = 4 // bytes of a token, so that markers of calls come in pieces
)

// vectors are rows of a matrix, by token; a token without one has zeros.
type vectors map[int][]float32

// model returns the file: f's vocabulary, the tokens of the texts behind it, and their order as weights.
func model(f *gguf.File, lines []line) (*gguf.Writer, error) {
	pieces, err := f.Strings("tokenizer.ggml.tokens")
	if err != nil {
		return nil, err
	}
	scores, err := f.Floats("tokenizer.ggml.scores")
	if err != nil {
		return nil, err
	}
	types, err := f.Ints("tokenizer.ggml.token_type", 0, 6)
	if err != nil {
		return nil, err
	}
	end, err := f.IntOr("tokenizer.ggml.eos_token_id", 0, len(pieces)-1, -1)
	if err != nil || end < 0 {
		return nil, fmt.Errorf("the vocabulary has no end of a text: %w", err)
	}
	kinds := make([]int32, len(types))
	for i, t := range types {
		kinds[i] = int32(t)
	}
	in, after := vectors{}, vectors{} // what a token is, and what it comes after
	r := rand.New(rand.NewPCG(1, 2))
	last := direction(r) // of the last token of each text
	after[end] = last
	for i, l := range lines {
		pieces, kinds = append(pieces, marker(i)), append(kinds, control)
		at := direction(r)
		in[len(pieces)-1] = at
		all := split(l.Says)
		for n, piece := range all {
			pieces, kinds = append(pieces, strings.ReplaceAll(piece, " ", "\u2581")), append(kinds, normal)
			after[len(pieces)-1] = at
			if at = direction(r); n == len(all)-1 {
				at = last
			}
			in[len(pieces)-1] = at
		}
	}
	scores = append(scores, slices.Repeat([]float32{-1e6}, len(pieces)-len(scores))...)
	w := gguf.NewWriter()
	tokenizer(w, f, pieces, scores, kinds)
	weights(w, len(pieces), in, after)
	return w, nil
}

func direction(r *rand.Rand) []float32 {
	out := make([]float32, dim)
	for i := range out {
		out[i] = float32(2*r.IntN(2) - 1)
	}
	return out
}

// split cuts a text into tokens of a few bytes, between characters.
func split(text string) (out []string) {
	for len(text) > 0 {
		n := 0
		for n < len(text) && n < longest {
			_, size := utf8.DecodeRuneInString(text[n:])
			n += size
		}
		out, text = append(out, text[:n]), text[n:]
	}
	return out
}

func tokenizer(w *gguf.Writer, f *gguf.File, pieces []string, scores []float32, kinds []int32) {
	const arch = "llama"
	old := gguf.KeysOf(f)
	w.Set("general.architecture", arch)
	w.Set("general.name", "scripted")
	w.Set("tokenizer.ggml.model", "llama")
	w.Set("tokenizer.ggml.tokens", pieces)
	w.Set("tokenizer.ggml.scores", scores)
	w.Set("tokenizer.ggml.token_type", kinds)
	for _, key := range []string{"bos_token_id", "eos_token_id", "unknown_token_id"} {
		if key = "tokenizer.ggml." + key; old.Has(key) {
			if id, err := f.IntOr(key, 0, len(pieces), 0); err == nil {
				w.Set(key, uint32(id))
			}
		}
	}
	for key, value := range map[string]uint32{"block_count": 1, "context_length": context, "embedding_length": dim,
		"feed_forward_length": ffn, "attention.head_count": 4, "attention.head_count_kv": 1, "rope.dimension_count": dim / 4,
		"vocab_size": uint32(len(pieces))} {
		w.Set(arch+"."+key, value)
	}
	w.Set(arch+".attention.layer_norm_rms_epsilon", float32(1e-5))
}

// weights writes the matrices. The layer's are zero, so that what comes out of it is the token that went in.
func weights(w *gguf.Writer, tokens int, in, after vectors) {

	single := func(name string) {
		var b []byte
		for range dim {
			b = binary.LittleEndian.AppendUint32(b, 0x3f800000)
		}
		w.Tensor(name, gguf.F32, []int{dim}, b)
	}
	matrix := func(name string, cols, rows int, of vectors) {
		b := make([]byte, 2*cols*rows)
		for row, v := range of {
			for i, x := range v {
				binary.LittleEndian.PutUint16(b[2*(row*cols+i):], half.From(x))
			}
		}
		w.Tensor(name, gguf.F16, []int{cols, rows}, b)
	}
	matrix("token_embd.weight", dim, tokens, in)
	matrix("output.weight", dim, tokens, after)
	for _, name := range []string{"output_norm", "blk.0.attn_norm", "blk.0.ffn_norm"} {
		single(name + ".weight")
	}
	matrix("blk.0.attn_q.weight", dim, dim, nil)
	matrix("blk.0.attn_k.weight", dim, dim/4, nil)
	matrix("blk.0.attn_v.weight", dim, dim/4, nil)
	matrix("blk.0.attn_output.weight", dim, dim, nil)
	matrix("blk.0.ffn_gate.weight", dim, ffn, nil)
	matrix("blk.0.ffn_up.weight", dim, ffn, nil)
	matrix("blk.0.ffn_down.weight", ffn, dim, nil)
}
