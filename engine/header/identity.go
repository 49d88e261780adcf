package header

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"math"
	"slices"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/engine/blocks"
	"github.com/tandem-llm/tandem/kernels"
	"github.com/tandem-llm/tandem/kernels/ref"
	"github.com/tandem-llm/tandem/modelfile/gguf"
)

// Names identify a loaded model.
type Names struct {
	Identity tandem.Identity // of the function computed with these options
	Lineage  string          // which model it is, whatever its quantisation or expansion: 32 hexadecimal digits

	Vocabulary string // fingerprint of its vocabulary: 16 hexadecimal digits
}

// Names returns the names of h, whose file is f, with keys and values of type kv. digest is that of its tensors: Digests.Sum. Errors:
// Corrupt if the file states a lineage that is not 32 hexadecimal digits.
func (h *Header) Names(f *gguf.File, digest string, kv kernels.KVType) (n Names, err error) {
	if n.Lineage, err = f.Lineage(digest); err != nil {
		return n, err
	}
	n.Vocabulary = fingerprint(h.Vocab)
	n.Identity = tandem.IdentityParts{Tensors: digest, Shape: digestOf(h.writeShape), Rope: digestOf(h.writeRope), KV: kv.String(),
		Arithmetic: ref.Version}.Identity()
	return n, nil
}

// Digests are the digests of a model's tensors while they are read: those of its file and, of a draft with states, those that it borrows
// from its target's file.
type Digests struct {
	own, borrowed *gguf.Digest // borrowed nil: a model
	theirs        []*gguf.Tensor
}

// NewDigests returns the digests of h, whose file is f, before anything is read; of is the target's file, nil for a model.
func (h *Header) NewDigests(f, of *gguf.File) Digests {
	d := Digests{theirs: h.Borrowed}
	if x := h.Draft; x != nil {
		d.own = f.NewDigest(x.Uses...)
	} else {
		d.own = f.NewDigest()
	}
	if len(h.Borrowed) > 0 {
		d.borrowed = of.NewDigest(h.Borrowed...)
	}
	return d
}

// Add adds a leaf that was read: see gguf.Digest.Add.
func (d Digests) Add(t *gguf.Tensor, row int, data []byte) {
	if slices.Contains(d.theirs, t) {
		d.borrowed.Add(t, row, data)
	} else {
		d.own.Add(t, row, data)
	}
}

// Sum returns the digest of all tensors, 32 hexadecimal digits. It reads the leaves that were not added. Errors: those of gguf.Digest.Sum.
func (d Digests) Sum(ctx context.Context) (string, error) {
	own, err := d.own.Sum(ctx)
	if err != nil || d.borrowed == nil {
		return own, err
	}
	borrowed, err := d.borrowed.Sum(ctx)
	if err != nil {
		return "", err
	}
	all := sha256.Sum256([]byte("tandem draft 1\n" + own + borrowed))
	return hex.EncodeToString(all[:len(own)/2]), nil
}

// digestOf returns the hash of write's output, as 8 hexadecimal digits.
func digestOf(write func(io.Writer)) string {
	h := sha256.New()
	write(h)
	return hex.EncodeToString(h.Sum(nil)[:4])
}

func (h *Header) writeShape(w io.Writer) {
	writeConfig(w, &h.Config, &h.Weights)
	if d := h.Draft; d != nil {
		d.WriteShape(w)
	} else if ids := h.Config.Outputs; ids != nil {
		fmt.Fprintln(w, "outputs 1", ids)
	}
}

// writeConfig writes the hyper-parameters that determine the function, except RoPE's, and which norms, sinks and gates the weights have.
// Names, and limits on what may be asked for, are left out.
func writeConfig(w io.Writer, c *blocks.Config, of *blocks.Weights) {
	has := of.Traits()
	fmt.Fprintln(w, "shape 1", c.Curve == kernels.GELU, c.UsualEmbedScale != 1, has.Have(blocks.HeadNorms) || c.Recurrent(),
		has.Have(blocks.PostNorms))
	fmt.Fprintln(w, c.Layers, c.Dim, c.HeadDim, c.Vocab, bits(c.NormEps), bits(c.AttnScale), bits(c.AttnCap), bits(c.FinalCap), c.Window)
	for _, l := range c.Shapes {
		fmt.Fprintln(w, l.Heads, l.KVHeads, l.FFN, l.Local)
	}
	if c.EmbedScale != c.UsualEmbedScale || c.ResidualScale != 1 || c.LogitScale != 1 {
		fmt.Fprintln(w, "scales 1", bits(c.EmbedScale), bits(c.ResidualScale), bits(c.LogitScale))
	}
	if c.Temperature != 0 {
		fmt.Fprintln(w, "temperature 1", bits(c.Temperature), c.Rope.Original)
	}
	if e := c.Experts; e.Count > 0 {
		fmt.Fprintln(w, "experts 1", e.Count, e.Used, c.Curve, e.Route.Sigmoid, e.Route.Normed, bits(e.Route.Scale), has.Have(blocks.Sinks))
	}
	if c.LocalHeadDim > 0 {
		fmt.Fprintln(w, "kinds 1", true, true, true, c.LayerInput) // norms of values, scales of layers, a block beside experts
		for _, l := range c.Shapes {
			fmt.Fprintln(w, l.HeadDim, l.Source, l.Expert)
		}
	}
	if d := c.Delta; c.Recurrent() {
		fmt.Fprintln(w, "delta net 1", d.KeyHeads, d.ValueHeads, d.Dim, d.Kernel)
	}
	if l := c.Latent; l.Rank > 0 {
		fmt.Fprintln(w, "latent 1", l.Rank, l.Key, l.Value, l.Query, c.RopeDim)
	}
	for i, l := range c.Shapes {
		if l.Recurrent {
			fmt.Fprintln(w, "recurrent", i)
		}
		if c.Experts.Count > 0 && (l.Shared > 0 || l.Expert == 0) {
			fmt.Fprintln(w, "shared 1", i, l.Expert > 0, l.Shared, of.Layers[i].Have(blocks.GatedShare))
		}
		if l.Unturned {
			fmt.Fprintln(w, "unturned", i)
		}
	}
}

// writeRope writes the rotation of heads in layers without and with a window.
func (h *Header) writeRope(w io.Writer) {
	for _, local := range []bool{false, true} {
		r := h.Config.Rotation(local, h.Weights.RopeFactors)
		fmt.Fprintln(w, "rope 1", r.Halves, bits(r.Magnitude))
		for _, f := range r.InvFreq {
			fmt.Fprintf(w, "%016x\n", math.Float64bits(f))
		}
	}
}

func bits(x float32) uint32 { return math.Float32bits(x) }
