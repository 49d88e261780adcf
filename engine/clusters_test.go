package engine_test

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"math"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/engine"
	"github.com/tandem-llm/tandem/engine/enginetest"
	"github.com/tandem-llm/tandem/engine/guess"
	"github.com/tandem-llm/tandem/kernels"
	"github.com/tandem-llm/tandem/kernels/cpu"
	"github.com/tandem-llm/tandem/kernels/cuda/emulated"
	"github.com/tandem-llm/tandem/kernels/layers"
	"github.com/tandem-llm/tandem/kernels/testdevice"
	"github.com/tandem-llm/tandem/modelfile/gguf"
	"github.com/tandem-llm/tandem/modelfile/side"
)

// stepped is what a step found for a row.
type stepped struct {
	best   kernels.Top
	state  []float32
	logits []float32 // in order of places
	chosen []int32   // clusters; nil: there are none
	scores []float32 // of clusters
}

// stepAll runs a step with the states of g, all in one pass, behind the target's prompt.
func stepAll(t *testing.T, g assistantGolden, path string, o engine.Options) (all []stepped) {
	t.Helper()
	o.KVPages = engine.PagesFor(4, 192, 32)
	m := enginetest.Open(t, enginetest.GoldenPath(t, "gemma4"), o)
	if err := m.OpenSide(path); err != nil {
		t.Fatal(err)
	}
	s := enginetest.NewSeq(t, m, 64, 8)
	enginetest.Forward(t, m, 1, engine.Part{Seq: s, Extend: g.Tokens, Want: engine.WantTail})
	var rows []guess.Step
	for _, step := range g.Steps {
		rows = append(rows, stepOf(t, s, step.Token, step.Hidden))
	}
	all = make([]stepped, len(rows))
	a := assistantOf(m)
	err := a.Step(rows, kernels.MaxTop, func(i int, best kernels.Top) {
		x := &all[i]
		x.best = kernels.Top{IDs: slices.Clone(best.IDs), Logits: slices.Clone(best.Logits), Max: best.Max, Sum: best.Sum}
		for _, op := range a.Program().Ops {
			switch op := op.(type) {
			case kernels.TopK:
				x.logits = slices.Clone(a.Runner().Row(op.Logits, i))
			case kernels.ChooseExperts:
				x.chosen = slices.Clone(a.Runner().(kernels.RouteReader).Chosen(op.Out, i))
				x.scores = slices.Clone(a.Runner().Row(op.Logits, i))
			}
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	for i := range rows {
		all[i].state = rows[i].State
	}
	return all
}

// TestClusters: a step chooses the clusters whose centroids' products are the largest, and the logits of their tokens are those of an
// assistant without clusters, bit for bit, as is the next state; with all clusters chosen that is every logit.
func TestClusters(t *testing.T) {
	g := readAssistantGolden(t)
	plain := stepAll(t, g, enginetest.GoldenPath(t, enginetest.AssistantFile), engine.Options{Device: testdevice.CPU(t, 2)})
	vocab := len(plain[0].logits)
	bits := math.Float32bits
	for _, c := range []struct{ count, chosen int }{{48, 48}, {48, 5}, {48, 1}, {64, 9}, {512, 32}, {1, 1}, {vocab, 40}} {
		o := enginetest.NewOrdering(c.count, vocab)
		size := vocab / c.count
		got := stepAll(t, g, enginetest.ChangedGolden(t, enginetest.AssistantFile, o.Ordered(t, c.chosen)),
			engine.Options{Device: testdevice.CPU(t, 2)})
		for i, x := range got {
			for j, at := range o.At {
				if bits(x.scores[j]) != bits(plain[i].logits[at]) {
					t.Fatalf("%+v, row %d: the score of cluster %d is %v, want %v", c, i, j, x.scores[j], plain[i].logits[at])
				}
			}
			best := make([]int32, c.count)
			for j := range best {
				best[j] = int32(j)
			}
			slices.SortStableFunc(best, func(a, b int32) int { return cmp.Compare(x.scores[b], x.scores[a]) })
			if !slices.Equal(x.chosen, best[:c.chosen]) {
				t.Fatalf("%+v, row %d: clusters %v, want %v", c, i, x.chosen, best[:c.chosen])
			}
			var tokens []int32
			for rank, k := range x.chosen {
				for j, token := range o.Tokens[int(k)*size:][:size] {
					if at := rank*size + j; bits(x.logits[at]) != bits(plain[i].logits[token]) {
						t.Fatalf("%+v, row %d: the logit of token %d is %v, want %v", c, i, token, x.logits[at], plain[i].logits[token])
					}
					tokens = append(tokens, token)
				}
			}
			if len(tokens) != len(x.logits) {
				t.Fatalf("%+v, row %d: %d logits of %d tokens", c, i, len(x.logits), len(tokens))
			}
			slices.SortFunc(tokens, func(a, b int32) int { return cmp.Compare(plain[i].logits[b], plain[i].logits[a]) })
			if n := min(len(tokens), kernels.MaxTop); !slices.Equal(x.best.IDs, tokens[:n]) {
				t.Errorf("%+v, row %d: best tokens %v, want %v", c, i, x.best.IDs, tokens[:n])
			}
			if err := enginetest.SameBits(x.state, plain[i].state); err != nil {
				t.Errorf("%+v, row %d: the next state: %v", c, i, err)
			}
			if c.chosen == c.count && (!slices.Equal(x.best.IDs, plain[i].best.IDs) || bits(x.best.Max) != bits(plain[i].best.Max)) {
				t.Errorf("%+v, row %d: best %+v, want %+v", c, i, x.best, plain[i].best)
			}
		}
	}
}

// TestClusterSpellings: files that say the same in other words, types and forms give the same.
func TestClusterSpellings(t *testing.T) {
	g := readAssistantGolden(t)
	o := enginetest.NewOrdering(48, 1536)
	size := len(o.Tokens) / len(o.At)
	for i := range o.At { // the order within a cluster means nothing
		slices.Sort(o.Tokens[i*size:][:size])
	}
	of, wide := make([]int32, len(o.Tokens)), []byte(nil)
	for i, token := range o.Tokens {
		of[token] = int32(i / size)
		wide = binary.LittleEndian.AppendUint64(wide, uint64(token))
	}
	key := func(s string) string { return string(side.Assistant) + "." + s }
	renamed := func(centroids, order string) enginetest.Change {
		return func(w *gguf.Writer, f *gguf.File) {
			for was, is := range map[string]string{"nextn.centroids.weight": centroids, "nextn.token_ordering.weight": order} {
				x := f.Tensor(was)
				w.DropTensor(was)
				w.Tensor(is, x.Type, x.Shape, enginetest.BytesOf(t, x))
			}
		}
	}
	base := enginetest.ChangedGolden(t, enginetest.AssistantFile, o.Ordered(t, 5))
	want := stepAll(t, g, base, engine.Options{Device: testdevice.CPU(t, 2)})
	for what, c := range map[string]enginetest.Change{
		"no key says so": enginetest.DropKey(key("use_ordered_embeddings")),
		"counted": enginetest.Both(enginetest.SetKey(key("n_centroids"), uint32(48)), enginetest.SetKey(key("centroid_count"),
			uint32(48))),
		"another key": enginetest.Both(enginetest.DropKey(key("centroid_top_k")), enginetest.SetKey(key("centroid_intermediate_top_k"),
			uint32(5))),
		"masked":      renamed("masked_embd_centroids.weight", "masked_embd_ordering"),
		"dots":        renamed("mtp.centroids.weight", "mtp.token_ordering.weight"),
		"underscores": renamed("mtp_centroids.weight", "mtp_token_ordering.weight"),
		"64 bits": func(w *gguf.Writer, _ *gguf.File) {
			w.Tensor("nextn.token_ordering.weight", gguf.Int64, []int{len(of)}, wide)
		},
		"by token": func(w *gguf.Writer, _ *gguf.File) {
			w.Tensor("nextn.token_ordering.weight", gguf.Int32, []int{len(of)}, enginetest.Int32s(of))
		},
		"nothing changed": enginetest.Both(),
	} {
		got := stepAll(t, g, enginetest.ChangedFile(t, base, c), engine.Options{Device: testdevice.CPU(t, 2)})
		if !reflect.DeepEqual(got, want) {
			t.Errorf("%s: something else", what)
		}
	}
	plain := stepAll(t, g, enginetest.GoldenPath(t, enginetest.AssistantFile), engine.Options{Device: testdevice.CPU(t, 2)})
	off := enginetest.ChangedGolden(t, enginetest.AssistantFile, enginetest.SetKey(key("use_ordered_embeddings"), false))
	if got := stepAll(t, g, off, engine.Options{Device: testdevice.CPU(t, 2)}); !reflect.DeepEqual(got, plain) {
		t.Errorf("a file that says no: something else")
	}
	s, err := engine.SideOf(base)
	if err != nil || s.Helper.Clusters != 48 || s.Helper.Chosen != 5 || s.String() !=
		"an assistant of 3 blocks, 4 tokens in a chain, each from the best 5 of 48 clusters of tokens" {
		t.Errorf("%+v, %q, %v", s, s, err)
	}
}

// TestClusterDevices: every kind of device chooses the same clusters and finds the same, number by number, also with clusters that are no
// whole groups of 16 outputs, or less than one.
func TestClusterDevices(t *testing.T) {
	g := readAssistantGolden(t)
	gpu, _ := testdevice.GPU(t, emulated.Options{})
	devices := map[string]kernels.Device{"gpu": gpu, "definitions": testdevice.Ref(),
		"layers":    enginetest.Fixed{Device: layers.New(layers.Config{Near: testdevice.CPU(t, 2), Far: testdevice.CPU(t, 1)}).With(2)},
		"divided":   enginetest.Halves(t, testdevice.CPU(t, 1), testdevice.CPU(t, 1), nil),
		"exchanged": enginetest.Halves(t, gpu, testdevice.CPU(t, 1), nil)}
	for _, isa := range cpu.Supported() {
		devices[isa.String()] = testdevice.ISA(t, 2, isa)
	}
	for _, c := range []struct{ count, chosen int }{{48, 7}, {64, 9}, {256, 31}} {
		path := enginetest.ChangedGolden(t, enginetest.AssistantFile, enginetest.NewOrdering(c.count, 1536).Ordered(t, c.chosen))
		want := stepAll(t, g, path, engine.Options{Device: testdevice.CPU(t, 2), MaxRows: 64})
		for on, d := range devices {
			if got := stepAll(t, g, path, engine.Options{Device: d, MaxRows: 64}); !reflect.DeepEqual(got, want) {
				t.Errorf("%+v, %s: %+v, want %+v", c, on, got, want)
			}
		}
	}
}

// TestBrokenClusters: what is wrong with ordered embeddings is refused by name.
func TestBrokenClusters(t *testing.T) {
	o := enginetest.NewOrdering(48, 1536)
	key := func(s string) string { return string(side.Assistant) + "." + s }
	order := func(change func(v []int32)) enginetest.Change {
		return func(w *gguf.Writer, _ *gguf.File) {
			v := slices.Clone(o.Tokens)
			change(v)
			w.Tensor("nextn.token_ordering.weight", gguf.Int32, []int{len(v)}, enginetest.Int32s(v))
		}
	}
	for name, c := range map[string]struct {
		change enginetest.Change
		kind   tandem.Kind
		want   string
	}{
		"no centroids": {enginetest.DropTensor("nextn.centroids.weight"), tandem.Corrupt, `"nextn.centroids.weight" is missing`},
		"no order": {enginetest.DropTensor("nextn.token_ordering.weight"), tandem.Corrupt,
			`"nextn.token_ordering.weight" is missing`},
		"says no":          {enginetest.SetKey(key("use_ordered_embeddings"), false), tandem.Unsupported, "nextn.centroids.weight"},
		"says a number":    {enginetest.SetKey(key("use_ordered_embeddings"), uint32(1)), tandem.Corrupt, "use_ordered_embeddings"},
		"chooses none":     {enginetest.SetKey(key("centroid_top_k"), uint32(0)), tandem.Corrupt, "centroid_top_k"},
		"chooses too many": {enginetest.SetKey(key("centroid_top_k"), uint32(49)), tandem.Corrupt, "at most 48, the number of centroids"},
		"another number":   {enginetest.SetKey(key("n_centroids"), uint32(64)), tandem.Corrupt, "n_centroids"},
		"unevenly divided": {enginetest.Resized("nextn.centroids.weight", 64, 47), tandem.Corrupt, "47 rows, among which 1536 tokens"},
		"of another width": {enginetest.Resized("nextn.centroids.weight", 32, 48), tandem.Corrupt,
			`"nextn.centroids.weight" has shape [32 48]`},
		"a vector": {enginetest.Resized("nextn.centroids.weight", 3072), tandem.Corrupt, "a row for each centroid"},
		"a short order": {enginetest.Resized("nextn.token_ordering.weight", 48), tandem.Corrupt,
			`"nextn.token_ordering.weight" has shape [48]`},
		"an order in floats": {func(w *gguf.Writer, _ *gguf.File) {
			w.Tensor("nextn.token_ordering.weight", gguf.F32, []int{1536}, make([]byte, 4*1536))
		},
			tandem.Unsupported, "has type f32: want i32 or i64"},
		"a token twice":   {order(func(v []int32) { v[700] = v[3] }), tandem.Corrupt, "entry 700 is"},
		"a token beyond":  {order(func(v []int32) { v[9] = 1536 }), tandem.Corrupt, "entry 9 is 1536"},
		"a token below":   {order(func(v []int32) { v[9] = -1 }), tandem.Corrupt, "entry 9 is -1"},
		"uneven clusters": {order(func(v []int32) { clear(v) }), tandem.Corrupt, "entry 1 is 0"},
		"centroids of ints": {func(w *gguf.Writer, _ *gguf.File) {
			w.Tensor("nextn.centroids.weight", gguf.Int32, []int{64, 48}, make([]byte, 4*64*48))
		},
			tandem.Unsupported, "has type i32"},
	} {
		t.Run(name, func(t *testing.T) {
			m := enginetest.Open(t, enginetest.GoldenPath(t, enginetest.Gemma4Files[0]), engine.Options{KVPages: 8})
			err := m.OpenSide(enginetest.ChangedFile(t, enginetest.ChangedGolden(t, enginetest.AssistantFile, o.Ordered(t, 5)), c.change))
			if tandem.KindOf(err) != c.kind || !strings.Contains(fmt.Sprint(err), c.want) {
				t.Errorf("error %v (kind %v): want kind %v that names %s", err, tandem.KindOf(err), c.kind, c.want)
			}
			if err := m.OpenSide(enginetest.GoldenPath(t, enginetest.AssistantFile)); err != nil {
				t.Errorf("the right one afterwards: %v", err)
			}
		})
	}
}
