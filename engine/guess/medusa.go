package guess

import (
	"fmt"
	"slices"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/engine/tensors"
	"github.com/tandem-llm/tandem/kernels"
)

// heads is what self-drafts of sort Heads have, such as Medusa: heads on the target's last hidden state h, after its final norm (Cai et
// al., "Medusa", 2024). Head k guesses the token k+2 places after h's:
//
//	z = h; for each residual block: z += SiLU(W z [+ b])
//	logits = O z, with an output matrix of its own or with the target's
//
// Each head is a stage. Heads that share the target's output matrix run all at once, and their states z go together into one product. Heads
// with their own are run one by one, and what they found is read in between.
type heads struct {
	pass
	in  kernels.Buf   // (wanted, d): h
	z   []kernels.Buf // per head, (wanted, d)
	own bool          // output matrices
}

// head holds the weights of one head.
type head struct {
	blocks []kernels.W
	biases [][]float32 // of blocks; nil: none
	output kernels.W
}

func planHeads(p *planning) (Guesser, error) {
	c, s := tensors.New(p.file), &p.Spec
	h := &heads{own: p.file.Tensor(s.Head(0).Output) != nil}
	all := make([]head, s.Levels)
	for k := range all {
		names := s.Head(k)
		for _, block := range names.Blocks {
			var w kernels.W
			c.Matrix(&w, block+".weight", true, s.Dim, s.Dim)
			all[k].blocks = append(all[k].blocks, w)
			all[k].biases = append(all[k].biases, c.Vector(block+".bias", false, s.Dim))
		}
		if h.own {
			c.Matrix(&all[k].output, names.Output, true, s.Vocab, s.Dim)
		}
	}
	if c.Err != nil {
		return nil, c.Err
	}
	h.matrices, h.program = c.Matrices, kernels.NewProgram(maxRows, maxRows)
	h.plan(p.Target, all)
	if p.passes = append(p.passes, &h.pass); h.own {
		return h, nil
	}
	return h, p.needOutput()
}

// plan lays the heads out.
func (h *heads) plan(t *Target, all []head) {
	p, d := h.program, t.Config.Dim
	tensors.AddTo(p, h.matrices, t.Device.Layout)
	h.in = p.WantedBuf(d)
	inner, act := p.WantedBuf(d), p.WantedAct(d)
	var logits kernels.Buf
	if h.own {
		logits = p.WantedBuf(t.Config.Vocab)
	}
	for k, head := range all {
		p.Stage(fmt.Sprintf("head %d", k))
		z := p.WantedBuf(d)
		h.z = append(h.z, z)
		p.Copy(h.in, z)
		for b, w := range head.blocks {
			p.Feed(z, act)
			p.MatMul(w, act, inner, kernels.MatMulOpt{})
			if bias := head.biases[b]; bias != nil {
				p.AddBias(inner, bias)
			}
			p.AddSiLU(inner, z)
		}
		if h.own {
			p.Feed(z, act)
			p.MatMul(head.output, act, logits, kernels.MatMulOpt{})
			t.Config.Finish(p, logits)
			p.TopK(logits)
		}
	}
}

func (h *heads) guess(r *round, asks []*ask) error {
	for part := range slices.Chunk(asks, maxRows) {
		if err := h.run(r, part); err != nil {
			return tandem.Errorf("engine", tandem.Internal, "heads for %d guesses: %w", len(asks), err)
		}
	}
	return nil
}

func (h *heads) run(r *round, asks []*ask) error {
	var rows [][]float32
	for _, a := range asks {
		rows = append(rows, a.states[0])
	}
	run := h.of(r, h.in, rows)
	if !h.own {
		return h.states(r, run, asks)
	}
	if err := h.runner.Start(run); err != nil {
		return err
	}
	for k := range h.z {
		if err := h.runner.Stage(k); err != nil {
			return err
		}
		for i, a := range asks {
			fill(&a.guess.Levels[k], h.runner.Top(i), nil)
		}
	}
	return nil
}

// states runs all heads at once, and leaves the product of their states to the round.
func (h *heads) states(r *round, run *kernels.Pass, asks []*ask) error {
	if err := h.runner.Run(run); err != nil {
		return err
	}
	for k, z := range h.z {
		dim := h.program.Buffers[z].Dim
		all := make([]float32, len(asks)*dim)
		if err := kernels.ReadRows(h.runner, z, len(asks), kernels.Range{To: dim}, all); err != nil {
			return err
		}
		for i, a := range asks {
			r.state(all[i*dim:(i+1)*dim], &a.guess.Levels[k])
		}
	}
	return nil
}
