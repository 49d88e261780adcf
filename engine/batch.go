package engine

import (
	"errors"
	"math"
	"slices"
	"sort"
	"time"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/kernels"
)

// Want says which rows of a part get logits.
type Want uint8

const (
	WantNone Want = iota // none
	WantTail             // the last Extend row, if any, and every node with a token
	WantAll              // every row with a token
)

// Part is one sequence's share of a pass.
type Part struct {
	Seq     *Sequence
	Extend  []tandem.Token // appended to the committed prefix, causally; not while tree rows are held
	Nodes   []tandem.Token // tree rows, numbered Seq.Nodes(), Seq.Nodes()+1 …; -1-e: prompt row e, with that embedding of the ppd file
	Parents []int32        // per node: a tree row of Seq with a smaller number, or -1 for the end of the prefix
	States  []State        // per row, Extend rows and then Nodes; for drafts with states, else nil
	Want    Want

	places []place // of Nodes
	depths []int32 // of Nodes
	line   []int32 // the sequence's line, extended by some of Nodes
	walk   walk    // of recurrent layers
}

// Top holds the best tokens of one row of logits: (k) ids and logits, best first, ties to the lower
// id; Max is the largest logit and Sum the sum over the vocabulary of exp(logit-Max).
type Top struct {
	IDs      []int32
	Logits   []float32
	Max, Sum float32
}

// Output holds the results of a pass for its wanted rows, part by part, in order. It is valid
// until the model's next Forward.
type Output struct {
	model *Model
	first []int
	begin []int // per part: its first row in the pass; and the number of rows
	n     int

	waited  time.Duration
	experts []int32
}

// Waited returns for how long the pass waited for weights that are streamed; the rest of its time it computed.
func (o *Output) Waited() time.Duration { return o.waited }

// Experts returns how many experts the pass has used. nil: a model without any, or a device that does not tell.
func (o *Output) Experts() tandem.Experts { return o.experts }

// Len returns the number of wanted rows.
func (o *Output) Len() int { return o.n }

// First returns the index of the first wanted row of part i of the batch.
func (o *Output) First(i int) int { return o.first[i] }

// Logits returns the logits of wanted row i: (vocab); -Inf for a token that the output matrix of a draft has no row for.
func (o *Output) Logits(i int) []float32 {
	return o.model.outputs.widen(i, o.model.runner.Row(o.model.logits, i))
}

// Top returns the best tokens of wanted row i, as many as Forward was asked for.
func (o *Output) Top(i int) Top {
	top := Top(o.model.runner.Top(i))
	top.IDs = o.model.outputs.tokens(top.IDs)
	return top
}

// TopBelow returns the k best of the tokens below limit of wanted row i, for a caller that may use only those: Sum is over
// them alone. Unlike Top it scans the row. NaN counts as the lowest. There may be fewer than k, or none.
func (o *Output) TopBelow(i, k, limit int) Top {
	logits, of := o.model.runner.Row(o.model.logits, i), &o.model.outputs
	top := Top{IDs: make([]int32, 0, k+1), Logits: make([]float32, 0, k+1)}
	for row, v := range logits {
		id := of.token(row)
		if v != v {
			v = float32(math.Inf(-1))
		}
		if n := len(top.IDs); int(id) >= limit || n == k && v <= top.Logits[n-1] {
			continue
		}
		at := sort.Search(len(top.Logits), func(i int) bool { return top.Logits[i] < v })
		top.IDs, top.Logits = slices.Insert(top.IDs, at, id), slices.Insert(top.Logits, at, v)
		top.IDs, top.Logits = top.IDs[:min(k, len(top.IDs))], top.Logits[:min(k, len(top.IDs))]
	}
	if len(top.IDs) == 0 {
		return top
	}
	top.Max = top.Logits[0]
	sum := 0.0
	for row, v := range logits {
		if v == v && int(of.token(row)) < limit {
			sum += math.Exp(float64(v - top.Max))
		}
	}
	top.Sum = float32(sum)
	return top
}

// Forward runs one pass over all rows of the batch and fills the topK best tokens of each wanted row
// (0 ≤ topK ≤ 64). When it returns nil, Extend rows are committed and tree rows held; on error no sequence
// has changed,
// except that with recurrent layers the sequences of a pass that had begun can only be closed. A row's result depends on its own tokens
// alone, not on what else is in the pass.
func (m *Model) Forward(batch []Part, topK int) (*Output, error) {
	f, p := running{m}, &m.pass
	p.reset(topK)
	defer func() {
		for _, part := range batch {
			if part.Seq != nil {
				part.Seq.inPass = false
			}
		}
	}()
	out := &Output{model: m, first: make([]int, len(batch)), begin: make([]int, len(batch)+1)}
	for i := range batch {
		out.first[i], out.begin[i] = len(p.Wanted), len(p.Tokens)
		if err := f.add(&batch[i]); err != nil {
			return nil, err
		}
	}
	out.n = len(p.Wanted)
	p.Rows = len(p.Tokens)
	out.begin[len(batch)] = p.Rows
	switch {
	case p.Rows == 0:
		return out, nil
	case p.Rows > m.options.MaxRows:
		return nil, tandem.Errorf("engine", tandem.Invalid, "a pass of %d rows: at most %d allowed", p.Rows, m.options.MaxRows)
	case out.n > m.options.MaxWanted:
		return nil, tandem.Errorf("engine", tandem.Invalid, "a pass with %d rows of logits: at most %d allowed", out.n, m.options.MaxWanted)
	}
	for i := range batch {
		if err := f.give(&batch[i], out.begin[i]); err != nil {
			return nil, err
		}
	}
	if err := f.walks(batch, out.begin); err != nil {
		return nil, err
	}
	before := f.waited()
	if err := f.run(batch, out); err != nil {
		for _, part := range batch {
			part.Seq.Distrust()
			part.Seq.broken = m.config.Recurrent()
		}
		return nil, f.passError(p.Rows, err)
	}
	out.waited, out.experts = f.waited()-before, f.experts(p.Rows)
	for i := range batch {
		batch[i].commit()
	}
	return out, nil
}

// run computes the pass that is laid out: of a block draft, two passes.
func (f running) run(batch []Part, out *Output) error {
	if f.Block().Rows > 0 {
		return f.runBlocks(batch, out)
	}
	return f.runner.Run(&f.pass.Pass)
}

// running is a model while a pass is laid out and run: the steps of Forward.
type running struct{ *Model }

// waited returns for how long all passes so far have waited for weights.
func (f running) waited() time.Duration {
	if s, ok := f.Passes().Streamer(); ok {
		return s.StreamStats().Waited
	}
	return 0
}

// passError gives the error of a pass its kind: that of the model file that the pass reads, if it does; Unavailable if the device is lost,
// since the process will start again; else Internal.
func (f running) passError(rows int, err error) error {
	kind := tandem.Internal
	if e := (*tandem.Error)(nil); errors.As(err, &e) {
		kind = e.Kind
	} else if d, ok := f.device.(kernels.Losable); ok && d.Lost() != nil {
		kind = tandem.Unavailable
	}
	return tandem.Errorf("engine", kind, "pass of %d rows: %w", rows, err)
}

// commit records the rows that a pass has written.
func (part *Part) commit() {
	s := part.Seq
	s.length, s.tokens = s.length+len(part.Extend), append(s.tokens, part.Extend...)
	s.parents, s.rows = append(s.parents, part.Parents...), append(s.rows, part.Nodes...)
	s.places, s.line = append(s.places, part.places...), append(s.line[:0], part.line...)
	for _, p := range part.places {
		if p.node >= 0 {
			s.taken[p.node] = true
		}
	}
	part.walked()
	s.grown()
}

// Reserve takes the pages that a pass with part writes to, and those that Commit and Reroot may then need, so that none of them can fail
// for lack of memory. Forward does the same; a caller that has several parts learns here whose memory is missing. Exhausted if too few
// pages are free; then nothing has changed. What else is wrong with part, Forward says.
func (m *Model) Reserve(part *Part) error {
	if (running{m}).check(part) != nil {
		return nil
	}
	return part.settle()
}

// settle chooses cells for the tree rows of a part: a row that continues the line goes to the
// next position, the others to free node cells. Callers name the likeliest children first, so that the rows accepted most
// often need no copy. A prompt row never gets a position: it is in no path. Errors: Exhausted, too few pages are free.
func (part *Part) settle() error {
	s, end := part.Seq, part.Seq.length+len(part.Extend)
	part.line, part.places, part.depths = append(part.line[:0], s.line...), part.places[:0], part.depths[:0]
	node, deepest := 0, int32(len(s.line))
	for i, parent := range part.Parents {
		depth := part.depth(parent) + 1
		if part.depths = append(part.depths, depth); part.Nodes[i] >= 0 {
			deepest = max(deepest, depth)
		}
		tip := int32(-1)
		if n := len(part.line); n > 0 {
			tip = part.line[n-1]
		}
		if parent == tip && end+len(part.line) < s.capacity && part.Nodes[i] >= 0 {
			part.line, part.places = append(part.line, int32(len(s.parents)+i)), append(part.places, place{node: -1})
			continue
		}
		for s.taken[node] {
			node++
		}
		part.places = append(part.places, place{node: node})
		node++
	}
	if err := s.pages.Grow(min(end+int(deepest), s.capacity), node); err != nil {
		return err
	}
	at := end + len(s.line)
	for i := range part.places {
		if p := &part.places[i]; p.node >= 0 {
			p.cell = s.pages.Node(p.node)
		} else {
			p.cell = s.pages.At(at)
			at++
		}
	}
	return nil
}

// depth returns how far below the prefix tree row n lies, one that the sequence holds or one of part: 1 for a child of the prefix, 0 for
// -1.
func (part *Part) depth(n int32) (d int32) {
	old := int32(len(part.Seq.parents))
	if n >= old {
		return part.depths[n-old]
	}
	for ; n >= 0; d++ {
		n = part.Seq.parents[n]
	}
	return d
}

// pass collects the rows of one Forward; its slices are reused from pass to pass.
type pass struct {
	kernels.Pass
	anc []kernels.Cell // scratch: a node's ancestors, nearest first
}

func (p *pass) reset(topK int) {
	q := &p.Pass
	*q = kernels.Pass{Tokens: q.Tokens[:0], Given: q.Given[:0], Pos: q.Pos[:0], Turn: q.Turn[:0], Store: q.Store[:0], Pages: q.Pages[:0],
		Table: q.Table[:0], Prefix: q.Prefix[:0], Anc: q.Anc[:0], AncOff: q.AncOff[:0], AncLen: q.AncLen[:0], Wanted: q.Wanted[:0],
		TopK: topK, Walks: q.Walks[:0]}
}

// add checks a part and appends its rows to the pass.
func (f running) add(part *Part) error {
	if err := f.check(part); err != nil {
		return err
	}
	if err := part.settle(); err != nil {
		return err
	}
	p, s := &f.pass, part.Seq
	s.inPass = true
	table := int32(len(p.Pages))
	end := s.length + len(part.Extend)
	p.Pages = append(p.Pages, s.pages.Table...)
	hidden := 0 // positions that the table of the latest row leaves out
	row := func(t tandem.Token, pos int, store kernels.Cell, prefix int, anc []kernels.Cell, wanted bool) {
		if wanted {
			p.Wanted = append(p.Wanted, int32(len(p.Tokens)))
		}
		if n := s.hidden(pos); n != hidden {
			first := s.window.First / kernels.PageRows
			hidden, table = n, int32(len(p.Pages))
			p.Pages = append(append(p.Pages, s.pages.Table[:first]...), s.pages.Table[first+n/kernels.PageRows:]...)
		}
		p.Tokens = append(p.Tokens, f.embedding(t))
		p.Pos, p.Turn = append(p.Pos, int32(pos-hidden)), append(p.Turn, int32(s.inText(pos)))
		p.Store = append(p.Store, store)
		p.Table = append(p.Table, table)
		p.Prefix = append(p.Prefix, int32(prefix-hidden))
		p.AncOff = append(p.AncOff, int32(len(p.Anc)))
		p.AncLen = append(p.AncLen, int32(len(anc)))
		for i := len(anc) - 1; i >= 0; i-- {
			p.Anc = append(p.Anc, anc[i])
		}
	}
	for i, t := range part.Extend {
		pos := s.length + i
		row(t, pos, s.pages.At(pos), pos+1, nil, f.wantsText(part, pos == end-1))
	}
	old := len(s.parents)
	for i, t := range part.Nodes {
		p.anc = append(p.anc[:0], part.places[i].cell)
		for n := part.Parents[i]; n >= 0; {
			if i := int(n) - old; i >= 0 {
				p.anc, n = append(p.anc, part.places[i].cell), part.Parents[i]
			} else {
				p.anc, n = append(p.anc, s.places[n].cell), s.parents[n]
			}
		}
		row(t, end+len(p.anc)-1, part.places[i].cell, end, p.anc, f.wantsNode(part, i))
	}
	if f.Block().Rows > 0 {
		p.seeBlock(part)
	}
	return nil
}

// check refuses a part that does not fit its sequence or the vocabulary.
func (f running) check(part *Part) error {
	const op = "engine"
	s := part.Seq
	switch {
	case s == nil || s.model != f.Model:
		return tandem.Errorf(op, tandem.Invalid, "part with another model's sequence")
	case s.broken:
		return tandem.Errorf(op, tandem.Unavailable, "the sequence's states are lost, since a pass failed: open it again")
	case s.inPass:
		return tandem.Errorf(op, tandem.Invalid, "one sequence twice in a pass")
	case s.length+len(part.Extend) > s.capacity:
		return tandem.Errorf(op, tandem.Invalid, "%d more positions after %d: the sequence holds %d",
			len(part.Extend), s.length, s.capacity)
	case len(s.parents)+len(part.Nodes) > s.maxNodes:
		return tandem.Errorf(op, tandem.Invalid, "%d more tree rows after %d: the sequence holds %d",
			len(part.Nodes), len(s.parents), s.maxNodes)
	case len(part.Extend) > 0 && len(s.parents) > 0:
		return tandem.Errorf(op, tandem.Invalid, "prefix extended under %d tree rows: commit or truncate first", len(s.parents))
	case len(part.Parents) != len(part.Nodes):
		return tandem.Errorf(op, tandem.Invalid, "%d tree rows but %d parents", len(part.Nodes), len(part.Parents))
	case s.length+len(part.Extend) == 0 && len(part.Nodes) > 0:
		return tandem.Errorf(op, tandem.Invalid, "tree rows below an empty prefix")
	}
	for i, parent := range part.Parents {
		prompt := part.Nodes[i] < 0
		if parent < -1 || int(parent) >= len(s.parents)+i {
			return tandem.Errorf(op, tandem.Invalid, "tree row %d has parent %d: want -1 to %d", len(s.parents)+i, parent,
				len(s.parents)+i-1)
		}
		if parent >= 0 && !prompt && part.token(parent) < 0 {
			return tandem.Errorf(op, tandem.Invalid, "tree row %d has token %d below prompt row %d: want it below tokens",
				len(s.parents)+i, part.Nodes[i], parent)
		}
	}
	if err := f.checkBlock(part); err != nil {
		return err
	}
	prompts := len(f.beside.Prompts()) / f.config.Dim
	for _, t := range part.Extend {
		if t < 0 || int(t) >= f.config.Vocab {
			return tandem.Errorf(op, tandem.Invalid, "token %d: vocabulary has %d", t, f.config.Vocab)
		}
	}
	for _, t := range part.Nodes {
		if int(t) < -prompts || int(t) >= f.config.Vocab {
			return tandem.Errorf(op, tandem.Invalid, "token %d in a tree: vocabulary has %d, and there are %d prompt rows, from -1 down", t,
				f.config.Vocab, prompts)
		}
	}
	return nil
}

// token returns the token of tree row n, one that the sequence holds or of the part.
func (part *Part) token(n int32) tandem.Token {
	if old := len(part.Seq.rows); int(n) >= old {
		return part.Nodes[int(n)-old]
	}
	return part.Seq.rows[n]
}

// embedding returns what Embed looks up for a row: a token, or the place that the embedding of a prompt row gets in Given.
func (f running) embedding(t tandem.Token) int32 {
	if t >= 0 {
		return int32(t)
	}
	p, d := &f.pass, f.config.Dim
	at := int(-1-t) * d
	p.Given = append(p.Given, f.beside.Prompts()[at:at+d]...)
	return -int32(len(p.Given) / d)
}

// experts counts the experts that the last pass has used: what it read of them from memory. nil for a model without experts, or on a device
// that does not tell.
func (f running) experts(rows int) tandem.Experts {
	r, tells := f.runner.(kernels.RouteReader)
	if !tells || len(f.plan.Routes) == 0 {
		return nil
	}
	added := make([]int, rows)
	seen := make([]int, f.config.Experts.Count) // the latest layer in which an expert was used, counted from 1
	for i, s := range f.plan.Routes {
		if s.Fixed {
			continue
		}
		for row := range added {
			chosen := r.Chosen(kernels.Route(i), row)
			if chosen == nil {
				return nil
			}
			for _, e := range chosen {
				if seen[e] <= i {
					seen[e] = i + 1
					added[row]++
				}
			}
		}
	}
	return tandem.CountExperts(added)
}
