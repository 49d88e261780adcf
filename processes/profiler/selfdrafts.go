package profiler

import (
	"cmp"
	"errors"
	"slices"
	"time"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/app/device"
	"github.com/tandem-llm/tandem/engine"
	"github.com/tandem-llm/tandem/modelfile/side"
	"github.com/tandem-llm/tandem/processes/profile"
	"github.com/tandem-llm/tandem/spec/shape"
)

// selfDrafts measures the target's own drafts: how long a guess takes on a device, which it returns by name, and, if judge is set, how
// right guesses are on what the target has added to the texts.
func (p *profiler) selfDrafts(m *engine.Model, at device.Spec, judge bool) (guesses map[string]time.Duration, err error) {
	guesses = map[string]time.Duration{}
	for i, w := range m.SelfDrafts() { // in the order of p.Heads
		p.tell("measuring guesses of %s …", w.Name)
		lineage, err := side.Lineage(p.ctx, p.Heads[i])
		if err != nil {
			return nil, err
		}
		time := func() error {
			took, err := p.guess(m, w)
			if err == nil {
				guesses[w.Name] = cmp.Or(guesses[w.Name], took) // with all threads, which come first
				p.Plan.Time(profile.Subject{What: profile.What{Kind: w.Name, Identity: tandem.Identity(lineage), Threads: m.About().Threads,
					Device: m.About().Kernels}, Points: []profile.Point{{Rows: 1, Context: p.Context[0], NS: int64(max(took, 1))}}})
			}
			return err
		}
		if err := errors.Join(time(), p.fewer(m, at, time)); err != nil {
			return nil, err
		}
		if !judge {
			continue
		}
		for _, text := range p.texts {
			t := profile.Table{Target: p.Lineage, Name: w.Name, Lineage: lineage, Temperature: p.Temperature, Text: text.Text}
			if t.Accuracy, t.Lengths, err = judged(w, text.samples[w.Name]); err != nil {
				return nil, err
			}
			p.Plan.Put(t)
			p.latest = append(p.latest, t)
		}
	}
	return guesses, nil
}

// guess returns the lower quartile of the times of a self-draft's guesses behind one row; of an assistant's, behind the first of the
// contexts.
func (p *profiler) guess(m *engine.Model, w tandem.SelfDraft) (time.Duration, error) {
	ask := engine.GuessAsk{SelfDraft: w.Name}
	for range max(w.Levels*w.Members, 1) {
		ask.Hidden = append(ask.Hidden, make([]float32, m.Config().Dim))
	}
	if w.Name == tandem.Assistant {
		text := p.texts[0].pieces[0]
		text = text[:min(len(text), p.Context[0]+1)]
		seq, err := m.NewSequence(len(text), 0)
		if err != nil {
			return 0, err
		}
		defer seq.Close()
		for seq.Len() < len(text)-1 {
			rest := text[seq.Len() : len(text)-1]
			if _, err := m.Forward([]engine.Part{{Seq: seq, Extend: rest[:min(len(rest), m.MaxRows())]}}, 0); err != nil {
				return 0, err
			}
		}
		ask.Seq, ask.Token = seq, text[len(text)-1]
	}
	var times []time.Duration
	for i := range p.Rounds + 1 {
		begun := time.Now()
		if _, err := m.Guess([]engine.GuessAsk{ask}, profileRanks); err != nil {
			return 0, err
		}
		if i > 0 { // the first finds nothing in caches
			times = append(times, time.Since(begun))
		}
	}
	slices.Sort(times)
	return times[len(times)/4], p.ctx.Err()
}

// judged returns how right a self-draft is on a text, as rounds with trees of profileNodes nodes see it, and the lengths of trees of
// several sizes: by their own tables and as rounds on the text have them.
func judged(w tandem.SelfDraft, pieces [][]shape.Sample) (*shape.Accuracy, []profile.Length, error) {
	fit := func(nodes int) (a *shape.Accuracy, l profile.Length, err error) {
		rounds, tokens := 0, 0
		if l.Nodes = nodes; w.Members > 0 {
			var sp shape.Sparse
			if a, sp, err = shape.FitSparse(pieces, w, profileRanks, nodes); err != nil {
				return nil, l, err
			}
			l.Expected = sp.Length
			for _, piece := range pieces {
				r, n := sp.Replay(piece)
				rounds, tokens = rounds+len(r), tokens+n
			}
		} else {
			var s shape.Shape
			if a, s, err = shape.Fit(pieces, w.Levels, profileRanks, nodes); err != nil {
				return nil, l, err
			}
			l.Expected = s.Length(a.Rate())
			for _, piece := range pieces {
				r := shape.Replay(s, piece)
				rounds, tokens = rounds+len(r), tokens+int(shape.Measured(s, r)*float64(len(r))+0.5)
			}
		}
		l.Measured = min(max(float64(tokens)/float64(max(rounds, 1)), 1), float64(nodes))
		l.Expected = min(max(l.Expected, 1), float64(nodes))
		return a, l, nil
	}
	var lengths []profile.Length
	for nodes := 2; nodes <= 64; nodes *= 2 {
		if nodes <= w.Members {
			continue
		}
		_, l, err := fit(nodes)
		if err != nil {
			return nil, nil, err
		}
		lengths = append(lengths, l)
	}
	a, _, err := fit(max(profileNodes, 2*(w.Members+1)))
	return a, lengths, err
}
