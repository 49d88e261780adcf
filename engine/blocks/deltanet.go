package blocks

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/kernels"
)

// DeltaNet holds the weights of a recurrent layer (kernels.DeltaNet) and of what is around it.
type DeltaNet struct {
	QKV, Z, Alpha, Beta, Out kernels.W
	Conv, A, Bias, Norm      []float32
}

const keyInterval = "full_attention_interval"

// leaveOut takes the layers that guess further tokens off the count of layers, which includes them. In an assistant all do, and stay.
func (h *Reader) leaveOut(c *Config) {
	key := h.Arch + "." + KeyMTP
	if !slices.Contains(c.Traits.Reads, KeyMTP) || !h.File.Has(key) {
		return
	}
	n, err := h.File.Int(key, 0, MaxLayers)
	if c.Traits.Guesses {
		if h.Keep(err); err == nil && n != 0 && n != c.Layers {
			h.Fail(tandem.Corrupt, "key %q is %d: want all layers of an assistant, %q, %d", key, n, h.Arch+".block_count", c.Layers)
		}
		return
	}
	if h.Keep(err); err == nil && n >= c.Layers {
		h.Fail(tandem.Corrupt, "key %q is %d: want less than %q, %d", key, n, h.Arch+".block_count", c.Layers)
		return
	}
	c.Extra, c.Layers = n, c.Layers-n
}

// leaveOut takes note of the tensors of those layers.
func (c Finder) leaveOut(cfg *Config) {
	for i := cfg.Layers; i < cfg.Layers+cfg.Extra; i++ {
		for _, t := range c.File.Tensors() {
			if strings.HasPrefix(t.Name, fmt.Sprintf("blk.%d.", i)) {
				c.Skip(t.Name)
			}
		}
	}
}

// readDeltaNet finds which layers are recurrent, and the sizes of those.
func (h *Reader) readDeltaNet(c *Config) {
	if !c.Traits.DeltaNet {
		return
	}
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

// kindOf refuses a layer with the tensors of the other kind.
func (c Finder) kindOf(cfg *Config, i int, name func(string) string) bool {
	kind, others := "attention", []string{"ssm_conv1d.weight", "ssm_a", "ssm_out.weight", "attn_qkv.weight"}
	if cfg.Shapes[i].Recurrent {
		kind, others = "a delta net", []string{"attn_q.weight", "attn_k.weight", "attn_v.weight", "attn_output.weight"}
	}
	for _, o := range others {
		if c.File.Tensor(name(o)) != nil {
			c.Fail(tandem.Corrupt, "layer %d is %s by key %q, but has tensor %q", i, kind, cfg.Arch+"."+keyInterval, name(o))
			return false
		}
	}
	return true
}

func (c Finder) collectDeltaNet(d *DeltaNet, cfg *Config, name func(string) string) {
	s := cfg.Delta
	inner := s.ValueHeads * s.Dim
	c.Matrix(&d.QKV, name("attn_qkv.weight"), true, s.Channels(), cfg.Dim)
	c.Matrix(&d.Z, name("attn_gate.weight"), true, inner, cfg.Dim)
	c.Matrix(&d.Alpha, name("ssm_alpha.weight"), true, s.ValueHeads, cfg.Dim)
	c.Matrix(&d.Beta, name("ssm_beta.weight"), true, s.ValueHeads, cfg.Dim)
	c.Matrix(&d.Out, name("ssm_out.weight"), true, cfg.Dim, inner)
	d.Conv = c.Vector(name("ssm_conv1d.weight"), true, s.Kernel, s.Channels())
	d.A = c.Vector(name("ssm_a"), true, s.ValueHeads)
	d.Bias = c.Vector(name("ssm_dt.bias"), true, s.ValueHeads)
	d.Norm = c.Vector(name("ssm_norm.weight"), true, s.Dim)
	for i, x := range d.A {
		if !(x <= 0) || math.IsInf(float64(x), 0) {
			c.Fail(tandem.Corrupt, "tensor %q: number %d is %v: want finite numbers up to 0, so that states decay", name("ssm_a"), i, x)
			return
		}
	}
}

// LeaveOutKV makes recurrent layers keep states in place of keys and values.
func (b *Planner) LeaveOutKV() {
	for i, s := range b.Shapes {
		if s.Recurrent {
			b.KV.Layers[i] = kernels.KVLayer{}
			b.KV.States = append(b.KV.States, kernels.State{Layer: i, Kind: "delta net", Floats: b.Delta.Floats(),
				Record: b.Delta.Record()})
		}
	}
}

// DeltaNet adds the output of a recurrent layer to the residual stream.
func (b *Planner) DeltaNet(i int) {
	l, s := &b.W.Layers[i].Delta, b.Delta
	inner, state := s.ValueHeads*s.Dim, 0
	for _, before := range b.Shapes[:i] {
		if before.Recurrent {
			state++
		}
	}
	in, z, out, act := b.buf("conv", s.Channels()), b.buf("z", inner), b.buf("read", inner), b.act("attended", inner)
	alpha, beta := b.buf("alpha", s.ValueHeads), b.buf("beta", s.ValueHeads)
	b.Norm(b.X, b.W.Layers[i].AttnNorm, b.Normed)
	b.Stage(fmt.Sprintf("layer %d", i))
	b.MatMul(l.QKV, b.Normed, in, Concurrent)
	b.MatMul(l.Z, b.Normed, z, Concurrent)
	b.MatMul(l.Alpha, b.Normed, alpha, Concurrent)
	b.MatMul(l.Beta, b.Normed, beta, kernels.MatMulOpt{})
	b.Add(kernels.DeltaNet{DeltaShape: s, State: state, In: in, Alpha: alpha, Beta: beta, Conv: l.Conv, A: l.A, Bias: l.Bias, Out: out})
	b.HeadNorm(out, s.ValueHeads, l.Norm, b.NormEps)
	b.SiLUMul(z, out, act)
	b.add(l.Out, act, nil, nil)
}

// gate computes what gates the output of attention; None in other architectures.
func (b *Planner) gate(i int) kernels.Buf {
	if !b.Traits.DeltaNet {
		return kernels.None
	}
	gate := b.buf("attention's gate", b.Shapes[i].Heads*b.HeadDim)
	b.MatMul(b.W.Layers[i].AttnGate, b.Normed, gate, Concurrent)
	return gate
}
