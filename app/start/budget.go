package start

import (
	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/app/device"
	"github.com/tandem-llm/tandem/engine"
	"github.com/tandem-llm/tandem/engine/memory"
	"github.com/tandem-llm/tandem/kernels"
	"github.com/tandem-llm/tandem/kernels/cpu"
	"github.com/tandem-llm/tandem/kernels/stream"
	"github.com/tandem-llm/tandem/processes/cache"
	"github.com/tandem-llm/tandem/processes/cache/packed"
	"github.com/tandem-llm/tandem/processes/roles"
	"github.com/tandem-llm/tandem/processes/settings"
)

// Budget bounds the memory of everything that is started. MemoryBudget nil: no budget is named.
type Budget struct{ settings.Budget }

// Validate returns Invalid for a budget that is not between 1 byte and the machine's memory.
func (f Budget) Validate() error {
	if f.MemoryBudget == nil {
		return nil
	}
	if total := memory.Total(); int64(*f.MemoryBudget) < 1 || int64(*f.MemoryBudget) > total.Bytes {
		return tandem.Errorf("", tandem.Invalid, "--memory-budget is %v: want 1 byte to %s, %s", *f.MemoryBudget, memory.Bytes(total.Bytes),
			total.By)
	}
	return nil
}

// On returns Unsupported if a budget is named and the target, at the place --device names, does not compute on the processor's cores alone.
func (f Budget) On(at string, layers settings.GPULayers) error {
	p, err := device.Parse("device", at)
	switch {
	case err != nil || f.MemoryBudget == nil:
		return nil
	case layers.GPUMemory > 0:
		return tandem.Errorf("", tandem.Unsupported, "--memory-budget with --gpu-memory %v: weights are streamed to the processor "+
			"alone: want one of them", layers.GPUMemory)
	case !p.Streams():
		return tandem.Errorf("", tandem.Unsupported, "--memory-budget with --device %s: weights are streamed to the processor's "+
			"kernels alone: want --device cpu, or no budget", at)
	}
	return nil
}

// Streaming returns how a target at `at`, the value of --device, is streamed, with packed files in the cache that c names.
// nil: it cannot be, because it computes on a GPU or on two devices.
func (f Budget) Streaming(env Env, at string, layers settings.GPULayers, c settings.CacheFolder) *roles.Streaming {
	if p, err := device.Parse("device", at); err != nil || !p.Streams() || layers.GPUMemory > 0 {
		return nil
	}
	return &roles.Streaming{Budget: f.MemoryBudget.Bytes(), On: func(d kernels.Device, memory int64) kernels.Streamer {
		k := packed.Keeper{Cache: func() (*cache.Cache, error) { return OpenCache(c) }, Say: env.Say, Stderr: env.Stderr}
		return stream.New(d, stream.Config{Memory: memory, Pack: cpu.Pack, Keep: k.Keep, Tell: func(line string) { env.Say("%s", line) }})
	}}
}

// Images keeps packed weights in the cache that c names.
func Images(env Env, c settings.CacheFolder) packed.Images {
	return packed.Images{Cache: func() (*cache.Cache, error) { return OpenCache(c) }, Say: env.Say}
}

// Fit returns o, with a streaming device in place of o.Device if a budget is named and the model at path does not fit into it. Errors:
// those of measuring the model; a budget that is too small even for streaming.
func (f Budget) Fit(env Env, c settings.CacheFolder, path string, o engine.Options) (engine.Options, error) {
	if f.MemoryBudget == nil {
		return o, nil
	}
	need, err := engine.Measure(path, o)
	if err == nil {
		o.Forget = true
		s := f.Streaming(env, "", settings.GPULayers{}, c)
		o.Device, _, err = s.Fit(path, o, need, s.Limit(memory.Free()), 0)
	}
	return o, err
}
