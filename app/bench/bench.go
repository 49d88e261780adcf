// Package bench measures what tandem bench shows: whole passes here, all processes together in
// app/bench/system. The caller provides the device, the model, or a function that starts processes.
package bench

import (
	"fmt"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/kernels"
)

// Passes says how many rows the passes of a benchmark have, and how many passes of each kind count.
type Passes struct {
	Widths []int // rows, 1 to 1024
	Rounds int   // 1 to 100000
}

// Validate returns Invalid for impossible passes, in the words of the command line.
func (p Passes) Validate() error {
	for _, n := range p.Widths {
		if n < 1 || n > 1024 {
			return tandem.Errorf("", tandem.Invalid, "--width %d: want 1 to 1024 rows", n)
		}
	}
	if len(p.Widths) == 0 || p.Rounds < 1 || p.Rounds > 100_000 {
		return tandem.Errorf("", tandem.Invalid, "--rounds is %d, with %d widths: want 1 to 100000 rounds of at least one width",
			p.Rounds, len(p.Widths))
	}
	return nil
}

// Limits are the measured limits of the machine.
type Limits struct {
	Read     float64 `json:"read_gb_s"`
	MAC      float64 `json:"mac_t_s"`       // int8 multiply-adds, 10¹² a second
	FloatMAC float64 `json:"float_mac_t_s"` // f32 fused multiply-adds
}

// LimitsOf returns l in the units of results.
func LimitsOf(l kernels.Limits) Limits {
	return Limits{l.ReadBytes / 1e9, l.IntMACs / 1e12, l.FloatMACs / 1e12}
}

// String returns l in words, with units.
func (l Limits) String() string {
	return fmt.Sprintf("%.1f GB/s read, %.0f Gmac/s int8, %.0f Gmac/s f32", l.Read, 1e3*l.MAC, 1e3*l.FloatMAC)
}
