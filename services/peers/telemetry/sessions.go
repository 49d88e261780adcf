package telemetry

import (
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"
)

// sessions counts generations by state as tandem_sessions.
type sessions struct {
	waiting    atomic.Int64 // generations that wait for a place, or for their first token
	decoding   atomic.Int64
	prefilling func() int // how many prompts are being read; nil: nobody tells
}

var sessionsDesc = prometheus.NewDesc("tandem_sessions",
	"Generations now: waiting for a place or for the verifier, prefilling while their prompt is read, or decoding.", []string{"state"}, nil)

// Describe implements prometheus.Collector.
func (s *sessions) Describe(to chan<- *prometheus.Desc) { to <- sessionsDesc }

// Collect implements prometheus.Collector. A generation whose prompt is read before its first token is not said to wait as well; one that
// is read again, after its first token, is still decoding.
func (s *sessions) Collect(to chan<- prometheus.Metric) {
	waiting, prefilling := s.waiting.Load(), int64(0)
	if s.prefilling != nil {
		prefilling = min(int64(s.prefilling()), waiting)
	}
	for state, n := range map[string]int64{"waiting": waiting - prefilling, "prefilling": prefilling, "decoding": s.decoding.Load()} {
		to <- prometheus.MustNewConstMetric(sessionsDesc, prometheus.GaugeValue, float64(n), state)
	}
}
