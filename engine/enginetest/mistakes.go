package enginetest

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/tandem-llm/tandem/engine/arch"
	"github.com/tandem-llm/tandem/engine/blocks"
	"github.com/tandem-llm/tandem/test/testkit/family"
)

// Mistake is a pass that is wrong in one point: of another function than the architecture's, or as if the file said something else.
type Mistake struct {
	Name   string
	Config func(c *blocks.Config) // changes what was read
	Layer  func(l []blocks.Part)  // changes what was found of each layer
	File   func(m *family.Model)
}

// Key makes a pass that takes another value for a key.
func Key(name string, v any) func(*family.Model) { return func(m *family.Model) { m.Set(name, v) } }

// Filled makes a pass that takes one number for all of those tensors, of f32: 1 for norms and scales that it leaves out, 0 for biases.
func Filled(v float32, kinds ...string) func(*family.Model) {
	return EachOf(kinds, func(m *family.Model, x *family.Tensor) { m.Fill(x.Name, v) })
}

// Zeroed makes a pass without what those tensors multiply with.
func Zeroed(kinds ...string) func(*family.Model) {
	return EachOf(kinds, func(_ *family.Model, x *family.Tensor) { clear(x.Data) })
}

// Swapped makes a pass that takes the first half of a tensor's rows, of each of its matrices, for the second.
func Swapped(kind string) func(*family.Model) {
	return EachOf([]string{kind}, func(_ *family.Model, x *family.Tensor) {
		matrices := 1
		if len(x.Shape) == 3 {
			matrices = x.Shape[2]
		}
		for part := range slices.Chunk(x.Data, len(x.Data)/matrices) {
			half := slices.Clone(part[:len(part)/2])
			copy(part, part[len(part)/2:])
			copy(part[len(part)/2:], half)
		}
	})
}

func EachOf(kinds []string, do func(*family.Model, *family.Tensor)) func(*family.Model) {
	return func(m *family.Model) {
		found := 0
		for i := range m.Tensors {
			x := &m.Tensors[i]
			name := x.Name
			if rest, ok := strings.CutPrefix(name, "blk."); ok {
				_, name, _ = strings.Cut(rest, ".")
			}
			if slices.Contains(kinds, name) {
				do(m, x)
				found++
			}
		}
		if found == 0 {
			panic(fmt.Sprintf("%s has no tensor %v", m.Name, kinds))
		}
	}
}

// LeftOut makes a pass that knows nothing of those tensors.
func LeftOut(kinds ...string) func(*family.Model) {
	return func(m *family.Model) {
		var names []string
		EachOf(kinds, func(_ *family.Model, x *family.Tensor) { names = append(names, x.Name) })(m)
		for _, name := range names {
			m.Drop(name)
		}
	}
}

var (
	OtherPairs  = Mistake{Name: "RoPE's other pairs", Config: func(c *blocks.Config) { c.Rope.Halves = !c.Rope.Halves }}
	OtherCurve  = Mistake{Name: "another gate", Config: func(c *blocks.Config) { c.Curve = 1 - c.Curve }}
	NoPostNorms = Mistake{Name: "no norms behind blocks", Layer: withoutPostNorms}
	OneExpert   = Mistake{Name: "one expert fewer", File: Key("expert_used_count", uint32(1))}
	Shares      = Mistake{Name: "weights of experts not divided", Config: func(c *blocks.Config) { c.Experts.Route.Normed = false }}
	HeadNorms   = Mistake{Name: "no norms of heads", File: Filled(1, "attn_q_norm.weight", "attn_k_norm.weight")}
	PlainRoPE   = Mistake{Name: "plain RoPE", File: Key("rope.scaling.type", "none")}
)

func withoutPostNorms(l []blocks.Part) {
	for _, p := range l {
		switch p := p.(type) {
		case *blocks.Attention:
			p.Out = blocks.Added
		case *blocks.FeedForward:
			p.Out = blocks.Added
		}
	}
}

// UsualScale makes a pass that scales attention scores as most architectures do.
func UsualScale(c *blocks.Config) { c.AttnScale = float32(1 / math.Sqrt(float64(c.HeadDim))) }

// Mistaken opens a golden model for passes with a mistake.
func Mistaken(t *testing.T, name string, x Mistake, open func(path string)) {
	t.Helper()
	f := family.Golden(name)
	if x.File != nil {
		x.File(f)
	}
	right, assistant := arch.Families[f.Arch], arch.Families["gemma4"].Assistant
	if name == AssistantFile { // which is read as its target's family says
		right = *assistant
		defer func(was blocks.Family) { *assistant = was }(right)
		*assistant = wrongly(right, x)
	} else {
		defer func() { arch.Families[f.Arch] = right }()
		arch.Families[f.Arch] = wrongly(right, x)
	}
	open(f.Write(t, t.TempDir()))
}

// wrongly returns a family with a mistake.
func wrongly(right blocks.Family, x Mistake) blocks.Family {
	wrong := right
	wrong.Read = func(r *blocks.Reader, c *blocks.Config) {
		if right.Read(r, c); x.Config != nil {
			x.Config(c)
		}
	}
	wrong.Layer = func(t *blocks.Tensors) []blocks.Part {
		parts := right.Layer(t)
		if x.Layer != nil {
			x.Layer(parts)
		}
		return parts
	}
	return wrong
}

// Seen fails unless the comparison with golden figures has failed, by several tolerances.
func Seen(t *testing.T, faults []Fault) {
	t.Helper()
	most := 0.0
	for _, f := range faults {
		most = max(most, f.Away)
	}
	if t.Logf("%d figures differ, by up to %.1f tolerances", len(faults), most); !(most >= 2) {
		t.Errorf("the golden figures show nothing of this mistake, or little")
	}
}
