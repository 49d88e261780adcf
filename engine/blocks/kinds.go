package blocks

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
func (h *Reader) readKinds(c *Config) {
	head, turned := c.HeadDim, c.RopeDim
	if c.Traits.LocalHeads {
		head = h.Count("attention.key_length_swa", head, MaxHead)
		turned = h.Count("rope.dimension_count_swa", head, MaxDim)
		if v := h.Count("attention.value_length_swa", head, MaxDim); v != head {
			h.Fail(tandem.Unsupported, "value length %d of layers with a window differs from key length %d", v, head)
		}
		h.checkHeads(c, head, turned)
	}
	c.LocalRopeDim = turned
	for i := range c.Shapes {
		l := &c.Shapes[i]
		if l.HeadDim, l.Source = c.HeadDim, i; l.Local {
			l.HeadDim = head
		}
	}
	if !c.Traits.LocalHeads {
		return
	}
	shared, err := h.File.IntOr(h.Arch+"."+keySharedKV, 0, MaxLayers, 0)
	if h.Keep(err); shared >= c.Layers {
		h.Fail(tandem.Corrupt, "key %q is %d: want at most %d, so that a layer keeps keys and values", h.Arch+"."+keySharedKV, shared,
			c.Layers-1)
	}
	for i := max(0, c.Layers-shared); i < c.Layers && h.Err == nil; i++ {
		h.share(c, i, c.Layers-shared)
	}
}

// share makes layer i read what the last of the first own layers of its kind keeps.
func (h *Reader) share(c *Config, i, own int) {
	l := &c.Shapes[i]
	for j := own - 1; j >= 0; j-- {
		if of := c.Shapes[j]; of.Local == l.Local {
			if l.Source = j; of.KVHeads != l.KVHeads {
				h.Fail(tandem.Corrupt, "layer %d has %d key-value heads: want the %d of layer %d, whose keys and values it reads", i,
					l.KVHeads, of.KVHeads, j)
			}
			return
		}
	}
	kind := map[bool]string{true: "with a window", false: "without a window"}[l.Local]
	h.Fail(tandem.Corrupt, "layer %d, %s, reads the keys and values of an earlier layer of its kind: none of the %d layers that keep "+
		"their own is one (key %q)", i, kind, own, h.Arch+"."+keySharedKV)
}

// checkHeads refuses sizes of heads that contradict each other.
func (h *Reader) checkHeads(c *Config, head, turned int) {
	switch {
	case head > MaxHead:
		h.Fail(tandem.Corrupt, "heads of %d elements: want at most %d", head, MaxHead)
	case turned > head || turned%2 != 0:
		h.Fail(tandem.Corrupt, "rope dimension count %d: want an even number up to the head size %d", turned, head)
	case c.Heads*head > MaxDim:
		h.Fail(tandem.Corrupt, "%d heads of %d elements: want at most %d in all", c.Heads, head, MaxDim)
	}
}

// KVShape returns what the cache keeps of each layer.
func (c *Config) KVShape(t kernels.KVType) kernels.KVShape {
	shape := kernels.KVShape{Type: t}
	for i, s := range c.Shapes {
		if c.Latent.Rank > 0 {
			shape.Layers = append(shape.Layers, kernels.KVLayer{Latent: c.Latent.Rank, Rotated: c.RopeDim})
			continue
		}
		if s.Source != i {
			shape.Layers = append(shape.Layers, kernels.KVLayer{Shared: true, Source: s.Source})
			continue
		}
		shape.Layers = append(shape.Layers, kernels.KVLayer{Heads: s.KVHeads, Dim: s.HeadDim})
	}
	return shape
}
