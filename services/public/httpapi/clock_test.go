package httpapi

import (
	"net/http"
	"net/http/httptest"
	"testing"
	"time"
	"unsafe"
)

// stepped returns a time of the same moment whose wall clock shows d more, as after somebody has set the clock. Package time keeps both
// clocks in one value and has no way to set one of them.
func stepped(t time.Time, d time.Duration) time.Time {
	out := t
	*(*uint64)(unsafe.Pointer(&out)) += uint64(d/time.Second) << 30
	return out
}

// TestClockSteps: a step of the wall clock makes no client idle, late or slow.
func TestClockSteps(t *testing.T) {
	now := time.Now()
	later := stepped(now, time.Hour)
	if later.Sub(now) != 0 || later.Round(0).Sub(now.Round(0)) != time.Hour {
		t.Fatalf("%v later, %v by the wall clock: package time has changed", later.Sub(now), later.Round(0).Sub(now.Round(0)))
	}
	g := &guest{}
	g.owes(now)
	if d, _ := g.makesWait(later); d > time.Second {
		t.Errorf("it has made us wait for %v", d)
	}
	b := &body{rc: http.NewResponseController(httptest.NewRecorder())}
	b.readsOn(now)
	s := &largeBodies{reading: map[*body]struct{}{b: {}}}
	if s.hurry(later); b.tooSlow.Load() {
		t.Error("a body is too slow because the clock was set")
	}
	if s.hurry(now.Add(time.Minute)); !b.tooSlow.Load() {
		t.Error("a body of 0 bytes in a minute is not too slow")
	}
}
