package start

import (
	"math"

	"github.com/tandem-llm/tandem/app/device"
	"github.com/tandem-llm/tandem/kernels/cuda/gpu"
	"github.com/tandem-llm/tandem/processes/settings"
)

// gpuHas refuses a share of a GPU that cannot be used, or has less memory.
func gpuHas(share settings.GPUShare) error {
	if share == 0 {
		return nil
	}
	return device.CheckLayers(int64(share))
}

// ownMemory returns how much of the models the GPUs that are to be used can hold in memory of their own.
func (s Setup) ownMemory() (sum int64) {
	uses := map[int]int64{} // by GPU: how much of its memory
	for _, at := range []string{s.Device, s.DraftDevice} {
		p, err := device.Parse("device", at)
		if err != nil {
			continue
		}
		for side := &p; side != nil; side = side.Right {
			if side.GPU != nil { // auto may come to compute on the cores, so all must have room there
				uses[*side.GPU] = math.MaxInt64
			}
		}
	}
	if len(uses) == 0 && s.GPUMemory == 0 {
		return 0 // no driver is loaded then
	}
	uses[0] = max(uses[0], int64(s.GPUMemory))
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
