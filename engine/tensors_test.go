package engine_test

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/engine"
	"github.com/tandem-llm/tandem/engine/enginetest"
	"github.com/tandem-llm/tandem/kernels"
	"github.com/tandem-llm/tandem/kernels/testdevice"
	"github.com/tandem-llm/tandem/modelfile/gguf"
)

// TestTypesWithoutKernels: a file with weights of such a type is refused, naming the tensor and the supported types.
func TestTypesWithoutKernels(t *testing.T) {
	const q8k = gguf.Type(15) // of intermediate sums: no model is stored so
	f, err := gguf.Open(enginetest.Target)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	all := f.Tensors()
	i := slices.IndexFunc(all, func(x gguf.Tensor) bool { return strings.HasSuffix(x.Name, "ffn_down.weight") })
	w := gguf.CopyOf(f)
	w.DropTensor(all[i].Name)
	w.Tensor(all[i].Name, q8k, all[i].Shape, make([]byte, all[i].Elements()/256*292))
	var b bytes.Buffer
	if _, err := w.WriteTo(&b); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "q8k.gguf")
	if err := os.WriteFile(path, b.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	_, err = engine.Open(path, engine.Options{Device: testdevice.CPU(t, 1), KVPages: 1})
	if tandem.KindOf(err) != tandem.Unsupported || !strings.Contains(err.Error(), all[i].Name) {
		t.Fatalf("opened: %v", err)
	}
	for _, k := range kernels.Types() {
		if !strings.Contains(err.Error(), " "+k.String()) {
			t.Errorf("%s is supported, and not named in %q", k, err)
		}
	}
}
