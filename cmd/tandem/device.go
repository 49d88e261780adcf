package main

import (
	"github.com/tandem-llm/tandem/app/device"
	"github.com/tandem-llm/tandem/app/terminal"
	"github.com/tandem-llm/tandem/kernels/cpu"
	"github.com/tandem-llm/tandem/kernels/cuda/gpu"
)

// describeCUDA tells whether this program can use GPUs, and which there are.
func describeCUDA() cudaInfo {
	info := cudaInfo{Built: gpu.Built}
	chips, err := gpu.Chips()
	if err != nil {
		info.Why = terminal.OneLine(err.Error())
	}
	for _, c := range chips {
		info.GPUs = append(info.GPUs, gpuInfo{Name: c.Name, Arch: c.Arch, Bytes: c.Total, Shared: c.Integrated, about: device.About(c)})
	}
	return info
}

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
