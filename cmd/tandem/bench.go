package main

import (
	"slices"
	"time"
)

type benchCmd struct {
	Kernels benchKernelsCmd `cmd:"" help:"Single matrices: how near their products come to the limits of the machine."`
	Decode  benchDecodeCmd  `cmd:"" help:"Whole passes of a model, by width: T_V(W) beside its limit."`
	System  benchSystemCmd  `cmd:"" help:"All processes together: speculation against plain decoding, and strategies against each other, in turn."`
}

// quantile returns the q-th quantile of values, 0 if there are none.
func quantile(values []time.Duration, q float64) time.Duration {
	if len(values) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(values))
	return sorted[int(q*float64(len(sorted)-1)+0.5)]
}
