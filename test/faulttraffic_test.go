package test

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/tandem-llm/tandem/client"
)

// job is a request and what must come of it.
type job struct {
	id      string
	request client.Request
	want    []uint32
}

// workload returns n requests of so many tokens, with several trees and settings, and what plain
// decoding says to each.
func (g *group) workload(t testing.TB, n, tokens int) []job {
	t.Helper()
	all := prompts(t)
	jobs := make([]job, n)
	var wg sync.WaitGroup
	for i := range jobs {
		p := all[i*len(all)/n]
		s := setting{0.8 * float64(i%2), uint64(i)}
		r := withTree(s.request(p.Prompt, tokens), trees[i%len(trees)])
		r.IgnoreEOS = true
		jobs[i] = job{id: fmt.Sprintf("%s, %v", p.ID, s), request: r}
		wg.Go(func() {
			got, err := g.try(t.Context(), plain(r))
			if err != nil {
				t.Errorf("%s, plain: %v", jobs[i].id, err)
			}
			jobs[i].want = got.tokens
		})
	}
	wg.Wait()
	if t.Failed() {
		t.FailNow()
	}
	return jobs
}

// silence is a time in which a session said nothing, between two deltas.
type silence struct{ from, to time.Time }

func (s silence) length() time.Duration { return s.to.Sub(s.from) }

// traffic runs requests over and over and notes every silence.
type traffic struct {
	t    testing.TB
	g    *group
	jobs []job
	wg   sync.WaitGroup
	stop chan struct{}
	once sync.Once // closes stop
	// failing tells whether an error is one that the test expects; nil: none is.
	failing func(error) bool

	mu        sync.Mutex
	begun     int
	completed int
	failed    int
	drafted   int
	reopened  int
	silences  []silence
	progress  []time.Time // last delta of each worker
}

// startTraffic keeps one request of each job running until end is called.
func (g *group) startTraffic(t testing.TB, jobs []job) *traffic {
	x := &traffic{t: t, g: g, jobs: jobs, stop: make(chan struct{}), progress: make([]time.Time, len(jobs))}
	t.Cleanup(func() { // after a fatal failure; the test's context, and the requests with it, have ended
		x.once.Do(func() { close(x.stop) })
		x.wg.Wait()
	})
	for i := range jobs {
		x.wg.Go(func() {
			for n := i; !x.stopped(); n++ {
				x.one(i, jobs[n%len(jobs)])
			}
		})
	}
	return x
}

func (x *traffic) stopped() bool {
	select {
	case <-x.stop:
		return true
	default:
		return false
	}
}

// one runs one request on a worker.
func (x *traffic) one(worker int, j job) {
	ctx, cancel := context.WithTimeout(x.t.Context(), time.Minute)
	defer cancel()
	x.mu.Lock()
	x.begun++
	x.mu.Unlock()
	var tokens []uint32
	last := time.Time{}
	for event, err := range x.g.client.Generate(ctx, j.request) {
		now := time.Now()
		switch {
		case err != nil:
			x.mu.Lock()
			x.failed++
			x.mu.Unlock()
			if x.t.Context().Err() != nil {
				return // the test has failed already
			}
			if x.failing == nil || !x.failing(err) {
				x.t.Errorf("%s ended after %d tokens: %v", j.id, len(tokens), err)
			} else if len(tokens) > len(j.want) || !slices.Equal(tokens, j.want[:len(tokens)]) {
				x.t.Errorf("%s: tokens before the error\n%v, undisturbed\n%v", j.id, tokens, j.want)
			}
			if !x.stopped() {
				time.Sleep(20 * time.Millisecond)
			}
			return
		case event.Delta != nil:
			tokens = append(tokens, event.Delta.Tokens...)
			x.mu.Lock()
			if !last.IsZero() {
				x.silences = append(x.silences, silence{last, now})
			}
			x.progress[worker] = now
			x.mu.Unlock()
			last = now
		case event.Finished != nil:
			s := event.Finished.Statistics
			if s.Accepted+s.Rounds != len(tokens) {
				x.t.Errorf("%s: %d accepted and %d rounds, but %d tokens", j.id, s.Accepted, s.Rounds, len(tokens))
			}
			if !slices.Equal(tokens, j.want) {
				x.t.Errorf("%s: tokens\n%v, undisturbed\n%v", j.id, tokens, j.want)
			}
			x.mu.Lock()
			x.completed++
			x.drafted += s.Drafted
			x.reopened += s.Reopened
			x.mu.Unlock()
		}
	}
}

// advanced reports whether every worker has had output after that time.
func (x *traffic) advanced(since time.Time) bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	return !slices.ContainsFunc(x.progress, func(p time.Time) bool { return !p.After(since) })
}

// longest returns the longest silence that overlaps a time, and the median of all silences so far.
func (x *traffic) longest(from, to time.Time) (most, median time.Duration) {
	x.mu.Lock()
	defer x.mu.Unlock()
	all := make([]time.Duration, len(x.silences))
	for i, s := range x.silences {
		all[i] = s.length()
		if s.from.Before(to) && s.to.After(from) {
			most = max(most, s.length())
		}
	}
	if len(all) > 0 {
		slices.Sort(all)
		median = all[len(all)/2]
	}
	return most, median
}

// end waits for the requests that run, and checks that each that began has ended.
func (x *traffic) end() {
	x.t.Helper()
	x.once.Do(func() { close(x.stop) })
	ended := make(chan struct{})
	go func() { x.wg.Wait(); close(ended) }()
	select {
	case <-ended:
	case <-time.After(70 * time.Second):
		x.t.Fatal("requests still run 70 s after the last fault")
	}
	if x.begun != x.completed+x.failed {
		x.t.Errorf("%d requests began, %d completed and %d failed", x.begun, x.completed, x.failed)
	}
}

// once runs every job once, all at the same time.
func (g *group) once(t testing.TB, jobs []job) {
	t.Helper()
	x := &traffic{t: t, g: g, jobs: jobs, stop: make(chan struct{}), progress: make([]time.Time, len(jobs))}
	for i, j := range jobs {
		x.wg.Go(func() { x.one(i, j) })
	}
	x.end()
}
