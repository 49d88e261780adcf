package engine

import (
	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/kernels"
)

// Keys of the gemma4 architecture, whose layers with a window have heads of a size of their own.
const (
	keySharedKV   = "attention.shared_kv_layers"
	keyLayerInput = "embedding_length_per_layer_input"
)

// readKinds finds the size of each layer's heads, and the layers that read what an earlier one keeps. Windows are known.
func (h *hyper) readKinds(c *Config) {
	head, turned := c.HeadDim, c.RopeDim
	if c.traits.localHeads {
		head = h.count("attention.key_length_swa", head, maxHead)
		turned = h.count("rope.dimension_count_swa", head, maxDim)
		if v := h.count("attention.value_length_swa", head, maxDim); v != head {
			h.fail(tandem.Unsupported, "value length %d of layers with a window differs from key length %d", v, head)
		}
		h.checkHeads(c, head, turned)
	}
	c.localRopeDim = turned
	for i := range c.layers {
		l := &c.layers[i]
		if l.headDim, l.source = c.HeadDim, i; l.local {
			l.headDim = head
		}
	}
	if !c.traits.localHeads {
		return
	}
	shared, err := h.file.IntOr(h.arch+"."+keySharedKV, 0, maxLayers, 0)
	if h.keep(err); shared >= c.Layers {
		h.fail(tandem.Corrupt, "key %q is %d: want at most %d, so that a layer keeps keys and values", h.arch+"."+keySharedKV, shared,
			c.Layers-1)
	}
	for i := max(0, c.Layers-shared); i < c.Layers && h.err == nil; i++ {
		h.share(c, i, c.Layers-shared)
	}
}

// share makes layer i read what the last of the first own layers of its kind keeps.
func (h *hyper) share(c *Config, i, own int) {
	l := &c.layers[i]
	for j := own - 1; j >= 0; j-- {
		if of := c.layers[j]; of.local == l.local {
			if l.source = j; of.kvHeads != l.kvHeads {
				h.fail(tandem.Corrupt, "layer %d has %d key-value heads: want the %d of layer %d, whose keys and values it reads", i,
					l.kvHeads, of.kvHeads, j)
			}
			return
		}
	}
	kind := map[bool]string{true: "with a window", false: "without a window"}[l.local]
	h.fail(tandem.Corrupt, "layer %d, %s, reads the keys and values of an earlier layer of its kind: none of the %d layers that keep "+
		"their own is one (key %q)", i, kind, own, h.arch+"."+keySharedKV)
}

// checkHeads refuses sizes of heads that contradict each other.
func (h *hyper) checkHeads(c *Config, head, turned int) {
	switch {
	case head > maxHead:
		h.fail(tandem.Corrupt, "heads of %d elements: want at most %d", head, maxHead)
	case turned > head || turned%2 != 0:
		h.fail(tandem.Corrupt, "rope dimension count %d: want an even number up to the head size %d", turned, head)
	case c.Heads*head > maxDim:
		h.fail(tandem.Corrupt, "%d heads of %d elements: want at most %d in all", c.Heads, head, maxDim)
	}
}

// kvShape returns what the cache keeps of each layer.
func (c *Config) kvShape(t kernels.KVType) kernels.KVShape {
	shape := kernels.KVShape{Type: t}
	for i, s := range c.layers {
		if c.latent.rank > 0 {
			shape.Layers = append(shape.Layers, kernels.KVLayer{Latent: c.latent.rank, Rotated: c.RopeDim})
			continue
		}
		if s.source != i {
			shape.Layers = append(shape.Layers, kernels.KVLayer{Shared: true, Source: s.source})
			continue
		}
		shape.Layers = append(shape.Layers, kernels.KVLayer{Heads: s.kvHeads, Dim: s.headDim})
	}
	return shape
}
