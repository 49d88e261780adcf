package blocks

import (
	"fmt"
	"math"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/kernels"
)

// DeltaNet takes the place of attention in a recurrent layer (kernels.DeltaNet). α makes its state decay, β corrects it (Gated DeltaNet,
// equation 10):
//
//	n = In(x); u, z, α, β = W n; x = Out(x, Wout (norm of each head (delta net(conv(u), α, β)) ∘ silu(z)))
type DeltaNet struct {
	In                  Entrance
	Out                 Exit
	QKV, Z, Alpha, Beta kernels.W
	Output              Branch
	Conv, A, Bias, Norm []float32
	layer               int
}

const keyInterval = "full_attention_interval"

// DeltaNets reads which layers are recurrent, into c.Shapes, which must be there, and the sizes of their delta nets, into c.Delta.
func (h *Reader) DeltaNets(c *Config) {
	every := h.Count(keyInterval, 4, MaxLayers)
	recurrent := false
	for i := range c.Shapes {
		c.Shapes[i].Recurrent = (i+1)%every != 0
		recurrent = recurrent || c.Shapes[i].Recurrent
	}
	if h.Err != nil || !recurrent {
		return
	}
	d := kernels.DeltaShape{KeyHeads: h.Count("ssm.group_count", -1, MaxHeads), ValueHeads: h.Count("ssm.time_step_rank", -1, MaxHeads),
		Dim: h.Count("ssm.state_size", -1, MaxHead), Kernel: h.Count("ssm.conv_kernel", -1, MaxHead)}
	inner := h.Count("ssm.inner_size", -1, MaxDim)
	key := func(name string) string { return fmt.Sprintf("key %q", h.Arch+".ssm."+name) }
	switch {
	case h.Err != nil:
	case d.Kernel < 2:
		h.Fail(tandem.Unsupported, "%s is %d: tandem runs convolutions of 2 taps or more", key("conv_kernel"), d.Kernel)
	case d.ValueHeads%d.KeyHeads != 0:
		h.Fail(tandem.Corrupt, "%s is %d: want a multiple of %s, %d", key("time_step_rank"), d.ValueHeads, key("group_count"), d.KeyHeads)
	case inner != d.ValueHeads*d.Dim:
		h.Fail(tandem.Corrupt, "%s is %d: want %d, %s times %s", key("inner_size"), inner, d.ValueHeads*d.Dim, key("time_step_rank"),
			key("state_size"))
	case d.Channels() > MaxDim || d.Floats() > 1<<30:
		h.Fail(tandem.Unsupported, "delta nets of %d channels and states of %d numbers: want at most %d and %d", d.Channels(), d.Floats(),
			MaxDim, 1<<30)
	default:
		c.Delta = d
	}
}

// RightKind fails if the file has tensors of attention for a recurrent layer, or of a delta net for any other.
func (t *Tensors) RightKind() {
	kind, others := "attention", []string{"ssm_conv1d.weight", "ssm_a", "ssm_out.weight", "attn_qkv.weight"}
	if t.Shape.Recurrent {
		kind, others = "a delta net", []string{"attn_q.weight", "attn_k.weight", "attn_v.weight", "attn_output.weight"}
	}
	for _, o := range others {
		if t.Has(o) {
			t.Fail(tandem.Corrupt, "layer %d is %s by key %q, but has tensor %q", t.I, kind, t.C.Arch+"."+keyInterval, t.Name(o))
			return
		}
	}
}

// DeltaNet finds the tensors of the layer's delta net and checks that its states decay.
func (t *Tensors) DeltaNet() *DeltaNet {
	d, s := &DeltaNet{In: t.attentionNorm(), Out: t.exit(), layer: t.I}, t.C.Delta
	inner := s.ValueHeads * s.Dim
	t.Mat(&d.QKV, "attn_qkv.weight", s.Channels(), t.C.Dim)
	t.Mat(&d.Z, "attn_gate.weight", inner, t.C.Dim)
	t.Mat(&d.Alpha, "ssm_alpha.weight", s.ValueHeads, t.C.Dim)
	t.Mat(&d.Beta, "ssm_beta.weight", s.ValueHeads, t.C.Dim)
	t.Mat(&d.Output.W, "ssm_out.weight", t.C.Dim, inner)
	d.Conv = t.Vec("ssm_conv1d.weight", s.Kernel, s.Channels())
	d.A = t.Vec("ssm_a", s.ValueHeads)
	d.Bias = t.Vec("ssm_dt.bias", s.ValueHeads)
	d.Norm = t.Vec("ssm_norm.weight", s.Dim)
	for i, x := range d.A {
		if !(x <= 0) || math.IsInf(float64(x), 0) {
			t.Fail(tandem.Corrupt, "tensor %q: number %d is %v: want finite numbers up to 0, so that states decay", t.Name("ssm_a"), i, x)
			break
		}
	}
	return d
}

// Lay implements Part.
func (d *DeltaNet) Lay(b *Planner) {
	s := b.Delta
	inner := s.ValueHeads * s.Dim
	in, z, out, act := b.BufOf("conv", s.Channels()), b.BufOf("z", inner), b.BufOf("read", inner), b.ActOf("attended", inner)
	alpha, beta := b.BufOf("alpha", s.ValueHeads), b.BufOf("beta", s.ValueHeads)
	d.In.enter(b, d.layer)
	state := len(b.KV.States)
	b.KV.Layers = append(b.KV.Layers, kernels.KVLayer{}) // no keys and values
	b.KV.States = append(b.KV.States, kernels.State{Layer: d.layer, Kind: "delta net", Floats: s.Floats(), Record: s.Record()})
	b.MatMul(d.QKV, b.Normed, in, Concurrent)
	b.MatMul(d.Z, b.Normed, z, Concurrent)
	b.MatMul(d.Alpha, b.Normed, alpha, Concurrent)
	b.MatMul(d.Beta, b.Normed, beta, kernels.MatMulOpt{})
	b.Add(kernels.DeltaNet{DeltaShape: s, State: state, In: in, Alpha: alpha, Beta: beta, Conv: d.Conv, A: d.A, Bias: d.Bias, Out: out})
	b.HeadNorm(out, s.ValueHeads, d.Norm, b.NormEps)
	b.SiLUMul(z, out, act)
	d.Output.Leave(b, act, d.Out)
}
