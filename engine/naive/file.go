package naive

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/tandem-llm/tandem/kernels/ref"
	"github.com/tandem-llm/tandem/modelfile/gguf"
)

// FromFile reads shape and weights of a file. Tensors of several matrices are taken apart.
func FromFile(t *testing.T, path string) *Model {
	f, err := gguf.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	n := &Model{Weights: map[string][]float64{}, Shapes: map[string][2]int{}}
	if n.Arch, err = f.String("general.architecture"); err != nil {
		t.Fatal(err)
	}
	count := func(key string, def int) int {
		v, err := f.IntOr(n.Arch+"."+key, 1, 1<<20, def)
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
	if n.eps, err = f.Float(n.Arch + ".attention.layer_norm_rms_epsilon"); err != nil {
		t.Fatal(err)
	}
	layers, heads := count("block_count", 0), count("attention.head_count", 0)
	n.Dim, n.heads = count("embedding_length", 0), slices.Repeat([]int{heads}, layers)
	n.kv = slices.Repeat([]int{count("attention.head_count_kv", 0)}, layers)
	n.FFN = slices.Repeat([]int{count("feed_forward_length", 0)}, layers)
	n.HeadDim = count("attention.key_length", n.Dim/heads)
	n.RopeDim = count("rope.dimension_count", n.HeadDim)
	n.tied = f.Tensor("output.weight") == nil
	n.delta = Delta{every: count("full_attention_interval", 0), keyHeads: count("ssm.group_count", 0),
		heads: count("ssm.time_step_rank", 0), dim: count("ssm.state_size", 0), taps: count("ssm.conv_kernel", 0)}
	for _, x := range f.Tensors() {
		n.take(t, &x)
	}
	return n
}

func (n *Model) take(t *testing.T, x *gguf.Tensor) {
	data, err := x.Bytes()
	if err != nil {
		t.Fatal(err)
	}
	narrow, wide := make([]float32, x.Elements()), make([]float64, x.Elements())
	ref.Dequantize(uint32(x.Type), data, narrow)
	for i, v := range narrow {
		wide[i] = float64(v)
	}
	cols := x.Shape[0]
	add := func(name string, rows int) {
		n.Weights[name], n.Shapes[name] = wide[:rows*cols], [2]int{rows, cols}
		wide = wide[rows*cols:]
	}
	var layer int
	fmt.Sscanf(x.Name, "blk.%d.", &layer)
	at := fmt.Sprintf("blk.%d.", layer)
	switch name := strings.TrimPrefix(x.Name, at); {
	case name == "attn_qkv.weight" && !n.delta.at(layer):
		add(at+"attn_q.weight", n.heads[layer]*n.HeadDim)
		add(at+"attn_k.weight", n.kv[layer]*n.HeadDim)
		add(at+"attn_v.weight", n.kv[layer]*n.HeadDim)
	case name == "ffn_up.weight" && x.Shape[1] == 2*n.FFN[layer]:
		add(at+"ffn_gate.weight", n.FFN[layer])
		add(at+"ffn_up.weight", n.FFN[layer])
	default:
		add(x.Name, len(wide)/cols)
	}
}
