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
	"github.com/tandem-llm/tandem/settings"
)

// gpuHas refuses a share of a GPU that cannot be used, or has less memory.
func gpuHas(share settings.GPUShare) error {
	if share == 0 {
		return nil
	}
	chips, err := gpu.Chips()
	if err != nil {
		return tandem.Errorf("", tandem.Unavailable, "--gpu-memory %v: %w", share, err)
	}
	if int64(share) > chips[0].Total {
		return tandem.Errorf("", tandem.Exhausted, "--gpu-memory is %v, but %s has %s: want less", share, chips[0].Name,
			engine.Bytes(chips[0].Total))
	}
	return nil
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
