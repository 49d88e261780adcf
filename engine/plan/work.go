package plan

import (
	"math"
	"time"

	"github.com/tandem-llm/tandem/engine/blocks"
	"github.com/tandem-llm/tandem/engine/header"
	"github.com/tandem-llm/tandem/kernels"
)

// Work is the least that a pass has to do: to read every weight once, and a multiply-add for each weight and row. The embedding is only
// looked up, unless it is the output matrix too. Of experts a pass has to read at least those that one row uses: see Reading.
type Work struct {
	Bytes              int64 // of the weights as in the file
	Expert             int64 // of Bytes, those of one expert of a layer on average; 0: a model without experts
	Experts            int   // experts in Bytes, counted layer by layer
	IntMACs, FloatMACs int64 // per row, by quantised and by float weights, without the output matrix
	HeadInt, HeadFloat int64 // of the output matrix, per row with logits
}

// WorkOf returns the work of a pass of the model h, by the matrices that it multiplies with.
func WorkOf(h *header.Header) (sum Work) {
	w, c := &h.Weights, &h.Config
	var mixed int64 // bytes of all experts
	for i := range h.Matrices {
		p := &h.Matrices[i]
		head := kernels.W(i) == w.Head
		if !head && kernels.W(i) == w.Embed || w.Inputs.Norm != nil && kernels.W(i) == w.Inputs.Table {
			continue
		}
		n := int64(p.Rows) * int64(p.Cols())
		bytes := p.FileBytes()
		if p.Heads {
			n, bytes = n*int64(p.Experts), bytes*int64(p.Experts)
		} else if p.Experts > 0 {
			n, bytes = n*int64(c.Experts.Used), bytes*int64(c.Experts.Used)
			mixed += bytes
		}
		sum.Bytes += bytes
		switch quantized := p.Kind().Quantized(); {
		case head && quantized:
			sum.HeadInt += n
		case head:
			sum.HeadFloat += n
		case quantized:
			sum.IntMACs += n
		default:
			sum.FloatMACs += n
		}
	}
	if sum.Experts = c.MixedLayers() * c.Experts.Used; sum.Experts > 0 {
		sum.Expert = mixed / int64(sum.Experts)
	}
	return sum
}

// Reading returns w for a pass that uses this many experts, each counted once for each layer where it is used: the last number of
// pass.Output.Experts.
func (w Work) Reading(experts int) Work {
	w.Bytes += int64(experts-w.Experts) * w.Expert
	w.Experts = experts
	return w
}

// MACs returns the multiply-adds of a pass of rows rows, wanted of them with logits: those with quantised weights (ints), and those with
// float weights.
func (w Work) MACs(rows, wanted int) (ints, floats float64) {
	return float64(w.IntMACs)*float64(rows) + float64(w.HeadInt)*float64(wanted),
		float64(w.FloatMACs)*float64(rows) + float64(w.HeadFloat)*float64(wanted)
}

// Limit returns the least time of a pass on a machine with limits l: the longer of reading the weights
// and doing the multiply-adds, each kind at its own rate.
func (w Work) Limit(l kernels.Limits, rows, wanted int) time.Duration {
	ints, floats := w.MACs(rows, wanted)
	return seconds(max(float64(w.Bytes)/l.ReadBytes, ints/l.IntMACs+floats/l.FloatMACs))
}

// Prompt returns the least time of a pass over rows of a prompt behind `before` positions: Limit with the multiply-adds of attention, of
// each row with the keys and values that it sees. c: of the model.
func (w Work) Prompt(l kernels.Limits, c *blocks.Config, before, rows int) time.Duration {
	ints, floats := w.MACs(rows, 1)
	for i := range c.Shapes {
		s := &c.Shapes[i]
		if s.Recurrent {
			continue
		}
		dims, window := 2*s.HeadDim, math.MaxInt // of a key and a value
		if c.Latent.Rank > 0 {
			dims = 2*c.Latent.Rank + c.RopeDim
		}
		if s.Local && c.Window > 0 {
			window = c.Window
		}
		for p := before + 1; p <= before+rows; p++ {
			floats += float64(s.Heads * dims * min(p, window))
		}
	}
	return seconds(max(float64(w.Bytes)/l.ReadBytes, ints/l.IntMACs+floats/l.FloatMACs))
}

func seconds(s float64) time.Duration { return time.Duration(s * 1e9) }
