package engine

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

// Identify reads the whole model file at path and returns the names that the model would have if opened with o. Errors: as
// Open's, and ctx's once it has ended.
func Identify(ctx context.Context, path string, o Options) (Names, error) {
	f, err := gguf.Open(path)
	if err != nil {
		return Names{}, err
	}
	defer f.Close()
	m := opening{&Model{}}
	if err := m.outline(f, nil, o); err != nil {
		return Names{}, err
	}
	tensors, err := m.newDigests(f, nil).sum(ctx)
	if err != nil {
		return Names{}, err
	}
	return m.nameOf(f, tensors)
}

// nameOf returns the names of the planned model of f, whose tensors have that digest.
func (m opening) nameOf(f *gguf.File, tensors string) (n Names, err error) {
	if n.Lineage, err = f.Lineage(tensors); err != nil {
		return n, err
	}
	n.Vocabulary = fmt.Sprintf("%016x", m.vocab.Fingerprint())
	n.Identity = tandem.IdentityParts{Tensors: tensors, Shape: digestOf(m.writeShape), Rope: digestOf(m.writeRope),
		KV: m.kvType.String(), Arithmetic: ref.Version}.Identity()
	return n, nil
}

// digests are those of the file of a model and, for a draft with states, of what it borrows from its target's file.
type digests struct {
	own, borrowed *gguf.Digest // borrowed nil: a model
	theirs        []*gguf.Tensor
}

func (m opening) newDigests(f, of *gguf.File) digests {
	d := digests{theirs: m.borrowed}
	if x := m.draft; x != nil {
		d.own = f.NewDigest(x.Uses...)
	} else {
		d.own = f.NewDigest()
	}
	if len(m.borrowed) > 0 {
		d.borrowed = of.NewDigest(m.borrowed...)
	}
	return d
}

// add adds a leaf: see gguf.Digest.Add.
func (d digests) add(t *gguf.Tensor, row int, data []byte) {
	if slices.Contains(d.theirs, t) {
		d.borrowed.Add(t, row, data)
	} else {
		d.own.Add(t, row, data)
	}
}

// sum returns the digest of all tensors.
func (d digests) sum(ctx context.Context) (string, error) {
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

func (m opening) writeShape(w io.Writer) {
	writeConfig(w, &m.config, &m.weights)
	if d := m.draft; d != nil {
		d.WriteShape(w)
	} else if ids := m.config.Outputs; ids != nil {
		fmt.Fprintln(w, "outputs 1", ids)
	}
}

// writeConfig writes the hyper-parameters that determine the function, except RoPE's, and which norms, sinks and gates the weights have.
// Names, and limits on what may be asked for, are left out.
func writeConfig(w io.Writer, c *blocks.Config, of *blocks.Weights) {
	has := partsOf(of)
	fmt.Fprintln(w, "shape 1", c.Curve == kernels.GELU, c.UsualEmbedScale != 1, has.headNorms || c.Recurrent(), has.postNorms)
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
		fmt.Fprintln(w, "experts 1", e.Count, e.Used, c.Curve, e.Route.Sigmoid, e.Route.Normed, bits(e.Route.Scale), has.sinks)
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
			fmt.Fprintln(w, "shared 1", i, l.Expert > 0, l.Shared, of.Layers[i].Mixture.Shared.Share != kernels.None)
		}
		if l.Unturned {
			fmt.Fprintln(w, "unturned", i)
		}
	}
}

// parts says what a model's layers have.
type parts struct{ headNorms, postNorms, sinks bool }

func partsOf(w *blocks.Weights) (has parts) {
	for i := range w.Layers {
		l := &w.Layers[i]
		has.headNorms = has.headNorms || l.QNorm != nil
		has.postNorms = has.postNorms || l.FFNPost != nil
		has.sinks = has.sinks || l.Sinks != nil
	}
	return has
}

// writeRope writes the rotation of heads in layers without and with a window.
func (m opening) writeRope(w io.Writer) {
	for _, local := range []bool{false, true} {
		r := m.config.Rotation(local, m.weights.RopeFactors)
		fmt.Fprintln(w, "rope 1", r.Halves, bits(r.Magnitude))
		for _, f := range r.InvFreq {
			fmt.Fprintf(w, "%016x\n", math.Float64bits(f))
		}
	}
}

func bits(x float32) uint32 { return math.Float32bits(x) }
