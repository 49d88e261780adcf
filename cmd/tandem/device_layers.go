package main

import (
	"fmt"
	"math"
	"os"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/engine"
	"github.com/tandem-llm/tandem/kernels/cuda"
	"github.com/tandem-llm/tandem/kernels/cuda/gpu"
	"github.com/tandem-llm/tandem/kernels/layers"
	"github.com/tandem-llm/tandem/roles"
)

// gpuMemoryFlags lend a GPU's spare memory to a model that computes on the processor.
type gpuMemoryFlags struct {
	GPUMemory gpuMemory `name:"gpu-memory" help:"With --device cpu: run as many of the target's first layers on the first GPU as this much of its memory holds, their weights, keys and values, and buffers; all others run on the processor. The results are the same." placeholder:"SIZE"`
}

// gpuMemory is a byteSize that is not 0 once it is given.
type gpuMemory byteSize

// UnmarshalText implements encoding.TextUnmarshaler. Empty text is none, whatever other settings say.
func (g *gpuMemory) UnmarshalText(text []byte) error {
	var n byteSize
	if len(text) > 0 {
		if err := n.UnmarshalText(text); err != nil || n == 0 {
			return tandem.Errorf("", tandem.Invalid, "%q: want the memory for at least one layer, like 500MiB or 4GiB; without the "+
				"flag, or with an empty value, all layers run on the processor", text)
		}
	}
	*g = gpuMemory(n)
	return nil
}

// String implements fmt.Stringer.
func (g gpuMemory) String() string {
	if g == 0 {
		return ""
	}
	return engine.Bytes(int64(g))
}

// check refuses memory for layers where the whole model is on a GPU already, or may be.
func (f gpuMemoryFlags) check(device string) error {
	if f.GPUMemory > 0 && device != "cpu" && device != "" {
		return tandem.Errorf("", tandem.Invalid, "--gpu-memory %v with --device %s: it is for layers of a model that computes on the "+
			"processor, want --device cpu", f.GPUMemory, device)
	}
	return nil
}

// there refuses a GPU that cannot be used, or has less memory.
func (f gpuMemoryFlags) there() error {
	if f.GPUMemory == 0 {
		return nil
	}
	chips, err := gpu.Chips()
	if err != nil {
		return tandem.Errorf("", tandem.Unavailable, "--gpu-memory %v: %w", f.GPUMemory, err)
	}
	if int64(f.GPUMemory) > chips[0].Total {
		return tandem.Errorf("", tandem.Exhausted, "--gpu-memory is %v, but %s has %s: want less", f.GPUMemory, chips[0].Name,
			engine.Bytes(chips[0].Total))
	}
	return nil
}

// arg returns the flag for another process, also if it is none.
func (f gpuMemoryFlags) arg() string {
	if f.GPUMemory == 0 {
		return "--gpu-memory="
	}
	return fmt.Sprintf("--gpu-memory=%d", int64(f.GPUMemory))
}

// ownMemory returns how much of the models the GPUs that are to be used can hold in memory of their own.
func (l launch) ownMemory() (sum int64) {
	uses := map[int]int64{} // by GPU: how much of its memory
	for _, device := range []string{l.Device, l.DraftDevice} {
		p, err := parsePlace("device", device)
		if err != nil {
			continue
		}
		for side := &p; side != nil; side = side.right {
			if side.gpu != nil {
				uses[*side.gpu] = math.MaxInt64
			} else if side.auto {
				uses[0] = math.MaxInt64
			}
		}
	}
	if len(uses) == 0 && l.GPUMemory == 0 {
		return 0 // no driver is loaded then
	}
	uses[0] = max(uses[0], int64(l.GPUMemory))
	chips, err := gpu.Chips()
	if err != nil {
		return 0
	}
	for n, most := range uses {
		if n < len(chips) && !chips[n].Integrated {
			sum += min(most, chips[n].Total)
		}
	}
	return sum
}

// layered is a device made of the processor and a GPU that are its own.
type layered struct {
	*layers.Device
	near, far roles.Device
}

func (d layered) Close() {
	d.near.Close()
	d.far.Close()
}

// openLayers returns the processor with that many threads, and the first GPU with so many bytes for layers. It says on stderr which go
// there.
func (c computeFlags) openLayers(bytes int64, threads int) (roles.Device, error) {
	far, err := cuda.New(func() (cuda.Driver, error) { return gpu.Open(0) })
	if err != nil {
		return nil, unusable{tandem.Errorf("", tandem.Unavailable, "--gpu-memory %s: %w", engine.Bytes(bytes), err)}
	}
	near, err := openCPU(threads, c.ISA)
	if err != nil {
		far.Close()
		return nil, err
	}
	tell := func(p layers.Placement) { fmt.Fprintln(os.Stderr, "tandem: "+oneLine(p.String())) }
	return layered{layers.New(layers.Config{Near: near, Far: far, Budget: bytes, Tell: tell}), near, far}, nil
}
