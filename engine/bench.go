package engine

import (
	"time"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/engine/blocks"
	"github.com/tandem-llm/tandem/engine/tensors"
	"github.com/tandem-llm/tandem/kernels"
)

// Work is the least that a pass has to do: read every weight once, and a multiply-add per weight and row.
// The embedding is only looked up, unless it is the output matrix too. Of experts a pass has to read those that one row uses: see Reading.
type Work struct {
	Bytes              int64 // of the weights as in the file
	Expert             int64 // of Bytes, those of one expert of a layer on average; 0: a model without experts
	Experts            int   // experts in Bytes, counted layer by layer
	IntMACs, FloatMACs int64 // per row, by quantised and by float weights, without the output matrix
	HeadInt, HeadFloat int64 // of the output matrix, per row with logits
}

// workOf adds up the matrices that a pass multiplies with.
func workOf(w *blocks.Weights, matrices []tensors.Matrix, c *blocks.Config) (sum Work) {
	var mixed int64 // bytes of all experts
	for i := range matrices {
		p := &matrices[i]
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

// Reading returns the work of a pass that uses so many experts, counted layer by layer: Model.Experts.
func (w Work) Reading(experts int) Work {
	w.Bytes += int64(experts-w.Experts) * w.Expert
	w.Experts = experts
	return w
}

// MACs returns the multiply-adds of a pass with weights of the two kinds.
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

func seconds(s float64) time.Duration { return time.Duration(s * 1e9) }

// Passes tells what the passes of a model consist of and what they cost. It is valid until the model is closed, and has the model's owner.
type Passes struct{ m *Model }

// Work returns the least work of the passes.
func (p Passes) Work() Work { return p.m.work }

// Plan returns the operations of a pass. They are the model's: do not change them.
func (p Passes) Plan() *kernels.Program { return p.m.plan }

// KVBytes returns the bytes of the KV cache for one position, all layers.
func (p Passes) KVBytes() int64 {
	return (p.m.footprint.PageBytes + p.m.footprint.Own.Page) / kernels.PageRows
}

// TimeOperations makes later passes add up how long each kind of operation takes (true), from zero on, or stop doing so. Errors:
// Unsupported for a device that cannot tell.
func (p Passes) TimeOperations(on bool) error {
	r, ok := p.m.runner.(kernels.Timer)
	if !ok {
		return tandem.Errorf("engine", tandem.Unsupported, "the device %v does not tell how long its operations take", p.m.device.About())
	}
	return r.Time(on)
}

// OperationTimes returns the sums since TimeOperations(true); none unless that is on.
func (p Passes) OperationTimes() []kernels.OpTime {
	if r, ok := p.m.runner.(kernels.Timer); ok {
		return r.Times()
	}
	return nil
}

// LeastTime returns how many launches the last pass had on its device, and the shortest time of n graphs of as many that do nothing.
// Both are 0 for a device that has none.
func (p Passes) LeastTime(n int) (launches int, least time.Duration, err error) {
	if r, ok := p.m.runner.(kernels.LaunchTimer); ok {
		return r.LeastTime(n)
	}
	return 0, 0, nil
}

// Streamer returns the device of the passes if its weights are streamed.
func (p Passes) Streamer() (kernels.Streamer, bool) {
	s, ok := p.m.device.(kernels.Streamer)
	return s, ok
}

// NewProbe returns a probe of the device that runs the passes. Close the probe before the device.
func (p Passes) NewProbe(bytes int) (kernels.Probe, error) { return p.m.device.NewProbe(bytes) }
