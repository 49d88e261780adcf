package main

import (
	"context"

	"github.com/tandem-llm/tandem/gateway"
	"github.com/tandem-llm/tandem/services/public"
	"github.com/tandem-llm/tandem/services/telemetry"
)

// newMetrics returns the metrics of a gateway and the processes behind it.
func newMetrics(r *role, g *gateway.Gateway, model string, describe func(context.Context) public.Description) *telemetry.Metrics {
	r.gauge("requests.running", func() int64 {
		running, _ := g.Load()
		return int64(running)
	})
	r.gauge("requests.waiting", func() int64 {
		_, waiting := g.Load()
		return int64(waiting)
	})
	return telemetry.NewMetrics(telemetry.MetricsConfig{Model: model, Version: buildVersion().Version, Describe: describe})
}
