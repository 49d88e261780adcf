package engine

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/engine/guess"
	"github.com/tandem-llm/tandem/engine/tensors"
	"github.com/tandem-llm/tandem/kernels"
	"github.com/tandem-llm/tandem/kernels/cpu"
	"github.com/tandem-llm/tandem/kernels/cuda/emulated"
	"github.com/tandem-llm/tandem/kernels/layers"
	"github.com/tandem-llm/tandem/kernels/testdevice"
	"github.com/tandem-llm/tandem/modelfile/gguf"
	"github.com/tandem-llm/tandem/modelfile/side"
)

const assistantFile = "gemma4-assistant"

// ordering is an order of the golden assistant's tokens, and centroids that are rows of its embedding, those of tokens `at`.
type ordering struct {
	tokens []int32
	at     []int32
}

func newOrdering(count int, vocab int) (o ordering) {
	r := rand.New(rand.NewPCG(7, uint64(count)))
	for _, v := range r.Perm(vocab) {
		o.tokens = append(o.tokens, int32(v))
	}
	for _, v := range r.Perm(vocab)[:count] {
		o.at = append(o.at, int32(v))
	}
	return o
}

func int32s(v []int32) (b []byte) {
	for _, x := range v {
		b = binary.LittleEndian.AppendUint32(b, uint32(x))
	}
	return b
}

// ordered gives the golden assistant ordered embeddings, of which a step looks into the best clusters.
func (o ordering) ordered(t testing.TB, chosen int) change {
	return func(w *gguf.Writer, f *gguf.File) {
		e := f.Tensor("token_embd.weight")
		all, err := e.Bytes()
		if err != nil {
			t.Fatal(err)
		}
		var rows []byte
		for _, token := range o.at {
			rows = append(rows, all[int(token)*tensors.PerRow(e):][:tensors.PerRow(e)]...)
		}
		w.Set(string(side.Assistant)+".use_ordered_embeddings", true)
		w.Set(string(side.Assistant)+".centroid_top_k", uint32(chosen))
		w.Tensor("nextn.centroids.weight", e.Type, []int{e.Shape[0], len(o.at)}, rows)
		w.Tensor("nextn.token_ordering.weight", gguf.Int32, []int{len(o.tokens)}, int32s(o.tokens))
	}
}

// both applies one change after the other.
func both(all ...change) change {
	return func(w *gguf.Writer, f *gguf.File) {
		for _, c := range all {
			c(w, f)
		}
	}
}

// stepped is what a step found for a row.
type stepped struct {
	best   kernels.Top
	state  []float32
	logits []float32 // in order of places
	chosen []int32   // clusters; nil: there are none
	scores []float32 // of clusters
}

// stepAll runs a step with the states of g, all in one pass, behind the target's prompt.
func stepAll(t *testing.T, g assistantGolden, path string, o Options) (all []stepped) {
	t.Helper()
	o.KVPages = PagesFor(4, 192, 32)
	m := openTest(t, goldenPath(t, "gemma4"), o)
	if err := m.OpenSide(path); err != nil {
		t.Fatal(err)
	}
	s := newSeq(t, m, 64, 8)
	forward(t, m, 1, Part{Seq: s, Extend: g.Tokens, Want: WantTail})
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
	plain := stepAll(t, g, goldenPath(t, assistantFile), Options{Device: testdevice.CPU(t, 2)})
	vocab := len(plain[0].logits)
	bits := math.Float32bits
	for _, c := range []struct{ count, chosen int }{{48, 48}, {48, 5}, {48, 1}, {64, 9}, {512, 32}, {1, 1}, {vocab, 40}} {
		o := newOrdering(c.count, vocab)
		size := vocab / c.count
		got := stepAll(t, g, changed(t, assistantFile, o.ordered(t, c.chosen)), Options{Device: testdevice.CPU(t, 2)})
		for i, x := range got {
			for j, at := range o.at {
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
				for j, token := range o.tokens[int(k)*size:][:size] {
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
			if err := sameBits(x.state, plain[i].state); err != nil {
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
	o := newOrdering(48, 1536)
	size := len(o.tokens) / len(o.at)
	for i := range o.at { // the order within a cluster means nothing
		slices.Sort(o.tokens[i*size:][:size])
	}
	of, wide := make([]int32, len(o.tokens)), []byte(nil)
	for i, token := range o.tokens {
		of[token] = int32(i / size)
		wide = binary.LittleEndian.AppendUint64(wide, uint64(token))
	}
	key := func(s string) string { return string(side.Assistant) + "." + s }
	renamed := func(centroids, order string) change {
		return func(w *gguf.Writer, f *gguf.File) {
			for was, is := range map[string]string{"nextn.centroids.weight": centroids, "nextn.token_ordering.weight": order} {
				x := f.Tensor(was)
				w.DropTensor(was)
				w.Tensor(is, x.Type, x.Shape, bytesOf(t, x))
			}
		}
	}
	base := changed(t, assistantFile, o.ordered(t, 5))
	want := stepAll(t, g, base, Options{Device: testdevice.CPU(t, 2)})
	for what, c := range map[string]change{
		"no key says so": dropKey(key("use_ordered_embeddings")),
		"counted":        both(setKey(key("n_centroids"), uint32(48)), setKey(key("centroid_count"), uint32(48))),
		"another key":    both(dropKey(key("centroid_top_k")), setKey(key("centroid_intermediate_top_k"), uint32(5))),
		"masked":         renamed("masked_embd_centroids.weight", "masked_embd_ordering"),
		"dots":           renamed("mtp.centroids.weight", "mtp.token_ordering.weight"),
		"underscores":    renamed("mtp_centroids.weight", "mtp_token_ordering.weight"),
		"64 bits": func(w *gguf.Writer, _ *gguf.File) {
			w.Tensor("nextn.token_ordering.weight", gguf.Int64, []int{len(of)}, wide)
		},
		"by token": func(w *gguf.Writer, _ *gguf.File) {
			w.Tensor("nextn.token_ordering.weight", gguf.Int32, []int{len(of)}, int32s(of))
		},
		"nothing changed": both(),
	} {
		got := stepAll(t, g, changedFile(t, base, c), Options{Device: testdevice.CPU(t, 2)})
		if !reflect.DeepEqual(got, want) {
			t.Errorf("%s: something else", what)
		}
	}
	plain := stepAll(t, g, goldenPath(t, assistantFile), Options{Device: testdevice.CPU(t, 2)})
	off := changed(t, assistantFile, setKey(key("use_ordered_embeddings"), false))
	if got := stepAll(t, g, off, Options{Device: testdevice.CPU(t, 2)}); !reflect.DeepEqual(got, plain) {
		t.Errorf("a file that says no: something else")
	}
	s, err := SideOf(base)
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
		"layers":    fixed{layers.New(layers.Config{Near: testdevice.CPU(t, 2), Far: testdevice.CPU(t, 1)}).With(2)},
		"divided":   halves(t, testdevice.CPU(t, 1), testdevice.CPU(t, 1), nil),
		"exchanged": halves(t, gpu, testdevice.CPU(t, 1), nil)}
	for _, isa := range cpu.Supported() {
		devices[isa.String()] = testdevice.ISA(t, 2, isa)
	}
	for _, c := range []struct{ count, chosen int }{{48, 7}, {64, 9}, {256, 31}} {
		path := changed(t, assistantFile, newOrdering(c.count, 1536).ordered(t, c.chosen))
		want := stepAll(t, g, path, Options{Device: testdevice.CPU(t, 2), MaxRows: 64})
		for on, d := range devices {
			if got := stepAll(t, g, path, Options{Device: d, MaxRows: 64}); !reflect.DeepEqual(got, want) {
				t.Errorf("%+v, %s: %+v, want %+v", c, on, got, want)
			}
		}
	}
}

// TestBrokenClusters: what is wrong with ordered embeddings is refused by name.
func TestBrokenClusters(t *testing.T) {
	o := newOrdering(48, 1536)
	key := func(s string) string { return string(side.Assistant) + "." + s }
	order := func(change func(v []int32)) change {
		return func(w *gguf.Writer, _ *gguf.File) {
			v := slices.Clone(o.tokens)
			change(v)
			w.Tensor("nextn.token_ordering.weight", gguf.Int32, []int{len(v)}, int32s(v))
		}
	}
	for name, c := range map[string]struct {
		change change
		kind   tandem.Kind
		want   string
	}{
		"no centroids":     {dropTensor("nextn.centroids.weight"), tandem.Corrupt, `"nextn.centroids.weight" is missing`},
		"no order":         {dropTensor("nextn.token_ordering.weight"), tandem.Corrupt, `"nextn.token_ordering.weight" is missing`},
		"says no":          {setKey(key("use_ordered_embeddings"), false), tandem.Unsupported, "nextn.centroids.weight"},
		"says a number":    {setKey(key("use_ordered_embeddings"), uint32(1)), tandem.Corrupt, "use_ordered_embeddings"},
		"chooses none":     {setKey(key("centroid_top_k"), uint32(0)), tandem.Corrupt, "centroid_top_k"},
		"chooses too many": {setKey(key("centroid_top_k"), uint32(49)), tandem.Corrupt, "at most 48, the number of centroids"},
		"another number":   {setKey(key("n_centroids"), uint32(64)), tandem.Corrupt, "n_centroids"},
		"unevenly divided": {resized("nextn.centroids.weight", 64, 47), tandem.Corrupt, "47 rows, among which 1536 tokens"},
		"of another width": {resized("nextn.centroids.weight", 32, 48), tandem.Corrupt, `"nextn.centroids.weight" has shape [32 48]`},
		"a vector":         {resized("nextn.centroids.weight", 3072), tandem.Corrupt, "a row for each centroid"},
		"a short order":    {resized("nextn.token_ordering.weight", 48), tandem.Corrupt, `"nextn.token_ordering.weight" has shape [48]`},
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
			m := openTest(t, goldenPath(t, gemma4Files[0]), Options{KVPages: 8})
			err := m.OpenSide(changedFile(t, changed(t, assistantFile, o.ordered(t, 5)), c.change))
			if tandem.KindOf(err) != c.kind || !strings.Contains(fmt.Sprint(err), c.want) {
				t.Errorf("error %v (kind %v): want kind %v that names %s", err, tandem.KindOf(err), c.kind, c.want)
			}
			if err := m.OpenSide(goldenPath(t, assistantFile)); err != nil {
				t.Errorf("the right one afterwards: %v", err)
			}
		})
	}
}
