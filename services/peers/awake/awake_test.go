package awake

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	"github.com/tandem-llm/tandem"
)

// generation is a Generator that calls a function.
type generation func()

func (f generation) Generate(context.Context, tandem.Request, tandem.Sink) (tandem.Result, error) {
	f()
	return tandem.Result{}, nil
}

// TestOpenWhileRequestsRun: the file is open from the first request's begin to the last one's end.
func TestOpenWhileRequestsRun(t *testing.T) {
	path := filepath.Join(t.TempDir(), "latency")
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	counters := new(tandem.Counters)
	g := New(nil, counters).(*generator)
	g.path = path
	run := func(inner func()) {
		g.Generator = generation(inner)
		if _, err := g.Generate(t.Context(), tandem.Request{}, nil); err != nil {
			t.Fatal(err)
		}
	}
	run(func() {
		first := g.file
		if first == nil {
			t.Error("not open while a request runs")
		}
		run(func() {
			if g.file != first {
				t.Error("opened again by a second request")
			}
		})
		if g.file != first {
			t.Error("closed before the last request has ended")
		}
	})
	if g.file != nil {
		t.Error("open though no request runs")
	}
	if b, err := os.ReadFile(path); err != nil || string(b) != "\x00\x00\x00\x00" {
		t.Errorf("holds %q (%v): want the number 0 in four bytes", b, err)
	}
	if n := counters.Snapshot()["awake.denied"]; n != 0 {
		t.Errorf("denied %d times", n)
	}
}

// TestDenied: a system that refuses changes nothing, and is counted.
func TestDenied(t *testing.T) {
	counters, ran := new(tandem.Counters), false
	g := New(generation(func() { ran = true }), counters).(*generator)
	g.path = filepath.Join(t.TempDir(), "none")
	if _, err := g.Generate(t.Context(), tandem.Request{}, nil); err != nil || !ran {
		t.Errorf("ran %v, %v", ran, err)
	}
	if n := counters.Snapshot()["awake.denied"]; n != 1 {
		t.Errorf("denied %d times: want 1", n)
	}
}
