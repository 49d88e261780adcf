package guesses

import (
	"bytes"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/engine"
	"github.com/tandem-llm/tandem/kernels/testdevice"
	"github.com/tandem-llm/tandem/spec"
	"github.com/tandem-llm/tandem/test/testkit"
	"github.com/tandem-llm/tandem/test/testkit/family"
)

const sides = "../../engine/testdata/sides/"

// config returns a measurement of the small target, whose context holds 64 tokens, with short prompts of two domains.
func config(t testing.TB, heads, drafts []string) Config {
	t.Helper()
	var lines strings.Builder
	for _, domain := range []string{"one", "two"} {
		for i := range 6 {
			fmt.Fprintf(&lines, `{"id":"%s-%d","domain":"%s","prompt":"%s %d b"}`+"\n", domain, i, domain, domain, i)
		}
	}
	file := filepath.Join(t.TempDir(), "prompts.jsonl")
	if err := os.WriteFile(file, []byte(lines.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	dev := testdevice.CPU(t, 1)
	target := sides + "target.gguf"
	c := Config{Target: target, Prompts: file, Count: 2, Calibrate: 3, MaxTokens: 44, Temperatures: []float64{0}, Seed: 7,
		Widths: []int{4, 16}, Rounds: 1}
	for _, h := range heads {
		c.Heads = append(c.Heads, sides+h+".gguf")
	}
	for _, d := range drafts {
		c.Drafts = append(c.Drafts, sides+d+".gguf")
	}
	c.Open = func(path string, o engine.Options) (*engine.Model, error) {
		o.Device = dev
		return engine.Open(path, o)
	}
	c.Draft = func(path string, o engine.Options) (*engine.Model, error) {
		o.Device = dev
		return engine.OpenDraft(path, target, o)
	}
	return c
}

// opened returns a judging of c with its texts and trees.
func opened(t testing.TB, c Config, temperature float64) *judging {
	t.Helper()
	if err := c.Validate(); err != nil {
		t.Fatal(err)
	}
	b := &bench{Config: &c, ctx: t.Context()}
	t.Cleanup(b.close)
	if err := b.open(); err != nil {
		t.Fatal(err)
	}
	j := &judging{bench: b, result: b.describe(), out: &Temperature{}, fits: map[string][]*fitted{}, sampling: b.sampling(temperature)}
	var err error
	if j.judged, j.cal, err = b.texts(temperature); err != nil {
		t.Fatal(err)
	}
	if err := j.fit(); err != nil {
		t.Fatal(err)
	}
	return j
}

// counts checks that real rounds decided as many tokens, one by one, as those that were replayed.
func counts(t *testing.T, what string, real []int, replayed tally) {
	t.Helper()
	sum := 0
	for _, n := range real[:min(replayed.rounds, len(real))] {
		sum += n
	}
	if replayed.rounds == 0 || replayed.rounds > len(real) || sum != replayed.tokens {
		t.Errorf("%s: replayed %d tokens in %d rounds; real rounds decided %v", what, replayed.tokens, replayed.rounds, real)
	}
}

// TestReplayIsDecoding: rounds that are replayed decide what real rounds decide, in which the target verifies the trees and the ways guess
// behind what was accepted; and the text stays the same, which decode checks.
func TestReplayIsDecoding(t *testing.T) {
	for _, tc := range []struct{ head, draft string }{{"medusa-shared", "dovetail"}, {"medusa-own", "eagle"}, {"ppd-1", "eagle3"},
		{"ppd-4", "dovetail-bare"}} {
		more := 0
		for _, temperature := range []float64{0, 0.9} {
			t.Run(fmt.Sprintf("%s, %s, %v", tc.head, tc.draft, temperature), func(t *testing.T) {
				j := opened(t, config(t, []string{tc.head}, []string{tc.draft}), temperature)
				way := j.ways[0]
				for _, x := range j.judged {
					for k, n := range j.widths(way) {
						f := j.fits[way.Name][k]
						real, _, err := j.decode(x, j.sampling, f.plan())
						if err != nil {
							t.Fatal(err)
						}
						replayed := f.on([]*text{x})
						counts(t, fmt.Sprintf("%d nodes by tables", n), real, replayed)
						more += replayed.tokens - replayed.rounds
					}
					alone := []*merged{j.merged([]tandem.SelfDraft{way}, nil, 0, 16, nil), j.merged(nil, []string{tc.draft}, 0, 16, nil)}
					for _, m := range alone {
						replayed := replay(x, m)
						m.begin(x)
						real, _, err := j.decode(x, j.sampling, plan{&way, func(said []tandem.Token, g tandem.Guess) tandem.Tree {
							m.levels = len(g.Levels)
							if len(said) >= len(x.Text) {
								return tandem.Root(said[len(said)-1])
							}
							return m.tree(len(said) - 1)
						}})
						if err != nil {
							t.Fatal(err)
						}
						counts(t, "trees that follow each guess", real, replayed)
					}
				}
			})
		}
		if more == 0 {
			t.Errorf("%s: no guess was right: this compared nothing", tc.head)
		}
	}
}

// TestAssistantIsReplayed: what an assistant guesses while a text is said plainly is what it guesses in rounds with trees, in which it
// reads the accepted nodes where the tree has them.
func TestAssistantIsReplayed(t *testing.T) {
	dir, c := t.TempDir(), config(t, nil, nil)
	c.Target, c.Heads = family.Golden("gemma4").Write(t, dir), []string{family.Golden("gemma4-assistant").Write(t, dir)}
	j := opened(t, c, 0)
	way, x, compared := j.ways[0], j.judged[0], 0
	_, _, err := j.decode(x, j.sampling, plan{&way, func(said []tandem.Token, g tandem.Guess) tandem.Tree {
		tree := tandem.Root(said[len(said)-1])
		if len(said) >= len(x.Text) {
			return tree
		}
		for i, want := range x.Guesses[way.Name][len(said)-x.Prompt].Levels {
			if compared++; !slices.Equal(g.Levels[i], want) {
				t.Errorf("behind %d tokens, level %d: %v in rounds, %v when the text was said", len(said), i, g.Levels[i], want)
			}
		}
		path := x.Text[len(said):min(len(said)+len(said)%3, len(x.Text))]
		for i, right := range path { // between wrong guesses
			parent := int32(max(2*i-1, 0))
			tree.Tokens, tree.Parents = append(tree.Tokens, right, (right+1)%1000), append(tree.Parents, parent, parent)
		}
		return tree
	}})
	if err != nil || compared < 4*len(x.Text[x.Prompt:])/3 {
		t.Errorf("%v: %d levels compared", err, compared)
	}
}

// TestHead: the likeliest nodes of a large tree are the tree that the drafter grows if it is asked for so few.
func TestHead(t *testing.T) {
	j := opened(t, config(t, nil, []string{"dovetail"}), 0)
	d, x := j.drafts[0], j.judged[0]
	for _, n := range []int{2, 5, 16} {
		d.source.told = x.Told
		d.next++
		open := tandem.Opening{Session: d.next, Epoch: 1, Tokens: x.Text[:x.Prompt], Limit: 60, MaxNodes: nodes, Vocab: d.vocab}
		if _, err := d.drafter.Open(t.Context(), open); err != nil {
			t.Fatal(err)
		}
		got, err := d.drafter.Propose(t.Context(), tandem.Proposal{Session: d.next, Epoch: 1, Base: tandem.Position(x.Prompt),
			Hash: tandem.EmptyPrefix.Add(x.Text[:x.Prompt]...), From: tandem.Position(x.Prompt),
			Bounds: tandem.Bounds{Nodes: n, Depth: draftDepth, Width: draftWidth}, Temper: spec.DraftTemper(0), Return: true})
		if err != nil {
			t.Fatal(err)
		}
		if err := d.drafter.Close(t.Context(), d.next); err != nil {
			t.Fatal(err)
		}
		cut := head(x.trees[d.name][0], n)
		if !slices.Equal(cut.Tokens, got.Tree.Tokens) || !slices.Equal(cut.Parents, got.Tree.Parents) {
			t.Errorf("%d nodes: %v %v, asked for alone %v %v", n, cut.Tokens, cut.Parents, got.Tree.Tokens, got.Tree.Parents)
		}
	}
}

// TestRun: figures of a whole run are possible ones, and belong together.
func TestRun(t *testing.T) {
	c := config(t, []string{"medusa-shared", "ppd-1"}, []string{"dovetail", "eagle"})
	c.Temperatures, c.Timed = []float64{0, 1}, 1
	last := Progress{}
	c.Progress = func(p Progress) { last = p }
	r, err := Run(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	if len(r.Sources) != 4 || len(r.Temperatures) != 2 || last.Done != last.Total || last.Total != 2*2*5*3 {
		t.Fatalf("%d sources, %d temperatures, at last %+v", len(r.Sources), len(r.Temperatures), last)
	}
	for _, at := range r.Temperatures {
		tau := map[string]float64{}
		for _, l := range at.Lengths {
			for i, n := range l.Tau {
				if n.Tau < 1 || n.Tau > float64(min(n.Width, 9)) || i > 0 && l.Trees == "medusa" && n.Tau < 0.8*l.Tau[i-1].Tau {
					t.Errorf("%s, %s: τ %v", l.Trees, l.Domain, l.Tau)
				}
				if l.Domain == "" {
					tau[fmt.Sprint(l.Trees, n.Width)] = n.Tau
				}
			}
		}
		for _, name := range []string{"medusa", "ppd", "medusa, each guess", "ppd, each guess", "dovetail", "eagle", "all", "all but ppd"} {
			if tau[name+"16"] == 0 {
				t.Errorf("no τ of %s", name)
			}
		}
		for _, p := range at.Predictions {
			if p.Calibration > 0 && math.Abs(p.Foretold/p.Calibration-1) > 0.15 { // little text
				t.Errorf("%s, %d nodes: foretold %v, on the same text %v", p.Trees, p.Width, p.Foretold, p.Calibration)
			}
		}
		for i, a := range at.Ablations {
			if a.Trees == "greedy" && tau[fmt.Sprint("medusa", a.Width)] != at.Ablations[i-1].Tau && a.Width <= 16 {
				t.Errorf("with search %v in the ablation, %v in the table", at.Ablations[i-1].Tau, tau)
			}
		}
		for _, a := range at.Accuracy {
			for k := range a.Top[1:] {
				if a.Top[k].Rate > a.Top[k+1].Rate || a.Top[k+1].Rate > 1 {
					t.Errorf("%s, distance %d: %v", a.Way, a.Level, a.Top)
				}
			}
		}
		for _, s := range at.Sizes {
			if s.MS <= 0 || s.Foretold <= 0 || s.Judged <= 0 || s.Real <= 0 {
				t.Errorf("size %+v", s)
			}
		}
		if len(at.Transfer) != 2*3*3 || len(at.Texts) != 2 || at.Texts[0].Judged != 2*44 || at.Texts[1].Calibration != 3*44 {
			t.Errorf("%d transfers, texts %+v", len(at.Transfer), at.Texts)
		}
	}
}

// TestRefused: what cannot be measured is refused in words that say what would be right.
func TestRefused(t *testing.T) {
	for _, tc := range []struct {
		change func(*Config)
		says   string
	}{
		{func(c *Config) { c.Heads = nil }, "want --heads FILE or --draft FILE"},
		{func(c *Config) { c.Heads[0] = sides + "dovetail.gguf" }, "drafts are given by --draft"},
		{func(c *Config) { c.Heads[0] = sides + "target.gguf" }, "want a side file that the verifier runs"},
		{func(c *Config) { c.Heads = append(c.Heads, c.Heads[0]) }, "side file of kind medusa already"},
		{func(c *Config) { c.Drafts = []string{sides + "medusa-own.gguf"} }, "is given by --heads"},
		{func(c *Config) { c.Drafts = []string{"lookup"} }, "--draft lookup: want GGUF files"},
		{func(c *Config) { c.Drafts = []string{"a/x.gguf", "b/x.gguf"} }, "two files are called x"},
		{func(c *Config) { c.Drafts = []string{"../../models/gopher-draft-go-f16.gguf"} }, "does not speak the vocabulary"},
		{func(c *Config) { c.Heads[0] = "none.gguf" }, "none.gguf"},
		{func(c *Config) { c.Prompts = "none.jsonl" }, "--prompts none.jsonl"},
		{func(c *Config) { c.Only = []string{"three"} }, "--domain three"},
		{func(c *Config) { c.Count = 4 }, "--count 4 --calibrate 5"},
		{func(c *Config) { c.Count = 0 }, "--count is 0"},
		{func(c *Config) { c.MaxTokens = 60 }, "a context of 64"},
		{func(c *Config) { c.MaxTokens = 3 }, "want 24 to 4096"},
		{func(c *Config) { c.Temperatures = []float64{math.NaN()} }, "--temperature [NaN]"},
		{func(c *Config) { c.Widths = []int{1} }, "want numbers from 2 to 64"},
		{func(c *Config) { c.Widths = nil }, "want numbers from 2 to 64"},
		{func(c *Config) { c.Timed = -1 }, "--timed is -1: want 0 or more"},
		{func(c *Config) { c.Rounds = 0 }, "--rounds is 0"},
		{func(c *Config) { c.Heads[0], c.Widths = sides+"ppd-4.gguf", []int{4} }, "ppd has 4 rows for each prompt token"},
	} {
		c := config(t, []string{"medusa-shared"}, nil)
		c.Count, c.Calibrate = 1, 5
		tc.change(&c)
		if _, err := Run(t.Context(), c); tandem.KindOf(err) != tandem.Invalid || !strings.Contains(err.Error(), tc.says) {
			t.Errorf("error %v: want Invalid that says %q", err, tc.says)
		}
	}
}

// TestPrint: the tables, with a way that has no figure at some width.
func TestPrint(t *testing.T) {
	r := &Result{Target: "target", Tokens: 96, Spread: 0.04, Published: published, Passes: []Pass{{1, 20}, {2, 21.5}, {16, 40}},
		Sources: []Source{{Name: "medusa", Kind: "medusa", Levels: 5}, {Name: "ppd", Kind: "ppd", Levels: 3, Members: 1},
			{Name: "dgf", Kind: "dovetail", Blocks: 2}},
		Temperatures: []*Temperature{{Temperature: 0, Texts: []TextCount{{"go", 700, 900}},
			Lengths: []Lengths{{"medusa", "go", []Length{{2, 1.61, 0}, {16, 2.4, 0}}}, {"medusa", "", []Length{{2, 1.6, 0}, {16, 2.3, 0}}},
				{"ppd", "", []Length{{16, 1.9, 0}, {256, 2.2, 0}}}},
			Accuracy: []Accuracy{{"medusa", 1, []TopRate{{1, 0.5}, {2, 0.6}, {3, 0.65}, {5, 0.7}, {10, 0.8}}},
				{"ppd", 1, []TopRate{{1, 0.4}, {2, 0.5}, {3, 0.55}, {5, 0.6}, {10, 0.7}}},
				{"medusa", 2, []TopRate{{1, 0.3}, {2, 0.4}, {3, 0.45}, {5, 0.5}, {10, 0.6}}}},
			Predictions: []Prediction{{"medusa", 16, 2.2, 2.35, 2.36, 2.3}, {"dgf", 16, 0, 3.2, 0, 3}},
			Transfer:    []Transfer{{"medusa", 16, "go", "go", 2.4, 1}, {"medusa", 16, "go", "", 2.2, 0.95}},
			Ablations:   []Ablation{{"medusa", 16, "greedy", 2.3, 1}, {"medusa", 16, "random", 1.4, 0.61}},
			Sizes: []Size{{"medusa", 2, 21.5, 1.5, 1.48, 1.4}, {"medusa", 16, 40, 1.17, 1.2, 1.1},
				{"ppd", 16, 40, 0.9, 0.95, 0}}},
			{Temperature: 1, Lengths: []Lengths{{"dgf", "", []Length{{16, 2.5, 2.6}}}}}}}
	var out bytes.Buffer
	if err := r.Print(&out); err != nil {
		t.Fatal(err)
	}
	testkit.Golden(t, "testdata/guesses.golden", out.Bytes())
}

// TestCost: between measured widths times lie on a line, beyond them they grow with the rows.
func TestCost(t *testing.T) {
	r := &Result{Passes: []Pass{{1, 10}, {4, 16}, {8, 32}}}
	for rows, want := range map[int]float64{1: 10, 2: 12, 4: 16, 6: 24, 8: 32, 16: 64} {
		if got := r.cost(rows); math.Abs(got-want) > 1e-9 {
			t.Errorf("%d rows: %v, want %v", rows, got, want)
		}
	}
}
