package published

import (
	"encoding/binary"
	"fmt"
	"slices"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/modelfile/gguf"
	"github.com/tandem-llm/tandem/modelfile/side"
)

// openGGUF takes a draft of EAGLE-3 or DFlash out of a GGUF file of llama.cpp. EAGLE-3 (conversion/llama.py and src/models/eagle3.cpp of
// ggml-org/llama.cpp): fc.weight on the three states, attn_norm and attn_norm_2 for embedding and hidden state, queries and keys already in
// pairs, d2t with ids of the target, and extract_layers, which counts layers before the state. DFlash: see llamaBlocks.
func (c *Checkpoint) openGGUF(path string, o Options) error {
	f, err := gguf.Open(path)
	if err != nil {
		return err
	}
	c.files = append(c.files, f)
	arch, err := f.StringOr("general.architecture", "")
	switch {
	case err != nil:
		return err
	case side.Is(f):
		return tandem.Errorf(op, tandem.Invalid, "%s is a side file already", c.path)
	case arch != string(side.Eagle3) && arch != string(side.DFlash):
		return tandem.Errorf(op, tandem.Invalid, "%s: architecture %q: want safetensors, or a GGUF file of architecture eagle3 or dflash",
			c.path, arch)
	case o.Kind != "" && string(o.Kind) != arch:
		return tandem.Errorf(op, tandem.Invalid, "%s is a draft of %s: want kind auto or %s, not %s", c.path, arch, arch, o.Kind)
	}
	t := &taker{c: c, o: o, config: &config{}, from: map[string]TensorSource{}, named: map[string]string{}, used: map[string]bool{}}
	for i := range f.Tensors() {
		x := &f.Tensors()[i]
		t.from[x.Name], t.named[x.Name] = TensorSource{GGUF: x}, x.Name
	}
	if err := t.refuseOthers(); err != nil {
		return err
	}
	where, mostBlocks := t.llamaOrigin, 1
	if arch == string(side.DFlash) {
		where, mostBlocks = t.llamaBlockOrigin, side.MaxBlocks
	}
	if err := t.llamaKeys(f, side.Kind(arch), mostBlocks); err != nil {
		return err
	}
	if err := t.llamaIDs(f); err != nil {
		return err
	}
	s := c.Spec
	if err := s.Check(); err != nil {
		return t.fail(tandem.Invalid, "%w", err)
	}
	if s.Draft.Width == s.Dim {
		if err := t.copies("token_embd.weight", "token_embd.weight", s.Dim, s.Vocab, true); err != nil {
			return err
		}
	}
	if err := t.fill(where); err != nil {
		return err
	}
	return t.rest()
}

// llamaOrigin returns the origin of a tensor in llama.cpp's layout.
func (t *taker) llamaOrigin(slot string) origin {
	s := t.c.Spec
	var i int
	if n, _ := fmt.Sscanf(slot, "fc.%d.weight", &i); n == 1 {
		return origin{name: "fc.weight", inputs: len(s.Taps) * s.Dim, col: i * s.Dim}
	}
	switch slot {
	case "token_embd.weight":
		if s.Draft.Width == s.Dim {
			return origin{} // one of the copies
		}
	case "blk.0.hidden_norm.weight":
		return origin{name: "blk.0.attn_norm_2.weight"}
	}
	for _, m := range []string{"attn_q", "attn_k", "attn_v"} {
		switch slot {
		case "blk.0." + m + ".embd.weight":
			return origin{name: "blk.0." + m + ".weight", inputs: 2 * s.Draft.Width}
		case "blk.0." + m + ".hidden.weight":
			return origin{name: "blk.0." + m + ".weight", inputs: 2 * s.Draft.Width, col: s.Draft.Width}
		}
	}
	return origin{name: slot}
}

// keys reads llama.cpp's keys; the first error sticks.
type keys struct {
	*gguf.File
	arch string // the prefix of keys
	err  error
}

func (k *keys) name(key string) string { return k.arch + "." + key }

func (k *keys) int(name string, lo, hi, def int) int {
	n, err := k.IntOr(k.name(name), lo, hi, def)
	if def == 0 {
		n, err = k.Int(k.name(name), lo, hi)
	}
	if k.err == nil {
		k.err = err
	}
	return n
}

func (k *keys) float(name string, def float64) float64 {
	v, err := k.FloatOr(k.name(name), def)
	if def == 0 {
		v, err = k.Float(k.name(name))
	}
	if k.err == nil {
		k.err = err
	}
	return v
}

// llamaKeys reads the keys of a draft of so many blocks at most.
func (t *taker) llamaKeys(f *gguf.File, kind side.Kind, mostBlocks int) error {
	const most = 1 << 28
	k, target := &keys{File: f, arch: string(kind)}, t.o.Target
	s := &side.Spec{Kind: kind, Lineage: target.Lineage, Vocabulary: target.Vocabulary, Dim: target.Dim, Vocab: target.Vocab}
	t.c.Spec = s
	d := &s.Draft
	s.Blocks = k.int("block_count", 1, mostBlocks, 0)
	d.Width = k.int("embedding_length", 1, most, 0)
	d.Context = k.int("context_length", 1, most, 0)
	d.FFN = k.int("feed_forward_length", 1, most, 0)
	d.Heads = k.int("attention.head_count", 1, most, 0)
	d.KVHeads = k.int("attention.head_count_kv", 1, most, max(1, d.Heads))
	d.HeadDim = k.int("attention.key_length", 1, most, max(1, d.Width/max(1, d.Heads)))
	values := k.int("attention.value_length", 1, most, d.HeadDim)
	d.RopeDim = k.int("rope.dimension_count", 2, most, d.HeadDim)
	d.Eps, d.RopeBase = k.float("attention.layer_norm_rms_epsilon", 0), k.float("rope.freq_base", 10000)
	if n := k.int("target_hidden_size", 1, most, s.Dim); k.err == nil && n != s.Dim {
		return t.fail(tandem.Invalid, "key %q is %d: the target has %d", k.name("target_hidden_size"), n, s.Dim)
	}
	if k.err != nil {
		return k.err
	}
	if values != d.HeadDim {
		return t.fail(tandem.Unsupported, "heads of %d keys and %d values: want equal sizes", d.HeadDim, values)
	}
	var err error
	layers := "extract_layers"
	if kind == side.DFlash {
		layers, err = "target_layers", t.llamaBlocks(k)
	} else {
		err = t.llamaNorms(f)
	}
	if err != nil {
		return err
	}
	if err := k.scaling(&d.Scaling); err != nil {
		return t.fail(tandem.Unsupported, "%w", err)
	}
	if k.err != nil {
		return k.err
	}
	if s.Taps = t.o.Taps; s.Taps != nil {
		return nil
	}
	if s.Taps, err = f.Ints(k.name(layers), 1, most); err != nil {
		return err
	}
	t.note("taps %d: %s", s.Taps, k.name(layers))
	return nil
}

// llamaNorms reads which norms the draft has. llama.cpp itself has norm_before_residual; a fork's files have two more.
func (t *taker) llamaNorms(f *gguf.File) (err error) {
	const residual = "eagle3.norm_before_residual"
	if t.c.Spec.Draft.Norms.Residual, err = f.BoolOr(residual, false); err != nil {
		return err
	}
	for _, key := range []string{"eagle3.fc_norm", "eagle3.norm_output"} {
		if on, err := f.BoolOr(key, false); err != nil || on {
			return t.fail(tandem.Unsupported, "key %q is %s: no release of llama.cpp is known to write it; want the checkpoint in "+
				"safetensors", key, f.Describe(key))
		}
	}
	return nil
}

// scaling reads RoPE's scaling, whose keys are those of side files.
func (k *keys) scaling(s *side.Scaling) (err error) {
	if s.Kind, err = k.StringOr(k.name("rope.scaling.type"), "none"); err != nil {
		return err
	}
	for _, key := range []string{"yarn_log_multiplier", "yarn_ext_factor", "yarn_attn_factor"} {
		if name := k.name("rope.scaling." + key); k.Has(name) {
			return fmt.Errorf("key %q is %s: side files have no such number", name, k.Describe(name))
		}
	}
	switch s.Kind {
	case "none":
		*s = side.Scaling{}
		return nil
	case "linear", "yarn":
	default:
		return fmt.Errorf("key %q is %.40q: side files have none, linear and yarn", k.name("rope.scaling.type"), s.Kind)
	}
	for name, at := range map[string]*float64{"factor": &s.Factor, "attn_factor": &s.Magnitude, "yarn_beta_fast": &s.BetaFast,
		"yarn_beta_slow": &s.BetaSlow} {
		if *at, err = k.FloatOr(k.name("rope.scaling."+name), 0); err != nil {
			return err
		}
	}
	s.Original, err = k.IntOr(k.name("rope.scaling.original_context_length"), 1, 1<<28, 0)
	return err
}

// llamaIDs reads d2t, whose elements are ids of the target, i64 or i32. A draft of DFlash without it knows all tokens.
func (t *taker) llamaIDs(f *gguf.File) error {
	s := t.c.Spec
	n, err := t.draftTokens("output.weight")
	if err != nil {
		return err
	}
	name := "d2t"
	if f.Tensor(name) == nil {
		name = "d2t.weight" // as forks have it
	}
	x := f.Tensor(name)
	if x == nil && n == s.Vocab && s.Kind == side.DFlash {
		return nil
	}
	if x == nil && n == s.Vocab {
		s.Draft.IDs = make([]int, n)
		for i := range s.Draft.IDs {
			s.Draft.IDs[i] = i
		}
		return nil
	}
	if x == nil {
		return t.fail(tandem.Invalid, "tensor \"d2t\" is missing: output.weight has %d tokens, the target %d", n, s.Vocab)
	}
	t.used[name] = true
	block, size := x.Type.Block()
	if typ := x.Type.String(); typ != "i64" && typ != "i32" || block != 1 || !slices.Equal(x.Shape, []int{n}) || n > s.Vocab {
		return t.fail(tandem.Invalid, "tensor %q is %s of shape %d: want i64 of shape [%d], and at most the target's %d tokens", name,
			x.Type,
			x.Shape, n, s.Vocab)
	}
	data, err := x.Bytes()
	if err != nil {
		return err
	}
	s.Draft.IDs = make([]int, n)
	for i := range s.Draft.IDs {
		if size == 8 {
			s.Draft.IDs[i] = int(int64(binary.LittleEndian.Uint64(data[8*i:])))
		} else {
			s.Draft.IDs[i] = int(int32(binary.LittleEndian.Uint32(data[4*i:])))
		}
	}
	return nil
}
