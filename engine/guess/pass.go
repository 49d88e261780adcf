package guess

import (
	"cmp"
	"math"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/engine/blocks"
	"github.com/tandem-llm/tandem/engine/tensors"
	"github.com/tandem-llm/tandem/kernels"
	"github.com/tandem-llm/tandem/modelfile/gguf"
)

// maxRows is the most rows that a run takes: more are cut into several runs, each of which reads the matrices again.
const maxRows = 64

// pass is a program that runs beside the target's passes, with weights of its own or some of the target's.
type pass struct {
	program  *kernels.Program
	matrices []tensors.Matrix // of the side file
	borrows  []kernels.W      // instead: of the target's program
	file     *gguf.File       // of matrices; nil: the side file
	near     bool             // stays in memory where the target's weights are streamed, and reads the target's keys and values
	store    kernels.Store
	runner   kernels.Runner
}

// footprint returns what the pass takes. What it borrows is the model's.
func (p *pass) footprint(t *Target, path string) (kernels.Footprint, error) {
	if err := p.program.Check(); err != nil {
		return kernels.Footprint{}, tandem.Errorf("engine", tandem.Unsupported, "%s: %w", path, err)
	}
	device := t.Device
	if p.near {
		device = t.Near
	}
	need, err := device.Footprint(p.program)
	f := kernels.Footprint{Space: kernels.Space{Buffers: need.Buffers}, Own: kernels.Space{Buffers: need.Own.Buffers}}
	if len(p.borrows) == 0 {
		f.Weights, f.Own.Weights = need.Weights, need.Own.Weights
	}
	return f, err
}

func (p *pass) load(t *Target, f *gguf.File) (err error) {
	if len(p.borrows) > 0 {
		loan, err := kernels.Borrow(p.program, t.Plan, t.Store, p.borrows)
		if err != nil {
			return tandem.Errorf("engine", tandem.Unsupported, "%s: %w", f.Path(), err)
		}
		p.runner, err = t.Device.Compile(p.program, loan, nil)
		return err
	}
	device, cache := t.Device, kernels.Cache(nil)
	if p.near {
		device, cache = t.Near, t.Cache
	}
	if p.store, err = device.NewWeights(p.program); err != nil {
		return err
	}
	if p.runner, err = device.Compile(p.program, p.store, cache); err != nil {
		return err
	}
	return t.Fill(cmp.Or(p.file, f), p.matrices, p.store)
}

func (p *pass) close() {
	if p.runner != nil {
		p.runner.Close()
	}
	if p.store != nil {
		p.store.Close()
	}
}

// of gives rows to the pass, and returns a run of them, all wanted.
func (p *pass) of(r *round, in kernels.Buf, rows [][]float32) *kernels.Pass {
	for i, x := range rows {
		copy(kernels.Give(p.runner, in, i), x)
	}
	return &kernels.Pass{Rows: len(rows), Wanted: r.all[:len(rows)], TopK: r.top}
}

// output is the target's output matrix as a pass of its own: it makes the best tokens of states after the final norm.
type output struct {
	pass
	in  kernels.Buf // (wanted, d)
	ids []int32     // the token of each row; nil: all tokens
}

// newOutput plans the output of a target. ids are the tokens whose rows it has, copied from the target's file; nil: it borrows all.
func newOutput(t *Target, ids []int32) (*output, error) {
	p, w, rows := kernels.NewProgram(maxRows, maxRows), t.Weights.Head, len(ids)
	o := &output{pass: pass{program: p}, ids: ids}
	if ids == nil {
		rows, o.borrows = t.Config.Vocab, []kernels.W{w}
		w = p.Weight(t.Plan.Weights[w])
	} else {
		c := tensors.New(t.File)
		if c.Gathered(&w, oneOf(t.File, "output.weight", "token_embd.weight"), t.Config.Vocab, t.Config.Dim, ids); c.Err != nil {
			return nil, c.Err
		}
		o.matrices, o.file = c.Matrices, t.File
		tensors.AddTo(p, c.Matrices, t.Device.Layout)
	}
	in, act, logits := p.WantedBuf(t.Config.Dim), p.WantedAct(t.Config.Dim), p.WantedBuf(rows)
	p.Stage("the output")
	p.Feed(in, act)
	p.MatMul(w, act, logits, kernels.MatMulOpt{})
	t.Config.Finish(p, logits)
	p.TopK(logits)
	o.in = in
	return o, nil
}

// round is what one file guesses in a call of Guess.
type round struct {
	top    int
	all    []int32 // 0, 1, 2 …: every row of a run is wanted
	states [][]float32
	levels []*[]tandem.TopLogprob // per state
}

func newRound(top int) *round {
	r := &round{top: top}
	for i := range maxRows {
		r.all = append(r.all, int32(i))
	}
	return r
}

// state asks for a level's tokens: the best of the output product of a state after the final norm. All states of a round share runs.
func (r *round) state(x []float32, level *[]tandem.TopLogprob) {
	r.states, r.levels = append(r.states, x), append(r.levels, level)
}

// multiply fills in the levels of all states.
func (r *round) multiply(o *output) error {
	for from := 0; from < len(r.states); from += maxRows {
		rows := r.states[from:min(from+maxRows, len(r.states))]
		if err := o.runner.Run(o.of(r, o.in, rows)); err != nil {
			return err
		}
		for i := range rows {
			fill(r.levels[from+i], o.runner.Top(i), o.ids)
		}
	}
	return nil
}

// fill makes a level of the best tokens of its logits, which are those of ids, or of all tokens if that is nil. It stays empty if they are
// NaN or infinite.
func fill(level *[]tandem.TopLogprob, best kernels.Top, ids []int32) {
	if !(best.Sum >= 1) || math.IsInf(float64(best.Max), 0) {
		return
	}
	norm := blocks.Ln(float64(best.Sum))
	for i, id := range best.IDs {
		if ids != nil {
			id = ids[id]
		}
		if p := float32(float64(best.Logits[i]) - float64(best.Max) - norm); p >= -math.MaxFloat32 {
			*level = append(*level, tandem.TopLogprob{Token: tandem.Token(id), LogProb: p})
		}
	}
}
