package main

import (
	"bytes"
	"encoding/json"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tandem-llm/tandem/testkit"
	"github.com/tandem-llm/tandem/testkit/family"
)

// infoOf returns what model info says of a file: as JSON and as text.
func infoOf(t *testing.T, path string) (m modelInfo, text string) {
	t.Helper()
	for _, asJSON := range []bool{true, false} {
		var out bytes.Buffer
		info := modelInfoCmd{File: path, kvFlags: kvFlags{KVType: "f16"}}
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
