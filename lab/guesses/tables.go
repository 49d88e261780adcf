package guesses

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/spec"
	"github.com/tandem-llm/tandem/spec/shape"
)

// describe returns the result before anything was measured.
func (b *bench) describe() *Result {
	r := &Result{Target: name(b.Target), Tokens: b.MaxTokens, Published: published}
	for _, w := range b.ways {
		r.Sources = append(r.Sources, Source{Name: w.Name, Kind: w.Name, Levels: w.Levels, Members: w.Members})
	}
	for _, d := range b.drafts {
		r.Sources = append(r.Sources, Source{Name: d.name, Kind: cmp.Or(d.kind, "draft"), Blocks: d.blocks})
	}
	return r
}

// fitted is a way's tree of one size, made on calibration texts.
type fitted struct {
	way    tandem.SelfDraft
	width  int
	table  *shape.Accuracy
	shape  shape.Shape  // medusa: greedy
	sparse shape.Sparse // ppd
}

// fit makes a way's tree of that many nodes. Errors: Invalid if there is too little text, or room for not even one prompt token.
func fit(texts []*text, w tandem.SelfDraft, width int) (f *fitted, err error) {
	f = &fitted{way: w, width: width}
	if w.Members > 0 {
		f.table, f.sparse, err = shape.FitSparse(samples(texts, w.Name), w, candidates, width)
	} else {
		f.table, f.shape, err = shape.Fit(samples(texts, w.Name), w.Levels, candidates, width)
	}
	return f, err
}

// on returns what rounds with the tree decide in texts.
func (f *fitted) on(texts []*text) tally {
	if f.way.Members > 0 {
		return sparse(&f.sparse, samples(texts, f.way.Name))
	}
	return shaped(f.shape, samples(texts, f.way.Name))
}

// foretold returns the acceptance length that the table foretells.
func (f *fitted) foretold() float64 {
	if f.way.Members > 0 {
		return f.sparse.Length
	}
	return f.shape.Length(f.table.Rate())
}

// searched returns f with a tree that local search has made better on calibration texts.
func (f *fitted) searched(texts []*text) *fitted {
	list := samples(texts, f.way.Name)
	out := *f
	out.shape, _ = shape.Improve(f.shape, f.table.Rate(), candidates, func(s shape.Shape) float64 { return shaped(s, list).length() },
		searchCalls)
	return &out
}

const (
	searchCalls = 200 // trees that local search judges at most
	draws       = 16  // random trees of a mean
)

// judging is the evaluation at one temperature.
type judging struct {
	*bench
	out         *Temperature
	result      *Result
	judged, cal []*text
	fits        map[string][]*fitted // by way, by width
	sampling    tandem.Sampling
}

// at measures at one temperature.
func (b *bench) at(t float64, r *Result) (*Temperature, error) {
	j := &judging{bench: b, result: r, out: &Temperature{Temperature: t}, fits: map[string][]*fitted{}, sampling: b.sampling(t)}
	var err error
	if j.judged, j.cal, err = b.texts(t); err != nil {
		return nil, err
	}
	j.count()
	for _, step := range []func() error{j.fit, j.alone, j.predict, j.together, j.accuracy, j.transfer, j.ablate, j.sizes} {
		b.tell(fmt.Sprintf("temperature %v, trees", t))
		if err := cmp.Or(b.ctx.Err(), step()); err != nil {
			return nil, err
		}
	}
	return j.out, nil
}

// count tells how much text there is.
func (j *judging) count() {
	for _, d := range j.domains {
		c := TextCount{Domain: d.Name}
		for _, x := range of(j.judged, d.Name) {
			c.Judged += len(x.Text) - x.Prompt
		}
		for _, x := range of(j.cal, d.Name) {
			c.Calibration += len(x.Text) - x.Prompt
		}
		j.out.Texts = append(j.out.Texts, c)
	}
}

// widths returns the sizes at which a way has trees.
func (j *judging) widths(w tandem.SelfDraft) []int {
	if w.Members == 0 {
		return j.Widths
	}
	return slices.DeleteFunc(slices.Concat(j.Widths, j.further()), func(n int) bool { return n <= w.Members })
}

// fit makes the trees of all ways.
func (j *judging) fit() error {
	for _, w := range j.ways {
		if len(j.widths(w)) == 0 {
			return tandem.Errorf("", tandem.Invalid, "--width %v: %s has %d rows for each prompt token, so its trees have %d nodes or more",
				j.Widths, w.Name, w.Members, w.Members+1)
		}
		for _, n := range j.widths(w) {
			f, err := fit(j.cal, w, n)
			if err != nil {
				return err
			}
			j.fits[w.Name] = append(j.fits[w.Name], f)
		}
	}
	return nil
}

// places returns the domains to judge, and "" for all of them.
func (j *judging) places() (out []string) {
	for _, d := range j.domains {
		out = append(out, d.Name)
	}
	return append(out, "")
}

// alone judges the trees that were made by the tables.
func (j *judging) alone() error {
	for _, w := range j.ways {
		fits := slices.Clone(j.fits[w.Name])
		for i, f := range fits {
			if w.Members == 0 {
				fits[i] = f.searched(j.cal)
			}
		}
		for _, domain := range j.places() {
			l := Lengths{Trees: w.Name, Domain: domain}
			for _, f := range fits {
				l.Tau = append(l.Tau, Length{Width: f.width, Tau: f.on(of(j.judged, domain)).length()})
			}
			j.out.Lengths = append(j.out.Lengths, l)
		}
	}
	return nil
}

// together judges trees that follow each guess: of each way and draft alone, and of several.
func (j *judging) together() error {
	type group struct {
		name   string
		ways   []tandem.SelfDraft
		drafts []string
	}
	var groups []group
	var others []tandem.SelfDraft // without prompt nodes
	var drafts []string
	for _, w := range j.ways {
		groups = append(groups, group{w.Name + ", each guess", []tandem.SelfDraft{w}, nil})
		if w.Members == 0 {
			others = append(others, w)
		}
	}
	for _, d := range j.drafts {
		drafts = append(drafts, d.name)
		groups = append(groups, group{d.name, nil, drafts[len(drafts)-1:]})
	}
	if len(j.ways)+len(drafts) > 1 {
		groups = append(groups, group{"all", j.ways, drafts})
	}
	if len(others) < len(j.ways) && len(others)+len(drafts) > 1 {
		groups = append(groups, group{"all but ppd", others, drafts})
	}
	for _, g := range groups {
		rows := make([]Lengths, len(j.places()))
		for i, domain := range j.places() {
			rows[i] = Lengths{Trees: g.name, Domain: domain}
		}
		for k, n := range j.Widths {
			if err := j.ctx.Err(); err != nil {
				return err
			}
			mix, sum := j.learned(g.ways, g.drafts, k, n), tally{}
			for i, domain := range j.places() {
				t := sum
				if domain != "" {
					t = replayAll(of(j.judged, domain), j.merged(g.ways, g.drafts, k, n, mix.Clone()))
					sum.add(t)
				}
				foretold := 0.0
				if t.rounds > 0 {
					foretold = t.foretold / float64(t.rounds)
				}
				rows[i].Tau = append(rows[i].Tau, Length{n, t.length(), foretold})
				if domain == "" {
					j.out.Predictions = append(j.out.Predictions, Prediction{Trees: g.name, Width: n, Foretold: foretold,
						Judged: t.length()})
				}
			}
		}
		j.out.Lengths = append(j.out.Lengths, rows...)
	}
	return nil
}

// learned returns what rounds on the calibration texts teach about several drafts.
func (j *judging) learned(ways []tandem.SelfDraft, drafts []string, k, nodes int) *spec.Mix {
	mix := spec.NewMix()
	if len(ways)+len(drafts) > 1 {
		replayAll(j.cal, j.merged(ways, drafts, k, nodes, mix))
	}
	return mix
}

// merged returns a maker of trees of size number k.
func (j *judging) merged(ways []tandem.SelfDraft, drafts []string, k, nodes int, mix *spec.Mix) *merged {
	m := &merged{nodes: nodes, drafts: drafts, mix: mix}
	for _, w := range ways {
		f := j.nearest(w, nodes)
		m.ways = append(m.ways, wayTable{w, f.table})
		if w.Members > 0 {
			m.lengths = f.sparse.Lengths
		}
	}
	return m
}

// nearest returns a way's tree of that size, or of the next larger one; the largest if there is none.
func (j *judging) nearest(w tandem.SelfDraft, nodes int) *fitted {
	fits := j.fits[w.Name]
	if i := slices.IndexFunc(fits, func(f *fitted) bool { return f.width >= nodes }); i >= 0 {
		return fits[i]
	}
	return fits[len(fits)-1]
}

// tops are the numbers of candidates for which accuracy is told.
var tops = []int{1, 2, 3, 5, candidates}

// accuracy counts how often the candidates of each level are right.
func (j *judging) accuracy() error {
	for _, w := range j.ways {
		for level := range w.Levels {
			a := Accuracy{Way: w.Name, Level: level + 1}
			for _, n := range tops {
				seen, right := 0, 0
				for _, text := range samples(j.judged, w.Name) {
					for _, s := range text {
						if level < len(s.Ranks) {
							seen++
							if r := int(s.Ranks[level]); r >= 0 && r < n {
								right++
							}
						}
					}
				}
				a.Top = append(a.Top, TopRate{n, float64(right) / float64(max(seen, 1))})
			}
			j.out.Accuracy = append(j.out.Accuracy, a)
		}
	}
	return nil
}

// predict compares what the tables foretell with what is.
func (j *judging) predict() error {
	for _, w := range j.ways {
		for _, f := range j.fits[w.Name] {
			p := Prediction{Trees: w.Name, Width: f.width, Foretold: f.foretold(), Calibration: f.on(j.cal).length(),
				Judged: f.on(j.judged).length()}
			if w.Members == 0 {
				p.Independent = f.shape.Length(f.table.Independent())
			}
			j.out.Predictions = append(j.out.Predictions, p)
		}
	}
	return nil
}

// transferWidth is the size of the trees that are judged on other domains.
const transferWidth = 16

// transfer judges trees of each domain on the others.
func (j *judging) transfer() error {
	for _, w := range j.ways {
		widths := j.widths(w)
		width := widths[0]
		for _, n := range widths {
			if n <= transferWidth {
				width = n
			}
		}
		tau := map[[2]string]float64{}
		for _, from := range j.places() {
			f, err := fit(of(j.cal, from), w, width)
			if err != nil {
				return err
			}
			for _, to := range j.places() {
				tau[[2]string{from, to}] = f.on(of(j.judged, to)).length()
			}
		}
		for _, from := range j.places() {
			for _, to := range j.places() {
				v := tau[[2]string{from, to}]
				j.out.Transfer = append(j.out.Transfer, Transfer{Way: w.Name, Width: width, From: from, To: to, Tau: v,
					OfOwn: v / tau[[2]string{to, to}]})
			}
		}
	}
	return nil
}

// ablate judges trees of which a part of the making was left out.
func (j *judging) ablate() error {
	for _, w := range j.ways {
		for _, f := range j.fits[w.Name] {
			var list []Ablation
			add := func(trees string, tau float64) {
				list = append(list, Ablation{Way: w.Name, Width: f.width, Trees: trees, Tau: tau})
			}
			if w.Members == 0 {
				add("greedy and search", f.searched(j.cal).on(j.judged).length())
				add("greedy", f.on(j.judged).length())
				add("full", shaped(j.full(w, f.width), samples(j.judged, w.Name)).length())
				add("random", random(func(seed uint64) tally {
					return shaped(shape.Random(seed, f.width, w.Levels, candidates), samples(j.judged, w.Name))
				}))
			} else if err := j.ablateSparse(f, add); err != nil {
				return err
			}
			for i := range list {
				list[i].OfBest = list[i].Tau / list[0].Tau
			}
			j.out.Ablations = append(j.out.Ablations, list...)
		}
	}
	return nil
}

// random returns the mean acceptance length of random trees.
func random(judge func(seed uint64) tally) float64 {
	var all []float64
	for seed := range uint64(draws) {
		all = append(all, judge(seed).length())
	}
	return mean(all)
}

// full returns the full tree with as many children of every node as suit the calibration texts best.
func (j *judging) full(w tandem.SelfDraft, nodes int) (best shape.Shape) {
	most := 0.0
	for branches := 1; branches <= candidates; branches++ {
		s := shape.Full(slices.Repeat([]int{branches}, w.Levels), nodes)
		if v := shaped(s, samples(j.cal, w.Name)).length(); v > most {
			best, most = s, v
		}
	}
	return best
}

// ablateSparse judges ppd's tree with a static and with random choices of prompt tokens.
func (j *judging) ablateSparse(f *fitted, add func(string, float64)) error {
	list := samples(j.judged, f.way.Name)
	add("dynamic", f.on(j.judged).length())
	if f.width >= 1+f.way.Levels*f.way.Members {
		sp, err := shape.Static(f.table.Rate(), f.way, candidates, f.width)
		if err != nil {
			return err
		}
		add("static", sparse(&sp, list).length())
	}
	states := f.sparse.States
	chosen := states[len(states)-1].Shape.Len()
	if _, err := shape.RandomSparse(0, f.table.Rate(), f.way, candidates, chosen, f.width); err != nil {
		return err
	}
	add("random", random(func(seed uint64) tally {
		sp, err := shape.RandomSparse(seed, f.table.Rate(), f.way, candidates, chosen, f.width)
		if err != nil {
			return tally{} // as with seed 0, so never
		}
		return sparse(&sp, list)
	}))
	return nil
}

// sizes compares the size that should be best with the one that is.
func (j *judging) sizes() error {
	one := j.result.cost(1)
	for _, w := range j.ways {
		first := len(j.out.Sizes)
		for _, f := range j.fits[w.Name] {
			s := Size{Way: w.Name, Width: f.width, MS: j.result.cost(f.width)}
			if w.Members > 0 {
				s.MS = float64(f.sparse.Time(func(rows int) time.Duration { return time.Duration(1e6 * j.result.cost(rows)) })) / 1e6
			} else {
				s.MS = j.result.cost(f.shape.Len())
			}
			s.Foretold, s.Judged = f.foretold()*one/s.MS, f.on(j.judged).length()*one/s.MS
			j.out.Sizes = append(j.out.Sizes, s)
		}
		if err := j.real(w, j.out.Sizes[first:]); err != nil {
			return err
		}
	}
	return nil
}

// real decodes judged texts with real rounds, plain and with trees of all sizes in turn, and notes how much faster the trees are.
func (j *judging) real(w tandem.SelfDraft, sizes []Size) error {
	var texts []*text
	for _, d := range j.domains {
		texts = append(texts, of(j.judged, d.Name)[:min(j.Timed, j.Count)]...)
	}
	plans := []plan{plain}
	for _, f := range j.fits[w.Name] {
		plans = append(plans, f.plan())
	}
	took := make([]time.Duration, len(plans))
	for i, x := range texts {
		for k := range plans {
			if i%2 == 1 {
				k = len(plans) - 1 - k // forwards and backwards by turns
			}
			j.tell(fmt.Sprintf("temperature %v, rounds of %s", j.sampling.Temperature, w.Name))
			_, t, err := j.decode(x, j.sampling, plans[k])
			if err != nil {
				return err
			}
			took[k] += t
		}
	}
	for i := range sizes {
		if len(texts) > 0 {
			sizes[i].Real = float64(took[0]) / float64(took[i+1])
		}
	}
	return nil
}

// plan returns real rounds with f's tree.
func (f *fitted) plan() plan {
	rate := f.table.Rate()
	return plan{&f.way, func(said []tandem.Token, g tandem.Guess) tandem.Tree {
		root := said[len(said)-1]
		if f.way.Members > 0 {
			return f.sparse.Tree(root, g, rate)
		}
		return f.shape.Tree(root, g, rate)
	}}
}
