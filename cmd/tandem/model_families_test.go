package main

import (
	"bytes"
	"encoding/json"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/tandem-llm/tandem/app/device"
	"github.com/tandem-llm/tandem/app/modelinfo"
	"github.com/tandem-llm/tandem/engine"
	"github.com/tandem-llm/tandem/processes/roles/pair"
	"github.com/tandem-llm/tandem/processes/settings"
	"github.com/tandem-llm/tandem/test/testkit"
	"github.com/tandem-llm/tandem/test/testkit/family"
)

// infoOf returns what model info says of a file: as JSON and as text.
func infoOf(t *testing.T, path string) (m modelinfo.Model, text string) {
	t.Helper()
	for _, asJSON := range []bool{true, false} {
		var out bytes.Buffer
		info := modelInfoCmd{File: path, KV: settings.KV{KVType: "f16"}}
		info.JSON = asJSON
		if err := info.Run(&app{stdout: &out, stderr: &out, ctx: t.Context()}); err != nil {
			t.Fatal(err)
		}
		if text = out.String(); asJSON {
			if err := json.Unmarshal(out.Bytes(), &m); err != nil {
				t.Fatal(err)
			}
		}
	}
	return m, text
}

// TestInfoOfFamilies: what model info says of a model of each architecture, but for what depends on the machine.
func TestInfoOfFamilies(t *testing.T) {
	var said bytes.Buffer
	dir := t.TempDir()
	for _, name := range family.Running {
		m, text := infoOf(t, family.Random(name, 5).Write(t, dir))
		if m.Speed.ReadRate > 0 && !(m.Speed.Passes > 0) || m.Speed.PassBytes <= 0 || !strings.Contains(text, "a pass of one row reads ") ||
			m.Memory.Weights <= 0 {
			t.Errorf("%s: speed %+v, memory %+v, %q", name, m.Speed, m.Memory, text)
		}
		b, err := json.Marshal(map[string]any{"arch": m.Arch, "traits": m.Traits, "parameters": m.Parameters, "layers": m.Layers,
			"dim": m.Dim, "heads": []int{m.Heads, m.KVHeads, m.HeadDim}, "ffn": m.FFN, "tied": m.TiedHead,
			"kv_position": m.Memory.KVPosition, "types": m.Types, "pass_bytes": m.Speed.PassBytes, "experts": m.Speed.Experts,
			"expert_bytes": m.Speed.ExpertBytes, "macs": m.Speed.MACs})
		if err != nil {
			t.Fatal(err)
		}
		said.Write(append(b, '\n'))
	}
	testkit.Golden(t, filepath.Join("testdata", "families.golden"), said.Bytes())
}

// TestInfoOfTowers: a line says what of a file is left out.
func TestInfoOfTowers(t *testing.T) {
	f := family.Random("gemma3", 1)
	f.Add("v.blk.0.attn_q.weight", 512, 512)
	f.Add("mm.input_projection.weight", 32, 64)
	path := f.Write(t, t.TempDir())
	m, text := infoOf(t, path)
	if len(m.LeftOut) != 2 || m.LeftOut[0].What != "a vision tower" || m.LeftOut[0].Bytes != 1<<20 || m.LeftOut[1].Tensors != 1 {
		t.Errorf("left out: %+v", m.LeftOut)
	}
	if !strings.Contains(text, "a vision tower, 1 tensors, 1.0 MiB: tandem continues text") {
		t.Errorf("said %q", text)
	}
}

// TestMissingKeys: a line of model info, generate and tokenize says what stands in for a key that a byte-level file lacks.
func TestMissingKeys(t *testing.T) {
	f := family.Random("llama", 1)
	letters := make([]string, f.Vocab) // GPT-2's alphabet: U+0100 on are the bytes that do not print
	for i := range letters {
		switch {
		case i < '!':
			letters[i] = string(rune(0x100 + i))
		case i <= '~':
			letters[i] = string(rune(i))
		default:
			letters[i] = strings.Repeat("z", i)
		}
	}
	f.SetAny("tokenizer.ggml.model", "gpt2")
	f.SetAny("tokenizer.ggml.tokens", letters)
	f.SetAny("tokenizer.ggml.token_type", slices.Repeat([]int32{1}, f.Vocab))
	path := f.Write(t, t.TempDir())
	m, text := infoOf(t, path)
	if m.Tokenizer.Pre != "default" || !strings.Contains(text, "gpt2 default, ") || len(m.Notes) != 2 ||
		!strings.Contains(text, `tokenizer.ggml.pre is missing: texts are cut as the pre-tokenizer "default" does`) {
		t.Errorf("pre %q, notes %q: %s", m.Tokenizer.Pre, m.Notes, text)
	}
	var out, told bytes.Buffer
	tokenize := tokenizeCmd{Model: path, Text: new(string)}
	if err := tokenize.Run(&app{stdout: &out, stderr: &told, ctx: t.Context()}); err != nil || strings.Count(told.String(), "\n") != 2 ||
		!strings.HasPrefix(told.String(), "tandem: tokenizer.ggml.pre is missing: ") {
		t.Errorf("tokenize: %v, said %q", err, told.String())
	}
	var notes []string
	p := pair.Pair{Target: path, Options: engine.Options{Device: device.Planner()}}
	if err := p.Check("", func(note string) { notes = append(notes, note) }); err != nil || len(notes) != 2 ||
		!strings.HasPrefix(notes[0], "target "+path+": tokenizer.ggml.pre is missing: ") {
		t.Errorf("generate: %v, said %q", err, notes)
	}
}
