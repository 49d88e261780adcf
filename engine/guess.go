package engine

import (
	"fmt"
	"math"

	"github.com/tandem-llm/tandem/engine/blocks"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/kernels"
	"github.com/tandem-llm/tandem/kernels/ref"
)

// guessing is one call of Guess: the states from which output products make levels, in the order of asks.
type guessing struct {
	*Model
	top     int
	guesses []tandem.Guess
	states  [][]float32 // after the final norm and the head, to be multiplied by the target's output matrix
	into    []spot      // per state
	heads   [][]float32 // what the heads of medusa start from
	asks    []int       // per entry of heads
	all     []int32     // 0, 1, 2 …: every row of a run is wanted

	chains    []drafting // of the assistant
	chainAsks []int      // per chain
}

// spot is level i of a guess.
type spot struct{ guess, level int }

// Guess returns one guess for each ask, with at most top candidates in a level (1 to tandem.MostCandidates). A level is empty if its
// logits are not numbers. All asks share runs: the heads' matrices and the output matrix are read once for up to 64 rows. A guess does
// not depend on the other asks. Errors: Invalid (a way that is not open, rows of another number or width), Internal.
//
// A level of ppd is the output product of the mean, over the members in order, of the rows' states after the final norm. Products are
// linear, so that is the mean of the members' logits, for one product instead of one for each member.
func (m *Model) Guess(asks []GuessAsk, top int) ([]tandem.Guess, error) {
	if top < 1 || top > tandem.MostCandidates {
		return nil, tandem.Errorf("engine", tandem.Invalid, "%d candidates in a level: want 1 to %d", top, tandem.MostCandidates)
	}
	g := guessing{Model: m, top: top, guesses: make([]tandem.Guess, len(asks))}
	for i := range guessRows {
		g.all = append(g.all, int32(i))
	}
	for i, ask := range asks {
		if err := g.add(i, ask); err != nil {
			return nil, err
		}
	}
	if err := g.runHeads(); err != nil {
		return nil, tandem.Errorf("engine", tandem.Internal, "heads for %d guesses: %w", len(asks), err)
	}
	if err := g.runAssistant(); err != nil {
		return nil, tandem.Errorf("engine", tandem.Internal, "chains for %d guesses: %w", len(asks), err)
	}
	if err := g.runProduct(); err != nil {
		return nil, tandem.Errorf("engine", tandem.Internal, "output product of %d guesses: %w", len(asks), err)
	}
	return g.guesses, nil
}

// add checks an ask and prepares its states.
func (g *guessing) add(i int, ask GuessAsk) error {
	rows, levels := 1, 0
	switch {
	case ask.Way == tandem.Medusa && g.medusa != nil:
		levels = g.medusa.side.Levels
	case ask.Way == tandem.PPD && g.prompts != nil:
		levels = g.prompts.side.Levels
		rows = levels * g.prompts.side.Members
	case ask.Way == tandem.Assistant && g.assistant != nil:
		levels = assistantLevels
	default:
		return tandem.Errorf("engine", tandem.Invalid, "a guess by %.20q: no side file for it is open", ask.Way)
	}
	if len(ask.Hidden) != rows {
		return tandem.Errorf("engine", tandem.Invalid, "a guess by %s from %d hidden states: want %d", ask.Way, len(ask.Hidden), rows)
	}
	for _, h := range ask.Hidden {
		if len(h) != g.config.Dim {
			return tandem.Errorf("engine", tandem.Invalid, "a guess by %s from a hidden state of %d numbers: want %d", ask.Way, len(h),
				g.config.Dim)
		}
	}
	g.guesses[i] = tandem.Guess{SelfDraft: ask.Way, Levels: make([][]tandem.TopLogprob, levels)}
	if ask.Way == tandem.Assistant {
		d := drafting{ask.Token, g.normed(ask.Hidden[0]), ask.Seq, ask.Path}
		g.chains, g.chainAsks = append(g.chains, d), append(g.chainAsks, i)
		return d.check(g.Model)
	}
	if ask.Way == tandem.Medusa {
		g.heads, g.asks = append(g.heads, g.normed(ask.Hidden[0])), append(g.asks, i)
		return nil
	}
	for level := range levels {
		g.states, g.into = append(g.states, g.mean(ask.Hidden, level, levels)), append(g.into, spot{i, level})
	}
	return nil
}

// normed returns a hidden state after the final norm.
func (m *Model) normed(h []float32) []float32 {
	out := make([]float32, len(h))
	ref.RMSNorm(h, m.weights.OutputNorm, m.config.NormEps, out)
	return out
}

// mean returns the mean of a level's rows after the final norm: their sum in order of members, times 1/members.
func (g *guessing) mean(rows [][]float32, level, levels int) []float32 {
	sum := g.normed(rows[level])
	members := len(rows) / levels
	for j := 1; j < members; j++ {
		for i, v := range g.normed(rows[j*levels+level]) {
			sum[i] += v
		}
	}
	for i, share := 0, 1/float32(members); i < len(sum) && members > 1; i++ {
		sum[i] *= share
	}
	return sum
}

// start gives rows to a runner and starts a pass of them, all wanted.
func (g *guessing) start(r kernels.Runner, in kernels.Buf, rows [][]float32) error {
	for i, x := range rows {
		copy(r.Row(in, i), x)
	}
	return r.Start(&kernels.Pass{Rows: len(rows), Wanted: g.all[:len(rows)], TopK: g.top})
}

// runHeads runs medusa's heads. With output matrices of their own they fill in the guesses; else their states are added.
func (g *guessing) runHeads() error {
	h := g.medusa
	for from := 0; from < len(g.heads); from += guessRows {
		rows := g.heads[from:min(from+guessRows, len(g.heads))]
		if err := g.start(h.runner, h.in, rows); err != nil {
			return err
		}
		for k := range h.z {
			if err := h.runner.Stage(k); err != nil {
				return err
			}
			for i := range rows {
				at := spot{g.asks[from+i], k}
				if h.own {
					g.fill(at, h.runner.Top(i))
					continue
				}
				g.states, g.into = append(g.states, append([]float32(nil), h.runner.Row(h.z[k], i)...)), append(g.into, at)
			}
		}
	}
	return nil
}

// runProduct makes levels of the states.
func (g *guessing) runProduct() error {
	for from := 0; from < len(g.states); from += guessRows {
		rows := g.states[from:min(from+guessRows, len(g.states))]
		if err := g.start(g.product.runner, g.product.in, rows); err != nil {
			return err
		}
		if err := g.product.runner.Stage(0); err != nil {
			return err
		}
		for i := range rows {
			g.fill(g.into[from+i], g.product.runner.Top(i))
		}
	}
	return nil
}

// fill makes a level of the best tokens of its logits.
func (g *guessing) fill(at spot, best kernels.Top) {
	if !(best.Sum >= 1) || math.IsInf(float64(best.Max), 0) {
		return // NaN or infinite logits
	}
	norm := blocks.Ln(float64(best.Sum))
	var level []tandem.TopLogprob
	for i, id := range best.IDs {
		if p := float32(float64(best.Logits[i]) - float64(best.Max) - norm); p >= -math.MaxFloat32 {
			level = append(level, tandem.TopLogprob{Token: tandem.Token(id), LogProb: p})
		}
	}
	g.guesses[at.guess].Levels[at.level] = level
}

// Hidden returns the residual stream after the last layer, before the final norm, of a row of a part: its Extend rows, then its Nodes.
// Of a draft with states it is the draft's own state, State.Own of the next position. (d) numbers, valid until the model's next Forward;
// do not change them.
func (o *Output) Hidden(part, row int) []float32 {
	x := o.model.runner.Row(o.model.residual, o.row(part, row))
	if o.model.draft != nil {
		return o.model.ownState(x)
	}
	return x
}

// row returns where a row of a part is in the pass.
func (o *Output) row(part, row int) int {
	if at := o.begin[part] + row; row >= 0 && at < o.begin[part+1] {
		return at
	}
	panic(fmt.Sprintf("engine: row %d of part %d, which has %d", row, part, o.begin[part+1]-o.begin[part]))
}
