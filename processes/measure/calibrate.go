package measure

import (
	"context"
	"slices"
	"time"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/engine"
	"github.com/tandem-llm/tandem/engine/sample"
)

// GridPoints returns the passes of Grid: each width behind each context.
func GridPoints(widths, contexts []int) (points []Point) {
	for _, c := range contexts {
		for _, w := range widths {
			points = append(points, Point{Rows: w, Context: c})
		}
	}
	return points
}

// Grid measures the passes of points, each in that many rounds, in turn: T_V(W) by context. It returns the lower quartile of each, by
// context and width, and never more than for a wider pass behind the same context, because that does more work. alive, if not nil, is
// called before each pass. Of a model with experts it also measures what one more costs, as Costs does. spread is the median of the points'
// Spread: a large one says that something else used the machine. The model needs what Passes needs. Errors: those of Passes.
func Grid(ctx context.Context, m *engine.Model, points []Point, rounds int, alive func()) (costs []tandem.Cost, spread float64, err error) {
	timings, err := Passes(ctx, m, withAlike(m, points), rounds, func(int, time.Duration) error {
		if alive != nil {
			alive()
		}
		return nil
	})
	if err != nil {
		return nil, 0, err
	}
	var spreads []float64
	for i := range timings {
		spreads = append(spreads, timings[i].Spread())
	}
	return costsOf(timings), quantile(spreads, 0.5), nil
}

// withAlike adds the passes that tell what an expert costs, if m has any, behind the first of the contexts.
func withAlike(m *engine.Model, points []Point) []Point {
	all := slices.Clone(points)
	for _, p := range points {
		if m.Passes().Work().Experts > 0 && p.Context == points[0].Context && slices.Contains(alikeWidths, p.Rows) {
			all = append(all, Point{Rows: p.Rows, Context: p.Context, Alike: true})
		}
	}
	return all
}

// Continue decodes n tokens behind prompt without speculation, also beyond the end of the text, and returns both: calibration text as the
// target writes it. Errors: the model's, and ctx's once it has ended.
func Continue(ctx context.Context, m *engine.Model, prompt []tandem.Token, n int, p tandem.Sampling) ([]tandem.Token, error) {
	return say(ctx, m, prompt, n, p, nil)
}

// say is Continue; a listener, if not nil, hears all passes, and then the text ends where the model ends it.
func say(ctx context.Context, m *engine.Model, prompt []tandem.Token, n int, p tandem.Sampling, l *listener) ([]tandem.Token, error) {
	nodes := 0
	if l != nil {
		nodes = l.nodes
	}
	seq, err := m.NewSequence(len(prompt)+n, nodes)
	if err != nil {
		return nil, err
	}
	defer seq.Close()
	text, history := slices.Clone(prompt), sample.NewHistory(p, prompt, len(prompt))
	var s sample.Sampler
	for len(text) < len(prompt)+n {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		rest := text[seq.Len():]
		part := engine.Part{Seq: seq, Extend: rest[:min(len(rest), m.MaxRows())], Want: engine.WantTail}
		if l != nil {
			l.before(&part)
		}
		out, err := m.Forward([]engine.Part{part}, 1)
		if err != nil {
			return nil, err
		}
		if l != nil {
			if err := l.after(&part, out); err != nil {
				return nil, err
			}
		}
		drawn := seq.Len() == len(text) // else there is more of the prompt
		if drawn {
			x := s.Draw(s.Shape(out.Logits(out.First(0)), p, history), p, tandem.Position(len(text)))
			history.Push(x)
			text = append(text, x)
		}
		if l == nil {
			continue
		}
		if err := l.next(seq, text[seq.Len()]); err != nil {
			return nil, err
		}
		if drawn && m.Vocab().IsEnd(text[len(text)-1]) {
			break
		}
	}
	return text, nil
}

// Ranks returns how right m would be as a draft of a text. For each position from first on except the last, it is the rank of the next
// token among the top likeliest tokens of m there, −1 if it is not one of them. Errors: Invalid for a token that m does not have, the
// model's, and ctx's once it has ended.
func Ranks(ctx context.Context, m *engine.Model, text []tandem.Token, first, top int) ([]int8, error) {
	if i := slices.IndexFunc(text, func(t tandem.Token) bool { return t < 0 || int(t) >= m.Vocab().Size() }); i >= 0 {
		return nil, tandem.Errorf("measure", tandem.Invalid, "token %d of the text is %d: the model has %d", i, text[i], m.Vocab().Size())
	}
	seq, err := m.NewSequence(len(text), 0)
	if err != nil {
		return nil, err
	}
	defer seq.Close()
	var ranks []int8
	for at := 0; at+1 < len(text); at = seq.Len() {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		rows := text[at:min(len(text)-1, at+min(m.MaxRows(), m.MaxWanted()))]
		out, err := m.Forward([]engine.Part{{Seq: seq, Extend: rows, Want: engine.WantAll}}, top)
		if err != nil {
			return nil, err
		}
		for i := range rows {
			if at+i >= first {
				ranks = append(ranks, int8(slices.Index(out.Top(out.First(0)+i).IDs, int32(text[at+i+1]))))
			}
		}
	}
	return ranks, nil
}
