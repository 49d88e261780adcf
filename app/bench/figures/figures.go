// Package figures formats measured values.
package figures

import (
	"context"
	"fmt"
	"slices"
	"time"
)

// Share returns a/b, 0 for b = 0.
func Share(a, b float64) float64 {
	if b == 0 {
		return 0
	}
	return a / b
}

// MS returns d in milliseconds, as JSON has it.
func MS(d time.Duration) float64 { return float64(d) / 1e6 }

// US returns d in microseconds, as JSON has it.
func US(d time.Duration) float64 { return float64(d) / 1e3 }

// MiB formats a number of bytes.
func MiB(bytes int64) string { return fmt.Sprintf("%.1f MiB", float64(bytes)/(1<<20)) }

// Quantile returns the value at rank q of values, 0 ≤ q ≤ 1; 0 if there are none. values stays as it is.
func Quantile(values []time.Duration, q float64) time.Duration {
	if len(values) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(values))
	return sorted[int(q*float64(len(sorted)-1)+0.5)]
}

// MedianTime returns the median time of n runs, after a first one that does not count. Errors: run's, and ctx's once it has ended.
func MedianTime(ctx context.Context, n int, run func() error) (time.Duration, error) {
	var times []time.Duration
	for range n + 1 {
		if err := ctx.Err(); err != nil {
			return 0, err
		}
		begun := time.Now()
		if err := run(); err != nil {
			return 0, err
		}
		times = append(times, time.Since(begun))
	}
	return Quantile(times[1:], 0.5), nil
}
