package modelinfo

import (
	"fmt"
	"runtime"
	"time"

	"github.com/tandem-llm/tandem/app/bench/figures"
	"github.com/tandem-llm/tandem/engine"
	"github.com/tandem-llm/tandem/kernels"
	"github.com/tandem-llm/tandem/kernels/cpu"
)

// speedInfo is what a pass of one row has to do, and how often in a second this machine's processor can do that at best.
type speedInfo struct {
	PassBytes   int64   `json:"pass_bytes"`   // weights that a pass of one row reads
	Experts     int     `json:"experts"`      // those of it, layer by layer; 0: a model without
	ExpertBytes int64   `json:"expert_bytes"` // of each
	MACs        int64   `json:"macs"`         // multiply-adds of a row
	ReadRate    float64 `json:"read_bytes_per_second"`
	Passes      float64 `json:"passes_per_second"` // at best, from memory
}

// leftOutInfo is a part of the file that reads pictures or sound.
type leftOutInfo struct {
	What    string `json:"what"`
	Tensors int    `json:"tensors"`
	Bytes   int64  `json:"bytes"`
}

// What is read to find out how fast memory is: more than caches hold; for how long.
const (
	speedBytes = 128 << 20
	speedTime  = 100 * time.Millisecond
)

// speedOf measures how fast this machine reads, unless what that takes is more than a quarter of its free memory: then rates are 0.
func speedOf(info *engine.Info, memory memoryInfo) (s speedInfo, err error) {
	ints, floats := info.Work.MACs(1, 1)
	s = speedInfo{PassBytes: info.Work.Bytes, Experts: info.Work.Experts, ExpertBytes: info.Work.Expert, MACs: int64(ints + floats)}
	if memory.Available/4 < speedBytes {
		return s, nil
	}
	d, err := cpu.New(runtime.NumCPU(), cpu.Auto)
	if err != nil {
		return s, err
	}
	defer d.Close()
	probe, err := d.NewProbe(speedBytes)
	if err != nil {
		return s, err
	}
	defer probe.Close()
	l, err := kernels.MeasureLimits(probe, speedTime)
	if err != nil {
		return s, err
	}
	s.ReadRate, s.Passes = l.ReadBytes, 1/info.Work.Limit(l, 1, 1).Seconds()
	return s, nil
}

func (s *speedInfo) rows() (rows [][2]string) {
	reads := fmt.Sprintf("a pass of one row reads %s of weights", figures.MiB(s.PassBytes))
	if s.Experts > 0 {
		reads += fmt.Sprintf(", among them %d experts of %s", s.Experts, figures.MiB(s.ExpertBytes))
	}
	if s.ReadRate > 0 {
		reads += fmt.Sprintf("; memory here gives %.1f GB/s, so %.4g passes a second at best", s.ReadRate/1e9, s.Passes)
		if s.PassBytes < speedBytes {
			reads += ", or more if the weights fit into caches"
		}
	}
	return [][2]string{{"speed", reads}}
}
