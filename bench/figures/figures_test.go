package figures

import (
	"testing"
	"time"
)

func TestQuantile(t *testing.T) {
	var values []time.Duration
	if Quantile(values, 0.5) != 0 {
		t.Error("quantile of nothing is not 0")
	}
	for i := range 101 {
		values = append(values, time.Duration(100-i))
	}
	if p50, p99 := Quantile(values, 0.5), Quantile(values, 0.99); p50 != 50 || p99 != 99 {
		t.Errorf("p50 %d, p99 %d: want 50, 99", p50, p99)
	}
}
