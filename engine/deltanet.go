package engine

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/kernels"
)

// deltaNet holds the weights of a recurrent layer (kernels.DeltaNet) and of what is around it.
type deltaNet struct {
	qkv, z, alpha, beta, out kernels.W
	conv, a, bias, norm      []float32
}

const keyInterval = "full_attention_interval"

// leaveOut takes the layers that guess further tokens off the count of layers, which includes them. In an assistant all do, and stay.
func (h *hyper) leaveOut(c *Config) {
	key := h.arch + "." + keyMTP
	if !slices.Contains(c.traits.reads, keyMTP) || !h.file.Has(key) {
		return
	}
	n, err := h.file.Int(key, 0, maxLayers)
	if c.traits.guesses {
		if h.keep(err); err == nil && n != 0 && n != c.Layers {
			h.fail(tandem.Corrupt, "key %q is %d: want all layers of an assistant, %q, %d", key, n, h.arch+".block_count", c.Layers)
		}
		return
	}
	if h.keep(err); err == nil && n >= c.Layers {
		h.fail(tandem.Corrupt, "key %q is %d: want less than %q, %d", key, n, h.arch+".block_count", c.Layers)
		return
	}
	c.extra, c.Layers = n, c.Layers-n
}

// leaveOut takes note of the tensors of those layers.
func (c *catalog) leaveOut(cfg *Config) {
	for i := cfg.Layers; i < cfg.Layers+cfg.extra; i++ {
		for _, t := range c.file.Tensors() {
			if strings.HasPrefix(t.Name, fmt.Sprintf("blk.%d.", i)) {
				c.used[t.Name] = true
			}
		}
	}
}

// readDeltaNet finds which layers are recurrent, and the sizes of those.
func (h *hyper) readDeltaNet(c *Config) {
	if !c.traits.deltaNet {
		return
	}
	every := h.count(keyInterval, 4, maxLayers)
	recurrent := false
	for i := range c.layers {
		c.layers[i].recurrent = (i+1)%every != 0
		recurrent = recurrent || c.layers[i].recurrent
	}
	if h.err != nil || !recurrent {
		return
	}
	d := kernels.DeltaShape{KeyHeads: h.count("ssm.group_count", -1, maxHeads), ValueHeads: h.count("ssm.time_step_rank", -1, maxHeads),
		Dim: h.count("ssm.state_size", -1, maxHead), Kernel: h.count("ssm.conv_kernel", -1, maxHead)}
	inner := h.count("ssm.inner_size", -1, maxDim)
	key := func(name string) string { return fmt.Sprintf("key %q", h.arch+".ssm."+name) }
	switch {
	case h.err != nil:
	case d.Kernel < 2:
		h.fail(tandem.Unsupported, "%s is %d: tandem runs convolutions of 2 taps or more", key("conv_kernel"), d.Kernel)
	case d.ValueHeads%d.KeyHeads != 0:
		h.fail(tandem.Corrupt, "%s is %d: want a multiple of %s, %d", key("time_step_rank"), d.ValueHeads, key("group_count"), d.KeyHeads)
	case inner != d.ValueHeads*d.Dim:
		h.fail(tandem.Corrupt, "%s is %d: want %d, %s times %s", key("inner_size"), inner, d.ValueHeads*d.Dim, key("time_step_rank"),
			key("state_size"))
	case d.Channels() > maxDim || d.Floats() > 1<<30:
		h.fail(tandem.Unsupported, "delta nets of %d channels and states of %d numbers: want at most %d and %d", d.Channels(), d.Floats(),
			maxDim, 1<<30)
	default:
		c.delta = d
	}
}

// kindOf refuses a layer with the tensors of the other kind.
func (c *catalog) kindOf(cfg *Config, i int, name func(string) string) bool {
	kind, others := "attention", []string{"ssm_conv1d.weight", "ssm_a", "ssm_out.weight", "attn_qkv.weight"}
	if cfg.layers[i].recurrent {
		kind, others = "a delta net", []string{"attn_q.weight", "attn_k.weight", "attn_v.weight", "attn_output.weight"}
	}
	for _, o := range others {
		if c.file.Tensor(name(o)) != nil {
			c.fail(tandem.Corrupt, "layer %d is %s by key %q, but has tensor %q", i, kind, cfg.Arch+"."+keyInterval, name(o))
			return false
		}
	}
	return true
}

func (c *catalog) collectDeltaNet(d *deltaNet, cfg *Config, name func(string) string) {
	s := cfg.delta
	inner := s.ValueHeads * s.Dim
	c.matrix(&d.qkv, name("attn_qkv.weight"), true, s.Channels(), cfg.Dim)
	c.matrix(&d.z, name("attn_gate.weight"), true, inner, cfg.Dim)
	c.matrix(&d.alpha, name("ssm_alpha.weight"), true, s.ValueHeads, cfg.Dim)
	c.matrix(&d.beta, name("ssm_beta.weight"), true, s.ValueHeads, cfg.Dim)
	c.matrix(&d.out, name("ssm_out.weight"), true, cfg.Dim, inner)
	d.conv = c.vector(name("ssm_conv1d.weight"), true, s.Kernel, s.Channels())
	d.a = c.vector(name("ssm_a"), true, s.ValueHeads)
	d.bias = c.vector(name("ssm_dt.bias"), true, s.ValueHeads)
	d.norm = c.vector(name("ssm_norm.weight"), true, s.Dim)
	for i, x := range d.a {
		if !(x <= 0) || math.IsInf(float64(x), 0) {
			c.fail(tandem.Corrupt, "tensor %q: number %d is %v: want finite numbers up to 0, so that states decay", name("ssm_a"), i, x)
			return
		}
	}
}

// interleaved asks for two matrices of so many rows whose rows alternate in one tensor: band rows of the first, then band of the second.
func (c *catalog) interleaved(name string, cols, rows, band int, first, second *kernels.W) {
	t := c.find(name, true, cols, 2*rows)
	if t == nil || !c.runs(t) {
		return
	}
	for i, into := range []*kernels.W{first, second} {
		*into = kernels.W(len(c.matrices))
		c.matrices = append(c.matrices, matrix{tensor: t, row0: i * band, rows: rows, band: band, stride: 2 * band})
	}
}

// leaveOutKV makes recurrent layers keep states in place of keys and values.
func (b *planner) leaveOutKV() {
	for i, s := range b.layers {
		if s.recurrent {
			b.KV.Layers[i] = kernels.KVLayer{}
			b.KV.States = append(b.KV.States, kernels.State{Layer: i, Kind: "delta net", Floats: b.delta.Floats(),
				Record: b.delta.Record()})
		}
	}
}

// deltaNet adds the output of a recurrent layer to the residual stream.
func (b *planner) deltaNet(i int) {
	l, s := &b.w.layers[i].delta, b.delta
	inner, state := s.ValueHeads*s.Dim, 0
	for _, before := range b.layers[:i] {
		if before.recurrent {
			state++
		}
	}
	in, z, out, act := b.buf("conv", s.Channels()), b.buf("z", inner), b.buf("read", inner), b.act("attended", inner)
	alpha, beta := b.buf("alpha", s.ValueHeads), b.buf("beta", s.ValueHeads)
	b.norm(b.x, b.w.layers[i].attnNorm, b.normed)
	b.Stage(fmt.Sprintf("layer %d", i))
	b.MatMul(l.qkv, b.normed, in, concurrent)
	b.MatMul(l.z, b.normed, z, concurrent)
	b.MatMul(l.alpha, b.normed, alpha, concurrent)
	b.MatMul(l.beta, b.normed, beta, kernels.MatMulOpt{})
	b.Add(kernels.DeltaNet{DeltaShape: s, State: state, In: in, Alpha: alpha, Beta: beta, Conv: l.conv, A: l.a, Bias: l.bias, Out: out})
	b.HeadNorm(out, s.ValueHeads, l.norm, b.NormEps)
	b.SiLUMul(z, out, act)
	b.add(l.out, act, nil, nil)
}

// gate computes what gates the output of attention; None in other architectures.
func (b *planner) gate(i int) kernels.Buf {
	if !b.traits.deltaNet {
		return kernels.None
	}
	gate := b.buf("attention's gate", b.layers[i].heads*b.HeadDim)
	b.MatMul(b.w.layers[i].attnGate, b.normed, gate, concurrent)
	return gate
}
