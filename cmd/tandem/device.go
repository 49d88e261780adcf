package main

import (
	"runtime"
	"sync"

	"github.com/tandem-llm/tandem/kernels"
	"github.com/tandem-llm/tandem/kernels/cpu"
)

// openDevice starts the threads that passes run on (0: one per core), with the kernels of instruction set isa ("" or auto: the
// machine's best). The caller closes the device after everything that runs on it.
func openDevice(threads int, isa string) (*cpu.Device, error) {
	set := cpu.Auto
	if isa != "" {
		var err error
		if set, err = cpu.ParseISA(isa); err != nil {
			return nil, err
		}
	}
	if threads == 0 {
		threads = runtime.NumCPU()
	}
	return cpu.New(threads, set)
}

// planner is the device for planning a model's memory before it is loaded; it runs nothing.
var planner = sync.OnceValue(func() kernels.Device {
	d, err := cpu.New(1, cpu.Generic)
	if err != nil {
		panic(err) // one thread, the caller's own, of kernels that every machine has
	}
	return d
})

// describeKernels tells which kernels this machine uses.
func describeKernels() *kernelsInfo {
	c := cpu.ChosenReading()
	k := &kernelsInfo{Reading: c.Reading.String(), ReadingWhy: c.Why}
	for _, isa := range cpu.Supported() {
		k.Supported = append(k.Supported, isa.String())
		k.ISA = isa.String() // the best is last
	}
	return k
}
