package test

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tandem-llm/tandem/client"
	gguffile "github.com/tandem-llm/tandem/modelfile/gguf"
)

// otherCase is a verifier that computes another text than the one that a request began with.
type otherCase struct {
	name          string
	target, draft string
	right, wrong  []string // flags of the two verifiers
	differ        string   // what an error says
	tokens        int
	program       string // of the wrong verifier; "": this one
}

// otherCases are the ways in which a verifier may differ that was started by hand at the place of another.
func otherCases(t *testing.T, w *world, dir string) []otherCase {
	q4, long := filepath.Join(dir, "q4.gguf"), filepath.Join(dir, "long.gguf")
	w.ok("model", "quantize", "--type", "q4_0", "--allow-requantize", targetModel, q4)
	writeLongRoPE(t, long)
	return []otherCase{
		{"quantisation", targetModel, "", nil, []string{"--target", q4}, "tensors", 400, ""},
		{"KV type", targetModel, "", nil, []string{"--kv-type", "q8_0"}, "KV type", 400, ""},
		{"context", long, "lookup", nil, []string{"--ctx", "1024"}, "rope", 1000, ""},
		{"arithmetic", targetModel, "", nil, nil, "arithmetic", 400, otherArithmetic(t)},
	}
}

// flags returns those of a verifier; the last of a flag counts.
func (c otherCase) flags(more []string) []string {
	if slices.Contains(more, "--target") {
		return more
	}
	return append([]string{"--target", c.target}, more...)
}

func (c otherCase) request() client.Request {
	r := setting{1, 7}.request("func (r *Reader) ", c.tokens)
	r.IgnoreEOS = true
	return r
}

// writeLongRoPE writes a small phi3 model with random weights and two sets of RoPE factors: those of a context of more than 1024 tokens,
// and others.
func writeLongRoPE(t *testing.T, path string) {
	const dim, heads, headDim, kv, ffn, layers, context = 64, 4, 16, 2, 96, 2, 2048
	r := rand.New(rand.NewPCG(1, 2))
	w := gguffile.NewWriter()
	w.Set("general.architecture", "phi3")
	w.Set("general.name", "long")
	for key, v := range map[string]any{"block_count": uint32(layers), "context_length": uint32(context), "embedding_length": uint32(dim),
		"attention.head_count": uint32(heads), "attention.head_count_kv": uint32(kv), "feed_forward_length": uint32(ffn),
		"rope.dimension_count":             uint32(headDim),
		"attention.layer_norm_rms_epsilon": float32(1e-5), "rope.scaling.type": "longrope",
		"rope.scaling.original_context_length": uint32(1024)} {
		w.Set("phi3."+key, v)
	}
	pieces, kinds := []string{"<unk>", "<s>", "</s>"}, []int32{2, 3, 3}
	for i := range 256 {
		pieces, kinds = append(pieces, fmt.Sprintf("<0x%02X>", i)), append(kinds, 6)
	}
	w.Set("tokenizer.ggml.model", "llama")
	w.Set("tokenizer.ggml.tokens", pieces)
	w.Set("tokenizer.ggml.scores", make([]float32, len(pieces)))
	w.Set("tokenizer.ggml.token_type", kinds)
	w.Set("tokenizer.ggml.bos_token_id", uint32(1))
	w.Set("tokenizer.ggml.eos_token_id", uint32(2))
	w.Set("tokenizer.ggml.unknown_token_id", uint32(0))
	add := func(name string, value func(i int) float64, shape ...int) {
		n := 1
		for _, d := range shape {
			n *= d
		}
		data := make([]byte, 0, 4*n)
		for i := range n {
			data = binary.LittleEndian.AppendUint32(data, math.Float32bits(float32(value(i))))
		}
		w.Tensor(name, gguffile.F32, shape, data)
	}
	matrix := func(name string, in, out int) {
		add(name+".weight", func(int) float64 { return r.NormFloat64() * 1.5 / math.Sqrt(float64(in)) }, in, out)
	}
	norm := func(name string) { add(name+".weight", func(int) float64 { return 1 + 0.1*r.NormFloat64() }, dim) }
	matrix("token_embd", dim, len(pieces))
	matrix("output", dim, len(pieces))
	norm("output_norm")
	for i := range layers {
		at := fmt.Sprintf("blk.%d.", i)
		norm(at + "attn_norm")
		norm(at + "ffn_norm")
		matrix(at+"attn_qkv", dim, (heads+2*kv)*headDim)
		matrix(at+"attn_output", heads*headDim, dim)
		matrix(at+"ffn_up", dim, 2*ffn)
		matrix(at+"ffn_down", ffn, dim)
	}
	add("rope_factors_long.weight", func(i int) float64 { return float64(int(1) << i) }, headDim/2)
	add("rope_factors_short.weight", func(i int) float64 { return 1 }, headDim/2)
	out, err := os.Create(path)
	if err == nil {
		_, err = w.WriteTo(out)
	}
	if err := errors.Join(err, out.Close()); err != nil {
		t.Fatal(err)
	}
}

// heard is a generation as it comes.
type heard struct {
	identity string
	tokens   []uint32
	err      error
	ended    bool
	at       time.Time // of the last tokens
}

// listen runs a request and sends what is heard of it so far on the channel that it returns, again and again until it has ended.
func (g *group) listen(ctx context.Context, r client.Request) <-chan heard {
	out := make(chan heard, 1<<12)
	go func() {
		defer close(out)
		var h heard
		for event, err := range g.client.Generate(ctx, r) {
			switch {
			case err != nil:
				h.err = err
			case event.Started != nil:
				h.identity = event.Started.Identity
			case event.Delta != nil:
				h.tokens, h.at = append(h.tokens[:len(h.tokens):len(h.tokens)], event.Delta.Tokens...), time.Now()
			}
			h.ended = err != nil || event.Finished != nil
			out <- h
		}
	}()
	return out
}

// last returns the latest that is known.
func last(all <-chan heard, h heard) heard {
	for {
		select {
		case next, ok := <-all:
			if !ok {
				return h
			}
			h = next
		default:
			return h
		}
	}
}

// identityOf returns what a new session is computed by.
func (g *group) identityOf(t testing.TB) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	n := 1
	for h := range g.listen(ctx, client.Request{Prompt: "x", MaxTokens: &n}) {
		if h.err != nil {
			t.Fatal(h.err)
		}
		if h.ended {
			return h.identity
		}
	}
	t.Fatal("a request did not end")
	return ""
}

// TestAnotherVerifier kills the verifier in the middle of a generation and starts one in its place that computes another text: another
// quantisation, another type of the KV cache, other LongRoPE factors, another release's arithmetic. The session waits, and goes on when
// the right one is back; a new session takes what is there.
func TestAnotherVerifier(t *testing.T) {
	t.Parallel()
	mayBeSlow(t)
	w := newWorld(t)
	dir := t.TempDir()
	for _, x := range otherCases(t, w, dir) {
		t.Run(x.name, func(t *testing.T) {
			c, want, right, all := x.begin(t)
			h := c.replaceAfter(t, all, x, 60)
			if len(h.tokens) >= len(want.tokens) {
				t.Fatal("the generation ended before its verifier was killed")
			}
			if other := c.identityOf(t); other == right || other == "" {
				t.Fatalf("the other verifier has identity %q, the right one %q", other, right)
			}
			got := c.run(t, plain(x.request()))
			if slices.Equal(got.tokens, want.tokens) {
				t.Error("the other verifier says the same text: this test would prove nothing")
			}
			time.Sleep(time.Second)
			if h = last(all, h); h.ended || len(h.tokens) >= len(want.tokens) {
				t.Errorf("the session went on at another verifier: %d tokens, error %v", len(h.tokens), h.err)
			}
			c.verifier.kill()
			c.verifier = c.verifierOf(t, x.flags(x.right)...)
			c.verifier.start()
			for h = range all {
			}
			if h.err != nil || h.identity != right || !slices.Equal(h.tokens, want.tokens) {
				t.Errorf("error %v, identity %s, tokens\n%v, want %s\n%v", h.err, h.identity, h.tokens, right, want.tokens)
			}
		})
	}
}

// begin starts a cluster with the right verifier, whose identity and text it returns, and a generation.
func (x otherCase) begin(t *testing.T) (c *cluster, want result, right string, all <-chan heard) {
	t.Helper()
	c = newCluster(t, clusterConfig{target: x.target, draft: x.draft})
	want, right = c.run(t, plain(x.request())), c.identityOf(t)
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	t.Cleanup(cancel)
	return c, want, right, c.listen(ctx, x.request())
}

// replaceAfter puts the other verifier in the place of the right one once n tokens have come, and returns what had come until then.
func (c *cluster) replaceAfter(t *testing.T, all <-chan heard, x otherCase, n int) (h heard) {
	t.Helper()
	for h = range all {
		if len(h.tokens) >= n {
			break
		}
	}
	old := c.verifier.cmd.Process.Pid
	c.verifier.kill()
	h = last(all, h)
	c.programs = map[string]string{"verifier": x.program}
	c.verifier = c.verifierOf(t, x.flags(x.wrong)...)
	c.verifier.start()
	c.back(t, "verifier", old)
	c.programs = nil
	return h
}

// TestLongAnotherVerifier: the right one never comes back. The request ends as Unavailable after a minute, naming both; what it said was
// right.
func TestLongAnotherVerifier(t *testing.T) {
	if !*long {
		t.Skip("takes a minute for each kind of verifier: -long; TestOtherIdentityForEver of package gateway is its short form")
	}
	w := newWorld(t)
	dir := t.TempDir()
	for _, x := range otherCases(t, w, dir) {
		t.Run(x.name, func(t *testing.T) {
			c, want, right, all := x.begin(t)
			h := c.replaceAfter(t, all, x, 60)
			killed, other := time.Now(), c.identityOf(t)
			for h = range all {
			}
			if !errors.Is(h.err, client.Unavailable) || time.Since(killed) < 50*time.Second {
				t.Fatalf("after %v: error %v: want unavailable after a minute", time.Since(killed), h.err)
			}
			for _, part := range []string{right, other, "differ in " + x.differ} {
				if !strings.Contains(h.err.Error(), part) {
					t.Errorf("error %q does not say %q", h.err, part)
				}
			}
			if n := len(h.tokens); n < 60 || n >= len(want.tokens) || !slices.Equal(h.tokens, want.tokens[:n]) {
				t.Errorf("%d tokens %v: want the first of %v", n, h.tokens, want.tokens)
			}
		})
	}
}
