package cuda

import (
	"time"

	"github.com/tandem-llm/tandem/kernels"
)

// Patience says how long the sides of a couple wait for each other.
func Patience(c kernels.Couple, most time.Duration) { c.(*couple).patience = most }

// Came returns how often the processor and the GPU came to a meeting of the last pass, and how often ever the GPU had come before.
func Came(r kernels.Runner) (each [2]int, second int) {
	_, _, each = r.(*coupled).cpu.Gone()
	return each, r.(*coupled).cpu.Second()
}

// Shares returns what a chip lacks.
func Shares(c Chip) error { return c.shares() }
