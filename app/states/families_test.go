package states

import (
	"maps"
	"path/filepath"
	"testing"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/engine"
	"github.com/tandem-llm/tandem/kernels/cpu"
	"github.com/tandem-llm/tandem/kernels/stream"
	"github.com/tandem-llm/tandem/kernels/testdevice"
	"github.com/tandem-llm/tandem/test/testkit/family"
	"github.com/tandem-llm/tandem/text/token"
)

// TestFamilies: a model of any architecture gives its states and answers, recurrent and streamed ones included.
func TestFamilies(t *testing.T) {
	dir := write(t, map[string]string{"text": "abc abd, abe: the end of a text.", "prompts.jsonl": `{"prompt":"ab"}` + "\n" + `{"prompt":"cde"}`})
	for _, name := range family.Running {
		path := family.Random(name, 3).Write(t, t.TempDir())
		vocab, err := token.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		c := Config{Model: path, Texts: []string{filepath.Join(dir, "text")}, Prompts: []string{filepath.Join(dir, "prompts.jsonl")},
			Raw: true, Out: t.TempDir(), Taps: []int{1, -1}, Top: 4, Context: 16, Sessions: 3, AnswerTokens: 5,
			Sampling: tandem.Sampling{Temperature: 1, TopP: 1}, Vocab: vocab, Open: open(path)}
		r, all, one := mustRun(t, c)
		if r.Answers != 2 || r.Texts < 3 {
			t.Errorf("%s: %+v", name, r)
		}
		m, _, err := c.Open(engine.Options{Context: c.Context, Taps: c.Taps, Sequences: 1})
		if err != nil {
			t.Fatal(err)
		}
		at := 0
		for _, x := range one.Texts {
			compare(t, m, &one, x, at)
			at += x.Tokens
		}
		if name != "llama" {
			continue
		}
		c.Out, c.Open = t.TempDir(), streamed(t, path)
		if _, got, _ := mustRun(t, c); !maps.Equal(got, all) {
			t.Errorf("%s: other bytes if its weights are streamed", name)
		}
	}
}

// streamed returns an Opener of the model at path with memory for one of its layers.
func streamed(t *testing.T, path string) Opener {
	return func(o engine.Options) (*engine.Model, func(), error) {
		o.Device = testdevice.CPU(t, 1)
		need, err := engine.Measure(path, o)
		if err != nil {
			return nil, nil, err
		}
		d := stream.New(testdevice.CPU(t, 1), stream.Config{Memory: need.Weights * 9 / 10, Pack: cpu.Pack})
		o.Device = d
		m, err := engine.Open(path, o)
		if err == nil {
			t.Cleanup(func() {
				if d.StreamStats().Streamed == 0 {
					t.Error("nothing was streamed")
				}
			})
		}
		return m, func() { m.Close() }, err
	}
}
