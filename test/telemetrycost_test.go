package test

import (
	"io"
	"net"
	"net/http"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/tandem-llm/tandem/client"
	"github.com/tandem-llm/tandem/services/peers/telemetry/collectortest"
)

// BenchmarkTelemetry measures what telemetry costs. The same request runs by turns on processes without traces ("off"), on
// others with a collector and a scrape of all metrics every second ("on"), and on a third group of the kind whose requests
// have every round recorded ("full"). It reports tokens per second over those of "off", 1 = no cost: of the fastest tenth of
// the requests of each, which a busy machine disturbs least, and of the same turn the median with the quartiles that say how
// far the machine let it be known. Counting for metrics cannot be switched off: what that costs by itself is BenchmarkWatchedDelta of
// services/peers/telemetry, per round.
//
//	go test ./test -run '^$' -bench Telemetry -benchtime 60x
func BenchmarkTelemetry(b *testing.B) {
	collector, err := collectortest.Start()
	if err != nil {
		b.Fatal(err)
	}
	defer collector.Close()
	groups := []*group{up(b)}
	var listens []string
	for range 2 {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			b.Fatal(err)
		}
		listens = append(listens, l.Addr().String())
		l.Close()
		groups = append(groups, up(b, "--otlp-endpoint", collector.Endpoint(), "--http", listens[len(listens)-1]))
	}
	done := make(chan struct{})
	var scraper sync.WaitGroup
	scraper.Go(func() {
		for {
			select {
			case <-done:
				return
			case <-time.After(time.Second):
			}
			for _, listen := range listens {
				if r, err := http.Get("http://" + listen + "/metrics"); err == nil {
					_, _ = io.Copy(io.Discard, r.Body)
					r.Body.Close()
				}
			}
		}
	})
	defer scraper.Wait()
	defer close(done)

	n, seed := 256, uint64(1) // about 90 rounds: as many as a trace holds in full
	request := client.Request{MaxTokens: &n, Seed: &seed, IgnoreEOS: true, Strategy: "fixed",
		Tree: &client.Tree{Nodes: 8, Depth: 4, Width: 2}, Without: []string{"ahead"}}
	speed := func(k int) float64 {
		r := request
		r.Prompt, r.FullTrace = "func (r *Reader) Read(p []byte) (n int, err error) {\n", k == 2
		f := groups[k].run(b, r).finished
		return float64(f.OutputTokens) / f.Statistics.Decode.Seconds()
	}
	for k := range groups {
		speed(k)
	}
	var ratios, speeds [3][]float64
	for i := 0; b.Loop(); i++ {
		var got [3]float64
		for k := range groups {
			at := (k + i) % len(groups) // each is as often first as last
			got[at] = speed(at)
		}
		for k := range groups {
			speeds[k] = append(speeds[k], got[k])
			ratios[k] = append(ratios[k], got[k]/got[0])
		}
	}
	quartiles := func(v []float64) (low, mid, high float64) {
		slices.Sort(v)
		return v[len(v)/4], v[len(v)/2], v[len(v)*3/4]
	}
	_, mid, _ := quartiles(speeds[0])
	b.ReportMetric(mid, "tok/s-off")
	best := func(k int) float64 {
		slices.Sort(speeds[k])
		return speeds[k][len(speeds[k])*9/10]
	}
	for k, name := range []string{"off", "on", "full"} {
		if k == 0 {
			continue
		}
		low, mid, high := quartiles(ratios[k])
		b.ReportMetric(best(k)/best(0), "best-"+name+"/off")
		b.ReportMetric(mid, name+"/off")
		b.ReportMetric(low, name+"/off-q1")
		b.ReportMetric(high, name+"/off-q3")
	}
	b.ReportMetric(0, "ns/op")
	if len(collector.Spans()) == 0 {
		b.Fatal("the collector got no spans")
	}
}
