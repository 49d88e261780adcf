package engine_test

import (
	"encoding/binary"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/engine"
	"github.com/tandem-llm/tandem/engine/tensors"
	"github.com/tandem-llm/tandem/kernels"
	"github.com/tandem-llm/tandem/kernels/ref"
	"github.com/tandem-llm/tandem/kernels/testdevice"
	"github.com/tandem-llm/tandem/modelfile/gguf"
	"github.com/tandem-llm/tandem/test/testkit/family"
)

// TestInfinite compares with what the reference unpacks: over random rows of each type, and with each 16 bits of them set to an infinity.
func TestInfinite(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for _, kind := range kernels.Types() {
		elems, size := kind.Block()
		n := 256
		row := make([]byte, n/elems*size)
		out := make([]float32, n)
		wrong := func() bool {
			ref.Dequantize(uint32(kind), row, out)
			for _, v := range out {
				if math.IsNaN(float64(v)) || math.IsInf(float64(v), 0) {
					return true
				}
			}
			return false
		}
		seen := map[bool]int{}
		for try := range 300 {
			for i := range row {
				row[i] = byte(r.Uint32())
			}
			if try > 2 {
				for range 400 { // mend the row, so that few faults are left
					at := tensors.Infinite(gguf.Type(kind), row)
					if at < 0 {
						break
					}
					row[at], row[min(at+1, len(row)-1)] = 0, 0
					if kind == kernels.F32 {
						row[at+3] = 0
					}
				}
				if wrong() {
					t.Fatalf("%v: a row has an infinite weight that was not found", kind)
				}
				if try%2 == 0 {
					binary.LittleEndian.PutUint16(row[2*r.IntN(len(row)/2):], [...]uint16{0x7c00, 0xfe01, 0x7f80, 0xffff}[r.IntN(4)])
				}
			}
			found := tensors.Infinite(gguf.Type(kind), row) >= 0
			if found != wrong() {
				t.Fatalf("%v: found %v, the reference has one: %v", kind, found, !found)
			}
			seen[found]++
		}
		if seen[false] == 0 || seen[true] == 0 {
			t.Errorf("%v: %v rows found", kind, seen)
		}
	}
}

func BenchmarkInfinite(b *testing.B) {
	for _, kind := range []gguf.Type{gguf.F32, gguf.F16, gguf.BF16, gguf.Q8_0, gguf.Q4_0, gguf.Q4_K, gguf.Q6_K} {
		_, size := kind.Block()
		rows := make([]byte, (1<<20)/size*size)
		b.Run(kind.String(), func(b *testing.B) {
			b.SetBytes(int64(len(rows)))
			for range b.N {
				if tensors.Infinite(kind, rows) >= 0 {
					b.Fatal("zeros are finite")
				}
			}
		})
	}
}

// TestDamagedWeights gives each tensor of a few families, one after the other, a weight or scale that is infinite: none of the models is
// opened, and the error names the tensor.
func TestDamagedWeights(t *testing.T) {
	dir := t.TempDir()
	seen := map[gguf.Type]bool{}
	for i, name := range []string{"gemma3", "qwen35", "gpt-oss-mxfp4"} {
		for k := range family.Random(name, uint64(i)).Tensors {
			m := family.Random(name, uint64(i))
			x := &m.Tensors[k]
			_, size := x.Type.Block()
			at := (k * 7919 % (len(x.Data) / size)) * size // of any block
			switch {
			case x.Type == gguf.MXFP4:
				x.Data[at] = 0xff
			case x.Type == gguf.F32:
				binary.LittleEndian.PutUint32(x.Data[at:], math.Float32bits(float32(math.Inf(1-k%2*2))))
			case x.Type == gguf.BF16:
				binary.LittleEndian.PutUint16(x.Data[at:], 0x7fc0)
			case x.Type == gguf.F16 || len(tensors.ScalesAt[x.Type]) > 0:
				binary.LittleEndian.PutUint16(x.Data[at+append(slices.Clone(tensors.ScalesAt[x.Type]), 0)[0]:], 0x7e00)
			default:
				continue // a table
			}
			seen[x.Type] = true
			model, err := engine.Open(m.Write(t, dir), engine.Options{Device: testdevice.CPU(t, 1), KVPages: engine.PagesFor(1, 16, 0)})
			if err == nil {
				model.Close()
			}
			if tandem.KindOf(err) != tandem.Corrupt || !strings.Contains(err.Error(), x.Name) || !strings.Contains(err.Error(), "finite") {
				t.Errorf("%s with a damaged %s of %s: %v", name, x.Name, x.Type, err)
			}
		}
	}
	if len(seen) < 3 {
		t.Errorf("tensors of types %v alone were damaged", seen)
	}
}

// TestSound: a pass whose logits overflow says so and names the tensor; one that does not says nothing.
func TestSound(t *testing.T) {
	for _, damage := range []float32{1, 1e38} {
		m := family.Random("gemma3", 1)
		for i := range m.Tensors {
			if x := &m.Tensors[i]; x.Name == "output_norm.weight" {
				for k := 0; k < len(x.Data); k += 4 {
					binary.LittleEndian.PutUint32(x.Data[k:], math.Float32bits(damage))
				}
			}
		}
		model, err := engine.Open(m.Write(t, t.TempDir()), engine.Options{Device: testdevice.CPU(t, 1), KVPages: engine.PagesFor(1, 16, 0)})
		if err != nil {
			t.Fatal(err)
		}
		defer model.Close()
		seq, err := model.NewSequence(4, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer seq.Close()
		out, err := model.Forward([]engine.Part{{Seq: seq, Extend: []tandem.Token{1, 2}, Want: engine.WantTail}}, 1)
		if err != nil {
			t.Fatal(err)
		}
		if err := out.Sound(0); (err != nil) != (damage > 1) || err != nil && !strings.Contains(err.Error(), `tensor "`) {
			t.Errorf("output norm %v: %v", damage, err)
		}
	}
}
