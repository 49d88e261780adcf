package main

import (
	"bytes"
	"encoding/json"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/app/modelinfo"
	"github.com/tandem-llm/tandem/modelfile/convert"
	"github.com/tandem-llm/tandem/modelfile/gguf"
	"github.com/tandem-llm/tandem/processes/settings"
)

// A model is expanded, then quantised, as for a benchmark at real cost.
func TestExpandAndQuantize(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(0)) // the commands change it
	var stdout, stderr bytes.Buffer
	a := &app{stdout: &stdout, stderr: &stderr, ctx: t.Context()}
	dir := t.TempDir()
	big, small := filepath.Join(dir, "big.gguf"), filepath.Join(dir, "small.gguf")
	expand := modelExpandCmd{In: "../../models/gopher-draft-all-f16.gguf", Out: big, Like: "3,512,8,4,768"}
	expand.JSON = true
	if err := expand.Run(a); err != nil {
		t.Fatal(err)
	}
	f, err := gguf.Open(big)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var r convert.Result
	if err := json.Unmarshal(stdout.Bytes(), &r); err != nil || r.Bytes != f.Size() || r.Types["f16"] != 22 || r.Types["f32"] != 7 ||
		r.Seconds <= 0 {
		t.Errorf("printed %q (%v): want %d bytes, 22 tensors of f16, 7 of f32", stdout.String(), err, f.Size())
	}
	if got := f.Describe("llama.embedding_length"); got != "512" {
		t.Errorf("d %s: want 512", got)
	}
	stdout.Reset()
	quantize := modelQuantizeCmd{In: big, Out: small, Type: "q4_k_m"}
	if err := quantize.Run(a); err != nil {
		t.Fatal(err)
	}
	if got := stdout.String(); !strings.Contains(got, "tensors: 7 of f32, 19 of q4_k, 3 of q6_k, ") {
		t.Errorf("printed %q", got)
	}
	var told [3]modelinfo.Model
	for i, path := range []string{"../../models/gopher-draft-all-f16.gguf", big, small} {
		stdout.Reset()
		info := modelInfoCmd{File: path, Identity: true, KV: settings.KV{KVType: "f16"}}
		info.JSON = true
		if err := info.Run(a); err != nil {
			t.Fatal(err)
		}
		if err := json.Unmarshal(stdout.Bytes(), &told[i]); err != nil {
			t.Fatal(err)
		}
		if told[i].Lineage != told[0].Lineage || len(told[i].Lineage) != 32 || i > 0 && told[i].Identity == told[i-1].Identity {
			t.Errorf("%s has lineage %s and identity %s: want the lineage of %+v, and another identity", path, told[i].Lineage,
				told[i].Identity, told[0])
		}
	}
	if err := quantize.Run(a); tandem.KindOf(err) != tandem.Invalid {
		t.Errorf("error %v over a file that is there: want Invalid", err)
	}
	expand.Like = "1b,"
	if err := expand.Run(a); tandem.KindOf(err) != tandem.Invalid {
		t.Errorf("error %v for shape %q: want Invalid", err, expand.Like)
	}
}
