package main

import (
	"context"
	"os"
	"sync"

	"github.com/tandem-llm/tandem"
)

// latencyFile takes a 32-bit number of microseconds: while it is open, no processor enters an idle
// state that it takes longer to leave (Linux, Documentation/power/pm_qos_interface).
const latencyFile = "/dev/cpu_dma_latency"

// awake is a generator that keeps processors out of deep idle states while requests run. A round passes
// through three processes, each of which sleeps until the one before wakes it; a processor that was
// halted meanwhile, above all a virtual one, takes up to 0.2 ms to come back, several times a round.
type awake struct {
	tandem.Generator
	counters *tandem.Counters // "awake.denied" counts how often the system refused

	mu      sync.Mutex
	running int
	file    *os.File // open while requests run, if the system lets it
}

// Generate implements tandem.Generator.
func (a *awake) Generate(ctx context.Context, r tandem.Request, s tandem.Sink) (tandem.Result, error) {
	a.begin()
	defer a.end()
	return a.Generator.Generate(ctx, r, s)
}

func (a *awake) begin() {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.running++; a.running > 1 {
		return
	}
	f, err := os.OpenFile(latencyFile, os.O_WRONLY, 0)
	if err == nil {
		if _, err = f.Write(make([]byte, 4)); err == nil {
			a.file = f
			return
		}
		f.Close()
	}
	a.counters.Add("awake.denied", 1)
}

func (a *awake) end() {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.running--; a.running == 0 && a.file != nil {
		a.file.Close()
		a.file = nil
	}
}
