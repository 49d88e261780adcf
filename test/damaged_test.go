package test

import (
	"bytes"
	"encoding/binary"
	"math"
	"os/exec"
	"strings"
	"testing"

	"github.com/tandem-llm/tandem/test/testkit/family"
)

// damaged writes a small model whose numbers overflow in a pass.
func damaged(t *testing.T) string {
	m := family.Random("gemma3", 1)
	x := m.Tensor("output_norm.weight")
	for k := 0; k < len(x.Data); k += 4 {
		binary.LittleEndian.PutUint32(x.Data[k:], math.Float32bits(1e38))
	}
	return m.Write(t, t.TempDir())
}

// TestDamagedModel: a model whose logits are no numbers answers nothing, and each way to ask it says which tensor is to blame, at once.
func TestDamagedModel(t *testing.T) {
	t.Parallel()
	model := damaged(t)
	g := upWeb(t, "", "--target", model, "--draft", "lookup", "--no-measure")
	for _, body := range []string{`{"prompt":[1,2,3],"max_tokens":4}`, `{"prompt":[1,2,3],"max_tokens":4,"temperature":0}`,
		`{"prompt":[1,2,3],"max_tokens":4,"repeat_penalty":1.5,"logprobs":3}`, `{"prompt":[1,2,3],"max_tokens":4,"accept":"typical"}`} {
		status, all := g.ask(t, "POST", "/v1/completions", body)
		if status != 500 || !strings.Contains(all, `"code":"model_fault"`) || !strings.Contains(all, `tensor \"`) {
			t.Errorf("%s: %d %s", body, status, all)
		}
	}
	_, all := g.ask(t, "POST", "/v1/completions", `{"prompt":[1,2,3],"stream":true}`)
	if !strings.Contains(all, "model_fault") || strings.Contains(all, "[DONE]") {
		t.Errorf("as a stream: %s", all)
	}
	out, err := exec.Command(program, "logits", "--model", model, "--tokens", "1,2", "--json").CombinedOutput()
	if err == nil || !bytes.Contains(out, []byte(`tensor "`)) || bytes.Count(out, []byte("\n")) != 1 {
		t.Errorf("logits: %v: %s", err, out)
	}
}

// TestDrawing: what flags say about sampling over HTTP goes before the model's file, which goes before llama.cpp's values; the banner and
// /props say what holds, and a request of its own goes before all.
func TestDrawing(t *testing.T) {
	t.Parallel()
	m := family.Random("gemma3", 1)
	m.SetAny("general.sampling.temp", float32(0.6))
	m.SetAny("general.sampling.top_k", int32(20))
	g := upWeb(t, "", "--target", m.Write(t, t.TempDir()), "--draft", "lookup", "--no-measure", "--top-k", "7", "--max-output-tokens", "3")
	_, props := g.ask(t, "GET", "/props", "")
	for _, want := range []string{`"temperature":0.6,"top_k":7,"top_p":0.95,"min_p":0.05`, `"max_tokens":3`} {
		if !strings.Contains(props, want) {
			t.Errorf("props are %s: want %s", props, want)
		}
	}
	_, all := g.ask(t, "POST", "/v1/completions", `{"prompt":[1,2],"min_p":0.5,"seed":4,"max_tokens":90,"ignore_eos":true}`)
	for _, want := range []string{`"sampling":{"seed":4,"temperature":0.6,"top_k":7,"top_p":0.95,"min_p":0.5,`, `"completion_tokens":3,`} {
		if !strings.Contains(all, want) {
			t.Errorf("%s: want %s", all, want)
		}
	}
}
