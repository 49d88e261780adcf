package verifier

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/engine"
	"github.com/tandem-llm/tandem/kernels/testdevice"
	"github.com/tandem-llm/tandem/schedule"
)

// TestPanicsEndOneSession makes the owner stumble over a session that is damaged on purpose.
func TestPanicsEndOneSession(t *testing.T) {
	m, err := engine.Open("../models/gopher-draft-all-f16.gguf", engine.Options{Device: testdevice.CPU(t, 1)})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	counters, verdicts := &tandem.Counters{}, make(chan tandem.Verdict, 4)
	v, err := New(Config{Model: m, Counters: counters})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	began, heard := make(chan struct{}), make(chan error)
	go func() {
		heard <- v.Verdicts(ctx, tandem.Subscription{Began: func() { close(began) }, Deliver: func(all []tandem.Verdict) {
			for _, x := range all {
				verdicts <- x
			}
		}})
	}()
	<-began
	text := []tandem.Token{1, 40, 50}
	for id := range tandem.SessionID(2) {
		o := tandem.Opening{Session: id + 1, Tokens: text, Limit: 32, MaxNodes: 4, Sampling: tandem.Sampling{TopP: 1}}
		if _, err := v.Open(ctx, o); err != nil {
			t.Fatal(err)
		}
	}
	damaged := schedule.NewCall(ctx)
	v.sched.Post(func() {
		s := v.admission.session(1)
		s.text.Tokens = nil
		v.sched.Enter(s, damaged)
	})
	if err := damaged.Wait(); !errors.Is(err, tandem.Internal) || !strings.Contains(tandem.StackOf(err), "pass.go") {
		t.Errorf("got %v, want Internal with a stack", err)
	}
	for _, id := range []tandem.SessionID{1, 2} {
		k := tandem.Ticket{Session: id, Base: 3, Hash: tandem.EmptyPrefix.Add(text...), Tree: tandem.Root(50)}
		if err := v.Submit(ctx, k); err != nil {
			t.Fatal(err)
		}
	}
	for _, want := range []tandem.Kind{tandem.UnknownSession, tandem.OK} {
		if x := <-verdicts; x.Kind != want {
			t.Errorf("verdict %+v, want %v", x, want)
		}
	}
	if n := counters.Snapshot(); n["faults"] != 1 || n["verdicts"] != 1 {
		t.Errorf("counters %v", n)
	}
	cancel()
	if err := <-heard; !errors.Is(err, tandem.Canceled) {
		t.Errorf("Verdicts: %v, want Canceled", err)
	}
	if err := v.Shutdown(context.Background()); err != nil {
		t.Error(err)
	}
}
