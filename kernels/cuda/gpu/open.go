//go:build cuda

package gpu

import (
	_ "embed"
	"errors"
	"fmt"
	"strings"
	"sync"

	"gorgonia.org/cu"

	"github.com/tandem-llm/tandem/kernels/cuda"
)

// Built tells whether this program was built with the tag cuda.
const Built = true

// kernels are the compiled sources, for several kinds of GPU. If this file is missing, 'test/scripts/cuda build' makes it.
//
//go:embed made-by-scripts-cuda-build.fatbin
var kernels string

// targets names what kernels was compiled for: "sm_72 sm_87 sm_90 compute_72 compute_90".
//
//go:embed made-by-scripts-cuda-build.targets
var targets string

// ready loads NVIDIA's driver, once.
var ready = sync.OnceValue(func() error {
	if why := load(); why != "" {
		return fmt.Errorf("there is no NVIDIA driver: %s: install the driver of the GPU, or start the container with its runtime", why)
	}
	return explain("starting NVIDIA's driver", initialise())
})

// Chips lists the GPUs, by their index. Errors: there is none, or none can be used; the text says why.
func Chips() ([]cuda.Chip, error) {
	if err := ready(); err != nil {
		return nil, err
	}
	n, err := cu.NumDevices()
	if err != nil {
		return nil, explain("counting the GPUs", err)
	}
	if n == 0 {
		return nil, errNoGPU
	}
	chips := make([]cuda.Chip, n)
	for i := range chips {
		if _, chips[i], err = chip(i); err != nil {
			return nil, err
		}
	}
	return chips, nil
}

// chip describes the GPU with that index.
func chip(index int) (cu.Device, cuda.Chip, error) {
	dev, err := cu.GetDevice(index)
	if err != nil {
		return dev, cuda.Chip{}, explain(fmt.Sprintf("finding GPU %d", index), err)
	}
	var c cuda.Chip
	var integrated, major, minor, pageable, tables, atomics, registers int
	read := func(to *int, a cu.DeviceAttribute) {
		if err == nil {
			*to, err = dev.Attribute(a)
		}
	}
	const hostRegisterSupported, usesHostPageTables cu.DeviceAttribute = 99, 100 // which cu does not name
	read(&integrated, cu.Integrated)
	read(&pageable, cu.PageableMemoryAccess)
	read(&tables, usesHostPageTables)
	read(&atomics, cu.HostNativeAtomicSupported)
	read(&registers, hostRegisterSupported)
	read(&major, cu.ComputeCapabilityMajor)
	read(&minor, cu.ComputeCapabilityMinor)
	read(&c.Processors, cu.MultiprocessorCount)
	if err == nil {
		c.Total, err = dev.TotalMem()
	}
	if err == nil {
		c.Name, err = dev.Name()
	}
	c.Arch, c.Integrated = fmt.Sprintf("sm_%d%d", major, minor), integrated != 0
	c.Pageable, c.Atomics, c.Registers = pageable != 0 && tables != 0, atomics != 0, registers != 0
	if err != nil {
		err = explain(fmt.Sprintf("asking GPU %d what it is", index), err)
	}
	return dev, c, err
}

// Open opens the GPU with that index. The caller, who is locked to its thread, closes it. available tells how many bytes of the processor's
// memory this process may take, which a GPU that shares it has free: the driver does not count what the system would give up, such as
// cached files. nil leaves it to the driver. Errors: as for Chips; there is no such index; the kernels were not compiled for this GPU;
// *cuda.OutOfMemory.
func Open(index int, available func() int64) (cuda.Driver, error) {
	chips, err := Chips()
	if err != nil {
		return nil, err
	}
	if index < 0 || index >= len(chips) {
		return nil, fmt.Errorf("there is no GPU %d: want 0 to %d, for %s", index, len(chips)-1, names(chips))
	}
	dev, c, err := chip(index)
	if err != nil {
		return nil, err
	}
	d := &driver{dev: dev, chip: c, functions: map[string]*function{},
		available: available, mapped: map[cuda.Pointer]func() error{}}
	if err := d.open(); err != nil {
		d.Close()
		return nil, err
	}
	return d, nil
}

func names(chips []cuda.Chip) string {
	all := make([]string, len(chips))
	for i, c := range chips {
		all[i] = c.Name
	}
	return strings.Join(all, ", ")
}

// open makes the context, loads the kernels and makes the stream.
func (d *driver) open() error {
	// A wait sleeps until the GPU interrupts, see Wait. Who has opened the GPU in this process before has said so.
	if err := d.dev.SetPrimaryCtxFlags(cu.SchedBlockingSync); err != nil && number(err) != contextActive {
		return d.failed("opening the GPU", 0, err)
	}
	major, err := d.dev.Attribute(cu.ComputeCapabilityMajor)
	if err != nil {
		return d.failed("opening the GPU", 0, err)
	}
	if d.context, err = d.dev.RetainPrimaryCtx(); err != nil {
		return d.failed("opening the GPU", 0, err)
	}
	d.retained = true
	if err := cu.SetCurrentContext(d.context); err != nil {
		return d.failed("opening the GPU", 0, err)
	}
	if d.module, err = cu.LoadData(kernels); err != nil {
		return d.failed("loading the kernels", int64(len(kernels)), err)
	}
	d.loaded = true
	if d.stream, err = cu.MakeStream(cu.NonBlocking); err != nil {
		return d.failed("making a stream", 0, err)
	}
	d.early = launchesEarly(major, targets)
	d.early = d.early && d.keeps()
	return d.staging.open(d)
}

// keeps reports whether the driver takes launches that begin early into graphs, which some do not (on sm_120: sglang's pull request 18596).
func (d *driver) keeps() bool {
	one := cuda.Shape{Grid: [3]int{1, 1, 1}, Block: [3]int{1, 1, 1}}
	g, err := d.Capture(func() error { return errors.Join(d.Launch("sizes", one, 0, 0), d.Launch("sizes", one, 0, 0)) })
	if err != nil {
		return false
	}
	g.Close() // which never runs
	return true
}
