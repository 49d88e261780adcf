package device

import (
	"github.com/tandem-llm/tandem/kernels"
	"github.com/tandem-llm/tandem/kernels/ref"
)

// states is what a recurrent layer keeps: slots and records, one after the other.
type states struct{ slots, records []float32 }

func stateBytes(s kernels.KVShape) int64 {
	return int64(s.Slots)*s.SlotBytes() + int64(s.Records)*s.RecordBytes()
}

func newStates(s kernels.KVShape) (all []states) {
	for _, x := range s.States {
		all = append(all, states{make([]float32, s.Slots*x.Floats), make([]float32, s.Records*x.Record)})
	}
	return all
}

// part returns part i of those of n numbers.
func part(x []float32, n int, i int32) []float32 { return x[int(i)*n : (int(i)+1)*n] }

// CopyStates copies slots.
func (c *cache) CopyStates(dst, src []int32) {
	for i, x := range c.shape.States {
		for j := range dst {
			copy(part(c.states[i].slots, x.Floats, dst[j]), part(c.states[i].slots, x.Floats, src[j]))
		}
	}
}

// deltaNet takes the states of all walks through their steps. Each state that a walk holds is a copy.
func (r *runner) deltaNet(o kernels.DeltaNet) {
	d := ref.Delta{KeyHeads: o.KeyHeads, ValueHeads: o.ValueHeads, Dim: o.Dim, Kernel: o.Kernel, Conv: o.Conv, A: o.A, Bias: o.Bias}
	s, shape, channels := r.cache.states[o.State], r.KV.States[o.State], o.Channels()
	first := make([][]float32, len(r.pass.Walks)) // before any walk saves what it ends with
	for i, w := range r.pass.Walks {
		first[i] = make([]float32, shape.Floats)
		if w.From >= 0 {
			copy(first[i], part(s.slots, shape.Floats, w.From))
		}
	}
	parallel(len(r.pass.Walks), func(i int) {
		held := [kernels.MaxHeld][]float32{0: first[i]}
		for _, x := range r.pass.Walks[i].Steps {
			state := append([]float32(nil), held[x.In]...)
			if x.Row < 0 {
				rec := part(s.records, shape.Record, x.Record)
				d.Step(state, rec[:channels], rec[channels:channels+o.ValueHeads], rec[channels+o.ValueHeads:], nil)
			} else {
				in, alpha, beta := r.row(o.In, int(x.Row)), r.row(o.Alpha, int(x.Row)), r.row(o.Beta, int(x.Row))
				d.Step(state, in, alpha, beta, r.row(o.Out, int(x.Row)))
				if x.Record >= 0 {
					rec := part(s.records, shape.Record, x.Record)
					copy(rec, in)
					copy(rec[channels:], alpha)
					copy(rec[channels+o.ValueHeads:], beta)
				}
			}
			held[x.Out] = state
			if x.Save >= 0 {
				copy(part(s.slots, shape.Floats, x.Save), state)
			}
		}
	})
}
