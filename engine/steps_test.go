package engine_test

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/engine"
	"github.com/tandem-llm/tandem/engine/enginetest"
	"github.com/tandem-llm/tandem/kernels"
	"github.com/tandem-llm/tandem/kernels/cuda/emulated"
	"github.com/tandem-llm/tandem/kernels/testdevice"
	"github.com/tandem-llm/tandem/modelfile/side"
)

// stepKinds are the files of drafts that go step by step and of their targets, by kind: those of testdata, one of each of draftShapes, MTP
// layers, and models that read tokens alone, one of which knows some tokens.
func stepKinds(t *testing.T) map[string][2]string {
	target := sidePath("target")
	kinds := map[string][2]string{"tokens": {target, target}}
	for name, path := range draftFiles(t) {
		kinds[name] = [2]string{path, target}
	}
	for _, name := range mtpTargets {
		kinds[name] = [2]string{sidePath(name + "-mtp"), sidePath(name)}
		kinds[name+" inside"] = [2]string{side.MTPPath(sidePath(name)), sidePath(name)}
	}
	return kinds
}

func openStep(t *testing.T, files [2]string, d kernels.Device) *engine.Model {
	t.Helper()
	m, err := engine.OpenDraft(files[0], files[1], engine.Options{Device: d, KVPages: engine.PagesFor(2, 400, 32), MaxRows: 320})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(m.Close)
	return m
}

// stepping is a draft that drafts chains behind a text, or trees.
type stepping struct {
	t   *testing.T
	m   *engine.Model
	s   *engine.Sequence
	out []string // everything that was found, to compare
}

func newStepping(t *testing.T, m *engine.Model) *stepping {
	return &stepping{t: t, m: m, s: enginetest.NewSeq(t, m, min(m.Config().Context, 400), 32)}
}

// states returns states of the target for n rows, or the draft's own ones; none for a draft of tokens.
func (d *stepping) states(n int, own ...[]float32) (all []engine.State) {
	width, _ := d.m.StateWidth()
	for i := range n {
		switch {
		case width == 0:
		case len(own) > 0:
			all = append(all, engine.State{Own: own[i]})
		default:
			x := make([]float32, width)
			for k := range x {
				x[k] = float32(math.Sin(float64(1 + d.s.Len() + i + 7*k)))
			}
			all = append(all, engine.State{Target: x})
		}
	}
	return all
}

// text is a part with n more tokens of the text.
func (d *stepping) text(n int) engine.Part {
	p := engine.Part{Seq: d.s, States: d.states(n), Want: engine.WantTail}
	for i := range n {
		p.Extend = append(p.Extend, tandem.Token((17*(d.s.Len()+i)+5)%d.m.Config().Vocab))
	}
	return p
}

// note keeps what was found of wanted row i of the output, row `row` of a part, and returns the best token and the state behind it.
func (d *stepping) note(o *engine.Output, i, part, row int) (tandem.Token, []float32) {
	top, state := o.Top(i), []float32(nil)
	if width, _ := d.m.StateWidth(); width > 0 {
		state = slices.Clone(o.Hidden(part, row))
	}
	bits := func(x []float32) (all []uint32) {
		for _, v := range x {
			all = append(all, math.Float32bits(v))
		}
		return all
	}
	d.out = append(d.out, fmt.Sprint(top.IDs, bits(top.Logits), bits([]float32{top.Max, top.Sum}), bits(state)))
	return tandem.Token(top.IDs[0]), state
}

// behind adds a chain of n rows to p, and runs it: at once or step by step.
func (d *stepping) behind(p engine.Part, n int, atOnce bool, beside ...engine.Part) {
	d.t.Helper()
	rows := len(p.Extend) + len(p.Nodes)
	first := int32(d.s.Nodes() + len(p.Nodes)) // of the chain
	if atOnce {
		for i := range n {
			p.Nodes, p.Parents = append(p.Nodes, 0), append(p.Parents, first+int32(i)-1)
		}
		p.Chain = n
	}
	out := enginetest.Forward(d.t, d.m, 4, append([]engine.Part{p}, beside...)...)
	wanted := len(p.Nodes) - p.Chain + min(len(p.Extend), 1)
	if p.Want == engine.WantAll {
		wanted = rows
	}
	token, state := d.note(out, wanted-1, 0, rows-1)
	for i := range n {
		if atOnce {
			if got := p.Nodes[len(p.Nodes)-n+i]; got != token {
				d.t.Fatalf("row %d of a chain has token %d, want %d, the best behind the row before", i, got, token)
			}
			token, state = d.note(out, wanted+i, 0, rows+i)
			continue
		}
		out = enginetest.Forward(d.t, d.m, 4, engine.Part{Seq: d.s, Nodes: []tandem.Token{token}, Parents: []int32{first + int32(i) - 1},
			States: d.states(1, state), Want: engine.WantTail})
		token, state = d.note(out, 0, 0, 0)
	}
}

// dialogue drafts behind a text, below branches of a tree, and behind accepted rows.
func (d *stepping) dialogue(atOnce bool) []string {
	d.t.Helper()
	long := 30
	if d.s.Capacity() == 400 {
		long = 260 // across the edge of a block of positions
	}
	d.behind(d.text(long), 3, atOnce)
	_, own := d.m.StateWidth()
	twice := make([][]float32, 2)
	for i := range twice {
		for k := range own {
			twice[i] = append(twice[i], float32(math.Cos(float64(i+k))))
		}
	}
	d.behind(engine.Part{Seq: d.s, Nodes: []tandem.Token{7, 8}, Parents: []int32{0, 1}, States: d.states(2, twice...),
		Want: engine.WantTail}, 5, atOnce)
	if err := d.s.Commit([]int32{0, 1, 4}); err != nil {
		d.t.Fatal(err)
	}
	d.behind(d.text(2), 4, atOnce)
	d.behind(engine.Part{Seq: d.s, Nodes: []tandem.Token{9}, Parents: []int32{-1}, States: d.states(1, twice[0]), Want: engine.WantTail},
		1, atOnce)
	return d.out
}

// TestChains: a chain that the device runs at once gives the tokens, best values and states of passes one after the other, to the bit, for
// every kind of draft, on a GPU with memory of its own and on one in the processor's. So do those passes on the processor.
func TestChains(t *testing.T) {
	apart, _ := testdevice.GPU(t, emulated.Options{})
	inMemory, _ := testdevice.GPU(t, emulated.Options{Integrated: true})
	for name, files := range stepKinds(t) {
		host := openStep(t, files, testdevice.CPU(t, 1))
		if host.Chains() {
			t.Errorf("%s: chains on the processor", name)
		}
		want := newStepping(t, host).dialogue(false)
		for where, d := range map[string]kernels.Device{"apart": apart, "in memory": inMemory} {
			m := openStep(t, files, d)
			if m.Names() != host.Names() || !m.Chains() {
				t.Errorf("%s, %s: chains: %v; names %v, want %v", name, where, m.Chains(), m.Names(), host.Names())
			}
			for _, atOnce := range []bool{false, true} {
				got := newStepping(t, m).dialogue(atOnce)
				for i := range want {
					if i >= len(got) || got[i] != want[i] {
						t.Errorf("%s, %s, at once: %v: result %d of %d differs", name, where, atOnce, i, len(want))
						break
					}
				}
			}
			m.Close()
		}
		host.Close()
	}
}

// TestStepCalls: a step of a draft on a GPU, which is the next row of its tree, takes one upload, one graph, and one read that waits. A
// chain takes as many for all of its steps.
func TestStepCalls(t *testing.T) {
	want := emulated.Calls{Writes: 1, Reads: 1, Graphs: 1, Waits: 1}
	for name, files := range stepKinds(t) {
		if strings.HasPrefix(name, "qwen35moe") {
			continue // which experts it has used is a read of its own
		}
		gpu, driver := testdevice.GPU(t, emulated.Options{})
		if driver == nil {
			t.Skip("a real GPU does not tell what it is asked for")
		}
		d := newStepping(t, openStep(t, files, gpu))
		d.behind(d.text(3), 0, true)
		for i := range 4 {
			p := engine.Part{Seq: d.s, Nodes: []tandem.Token{7}, Parents: []int32{int32(d.s.Nodes()) - 1}, Want: engine.WantTail}
			_, own := d.m.StateWidth()
			p.States = d.states(1, make([]float32, own))
			driver.Calls()
			d.behind(p, 0, true)
			if calls := driver.Calls(); i > 1 && calls != want {
				t.Errorf("%s: a step: %+v, want %+v", name, calls, want)
			}
		}
		for i := range 4 {
			if err := d.s.Reroot(nil, nil); err != nil {
				t.Fatal(err)
			}
			driver.Calls()
			d.behind(d.text(1), 6, true)
			if calls := driver.Calls(); i > 1 && calls != want {
				t.Errorf("%s: a chain of 6: %+v, want %+v", name, calls, want)
			}
		}
	}
}

// TestChainsBeside: a chain changes nothing of what else is in its pass: other chains, shorter ones, a text and a tree, whose logits are
// there as ever.
func TestChainsBeside(t *testing.T) {
	gpu, _ := testdevice.GPU(t, emulated.Options{})
	for _, name := range []string{"tokens", "eagle3", "dovetail"} {
		files := stepKinds(t)[name]
		var all [2][]string
		for i := range all {
			m := openStep(t, files, gpu)
			var ds [4]*stepping
			for j := range ds {
				ds[j] = newStepping(t, m)
				ds[j].behind(ds[j].text(3+j), 0, false)
			}
			own := func(rows int) (states []engine.State) {
				for range rows {
					_, n := m.StateWidth()
					states = append(states, ds[0].states(1, slices.Repeat([]float32{0.25}, n))...)
				}
				return states
			}
			text, tree, short, long := ds[0].text(2), engine.Part{Seq: ds[1].s, Nodes: []tandem.Token{4, 5, 6}, Parents: []int32{-1, 0, -1},
				States: own(3), Want: engine.WantTail}, ds[2].text(1), ds[3].text(4)
			long.Want = engine.WantAll
			lengths := []int{0, 0, 2, 5}
			parts := []engine.Part{text, tree, short, long}
			for j, n := range lengths {
				if i == 0 {
					ds[j].behind(parts[j], n, false)
					continue
				}
				for k := range n {
					parts[j].Nodes, parts[j].Parents, parts[j].Chain = append(parts[j].Nodes, 0), append(parts[j].Parents, int32(k)-1), n
				}
			}
			if i == 1 {
				out := enginetest.Forward(t, m, 4, parts...)
				for j, n := range lengths {
					last := len(parts[j].Extend) + len(parts[j].Nodes) - n - 1
					wanted := out.First(j) + []int{0, 2, 0, 3}[j]
					for k := range n + 1 {
						ds[j].note(out, wanted+k, j, last+k)
					}
					top, logits := out.Top(wanted), out.Logits(wanted)
					if (logits == nil) != (n > 0) || n == 0 && logits[top.IDs[0]] != top.Max {
						t.Errorf("%s: part %d: %d logits", name, j, len(logits))
					}
				}
			}
			for _, d := range ds {
				all[i] = append(all[i], d.out...)
			}
		}
		if !slices.Equal(all[0], all[1]) {
			t.Errorf("%s: chains side by side find %d results, alone %d, or others", name, len(all[1]), len(all[0]))
		}
	}
}

// TestBadChains: chains that cannot be are refused before anything runs.
func TestBadChains(t *testing.T) {
	gpu, _ := testdevice.GPU(t, emulated.Options{})
	on := newStepping(t, openStep(t, stepKinds(t)["eagle"], gpu))
	off := newStepping(t, openStep(t, stepKinds(t)["eagle"], testdevice.CPU(t, 1)))
	on.behind(on.text(1), 0, false)
	for want, c := range map[string]struct {
		of   *stepping
		topK int
		edit func(p *engine.Part)
	}{
		"want a model with chains": {off, 4, func(*engine.Part) {}},
		"the best 0 tokens":        {on, 0, func(*engine.Part) {}},
		"parent 0: want -1":        {on, 4, func(p *engine.Part) { p.Parents[0] = 0 }},
		"parent -1: want 0":        {on, 4, func(p *engine.Part) { p.Parents[1] = -1 }},
		"3 tree rows of 2":         {on, 4, func(p *engine.Part) { p.Chain = 3 }},
		"-1 tree rows":             {on, 4, func(p *engine.Part) { p.Chain = -1 }},
		"behind a row with logits": {on, 4, func(p *engine.Part) { p.Want = engine.WantNone }},
		"behind 0 rows of text":    {on, 4, func(p *engine.Part) { p.Extend, p.States = nil, nil }},
		"1 tree rows of 2, behind": {on, 4, func(p *engine.Part) { p.Nodes[0], p.Chain = -1, 1 }}, // behind a prompt row
	} {
		p := c.of.text(2)
		p.Nodes, p.Parents, p.Chain = []tandem.Token{0, 0}, []int32{-1, 0}, 2
		c.edit(&p)
		_, err := c.of.m.Forward([]engine.Part{p}, c.topK)
		if tandem.KindOf(err) != tandem.Invalid || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: want %q, of kind invalid", err, want)
		}
	}
	on.behind(on.text(2), 2, true) // it goes on
}

// TestGuessCalls: what the other drafts of a GPU cost: the guess of a self-draft behind a row, and a block behind a text.
func TestGuessCalls(t *testing.T) {
	for name, want := range map[string]emulated.Calls{
		"medusa-shared": {Writes: 2, Reads: 4, Graphs: 2, Waits: 5}, // three heads, whose states go into the output product
		"medusa-own":    {Writes: 1, Reads: 2, Graphs: 2, Waits: 2}, // two heads
		"ppd-1":         {Writes: 1, Reads: 1, Graphs: 1, Waits: 1},
		"dflash":        {Writes: 1, Reads: 1, Graphs: 1, Waits: 1},
	} {
		gpu, driver := testdevice.GPU(t, emulated.Options{})
		if driver == nil {
			t.Skip("a real GPU does not tell what it is asked for")
		}
		var guess func()
		if name == "dflash" {
			r := newBlockRig(t, sidePath(name), gpu)
			r.run(r.text(0, 3))
			guess = func() {
				enginetest.Forward(t, r.m, 3, r.block(0, 70))
				if err := r.seqs[0].Reroot(nil, nil); err != nil {
					t.Fatal(err)
				}
			}
		} else {
			m := openSides(t, engine.Options{Device: gpu}, name)
			way := m.SelfDrafts()[0]
			ask := engine.GuessAsk{SelfDraft: way.Name}
			for range max(way.Members*way.Levels, 1) {
				ask.Hidden = append(ask.Hidden, make([]float32, m.Config().Dim))
			}
			guess = func() {
				if _, err := m.Guess([]engine.GuessAsk{ask}, 4); err != nil {
					t.Fatal(err)
				}
			}
		}
		for i := range 4 {
			driver.Calls()
			guess()
			if calls := driver.Calls(); i > 1 && calls != want {
				t.Errorf("%s: %+v, want %+v", name, calls, want)
			}
		}
	}
}
