package convert

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/tandem-llm/tandem"
)

// TestMTPSide: a side file with an MTP layer is quantised like others, and no larger one is made of it.
func TestMTPSide(t *testing.T) {
	in, out := sides+"qwen35moe-mtp.gguf", filepath.Join(t.TempDir(), "out.gguf")
	if _, err := Quantize(t.Context(), in, out, "q8_0", false, Options{}); err != nil {
		t.Fatal(err)
	}
	if f, s := readSide(t, out); len(s.Draft.IDs) != 100 || f.Tensor("blk.0.ffn_up_exps.weight").Type.String() != "q8_0" {
		t.Errorf("%+v, experts are %s", s, f.Tensor("blk.0.ffn_up_exps.weight").Type)
	}
	_, err := Expand(t.Context(), in, out+"2", Shape{Layers: 2, Dim: 64, FFN: 128}, "", Options{})
	if tandem.KindOf(err) != tandem.Invalid || !strings.Contains(err.Error(), "models with such layers cannot be expanded") {
		t.Errorf("expanded: %v of kind %v", err, tandem.KindOf(err))
	}
}
