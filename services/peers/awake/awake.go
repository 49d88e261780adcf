// Package awake keeps processors out of deep idle states while requests run.
package awake

import (
	"context"
	"os"
	"sync"

	"github.com/tandem-llm/tandem"
)

// latencyFile takes a 32-bit number of microseconds: while it is open, no processor enters an idle
// state that takes longer to leave (Linux, Documentation/power/pm_qos_interface).
const latencyFile = "/dev/cpu_dma_latency"

// generator keeps processors awake while its requests run. A round passes
// through three processes, each of which sleeps until the one before wakes it; a processor that was
// halted meanwhile, above all a virtual one, takes up to 0.2 ms to come back, several times a round.
type generator struct {
	tandem.Generator
	path     string
	counters *tandem.Counters

	mu      sync.Mutex
	running int
	file    *os.File // open while requests run, if the system lets it
}

// New wraps g so that processors stay awake while its requests run. The counter "awake.denied" says how often the
// system refused, which only costs speed.
func New(g tandem.Generator, counters *tandem.Counters) tandem.Generator {
	return &generator{Generator: g, path: latencyFile, counters: counters}
}

// Generate implements tandem.Generator.
func (a *generator) Generate(ctx context.Context, r tandem.Request, s tandem.Sink) (tandem.Result, error) {
	a.begin()
	defer a.end()
	return a.Generator.Generate(ctx, r, s)
}

func (a *generator) begin() {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.running++; a.running > 1 {
		return
	}
	f, err := os.OpenFile(a.path, os.O_WRONLY, 0)
	if err == nil {
		if _, err = f.Write(make([]byte, 4)); err == nil {
			a.file = f
			return
		}
		f.Close()
	}
	a.counters.Add("awake.denied", 1)
}

func (a *generator) end() {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.running--; a.running == 0 && a.file != nil {
		a.file.Close()
		a.file = nil
	}
}
