package passes

import (
	"context"
	"slices"
	"time"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/app/bench/figures"
	"github.com/tandem-llm/tandem/engine"
)

// Form says how the rows of a pass depend on each other, and so how much they differ.
type Form string

const (
	FormChain Form = "chain" // the tokens of a text, one after the other
	FormTree  Form = "tree"  // each row's next tokens are the target's two likeliest
	FormAlike Form = "alike" // all rows are the same, so that they use the experts of one
)

// formPass holds the measurements of passes of one form over text.
type formPass struct {
	Form    Form
	Rows    int
	Times   []time.Duration
	Experts []float64 // that the first 1, 2, 4 … rows used together on average, counted layer by layer; last: all rows
}

// Median returns the median time.
func (p *formPass) Median() time.Duration { return figures.Quantile(p.Times, 0.5) }

// Used returns how many experts a pass used on average.
func (p *formPass) Used() float64 { return p.Experts[len(p.Experts)-1] }

// measureForms measures passes of m, a model with experts, at the end of each of the texts: of one row, and of each width as a chain, as a
// tree and with rows that are all alike. Chains are the last tokens of the text; trees begin with the same token. Each form runs n times at
// each text, in turn. The model needs KV pages for the longest text and the widest pass, and passes of as many rows as the widest. Errors:
// the model's; Invalid for a text that is not longer than the widest pass; Unsupported for a model without experts, or on a device that
// does not tell which were chosen; ctx's.
func measureForms(ctx context.Context, m *engine.Model, texts [][]tandem.Token, widths []int, n int) ([]formPass, error) {
	const op = "experts"
	widest := slices.Max(widths)
	if m.Passes().Work().Experts == 0 {
		return nil, tandem.Errorf(op, tandem.Unsupported, "the model has no experts: want one that has")
	}
	passes := []formPass{{Form: FormChain, Rows: 1}}
	for _, w := range widths {
		for _, f := range []Form{FormChain, FormTree, FormAlike} {
			passes = append(passes, formPass{Form: f, Rows: w})
		}
	}
	for _, text := range texts {
		if len(text) <= widest {
			return nil, tandem.Errorf(op, tandem.Invalid, "a text of %d tokens: want more than %d, the rows of a pass", len(text), widest)
		}
		if err := expertsAt(ctx, m, text, widest, n, passes); err != nil {
			return nil, err
		}
	}
	for i := range passes {
		for j := range passes[i].Experts {
			passes[i].Experts[j] /= float64(len(passes[i].Times))
		}
	}
	return passes, nil
}

// expertsAt measures passes at the end of a text.
func expertsAt(ctx context.Context, m *engine.Model, text []tandem.Token, widest, n int, passes []formPass) error {
	at := len(text) - widest
	s, err := m.NewSequence(at, widest)
	if err != nil {
		return err
	}
	defer s.Close()
	for s.Len() < at {
		piece := text[s.Len():min(at, s.Len()+m.MaxRows())]
		if _, err := m.Forward([]engine.Part{{Seq: s, Extend: piece}}, 0); err != nil {
			return err
		}
	}
	tree, err := likeliest(m, s, text[at], widest)
	if err != nil {
		return err
	}
	for round := range n + 1 { // a first round that warms the caches does not count
		for i := range passes {
			if round%2 == 1 {
				i = len(passes) - 1 - i
			}
			if err := ctx.Err(); err != nil {
				return err
			}
			p := &passes[i]
			nodes := text[at : at+p.Rows]
			if p.Form == FormTree {
				nodes = tree[:p.Rows]
			}
			begun := time.Now()
			out, err := pass(m, s, p.Form, nodes)
			took := time.Since(begun)
			if err != nil {
				return err
			}
			if round == 0 {
				continue
			}
			used := out.Experts()
			if used == nil {
				return tandem.Errorf("experts", tandem.Unsupported, "the device does not tell which experts a pass used")
			}
			p.Times = append(p.Times, took)
			if p.Experts == nil {
				p.Experts = make([]float64, len(used))
			}
			for j, x := range used {
				p.Experts[j] += float64(x)
			}
		}
	}
	return nil
}

// pass runs nodes below the end of s, whose first is the root, and drops them again.
func pass(m *engine.Model, s *engine.Sequence, f Form, nodes []tandem.Token) (*engine.Output, error) {
	parents, tokens := make([]int32, len(nodes)), slices.Clone(nodes)
	for i := range parents {
		switch f {
		case FormChain:
			parents[i] = int32(i) - 1
		case FormTree:
			parents[i] = int32(i+1)/2 - 1
		case FormAlike:
			parents[i], tokens[i] = -1, nodes[0]
		}
	}
	at := s.Len()
	out, err := m.Forward([]engine.Part{{Seq: s, Nodes: tokens, Parents: parents, Want: engine.WantTail}}, 2)
	if err != nil {
		return nil, err
	}
	return out, s.Truncate(at)
}

// likeliest returns the nodes of a binary tree, level by level: the children of each are its two likeliest next tokens.
func likeliest(m *engine.Model, s *engine.Sequence, root tandem.Token, n int) ([]tandem.Token, error) {
	nodes := []tandem.Token{root}
	for len(nodes) < n {
		out, err := pass(m, s, FormTree, nodes)
		if err != nil {
			return nil, err
		}
		for i := (len(nodes) - 1) / 2; i < out.Len() && len(nodes) < n; i++ {
			for _, id := range out.Top(i).IDs[:min(2, m.Config().Vocab)] {
				nodes = append(nodes, tandem.Token(id))
			}
		}
	}
	return nodes[:n], nil
}
