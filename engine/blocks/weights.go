package blocks

import (
	"fmt"

	"github.com/tandem-llm/tandem/engine/tensors"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/kernels"
)

// Layer holds one transformer block's weights; biases are nil where the file has none.
type Layer struct {
	AttnNorm, FFNNorm          []float32 // (dim)
	AttnPost, FFNPost          []float32 // (dim), norms of the outputs of attention and feed-forward; nil: none
	QNorm, KNorm               []float32 // (headDim); nil: none
	Q, K, V, O                 kernels.W
	SameKV                     bool // values are the keys before their norm
	QBias, KBias, VBias, OBias []float32
	Gate, Up, Down             kernels.W
	GateBias, UpBias, DownBias []float32
	Sinks                      []float32 // (heads), scores without a value; nil: none
	Mixture                    Mixture   // in place of gate, up and down, or beside them, if the model has experts
	Input                      LayerInput
	Scale                      float32    // of what the layer leaves
	AttnGate                   kernels.W  // of attention's output, in architectures with delta nets
	Delta                      DeltaNet   // in place of attention, if the layer is recurrent
	Compressed                 Compressed // of a model with latent attention
}

// Weights are a model's parameters: matrices by their handle in the program, vectors as they are. head is embed if the file has no
// output matrix.
type Weights struct {
	Embed, Head kernels.W
	OutputNorm  []float32
	RopeFactors []float32 // (ropeDim/2), or nil
	Inputs      LayerInputs
	Layers      []Layer
	Second      *Second // of the first layer; nil: none
}

// Second is what attention in the first layer reads beside the residual stream x (EAGLE-3): its q, k and v are W norm(x) + W' in.
type Second struct {
	Norm    []float32   // of x, in place of the layer's own
	Q, K, V kernels.W   // W'
	In      kernels.Act // (rows, d)
}

// Finder finds the tensors of a model's blocks.
type Finder struct {
	*tensors.Catalog
	Bare bool // the first layer may have no norm before attention: a draft's
}

// Collect lists every tensor of a model.
func (c Finder) Collect(w *Weights, cfg *Config) {
	c.Matrix(&w.Embed, "token_embd.weight", true, cfg.Vocab, cfg.Dim)
	w.Head = w.Embed
	c.Matrix(&w.Head, "output.weight", false, cfg.Vocab, cfg.Dim)
	w.OutputNorm = c.Vector("output_norm.weight", true, cfg.Dim)
	c.CollectRopeFactors(w, cfg)
	c.collectLayerInputs(&w.Inputs, cfg)
	w.Layers = make([]Layer, cfg.Layers)
	for i := range w.Layers {
		if c.CollectLayer(&w.Layers[i], w, cfg, i); c.Err != nil {
			return
		}
	}
	c.LeaveOutTowers()
	c.leaveOut(cfg)
	c.RefuseOthers(cfg.Arch)
}

func (c Finder) CollectLayer(l *Layer, w *Weights, cfg *Config, i int) {
	t, s := &cfg.Traits, cfg.Shapes[i]
	name := func(s string) string { return fmt.Sprintf("blk.%d.%s", cfg.First+i, s) }
	l.AttnNorm = c.Vector(name("attn_norm.weight"), i > 0 || !c.Bare, cfg.Dim)
	l.FFNNorm = c.Vector(name(t.ffnNorm()), true, cfg.Dim)
	c.collectLayerInput(l, cfg, name)
	if t.DeltaNet && !c.kindOf(cfg, i, name) {
		return
	}
	if s.Recurrent {
		c.collectDeltaNet(&l.Delta, cfg, name)
	} else {
		c.collectAttention(l, w, cfg, i, name)
	}
	c.collectFeedForward(l, cfg, i, name)
}

func (c Finder) collectAttention(l *Layer, w *Weights, cfg *Config, i int, name func(string) string) {
	t, s := &cfg.Traits, cfg.Shapes[i]
	own := s.Source == i
	if t.HeadNorms {
		l.QNorm = c.Vector(name("attn_q_norm.weight"), true, s.HeadDim)
	}
	if t.HeadNorms && own {
		l.KNorm = c.Vector(name("attn_k_norm.weight"), true, s.HeadDim)
	}
	if t.PostNorms {
		l.AttnPost = c.Vector(name("post_attention_norm.weight"), true, cfg.Dim)
	}
	if t.Latent {
		c.collectLatent(l, cfg, name, s.Heads)
	} else {
		c.collectQKV(l, w, cfg, name, i)
	}
	if t.Sinks {
		l.Sinks = c.Vector(name("attn_sinks.weight"), true, s.Heads)
	}
}

// collectQKV lists the matrices of attention whose heads have keys and values.
func (c Finder) collectQKV(l *Layer, w *Weights, cfg *Config, name func(string) string, i int) {
	t, s := &cfg.Traits, cfg.Shapes[i]
	attn, kv, own := s.Heads*s.HeadDim, s.KVHeads*s.HeadDim, s.Source == i
	if qkv := name("attn_qkv.weight"); t.Fused && c.File.Tensor(qkv) != nil {
		c.Stacked(qkv, cfg.Dim, tensors.Rows(&l.Q, attn), tensors.Rows(&l.K, kv), tensors.Rows(&l.V, kv))
	} else if i == 0 && w.Second != nil {
		for _, m := range []struct {
			letter       string
			hidden, embd *kernels.W
			rows         int
		}{{"q", &l.Q, &w.Second.Q, attn}, {"k", &l.K, &w.Second.K, kv}, {"v", &l.V, &w.Second.V, kv}} {
			c.Matrix(m.hidden, name("attn_"+m.letter+".hidden.weight"), true, m.rows, cfg.Dim)
			c.Matrix(m.embd, name("attn_"+m.letter+".embd.weight"), true, m.rows, cfg.Dim)
		}
	} else {
		if t.DeltaNet {
			c.Interleaved(name("attn_q.weight"), cfg.Dim, attn, s.HeadDim, &l.Q, &l.AttnGate)
		} else {
			c.Matrix(&l.Q, name("attn_q.weight"), true, attn, cfg.Dim)
		}
		if own {
			c.Matrix(&l.K, name("attn_k.weight"), true, kv, cfg.Dim)
			l.SameKV = t.ValueNorms && c.File.Tensor(name("attn_v.weight")) == nil
			c.Matrix(&l.V, name("attn_v.weight"), !l.SameKV, kv, cfg.Dim)
		}
	}
	c.Matrix(&l.O, name("attn_output.weight"), true, cfg.Dim, attn)
	if qkv := name("attn_qkv.bias"); t.Fused && c.File.Tensor(qkv) != nil {
		if all := c.Vector(qkv, true, attn+2*kv); all != nil {
			l.QBias, l.KBias, l.VBias = all[:attn], all[attn:attn+kv], all[attn+kv:]
		}
	} else {
		l.QBias = c.Vector(name("attn_q.bias"), false, attn)
		l.KBias = c.Vector(name("attn_k.bias"), false, kv)
		l.VBias = c.Vector(name("attn_v.bias"), false, kv)
	}
	l.OBias = c.Vector(name("attn_output.bias"), false, cfg.Dim)
}

func (c Finder) collectFeedForward(l *Layer, cfg *Config, i int, name func(string) string) {
	t, s := &cfg.Traits, cfg.Shapes[i]
	if t.PostNorms {
		l.FFNPost = c.Vector(name("post_ffw_norm.weight"), true, cfg.Dim)
	}
	switch {
	case cfg.Experts.Count > 0 && t.Beside:
		c.collectBeside(&l.Mixture, cfg, name, s.Expert)
	case s.Expert > 0 && cfg.Experts.Count > 0:
		c.collectExperts(&l.Mixture, cfg, name, s)
		return
	}
	if t.Fused && c.File.Tensor(name("ffn_gate.weight")) == nil {
		c.Stacked(name("ffn_up.weight"), cfg.Dim, tensors.Rows(&l.Gate, s.FFN), tensors.Rows(&l.Up, s.FFN))
		if all := c.Vector(name("ffn_up.bias"), false, 2*s.FFN); all != nil {
			l.GateBias, l.UpBias = all[:s.FFN], all[s.FFN:]
		}
	} else {
		c.Matrix(&l.Gate, name("ffn_gate.weight"), true, s.FFN, cfg.Dim)
		c.Matrix(&l.Up, name("ffn_up.weight"), true, s.FFN, cfg.Dim)
		l.GateBias = c.Vector(name("ffn_gate.bias"), false, s.FFN)
		l.UpBias = c.Vector(name("ffn_up.bias"), false, s.FFN)
	}
	c.Matrix(&l.Down, name("ffn_down.weight"), true, cfg.Dim, s.FFN)
	l.DownBias = c.Vector(name("ffn_down.bias"), false, cfg.Dim)
}

// CollectRopeFactors finds the factors that divide RoPE's frequencies: Llama 3.1's single table, or one of LongRoPE's two, for
// contexts longer than the training context and for others. The model's context, set when it is loaded, decides.
func (c Finder) CollectRopeFactors(w *Weights, cfg *Config) {
	if !cfg.Traits.RopeFactors {
		return
	}
	const longName, shortName = "rope_factors_long.weight", "rope_factors_short.weight"
	need := cfg.Rope.Kind == "longrope" || c.File.Tensor(longName) != nil || c.File.Tensor(shortName) != nil
	w.RopeFactors = c.Vector("rope_freqs.weight", false, cfg.RopeDim/2)
	long, short := c.Vector(longName, need, cfg.RopeDim/2), c.Vector(shortName, need, cfg.RopeDim/2)
	if w.RopeFactors == nil && cfg.Context > cfg.Rope.Original {
		w.RopeFactors = long
	} else if w.RopeFactors == nil {
		w.RopeFactors = short
	}
	for i, f := range w.RopeFactors {
		if !(f >= minRopeFactor && f <= maxRopeFactor) && !(cfg.Traits.LocalHeads && f >= minStill && f <= maxStill) {
			c.Fail(tandem.Corrupt, "rope factor %d is %v: want %v to %v", i, f, minRopeFactor, maxRopeFactor)
		}
	}
}
