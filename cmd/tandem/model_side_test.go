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
	"github.com/tandem-llm/tandem/modelfile/published/layouttest"
	"github.com/tandem-llm/tandem/modelfile/side"
	"github.com/tandem-llm/tandem/models"
	"github.com/tandem-llm/tandem/processes/settings"
	"github.com/tandem-llm/tandem/test/testkit/family"
)

const sides = "../../engine/testdata/sides/"

// A published checkpoint is imported, quantised and expanded like a model, and model info tells each time whose it is.
func TestSideFiles(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(0)) // the commands change it
	var stdout, stderr bytes.Buffer
	a := &app{stdout: &stdout, stderr: &stderr, ctx: t.Context()}
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	tell := func(path, target string) (m modelinfo.Side) {
		t.Helper()
		stdout.Reset()
		info := modelInfoCmd{File: path, Target: target, Identity: true, KV: settings.KV{KVType: "f16"}}
		info.JSON = true
		if err := info.Run(a); err != nil {
			t.Fatal(err)
		}
		if err := json.Unmarshal(stdout.Bytes(), &m); err != nil {
			t.Fatal(err)
		}
		return m
	}
	run := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	expanded := modelExpandCmd{In: sides + "target.gguf", Out: at("target-64.gguf"), Like: "4,64,4,2,128", Type: "f32"}
	run(expanded.Run(a))
	for _, name := range []string{"medusa-own", "ppd-4", "dovetail", "eagle", "eagle3"} {
		in := layouttest.Of(t, sides+name+".gguf").Write(t, at(name))
		imported, small, big := at(name+".gguf"), at(name+"-q8.gguf"), at(name+"-64.gguf")
		c := modelImportCmd{In: in, Out: imported, Target: sides + "target.gguf", Kind: "auto", Type: "f32"}
		run(c.Run(a))
		run((&modelQuantizeCmd{In: imported, Out: small, Type: "q8_0"}).Run(a))
		run((&modelExpandCmd{In: imported, Out: big, Like: "4,64,4,2,128"}).Run(a))
		kind, called, runsIn := strings.TrimRight(name, "-own4"), name, "drafter"
		if kind == "medusa" || kind == "ppd" {
			called, runsIn = kind, "verifier"
		} else {
			kind = name
		}
		of := tell(sides+name+".gguf", sides+"target.gguf")
		if draft := runsIn == "drafter"; draft != (of.Memory > 0) || draft && of.Process <= of.Memory {
			t.Errorf("%s takes %d bytes in the verifier's process and %d in its own", name, of.Memory, of.Process)
		}
		m := tell(imported, sides+"target.gguf")
		if m.Kind != kind || m.Called != called || m.RunsIn != runsIn || m.Fits == nil || !*m.Fits || m.Digest != of.Digest ||
			m.Parameters != of.Parameters || m.FileBytes == 0 || m.Lineage != of.Lineage || len(m.Taps) != len(of.Taps) {
			t.Errorf("%s is %+v: want the tensors and the target of %+v", name, m, of)
		}
		if m := tell(small, sides+"target.gguf"); !*m.Fits || kind != "ppd" && m.Types["q8_0"] == 0 || sum(m.Types) != sum(of.Types) {
			t.Errorf("%s as q8_0 has %v, fits %v", name, m.Types, *m.Fits)
		}
		if m := tell(big, at("target-64.gguf")); !*m.Fits || m.Dim != 64 {
			t.Errorf("%s of d %d for d 64: %s", name, m.Dim, m.Because)
		}
		if m := tell(imported, at("target-64.gguf")); *m.Fits || !strings.Contains(m.Because, "the target was expanded to 64") {
			t.Errorf("%s for the expanded target: %q", name, m.Because)
		}
		if m := tell(imported, "../../models/gopher-draft-all-f16.gguf"); *m.Fits || !strings.Contains(m.Because, "lineage") {
			t.Errorf("%s for another target: %q", name, m.Because)
		}
	}
	stdout.Reset()
	info := modelInfoCmd{File: sides + "eagle3.gguf", Target: sides + "target.gguf", KV: settings.KV{KVType: "f16"}}
	run(info.Run(a))
	for _, line := range []string{"side file        eagle3\n", "runs in          the drafter, called eagle3\n", "fits the target  yes\n",
		"hidden states    after layer 1, after layer 2, after layer 3\n", "100 of the target's tokens\n",
		" beside the target in the verifier's process, "} {
		if !strings.Contains(stdout.String(), line) {
			t.Errorf("printed %q: want %q", stdout.String(), line)
		}
	}
	info.File = sides + "target.gguf"
	if err := info.Run(a); tandem.KindOf(err) != tandem.Invalid || !strings.Contains(err.Error(), "is no side file") {
		t.Errorf("--target for a model: %v", err)
	}
	if !strings.Contains(stderr.String(), "taps [1 2 3]: eagle_config") {
		t.Errorf("the import said %q: want where the taps come from", stderr.String())
	}
	var r convert.Result
	stdout.Reset()
	c := modelImportCmd{In: at("ppd-4"), Out: at("again.gguf"), Target: sides + "target.gguf", Kind: "ppd", Type: "q8_0"}
	c.JSON = true
	run(c.Run(a))
	if err := json.Unmarshal(stdout.Bytes(), &r); err != nil || r.Types["f32"] != 1 {
		t.Errorf("printed %q, %v: want one tensor of f32", stdout.String(), err)
	}
}

// TestAssistantInfo: model info tells what an assistant is, whether a target is its own, and what it takes beside that.
func TestAssistantInfo(t *testing.T) {
	dir := t.TempDir()
	golden := func(name string) string { return family.Golden(name).Write(t, dir) }
	file := golden("gemma4-assistant")
	var stdout, stderr bytes.Buffer
	tell := func(target string) (m modelinfo.Side) {
		t.Helper()
		stdout.Reset()
		info := modelInfoCmd{File: file, Target: target, KV: settings.KV{KVType: "f16"}}
		info.JSON = true
		if err := info.Run(&app{stdout: &stdout, stderr: &stderr, ctx: t.Context()}); err != nil {
			t.Fatal(err)
		}
		if err := json.Unmarshal(stdout.Bytes(), &m); err != nil {
			t.Fatal(err)
		}
		return m
	}
	alone, own, other := tell(""), tell(golden("gemma4")), tell(golden("qwen3moe"))
	if alone.Called != "assistant" || alone.RunsIn != "verifier" || alone.Dim != 128 || alone.Tokens != 1536 || alone.Fits != nil {
		t.Errorf("%+v", alone)
	}
	if own.Fits == nil || !*own.Fits || own.Memory < own.FileBytes/2 {
		t.Errorf("of its target: %+v", own)
	}
	if other.Fits == nil || *other.Fits || !strings.Contains(other.Because, "qwen3moe") || other.Memory != 0 {
		t.Errorf("of another target: %+v", other)
	}
}

// sum returns the number of tensors.
func sum(types map[string]int) (n int) {
	for _, k := range types {
		n += k
	}
	return n
}

// The side files that the program carries belong to the target that it carries.
func TestShippedSides(t *testing.T) {
	names := models.Sides()
	if len(names) == 0 {
		t.Skip("this program carries none")
	}
	target, err := modelinfo.SideTarget(t.Context(), filepath.Join("../../models", models.Target))
	if err != nil {
		t.Fatal(err)
	}
	var all int64
	for _, name := range names {
		f, err := gguf.Open(filepath.Join("../../models", name))
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		s, err := side.Read(f)
		if err == nil {
			err = s.Fits(name, target)
		}
		if err != nil {
			t.Error(err)
		}
		all += f.Size()
	}
	if all > 10<<20 {
		t.Errorf("%d bytes: want at most 10 MiB in all", all)
	}
}
