package rolestest

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/client"
	"github.com/tandem-llm/tandem/engine"
	"github.com/tandem-llm/tandem/kernels"
	"github.com/tandem-llm/tandem/kernels/cpu"
	"github.com/tandem-llm/tandem/kernels/stream"
	"github.com/tandem-llm/tandem/kernels/testdevice"
	"github.com/tandem-llm/tandem/modelfile/side"
	"github.com/tandem-llm/tandem/processes/roles"
	tandemv1 "github.com/tandem-llm/tandem/proto/tandem/v1"
	"github.com/tandem-llm/tandem/test/testkit/family"
)

// wholeSystem are the families that run in all roles, and how noisy the draft is; the others differ less from these than from each other.
// How the verifier speculates in each family is tested in room verifier.
var wholeSystem = map[string]float32{"granitemoe": 0.1, "mistral3": 0.1, "gpt-oss-mxfp4": 0.2, "qwen3moe": 0.1, "phi3-longrope": 0.1,
	"deepseek2": 0.1, "gemma4-moe": 0.1, "gemma4": 0.1, "qwen35moe": 0.1}

// TestFamiliesInAllRoles: gateway, verifier and a drafter, whose model is the target with noise on its weights, say of models with random
// weights what plain decoding says, greedy and drawn, eight requests at a time, while their verifier dies, and in a second turn.
func TestFamiliesInAllRoles(t *testing.T) {
	for name, noise := range wholeSystem {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			m := family.Random(name, 6)
			path := m.Write(t, dir)
			draft := m.Noisy(1, noise)
			draft.Name = "draft"
			s, file := Start(t, path), draft.Write(t, dir)
			familyInAllRoles(t, s, func() []string { return s.drafting(file) }, 8*140/10)
		})
	}
}

// TestMTPInAllRoles: the layer inside the target's own file, or in a side file, drafts, and the text is that of plain decoding. With random
// weights it is hardly ever right.
func TestMTPInAllRoles(t *testing.T) {
	for _, name := range []string{"qwen35", "deepseek2"} {
		t.Run(name, func(t *testing.T) {
			m := family.Random(name, 6)
			m.WithMTP(6)
			path := m.Write(t, t.TempDir())
			draft := side.MTPPath(path)
			spec, err := engine.SideOf(draft)
			if err != nil {
				t.Fatal(err)
			}
			s := StartTapped(t, path, spec.Taps)
			familyInAllRoles(t, s, func() []string { return s.drafting(draft) }, 0)
		})
		t.Run(name+" alone", func(t *testing.T) {
			m := family.Random(name, 6)
			m.WithMTP(6)
			path, dir := m.Write(t, t.TempDir()), t.TempDir()
			layer := fmt.Sprintf("blk.%d.", layersOf(t, path))
			for _, x := range slices.Clone(m.Tensors) {
				if strings.HasPrefix(x.Name, "blk.") && !strings.HasPrefix(x.Name, layer) {
					m.Drop(x.Name)
				}
			}
			m.Name = "mtp-alone"
			draft := m.Write(t, dir)
			spec, err := engine.SideOf(draft)
			if err != nil {
				t.Fatal(err)
			}
			s := StartTapped(t, path, spec.Taps)
			familyInAllRoles(t, s, func() []string { return s.drafting(draft) }, 0)
		})
	}
	t.Run("side file", func(t *testing.T) {
		const sides = "../../../engine/testdata/sides/"
		s := StartTapped(t, sides+"qwen35moe.gguf", []int{side.LastNorm})
		familyInAllRoles(t, s, func() []string { return s.drafting(sides + "qwen35moe-mtp.gguf") }, 0)
	})
}

// TestAssistantInAllRoles: an assistant drafts from the target's keys and values, and the text is that of plain decoding. It was not
// trained for that target, whose weights stay in memory or are streamed with the least memory.
func TestAssistantInAllRoles(t *testing.T) {
	for _, streamed := range []bool{false, true} {
		t.Run(fmt.Sprintf("streamed=%v", streamed), func(t *testing.T) { assistantInAllRoles(t, streamed) })
	}
}

func assistantInAllRoles(t *testing.T, streamed bool) {
	dir := t.TempDir()
	target, assistant := family.Golden("gemma4").Write(t, dir), family.Golden("gemma4-assistant").Write(t, dir)
	s := Start(t, target)
	familyInAllRoles(t, s, func() []string {
		if streamed {
			s.device = streaming(t, target)
		}
		s.Heads(assistant)
		names := []string{tandem.Assistant}
		s.await("the gateway to know the way", func() bool {
			_, _, done, err := s.Generate(client.Request{Tokens: []uint32{5, 6, 7}, MaxTokens: new(8), IgnoreEOS: true,
				Drafters: names})
			return err == nil && len(done.Statistics.Drafters) > 0
		})
		return names
	}, 0)
}

// streaming makes devices with the least memory for the weights of a target, which are packed anew by every pass.
func streaming(t *testing.T, target string) func(int) (roles.Device, error) {
	on := func(memory int64) *stream.Device {
		return stream.New(testdevice.CPU(t, 1), stream.Config{Memory: memory, Pack: cpu.Pack})
	}
	var small *kernels.TooSmall
	if _, err := engine.Measure(target, engine.Options{Device: on(0), KVPages: 1, MaxRows: 256}); !errors.As(err, &small) {
		t.Fatal(err)
	}
	return func(int) (roles.Device, error) { return on(small.Least), nil }
}

// drafting starts a drafter with a model and returns whom requests should name: nobody, so that all may draft.
func (s *System) drafting(draft string) []string {
	s.Drafter("drafter", draft)
	s.Await("the drafter", func(p *tandemv1.Process) bool {
		return p.GetRole() == "drafter" && p.GetModel() != "lookup" && p.GetUp()
	})
	s.awaitEnlisted(roles.ModelName(draft))
	return nil
}

// familyInAllRoles compares what s says with a draft with what it says without one. At least so many drafted tokens must be accepted, and
// not all. Start brings the draft in and returns the names by which requests ask for it.
func familyInAllRoles(t *testing.T, s *System, start func() []string, least int) {
	var requests [8]client.Request
	var first, second [len(requests)][]uint32
	ask := func(i int, plain bool, prompt []uint32, n int) (tokens []uint32, done client.Finished) {
		r := requests[i]
		r.NoDraft, r.Tokens, r.MaxTokens = plain, prompt, &n
		tokens, _, done, err := s.Generate(r)
		if err != nil || len(tokens) != n {
			t.Errorf("request %d: %d tokens of %d, %v", i, len(tokens), n, err)
		}
		return tokens, done
	}
	prompt := func(i int) (tokens []uint32) {
		for j := range 5 + 9*i {
			tokens = append(tokens, uint32(3+(i/4*37+j*11)%250)) // four begin alike, and four
		}
		return tokens
	}
	next := func(i int) []uint32 { return slices.Concat(prompt(i), first[i], []uint32{40, 41}) }
	for i := range requests {
		requests[i] = client.Request{Temperature: new(0.8 * float64(i%2)), Seed: new(uint64(i)), IgnoreEOS: true,
			Strategy: "fixed", Tree: &client.Tree{Nodes: 16, Depth: 7, Width: 10}}
		first[i], _ = ask(i, true, prompt(i), 60)
		second[i], _ = ask(i, true, next(i), 20)
	}
	names := start()
	for i := range requests {
		requests[i].Drafters = names
	}
	accepted, drafted := 0, 0
	turn := func(what string, want *[len(requests)][]uint32, prompt func(i int) []uint32) {
		var all sync.WaitGroup
		var mu sync.Mutex
		for i := range requests {
			all.Go(func() {
				got, done := ask(i, false, prompt(i), len(want[i]))
				if !slices.Equal(got, want[i]) {
					t.Errorf("%s, request %d: tokens\n%v, plain\n%v", what, i, got, want[i])
				}
				mu.Lock()
				defer mu.Unlock()
				accepted, drafted = accepted+done.Statistics.Accepted, drafted+done.Statistics.Drafted
			})
		}
		if what == "while the verifier dies" {
			s.RestartVerifier()
		}
		all.Wait()
	}
	turn("with a draft", &first, prompt)
	turn("while the verifier dies", &first, prompt)
	turn("second turn", &second, next)
	t.Logf("%d tokens of %d that were drafted were accepted, of %d in all", accepted, drafted, 8*(60+60+20))
	if accepted < least || accepted == drafted {
		t.Errorf("%d of %d drafted tokens accepted: want a draft that is often right and often not", accepted, drafted)
	}
}

// layersOf returns how many layers the model at path has, without those that guess further tokens.
func layersOf(t *testing.T, path string) int {
	t.Helper()
	info, err := engine.Inspect(path)
	if err != nil {
		t.Fatal(err)
	}
	return info.Config.Layers
}
