package grow_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"math"
	"os"
	"path/filepath"
	"testing"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/drafter"
	"github.com/tandem-llm/tandem/drafter/draftertest"
	"github.com/tandem-llm/tandem/engine"
	"github.com/tandem-llm/tandem/kernels/testdevice"
	"github.com/tandem-llm/tandem/modelfile/gguf"
)

// brokenModel returns a copy of the draft model whose logits are all NaN: the last norm is so large.
func brokenModel(t *testing.T) string {
	t.Helper()
	f, err := gguf.Open(draftertest.ModelFile)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	norm, err := f.Tensor("output_norm.weight").Bytes()
	if err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(draftertest.ModelFile)
	if err != nil {
		t.Fatal(err)
	}
	at := bytes.Index(data, norm)
	if at < 0 || bytes.Contains(data[at+1:], norm) {
		t.Fatal("the last norm is not to be found in the file, or twice")
	}
	for i := 0; i < len(norm); i += 4 { // the largest number: its products are infinite, and their sums NaN
		binary.LittleEndian.PutUint32(data[at+i:], math.Float32bits(math.MaxFloat32))
	}
	path := filepath.Join(t.TempDir(), "nan.gguf")
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// TestNoGuesses: a draft model that computes nothing but NaN guesses nothing, at any temperature, and costs no session its life: its
// trees are the root alone, and its hindsight says that it knew nothing.
func TestNoGuesses(t *testing.T) {
	m, err := engine.Open(brokenModel(t), engine.Options{Device: testdevice.CPU(t, 1), MaxRows: 192,
		KVPages: engine.PagesFor(3, draftertest.Limit, drafter.DefaultTreeRows)})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	pool := draftertest.NewPool(8)
	d, err := drafter.New(drafter.Config{Model: m, Pool: pool, Counters: new(tandem.Counters), Name: "nan"})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = d.Shutdown(context.Background()) }()
	text := m.Vocab().Encode("func (r *Reader) Read(p []byte)", true)
	for i, s := range []tandem.Sampling{{TopP: 1}, {Temperature: 1, TopP: 1, Seed: 3}, {TopP: 1, Bias: []tandem.Bias{{Token: 9, Add: 1}}}} {
		id := tandem.SessionID(i + 1)
		opened, err := d.Open(t.Context(), tandem.Opening{Session: id, Epoch: 1, Tokens: text, Prompt: 1, Limit: draftertest.Limit,
			MaxNodes: 64,
			Tenant:   t.Name() + string(rune('a'+i)), Sampling: s})
		if err != nil {
			t.Fatal(err)
		}
		if h := opened.Hindsight; h.Tokens == 0 || h.Hits != 0 {
			t.Errorf("%+v: hindsight %+v: want tokens, and no hits", s, h)
		}
		p := draftertest.Proposal(id, text, len(text))
		p.Return = true
		done, err := d.Propose(t.Context(), p)
		if err != nil || done.Nodes != 1 {
			t.Errorf("%+v: proposed %d nodes, %v: want the root alone", s, done.Nodes, err)
		}
	}
}
