package engine

import (
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/kernels"
	"github.com/tandem-llm/tandem/kernels/cuda/emulated"
	"github.com/tandem-llm/tandem/kernels/layers"
	"github.com/tandem-llm/tandem/kernels/ref/device"
	"github.com/tandem-llm/tandem/kernels/testdevice"
	"github.com/tandem-llm/tandem/modelfile/gguf"
	"pgregory.net/rapid"
)

func recurrentPath(t testing.TB) string { return goldenPath(t, "qwen35") }

// recurrentDevices are those on which tests of recurrent models run.
func recurrentDevices(t testing.TB) map[string]kernels.Device {
	gpu, _ := testdevice.GPU(t, emulated.Options{})
	return map[string]kernels.Device{"ref": device.New(), "cpu": testdevice.CPU(t, 2), "cuda": gpu}
}

// TestRecurrentDevices: every kind of device gives the same bits, with keys and values in both types.
func TestRecurrentDevices(t *testing.T) {
	shares, _ := testdevice.GPU(t, emulated.Options{Integrated: true})
	apart, _ := testdevice.GPU(t, emulated.Options{})
	near, other := testdevice.CPU(t, 2), testdevice.CPU(t, 1)
	all := map[string]kernels.Device{"gpu": apart, "gpu that shares memory": shares, "definitions": testdevice.Ref(),
		"layers": fixed{layers.New(layers.Config{Near: near, Far: apart}).With(2)}, "divided": halves(t, near, other, nil),
		"exchanged": halves(t, near, unshared{other}, nil), "beside a gpu": halves(t, other, apart, nil)}
	for _, name := range []string{"qwen35", "qwen35moe"} {
		for kvType, long := range map[string]int{"f16": 280, "q8_0": 40} {
			path, o := goldenPath(t, name), Options{KVType: kvType, KVPages: 24, MaxRows: 300, Device: near}
			want := dialogue(t, openTest(t, path, o), long)
			for on, d := range all {
				if on == "definitions" && long > 100 {
					continue // slow
				}
				o.Device = d
				if err := sameBits(dialogue(t, openTest(t, path, o), long), want); err != nil {
					t.Errorf("%s, %s, %s: %v", name, kvType, on, err)
				}
			}
		}
	}
	m := openTest(t, recurrentPath(t), Options{Device: apart, KVPages: PagesFor(5, 300, 40)})
	compareTrees(t, m, rand.New(rand.NewPCG(1, 5)), 10)
}

// TestGoldenRecurrent compares tiny models with delta nets with another engine's figures, on each device. In one pass, token by token, and
// in random pieces the bits are the same. TestGolden2026 says who is nearer to float arithmetic.
func TestGoldenRecurrent(t *testing.T) {
	for _, name := range []string{"qwen35", "qwen35moe"} {
		c, path := readFigures(t, name)
		for of, d := range recurrentDevices(t) {
			t.Run(name+" on "+of, func(t *testing.T) {
				m := openTest(t, path, Options{KVPages: PagesFor(4, 192, 0), Device: d})
				checkPrompt(t, m, c)
				checkGreedy(t, m, c)
				whole := inPieces(t, m, c.Tokens, []int{len(c.Tokens)})
				if err := sameBits(whole, inPieces(t, m, c.Tokens, slices.Repeat([]int{1}, len(c.Tokens)))); err != nil {
					t.Errorf("in one pass and token by token: %v", err)
				}
				random := rand.New(rand.NewPCG(1, 2))
				for range 3 {
					var pieces []int
					for left := len(c.Tokens); left > 0; left -= pieces[len(pieces)-1] {
						pieces = append(pieces, 1+random.IntN(min(left, 9)))
					}
					if err := sameBits(whole, inPieces(t, m, c.Tokens, pieces)); err != nil {
						t.Errorf("in one pass and in pieces %v: %v", pieces, err)
					}
				}
			})
		}
	}
}

// TestRecurrentTrees grows trees, moves their roots along random paths, keeps random parts, rolls back, and compares every row's logits
// with those of plain decoding, bit by bit. Records are so few that some passes must apply pending ones before.
func TestRecurrentTrees(t *testing.T) {
	for _, kvType := range []string{"f16", "q8_0"} {
		t.Run(kvType, func(t *testing.T) {
			m := openTest(t, recurrentPath(t), Options{KVType: kvType, Device: testdevice.CPU(t, 2), Sequences: 1, MaxRows: 80,
				KVPages: PagesFor(2, 160, 48) + PagesFor(1, 160, 0)})
			rapid.Check(t, func(r *rapid.T) { recurrentTrees(t, r, m) })
		})
	}
}

func recurrentTrees(t *testing.T, r *rapid.T, m *Model) {
	s, err := m.NewSequence(160, 48)
	if err != nil {
		r.Fatal(err)
	}
	defer s.Close()
	seq, err := m.NewSequence(160, 0)
	if err != nil {
		r.Fatal(err)
	}
	defer seq.Close()
	single := narrow{m, seq}
	random := rand.New(rand.NewPCG(rapid.Uint64().Draw(r, "tokens"), 0))
	w := twin{}
	for range rapid.IntRange(1, 6).Draw(r, "rounds") {
		part := Part{Seq: s, Want: WantTail}
		if len(w.tokens) == 0 {
			least := 0
			if len(w.prefix) == 0 {
				least = 1
			}
			part.Extend = randomTokens(random, m, rapid.IntRange(least, 20).Draw(r, "more"))
			w.prefix = append(w.prefix, part.Extend...)
		}
		part.Nodes = randomTokens(random, m, rapid.IntRange(0, min(20, 48-s.Nodes())).Draw(r, "rows"))
		for i := range part.Nodes {
			part.Parents = append(part.Parents, int32(rapid.IntRange(-1, s.Nodes()+i-1).Draw(r, "parent")))
		}
		out := forward(t, m, 0, part)
		old, first := int32(len(w.tokens)), out.Len()-len(part.Nodes)
		w.tokens, w.parents = append(w.tokens, part.Nodes...), append(w.parents, part.Parents...)
		got := make([][]float32, out.Len())
		for i := range got {
			got[i] = slices.Clone(out.Logits(i))
		}
		for i := range got {
			row := int32(-1)
			if i >= first {
				row = old + int32(i-first)
			}
			if err := sameBits(got[i], single.after(t, w.path(row))); err != nil {
				r.Fatalf("row %d of %d: %v", i, len(got), err)
			}
		}
		checkRecords(r, m)
		switch rapid.IntRange(0, 3).Draw(r, "then") {
		case 0:
			back := max(0, s.Len()-rapid.IntRange(0, 30).Draw(r, "back"))
			if err := s.Truncate(back); err != nil {
				r.Fatal(err)
			}
			if s.Len() > back || s.Nodes() != 0 {
				r.Fatalf("truncated to %d: %d positions and %d rows", back, s.Len(), s.Nodes())
			}
			w = twin{prefix: w.prefix[:s.Len()]}
		default:
			w.reroot(r, s)
		}
		checkRecords(r, m)
	}
}

// checkRecords checks that every record is free or in one place of one sequence.
func checkRecords(r *rapid.T, m *Model) {
	seen := make([]int, m.options.records(&m.config))
	for _, x := range m.records.free {
		seen[x]++
	}
	for s := range m.records.of {
		if len(s.ofNodes) != len(s.parents) || s.at+len(s.pending) != s.length {
			r.Fatalf("%d records of %d tree rows; states of %d positions and %d pending, of %d", len(s.ofNodes), len(s.parents), s.at,
				len(s.pending), s.length)
		}
		for _, x := range slices.Concat(s.ofNodes, s.pending) {
			seen[x]++
		}
	}
	for x, n := range seen {
		if n != 1 {
			r.Fatalf("record %d is in %d places", x, n)
		}
	}
}

// TestRecurrentOneBack checks that the last position can be given up without states from before.
func TestRecurrentOneBack(t *testing.T) {
	m := openTest(t, recurrentPath(t), Options{Device: testdevice.CPU(t, 1), KVPages: PagesFor(4, 160, 8)})
	s := newSeq(t, m, 160, 8)
	tokens := randomTokens(rand.New(rand.NewPCG(3, 4)), m, 40)
	forward(t, m, 0, Part{Seq: s, Extend: tokens[:30]})
	for at := 29; at < 32; at++ {
		if err := s.Truncate(at); err != nil || s.Len() != at {
			t.Fatalf("truncated to %d: %d, %v", at, s.Len(), err)
		}
		out := forward(t, m, 0, Part{Seq: s, Extend: tokens[at : at+2], Want: WantTail})
		if err := sameBits(out.Logits(0), alone(t, m, tokens[:at+2])); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Truncate(10); err != nil || s.Len() != 0 {
		t.Errorf("truncated to 10: %d positions, %v; want 0, since no states were kept", s.Len(), err)
	}
}

// TestRecurrentPrefixes opens sequences whose texts begin alike, and compares what they compute with texts computed alone.
func TestRecurrentPrefixes(t *testing.T) {
	t.Run("cpu", func(t *testing.T) { recurrentPrefixes(t, testdevice.CPU(t, 1)) })
	t.Run("cuda", func(t *testing.T) {
		gpu, _ := testdevice.GPU(t, emulated.Options{})
		recurrentPrefixes(t, gpu)
	})
}

func recurrentPrefixes(t *testing.T, d kernels.Device) {
	m := openTest(t, recurrentPath(t), Options{Device: d, Sequences: 4, KVPages: PagesFor(8, 320, 8)})
	random := rand.New(rand.NewPCG(5, 6))
	base := randomTokens(random, m, 150)
	var all []*Sequence
	run := func(tenant string, prompt []tandem.Token, found int) *Sequence {
		t.Helper()
		s, err := m.NewShared(tenant, prompt, 320, 8)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(s.Close)
		if s.Len() != found {
			t.Errorf("found %d of %d positions: want %d", s.Len(), len(prompt), found)
		}
		for s.Len() < len(prompt) {
			forward(t, m, 0, Part{Seq: s, Extend: prompt[s.Len():min(len(prompt), s.Len()+50)]})
		}
		next := randomTokens(random, m, 1)
		out := forward(t, m, 0, Part{Seq: s, Extend: next, Want: WantTail})
		if err := sameBits(out.Logits(0), alone(t, m, append(slices.Clone(prompt), next...))); err != nil {
			t.Error(err)
		}
		all = append(all, s)
		return s
	}
	s := run("a", base, 0)
	run("a", base, 128)                                                            // the last end of a page
	run("b", base, 0)                                                              // another tenant
	run("a", append(slices.Clone(base[:100]), randomTokens(random, m, 40)...), 0)  // no states where they part
	run("a", append(slices.Clone(base[:100]), randomTokens(random, m, 50)...), 64) // but now there are
	text := slices.Clone(s.tokens)
	for _, s := range all {
		s.Close()
	}
	run("a", append(text, randomTokens(random, m, 30)...), 150) // the end of a text, but for the last position
	if m.Prefixes().KeptStates() == 0 || m.Prefixes().KeptStates() > m.options.slots(&m.config) {
		t.Errorf("%d prefixes with states of %d slots", m.Prefixes().KeptStates(), m.options.slots(&m.config))
	}
}

// TestRecurrentSlots opens more sequences than there are slots, and more prefixes than slots can keep.
func TestRecurrentSlots(t *testing.T) {
	m := openTest(t, recurrentPath(t), Options{Device: testdevice.CPU(t, 1), Sequences: 2, KVPages: PagesFor(16, 192, 0)})
	random := rand.New(rand.NewPCG(7, 8))
	for range 9 {
		prompt := randomTokens(random, m, 130)
		s, err := m.NewShared("", prompt, 192, 0)
		if err != nil {
			t.Fatal(err)
		}
		forward(t, m, 0, Part{Seq: s, Extend: prompt})
		s.Close()
	}
	if m.Prefixes().KeptStates() != 4 || m.Prefixes().LostStates() < 9 {
		t.Errorf("%d prefixes with states, %d lost: want 4 and some", m.Prefixes().KeptStates(), m.Prefixes().LostStates())
	}
	for i := range 5 {
		_, err := m.NewSequence(64, 0)
		if i < 4 && err != nil || i == 4 && tandem.KindOf(err) != tandem.Exhausted {
			t.Errorf("sequence %d of a model with 4 slots: %v", i, err)
		}
	}
}

// rewritten writes the model at path with a change.
func rewritten(t *testing.T, path string, change func(*gguf.Writer)) string {
	f, err := gguf.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	w := gguf.CopyOf(f)
	change(w)
	to, err := os.Create(filepath.Join(t.TempDir(), "model.gguf"))
	if err != nil {
		t.Fatal(err)
	}
	defer to.Close()
	if _, err := w.WriteTo(to); err != nil {
		t.Fatal(err)
	}
	return to.Name()
}

// TestLeavesOutGuesses opens a model with a layer behind the last that guesses further tokens.
func TestLeavesOutGuesses(t *testing.T) {
	path := rewritten(t, recurrentPath(t), func(w *gguf.Writer) {
		w.Set("qwen35.nextn_predict_layers", uint32(1))
		w.Set("qwen35.block_count", uint32(5))
		w.Tensor("blk.4.nextn.eh_proj.weight", 0, []int{128}, make([]byte, 512))
	})
	tokens := []tandem.Token{5, 6, 7}
	m, plain := openTest(t, path, Options{KVPages: 8}), openTest(t, recurrentPath(t), Options{KVPages: 8})
	if err := sameBits(alone(t, m, tokens), alone(t, plain, tokens)); err != nil {
		t.Error(err)
	}
	info, err := Inspect(path)
	if err != nil || !slices.Contains(info.Traits, "1 layers that guess further tokens (MTP) are left out") {
		t.Errorf("%v, %v", info, err)
	}
}

// TestBrokenRecurrent opens recurrent models whose keys or tensors contradict each other; each is refused by name.
func TestBrokenRecurrent(t *testing.T) {
	key := func(name string, v any) func(*gguf.Writer) { return func(w *gguf.Writer) { w.Set("qwen35."+name, v) } }
	for _, c := range []struct {
		name   string
		change func(*gguf.Writer)
		kind   tandem.Kind
		want   string
	}{
		{"interval 0", key("full_attention_interval", uint32(0)), tandem.Corrupt, "full_attention_interval"},
		{"interval 1", key("full_attention_interval", uint32(1)), tandem.Corrupt, "layer 0 is attention by key"},
		{"interval 3", key("full_attention_interval", uint32(3)), tandem.Corrupt, "layer 2 is attention by key"},
		{"interval 5", key("full_attention_interval", uint32(5)), tandem.Corrupt, "layer 3 is a delta net by key"},
		{"no taps", key("ssm.conv_kernel", uint32(0)), tandem.Corrupt, "ssm.conv_kernel"},
		{"one tap", key("ssm.conv_kernel", uint32(1)), tandem.Unsupported, "ssm.conv_kernel"},
		{"other taps", key("ssm.conv_kernel", uint32(3)), tandem.Corrupt, "ssm_conv1d"},
		{"inner size", key("ssm.inner_size", uint32(255)), tandem.Corrupt, "ssm.inner_size"},
		{"groups", key("ssm.group_count", uint32(3)), tandem.Corrupt, "ssm.time_step_rank"},
		{"no groups", key("ssm.group_count", uint32(0)), tandem.Corrupt, "ssm.group_count"},
		{"state size", key("ssm.state_size", uint32(0)), tandem.Corrupt, "ssm.state_size"},
		{"huge", key("ssm.state_size", uint32(1<<31)), tandem.Corrupt, "ssm.state_size"},
		{"all layers guess", key("nextn_predict_layers", uint32(4)), tandem.Corrupt, "nextn_predict_layers"},
		{"states that grow", func(w *gguf.Writer) { w.Tensor("blk.0.ssm_a", 0, []int{4}, bytesOfFloats([]float64{-1, -1, 0.5, -1})) },
			tandem.Corrupt, "ssm_a"},
	} {
		t.Run(c.name, func(t *testing.T) {
			path := rewritten(t, recurrentPath(t), c.change)
			_, err := Open(path, Options{Device: testdevice.CPU(t, 1), KVPages: 4})
			if tandem.KindOf(err) != c.kind || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%v: want %v that names %s", err, c.kind, c.want)
			}
		})
	}
}
