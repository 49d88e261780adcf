package engine

import (
	"github.com/tandem-llm/tandem"
	kernels "github.com/tandem-llm/tandem/kernels/cpu"
)

// Want says which rows of a segment get logits.
type Want uint8

const (
	WantNone Want = iota
	WantTail      // the last Extend row, if any, and every node
	WantAll       // every row
)

// Segment is one sequence's share of a pass.
type Segment struct {
	Seq     *Sequence
	Extend  []tandem.Token // appended to the committed prefix, causally; not while tree rows are held
	Nodes   []tandem.Token // tree rows, numbered Seq.Nodes(), Seq.Nodes()+1 …
	Parents []int32        // per node: a tree row of Seq with a smaller number, or -1 for the end of the prefix
	Want    Want

	places []place // of Nodes
	line   []int32 // the sequence's, with what of Nodes goes on it
}

// Top holds the best tokens of one row of logits: (k) ids and logits, best first, ties to the lower
// id; Max is the largest logit and Sum the sum over the vocabulary of exp(logit-Max).
type Top struct {
	IDs      []int32
	Logits   []float32
	Max, Sum float32
}

// Output holds the results of a pass for its wanted rows, segment by segment, in order. It is valid
// until the model's next Forward.
type Output struct {
	model *Model
	first []int
	n     int
}

// Len returns the number of wanted rows.
func (o *Output) Len() int { return o.n }

// First returns the index of segment seg's first wanted row.
func (o *Output) First(seg int) int { return o.first[seg] }

// Logits returns the logits of wanted row i: (vocab).
func (o *Output) Logits(i int) []float32 {
	v := o.model.config.Vocab
	return o.model.program.Rows(o.model.logits)[i*v : (i+1)*v : (i+1)*v]
}

// Top returns the best tokens of wanted row i, as many as Forward was asked for.
func (o *Output) Top(i int) Top {
	ids, logits, mx, sum := o.model.program.Top(i)
	return Top{ids, logits, mx, sum}
}

// Forward runs one pass over all rows of the batch and fills the topK best tokens of each wanted row
// (0 ≤ topK ≤ 64). When it returns nil, Extend rows are committed and tree rows held; on error no sequence
// has changed. A row's result depends on its own tokens alone, not on what else is in the pass.
func (m *Model) Forward(batch []Segment, topK int) (*Output, error) {
	p := &m.pass
	p.reset(topK)
	defer func() {
		for _, g := range batch {
			if g.Seq != nil {
				g.Seq.inPass = false
			}
		}
	}()
	out := &Output{model: m, first: make([]int, len(batch))}
	for i := range batch {
		out.first[i] = len(p.Wanted)
		if err := m.plan(&batch[i]); err != nil {
			return nil, err
		}
	}
	out.n = len(p.Wanted)
	p.Rows = len(p.Tokens)
	switch {
	case p.Rows == 0:
		return out, nil
	case p.Rows > m.options.MaxRows:
		return nil, tandem.Errorf("engine", tandem.Invalid, "a pass of %d rows: at most %d allowed", p.Rows, m.options.MaxRows)
	case out.n > m.options.MaxWanted:
		return nil, tandem.Errorf("engine", tandem.Invalid, "a pass with %d rows of logits: at most %d allowed", out.n, m.options.MaxWanted)
	}
	if err := m.program.Run(m.pool, &p.Pass); err != nil {
		for _, g := range batch {
			g.Seq.Distrust()
		}
		return nil, tandem.Errorf("engine", tandem.Internal, "pass of %d rows: %w", p.Rows, err)
	}
	for i := range batch {
		batch[i].commit()
	}
	return out, nil
}

// commit records the rows that a pass has written.
func (g *Segment) commit() {
	s := g.Seq
	s.length, s.tokens = s.length+len(g.Extend), append(s.tokens, g.Extend...)
	s.parents, s.rows = append(s.parents, g.Parents...), append(s.rows, g.Nodes...)
	s.places, s.line = append(s.places, g.places...), append(s.line[:0], g.line...)
	for _, p := range g.places {
		if p.node >= 0 {
			s.taken[p.node] = true
		}
	}
	s.pages.Publish(s.tokens)
}

// settle chooses where the tree rows of a segment go, whose prefix will end at end: a row that goes on the line behind it, the others to
// free node cells. Callers name the likeliest children first, so that what is accepted most often needs no copy.
func (g *Segment) settle(end int) {
	s, node := g.Seq, 0
	g.line, g.places = append(g.line[:0], s.line...), g.places[:0]
	for i, parent := range g.Parents {
		tip := int32(-1)
		if n := len(g.line); n > 0 {
			tip = g.line[n-1]
		}
		if pos := end + len(g.line); parent == tip && pos < s.capacity {
			g.line, g.places = append(g.line, int32(len(s.parents)+i)), append(g.places, place{s.pages.At(pos), -1})
			continue
		}
		for s.taken[node] {
			node++
		}
		g.places = append(g.places, place{s.pages.Node(node), node})
		node++
	}
}

// pass collects the rows of one Forward; its slices are reused from pass to pass.
type pass struct {
	kernels.Pass
	anc []kernels.Cell // scratch: a node's ancestors, nearest first
}

func (p *pass) reset(topK int) {
	q := &p.Pass
	*q = kernels.Pass{Tokens: q.Tokens[:0], Pos: q.Pos[:0], Store: q.Store[:0], Pages: q.Pages[:0], Table: q.Table[:0],
		Prefix: q.Prefix[:0], Anc: q.Anc[:0], AncOff: q.AncOff[:0], AncLen: q.AncLen[:0], Wanted: q.Wanted[:0], TopK: topK}
}

// plan checks a segment and appends its rows to the pass.
func (m *Model) plan(g *Segment) error {
	if err := m.check(g); err != nil {
		return err
	}
	p, s := &m.pass, g.Seq
	s.inPass = true
	table := int32(len(p.Pages))
	end := s.length + len(g.Extend)
	p.Pages = append(p.Pages, s.pages.Table...)
	row := func(t tandem.Token, pos int, store kernels.Cell, prefix int, anc []kernels.Cell, wanted bool) {
		if wanted {
			p.Wanted = append(p.Wanted, int32(len(p.Tokens)))
		}
		p.Tokens = append(p.Tokens, int32(t))
		p.Pos = append(p.Pos, int32(pos))
		p.Store = append(p.Store, store)
		p.Table = append(p.Table, table)
		p.Prefix = append(p.Prefix, int32(prefix))
		p.AncOff = append(p.AncOff, int32(len(p.Anc)))
		p.AncLen = append(p.AncLen, int32(len(anc)))
		for i := len(anc) - 1; i >= 0; i-- {
			p.Anc = append(p.Anc, anc[i])
		}
	}
	for i, t := range g.Extend {
		pos := s.length + i
		row(t, pos, s.pages.At(pos), pos+1, nil, g.Want == WantAll || g.Want == WantTail && pos == end-1)
	}
	g.settle(end)
	old := len(s.parents)
	for i, t := range g.Nodes {
		p.anc = append(p.anc[:0], g.places[i].cell)
		for n := g.Parents[i]; n >= 0; {
			if i := int(n) - old; i >= 0 {
				p.anc, n = append(p.anc, g.places[i].cell), g.Parents[i]
			} else {
				p.anc, n = append(p.anc, s.places[n].cell), s.parents[n]
			}
		}
		row(t, end+len(p.anc)-1, g.places[i].cell, end, p.anc, g.Want != WantNone)
	}
	return nil
}

// check refuses a segment that does not fit its sequence or the vocabulary.
func (m *Model) check(g *Segment) error {
	const op = "engine"
	s := g.Seq
	switch {
	case s == nil || s.model != m:
		return tandem.Errorf(op, tandem.Invalid, "segment of another model's sequence")
	case s.inPass:
		return tandem.Errorf(op, tandem.Invalid, "one sequence twice in a pass")
	case s.length+len(g.Extend) > s.capacity:
		return tandem.Errorf(op, tandem.Invalid, "%d more positions after %d: the sequence holds %d", len(g.Extend), s.length, s.capacity)
	case len(s.parents)+len(g.Nodes) > s.maxNodes:
		return tandem.Errorf(op, tandem.Invalid, "%d more tree rows after %d: the sequence holds %d", len(g.Nodes), len(s.parents), s.maxNodes)
	case len(g.Extend) > 0 && len(s.parents) > 0:
		return tandem.Errorf(op, tandem.Invalid, "prefix extended under %d tree rows: commit or truncate first", len(s.parents))
	case len(g.Parents) != len(g.Nodes):
		return tandem.Errorf(op, tandem.Invalid, "%d tree rows but %d parents", len(g.Nodes), len(g.Parents))
	case s.length+len(g.Extend) == 0 && len(g.Nodes) > 0:
		return tandem.Errorf(op, tandem.Invalid, "tree rows below an empty prefix")
	}
	for i, parent := range g.Parents {
		if parent < -1 || int(parent) >= len(s.parents)+i {
			return tandem.Errorf(op, tandem.Invalid, "tree row %d has parent %d: want -1 to %d", len(s.parents)+i, parent, len(s.parents)+i-1)
		}
	}
	for _, tokens := range [][]tandem.Token{g.Extend, g.Nodes} {
		for _, t := range tokens {
			if t < 0 || int(t) >= m.config.Vocab {
				return tandem.Errorf(op, tandem.Invalid, "token %d: vocabulary has %d", t, m.config.Vocab)
			}
		}
	}
	return nil
}
