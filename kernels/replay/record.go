// Package replay keeps a wrong result of a device in a file, with the operations, weights, keys and inputs that it came from, and computes
// it again on another device. Beside finds such results. test/scripts/gpu-check writes them on GPUs of others; a test of kernels/cuda reads
// them: go test ./kernels/cuda -run '^TestReplay$' -replay FILE.
package replay

import (
	"compress/gzip"
	"encoding/gob"
	"errors"
	"fmt"
	"math"
	"os"
	"slices"

	"github.com/tandem-llm/tandem/kernels"
)

// Record is rows of a buffer that a device has computed wrongly.
type Record struct {
	What     string        // was computed, for messages
	On       kernels.About // the device that was wrong
	Programs []Program     // that share a cache
	KV       kernels.KVShape
	Pages    int     // of the cache
	Events   []Event // in order
	Buf      kernels.Buf
	Rows     int       // of Buf, in the last event's program
	Want     []float32 // (Rows, the buffer's Dim): by the definitions' bits
	Got      []float32 // on that device
}

// Program is a program, and its weights in GGUF layout. A weight without bytes is not read by any operation.
type Program struct {
	kernels.Program
	Data [][]byte
}

// Event sets rows of a buffer from row 0 on or, if it has a Pass, runs the program.
type Event struct {
	Program int
	Buf     kernels.Buf
	Numbers []float32
	Pass    *kernels.Pass
}

func init() {
	for _, o := range []kernels.Op{kernels.StoreKV{}, kernels.Attention{}, kernels.AttendBlocks{}, kernels.JoinBlocks{}, kernels.MatMul{},
		kernels.ChooseExperts{}, kernels.ExpertMatMul{}, kernels.JoinExperts{}, kernels.Embed{}, kernels.RMSNorm{}, kernels.NormAdd{},
		kernels.HeadNorm{}, kernels.Copy{}, kernels.Scale{}, kernels.PositionScale{}, kernels.SoftCap{}, kernels.AddBias{}, kernels.RoPE{},
		kernels.Gate{}, kernels.Feed{}, kernels.AddScaled{}, kernels.AddSiLU{}, kernels.Blend{}, kernels.SigmoidScale{},
		kernels.CopyHeads{}, kernels.BlockConv{}, kernels.Gather{}, kernels.TopK{}, kernels.DeltaNet{}} {
		gob.Register(o)
	}
}

// Save writes r to a new file.
func (r *Record) Save(path string) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if err != nil {
		return err
	}
	z := gzip.NewWriter(f)
	return errors.Join(gob.NewEncoder(z).Encode(r), z.Close(), f.Close())
}

// Load reads a file of Save. Errors: those of reading; a file that is none.
func Load(path string) (*Record, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		return nil, fmt.Errorf("%s: %w: want a file that test/scripts/gpu-check has saved", path, err)
	}
	r := new(Record)
	if err := gob.NewDecoder(z).Decode(r); err != nil {
		return nil, fmt.Errorf("%s: %w: want a file that test/scripts/gpu-check has saved, of this version", path, err)
	}
	return r, nil
}

// Run computes the rows on a device. Errors: the device's.
func (r *Record) Run(d kernels.Device) (got []float32, err error) {
	var cache kernels.Cache
	if r.Pages > 0 {
		if cache, err = d.NewCache(r.KV, r.Pages); err != nil {
			return nil, err
		}
		defer cache.Close()
	}
	runners := make([]kernels.Runner, len(r.Programs))
	for i := range r.Programs {
		p := r.Programs[i].laidOut(d, false)
		store, err := d.NewWeights(p)
		if err != nil {
			return nil, err
		}
		defer store.Close()
		for w, b := range r.Programs[i].Data {
			if len(b) == 0 {
				continue
			}
			if err := store.Pack(kernels.W(w), 0, b); err != nil {
				return nil, err
			}
		}
		if runners[i], err = d.Compile(p, store, cache); err != nil {
			return nil, err
		}
		defer runners[i].Close()
	}
	for _, e := range r.Events {
		if e.Pass == nil {
			dim := r.Programs[e.Program].Buffers[e.Buf].Dim
			for i := 0; i*dim < len(e.Numbers); i++ {
				copy(runners[e.Program].Row(e.Buf, i), e.Numbers[i*dim:])
			}
		} else if err := runners[e.Program].Run(e.Pass); err != nil {
			return nil, err
		}
	}
	return rowsOf(runners[len(runners)-1], r.Buf, r.Rows), nil
}

// Again computes the rows on a device that is right and on another, and says how the other's compare with Want and Got. Errors: the
// devices'; a record whose Want the first does not give.
func (r *Record) Again(right, d kernels.Device) (string, error) {
	want, err := r.Run(right)
	if err != nil {
		return "", err
	}
	if i := differ(want, r.Want); i >= 0 {
		return "", fmt.Errorf("replay: %s: number %d is %v on %v, and was %v: the record does not hold all that was read, or the "+
			"arithmetic has changed", r.What, i, want[i], right.About(), r.Want[i])
	}
	got, err := r.Run(d)
	if err != nil {
		return "", err
	}
	i, j := differ(got, r.Want), differ(got, r.Got)
	switch {
	case j < 0:
		return fmt.Sprintf("the same wrong bits on %v: a fault of the kernels' source", d.About()), nil
	case i < 0:
		return fmt.Sprintf("right on %v: a fault of the GPU, its driver or its compiler, or a race", d.About()), nil
	}
	return fmt.Sprintf("other wrong bits on %v: number %d is %v, want %v, and was %v", d.About(), i, got[i], r.Want[i], r.Got[i]), nil
}

// laidOut returns a copy of p with weights in the layout that d wants; each operation is a stage if alone.
func (p *Program) laidOut(d kernels.Device, alone bool) *kernels.Program {
	own := p.Program
	own.Weights = slices.Clone(p.Weights)
	for i := range own.Weights {
		own.Weights[i].Layout = d.Layout(own.Weights[i].Type)
	}
	if alone {
		own.Stages = nil
		for i := range p.Ops {
			own.Stages = append(own.Stages, kernels.Stage{Name: fmt.Sprintf("operation %d", i), First: i})
		}
	}
	return &own
}

// rowsOf returns a copy of the first rows of a buffer.
func rowsOf(r kernels.Runner, b kernels.Buf, rows int) (x []float32) {
	for i := range rows {
		x = append(x, r.Row(b, i)...)
	}
	return x
}

// differ returns the first place where a and b differ, -1 if they do not. Any NaN is like any other.
func differ(a, b []float32) int {
	if len(a) != len(b) {
		return min(len(a), len(b))
	}
	for i := range a {
		if math.Float32bits(a[i]) != math.Float32bits(b[i]) && (a[i] == a[i] || b[i] == b[i]) {
			return i
		}
	}
	return -1
}
