package cuda

import (
	"errors"
	"fmt"
	"slices"

	"github.com/tandem-llm/tandem/kernels"
)

// runner is a kernels.Runner. Its memory on the GPU holds operations, buffers and results; a second piece, which grows, the input of a
// pass; one more for each of the program's Parts, the blocks of divided attention. Of a half the buffers and Parts lie where the processor
// sees them too.
type runner struct {
	dev      *Device
	program  *placed
	weights  kernels.Weights
	resident bool // the weights lie where the operations look
	limits   kernels.PassLimits
	mem      Memory
	buffers  Memory // where buffers lie: mem, or what the processor sees too
	staging  Memory // for the weights of one stage, if they come from elsewhere
	input    Memory
	hand     Memory // for what is exchanged with another device: see bulk
	packed   []byte // as it goes there
	items    []item
	stages   []stage
	parts    []partMemory
	mirrors  []mirror
	graphs   map[graphKey]Graph
	seen     map[graphKey]bool
	captured int // launches in graphs
	pass     inputs
	further  []*inputs // steps of a chain behind the first
	given    []place   // rows that come with the next pass
	link     *linked   // nil: no Link yet
	chaining bool      // the pass is a chain: it leaves results behind
	tops     []int32   // of the wanted rows of the last pass that had a TopK, stride numbers each
	stride   int
	found    int     // rows in tops
	chosen   []int32 // all routes of this pass, once they were asked for; nil before
	started  bool
	closed   bool
}

// stage is the launches of a stage, and what the caller may have written that it reads.
type stage struct {
	launches []launch
	tops     bool   // it has a TopK
	reads    []bool // per buffer: read by this stage or a later one before it is filled
}

type graphKey struct {
	from, to int // stages
	extent
	chaining bool
	further  int // steps behind the first, all within rest
	rest     extent
}

// mostPasses is how many kinds of passes have graphs at the same time: a pass is one graph, or one for each stage.
const mostPasses = 64

// mostLaunches is how many launches graphs have at least room for: chains of small drafts differ in length.
const mostLaunches = 1 << 13

// Compile lays out buffers and operations.
func (d *Device) Compile(p *kernels.Program, w kernels.Weights, c kernels.Cache) (kernels.Runner, error) {
	kv, err := kernels.CacheFor[*cache](p, c)
	if err != nil {
		return nil, err
	}
	r, err := d.compile(p, w, kv, false)
	if err != nil {
		return nil, err
	}
	return bulk{r}, nil
}

// compile compiles a program, or a half whose weights are in w's program.
func (d *Device) compile(p *kernels.Program, w kernels.Weights, kv *cache, shared bool) (*runner, error) {
	pages := 0
	if kv != nil {
		pages = kv.pages
	}
	l, err := newPlaced(p, pages, shared)
	if err != nil {
		return nil, err
	}
	if w == nil && len(p.Weights) > 0 {
		return nil, fmt.Errorf("cuda: a program with %d weights compiled without any", len(p.Weights))
	}
	r := &runner{dev: d, program: l, weights: w, limits: p.PassLimits(pages), graphs: map[graphKey]Graph{}, seen: map[graphKey]bool{},
		parts: make([]partMemory, len(p.Parts)), mirrors: make([]mirror, len(p.Buffers))}
	if r.mem, err = d.alloc(l.size); err == nil {
		r.input, err = d.alloc(l.inputBytes(pages))
	}
	if r.buffers = r.mem; err == nil && shared {
		r.buffers, err = d.allocShared(l.both.size)
	}
	if err == nil {
		err = r.lower(kv)
	}
	if err != nil {
		r.Close()
		return nil, err
	}
	return r, nil
}

// lower makes the operations, binds weights, and writes all of it to the GPU.
func (r *runner) lower(kv *cache) error {
	l := &lowering{placed: r.program, base: r.mem.At, buffers: r.buffers.At, cache: kv, turned: map[int]bool{}}
	var firsts []int
	for i := range l.StageCount() {
		firsts = append(firsts, len(r.items))
		from, to := l.StageOps(i)
		for j := from; j < to; j++ {
			all := l.inOrder(l.lower(j))
			if all[0].kernel == "angles" { // needs nothing of the stage
				r.items, all = slices.Insert(r.items, firsts[i], all[0]), all[1:]
			}
			r.items = append(r.items, all...)
		}
	}
	firsts = append(firsts, len(r.items))
	if err := r.bind(firsts); err != nil {
		return err
	}
	live := make([]bool, len(l.Buffers))
	r.stages = make([]stage, l.StageCount())
	for i := l.StageCount() - 1; i >= 0; i-- {
		items := r.items[firsts[i]:firsts[i+1]]
		r.stages[i].launches = launches(items, firsts[i])
		for _, x := range r.stages[i].launches {
			for j := range x.count {
				c := &r.items[x.first+j].c
				c.tail, c.done = l.at(l.ops+(x.first+x.count)*opBytes), l.at(l.done)
			}
		}
		for _, x := range slices.Backward(items) {
			r.stages[i].tops = r.stages[i].tops || x.form == topJoin
			for _, b := range x.writes {
				live[b] = false
			}
			for _, b := range x.reads {
				live[b] = true
			}
		}
		r.stages[i].reads = slices.Clone(live)
	}
	return r.dev.do(func(g Driver) error {
		err := r.writeOps(g)
		for i, o := range l.Ops {
			err = errors.Join(err, write(g, l.at(l.vecs[i]), view(kernels.Numbers(o))))
		}
		for i, s := range l.Routes {
			if s.Fixed {
				err = errors.Join(err, write(g, l.at(l.routes[i]), view(fixedRoute(s, l.MaxRows))))
			}
		}
		for i, t := range l.rotations {
			err = errors.Join(err, write(g, l.at(l.freqs[i]), view(t.InvFreq)))
		}
		return err
	})
}

func write(g Driver, to Pointer, b []byte) error {
	if len(b) == 0 {
		return nil
	}
	return g.Write(to, b)
}

func (r *runner) writeOps(g Driver) error {
	var all []cOp
	for i := range r.items {
		all = append(all, r.items[i].c)
	}
	return write(g, r.mem.At+Pointer(r.program.ops), view(append(all, r.stepOps()...)))
}

// bind tells the operations where their weights lie: in a store of this device, or where each stage's are brought.
func (r *runner) bind(firsts []int) error {
	at := func(w kernels.W) (Pointer, bool) { return 0, false }
	switch s := r.weights.(type) {
	case *store:
		for w := range r.program.Weights {
			if x := &r.program.Weights[w]; x.Lent && s.lent[kernels.W(w)].At == 0 {
				return fmt.Errorf("%w: weight %q is lent, and nobody has said where it lies", errKept, x.Name)
			}
		}
		at = func(w kernels.W) (Pointer, bool) { return s.pointer(w), true }
	case *kernels.Loan:
		if own, ok := s.Store.(*store); ok {
			at = func(w kernels.W) (Pointer, bool) { return own.pointer(s.From[w]), true }
		}
	}
	most := 0
	for i := range r.program.StageCount() {
		var l layout
		places := map[kernels.W]int{}
		for _, w := range r.program.StageWeights(i) {
			if _, r.resident = at(w); !r.resident {
				places[w] = l.add(r.program.Weights[w].Bytes())
			}
		}
		most = max(most, l.size)
		for j := firsts[i]; j < firsts[i+1]; j++ {
			if x := &r.items[j]; x.weight != kernels.None {
				x.c.w, _ = at(x.weight)
				x.c.w += Pointer(places[x.weight])
			}
		}
	}
	if most == 0 {
		r.resident = true
		return nil
	}
	var err error
	if r.staging, err = r.dev.alloc(most); err != nil {
		return err
	}
	for i := range r.items {
		if r.items[i].weight != kernels.None {
			r.items[i].c.w += r.staging.At
		}
	}
	return nil
}

// bring copies a stage's weights to the GPU.
func (r *runner) bring(g Driver, i int, all [][]byte) error {
	var l layout
	for j, w := range r.program.StageWeights(i) {
		n := r.program.Weights[w].Bytes()
		if len(all[j]) != n {
			return fmt.Errorf("%w: weight %q in %d bytes, want %d", errKept, r.program.Weights[w].Name, len(all[j]), n)
		}
		if err := g.Write(r.staging.At+Pointer(l.add(n)), all[j]); err != nil {
			return err
		}
	}
	return nil
}

// Run runs all stages: with resident weights without coming back in between.
func (r *runner) Run(a *kernels.Pass) error {
	if err := r.Start(a); err != nil {
		return err
	}
	r.started = false
	if r.resident {
		return r.run(0, len(r.stages))
	}
	for i := range r.stages {
		if err := r.run(i, i+1); err != nil {
			return err
		}
	}
	return nil
}

var errFreed = errors.New("cuda: the runner is closed")

// Start checks the pass and brings it to the GPU, with what the caller has written to buffers.
func (r *runner) Start(a *kernels.Pass) error {
	if r.closed {
		return errFreed
	}
	if err := r.limits.Check(a); err != nil {
		return err
	}
	r.take()
	r.pass.set(r.program, a, r.dev.chip.Processors)
	err := r.dev.do(func(g Driver) error {
		if err := r.begin(g); err != nil {
			return err
		}
		return r.growParts(g)
	})
	r.started = err == nil
	return err
}

// begin brings the passes to the GPU and forgets what was read of earlier ones.
func (r *runner) begin(g Driver) error {
	for b := range r.mirrors {
		r.mirrors[b].fresh = nil
	}
	r.chosen, r.found = nil, 0
	return r.bringPasses(g)
}

// Stage runs one stage of the pass that is started.
func (r *runner) Stage(i int) error {
	switch {
	case r.closed:
		return errFreed
	case !r.started || i < 0 || i >= len(r.stages):
		return fmt.Errorf("cuda: stage %d of %d, want one of a pass that is started", i, len(r.stages))
	}
	r.started = i+1 < len(r.stages)
	return r.run(i, i+1)
}

// Stages runs stages of the pass that is started: with resident weights without coming back in between.
func (r *runner) Stages(from, to int) error {
	if !r.resident || r.closed || !r.started || from < 0 || to > len(r.stages) || from >= to {
		for i := from; i < to; i++ {
			if err := r.Stage(i); err != nil {
				return err
			}
		}
		return nil
	}
	r.started = to < len(r.stages)
	return r.run(from, to)
}

// run runs stages [from, to) and waits for them. With resident weights they are one graph from the second pass of an extent on.
func (r *runner) run(from, to int) error {
	var weights [][]byte
	if !r.resident && len(r.program.StageWeights(from)) > 0 {
		var err error
		if weights, err = r.weights.Acquire(from, nil); err != nil {
			return fmt.Errorf("cuda: weights of %s: %w", r.program.StageName(from), err)
		}
		defer r.weights.Release(from)
	}
	return r.dev.do(func(g Driver) error {
		if weights != nil {
			if err := r.bring(g, from, weights); err != nil {
				return err
			}
		}
		if err := r.upload(g, r.stages[from].reads); err != nil {
			return err
		}
		if err := r.launchAll(g, from, to); err != nil {
			return err
		}
		if r.pass.nwanted > 0 && slices.ContainsFunc(r.stages[from:to], func(s stage) bool { return s.tops }) {
			return r.readResults(g, r.pass.nwanted, topRow, r.mem.At+Pointer(r.program.ids))
		}
		return g.Wait()
	})
}

func (r *runner) launchAll(g Driver, from, to int) error {
	all, rest := r.pass.extent(), extent{}
	chunks := len(r.pass.chunks)
	for i, n := range r.further {
		if chunks += len(n.chunks); i == 0 {
			rest = n.extent()
		}
		rest = rest.cover(n.extent())
	}
	if chunks > 0 || max(all.rows, rest.rows) > 64 || all.steps > 96 {
		return r.launchSteps(g, from, to, all, rest)
	}
	key := graphKey{from, to, all.up(), r.chaining, len(r.further), rest.up()}
	graph, ok := r.graphs[key]
	if !ok && !r.seen[key] {
		r.seen[key] = true
		return r.launchSteps(g, from, to, key.extent, key.rest)
	}
	if !ok {
		launches := r.count(from, to) * (1 + len(r.further))
		if r.captured += launches; r.captured > max(mostPasses*r.count(0, len(r.stages)), mostLaunches) {
			r.dropGraphs()
			r.captured = launches
		}
		var err error
		if graph, err = g.Capture(func() error { return r.launchSteps(g, from, to, key.extent, key.rest) }); err != nil {
			return err
		}
		r.graphs[key] = graph
	}
	return g.Run(graph)
}

// launchSteps launches the pass, or all steps of a chain.
func (r *runner) launchSteps(g Driver, from, to int, first, rest extent) error {
	if err := r.launch(g, &r.pass, 0, from, to, first); err != nil {
		return err
	}
	at := len(r.pass.heads)
	for _, n := range r.further {
		if err := r.launch(g, n, at, from, to, rest); err != nil {
			return err
		}
		at += len(n.heads)
	}
	return nil
}

// count returns the launches of stages [from, to).
func (r *runner) count(from, to int) (n int) {
	for _, s := range r.stages[from:to] {
		n += len(s.launches)
	}
	return n
}

func (r *runner) dropGraphs() {
	r.captured = 0
	for _, g := range r.graphs {
		g.Close()
	}
	clear(r.graphs)
	clear(r.seen)
}

// launch starts the kernels of stages [from, to) of a pass whose structure is number at.
func (r *runner) launch(g Driver, pass *inputs, at, from, to int, e extent) error {
	if from == 0 {
		if err := r.startStep(g, 0, e.enters, at); err != nil {
			return err
		}
	}
	for _, s := range r.stages[from:to] {
		for i := 0; i < len(s.launches); i++ {
			l := &s.launches[i]
			if n := len(pass.chunks); n > 0 && l.form == attending && l.parts == kernels.None {
				for c := range n { // as many rows at a time as there is room for
					if err := r.start(g, l, pass.chunks[c], at+c+1); err != nil {
						return err
					}
				}
				continue
			}
			if err := r.start(g, l, e, at); err != nil {
				return err
			}
		}
	}
	if r.chaining {
		return r.startStep(g, 1, e.wanted, at)
	}
	return nil
}

func (r *runner) start(g Driver, l *launch, e extent, pass int) error {
	kernel, shape, ok := l.shape(e, r.items[l.first:])
	op := r.mem.At + Pointer(r.program.ops)
	switch {
	case !ok && l.meeting > 0:
		return g.Launch("meet", grid(1, 1, 1, 1, 0), op+Pointer(l.meeting*opBytes), 0)
	case !ok:
		return nil
	}
	return g.Launch(kernel, shape, op+Pointer(l.first*opBytes), r.input.At+Pointer(pass*passBytes))
}

// Close frees the runner's memory.
func (r *runner) Close() {
	if r.closed {
		return
	}
	r.closed = true
	_ = r.dev.do(func(Driver) error {
		r.dropGraphs()
		return nil
	})
	if r.buffers.At != r.mem.At { // of a half; not if there was no memory for what comes before
		r.dev.free(r.buffers)
	}
	r.dev.free(r.mem, r.staging, r.input, r.hand)
	if r.link != nil {
		r.dev.free(r.link.mem)
	}
	for i := range r.parts {
		r.dev.free(r.parts[i].mem)
	}
}
