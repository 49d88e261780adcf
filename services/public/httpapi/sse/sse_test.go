package sse

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/test/testkit"
)

// broken is an answer whose connection ends after some writes.
type broken struct {
	*httptest.ResponseRecorder
	left int
}

func (b *broken) SetWriteDeadline(time.Time) error { return nil }

func (b *broken) Write(p []byte) (int, error) {
	if b.left--; b.left < 0 {
		return 0, errors.New("connection reset by peer")
	}
	return b.ResponseRecorder.Write(p)
}

func TestWriter(t *testing.T) {
	w := httptest.NewRecorder()
	e := New(w, time.Second, time.Hour)
	if begun, err := e.State(); begun || err != nil {
		t.Errorf("before the first event: begun %v, %v", begun, err)
	}
	for _, err := range []error{e.Send("", map[string]string{"a": "<b>\n"}), e.Send("error", 1), e.Done()} {
		if err != nil {
			t.Error(err)
		}
	}
	e.Close()
	if err := e.Send("", 2); err != nil {
		t.Error(err)
	}
	if want := "data: {\"a\":\"<b>\\n\"}\n\nevent: error\ndata: 1\n\ndata: [DONE]\n\n"; w.Body.String() != want || w.Code != http.StatusOK {
		t.Errorf("%d with %q, want %q", w.Code, w.Body.String(), want)
	}
	if !w.Flushed || w.Header().Get("Content-Type") != "text/event-stream; charset=utf-8" {
		t.Errorf("flushed %v, %v", w.Flushed, w.Header())
	}
}

// TestAlive: a silent stream sends a comment, in lines a space, or the event that it was given for that.
func TestAlive(t *testing.T) {
	for _, tc := range []struct {
		change func(*Writer)
		want   string
	}{{func(*Writer) {}, ": ping\n"}, {func(e *Writer) { e.Lines() }, " "},
		{func(e *Writer) { e.Alive(func() error { return e.Send("ping", 1) }) }, "event: ping\ndata: 1\n\n"}} {
		w := httptest.NewRecorder()
		e := New(w, time.Second, time.Hour)
		tc.change(e)
		e.tick()
		if err := e.Last("", 2, nil); err != nil {
			t.Error(err)
		}
		e.tick()
		e.Close()
		last := "data: 2\n\n"
		if tc.want == " " {
			last = "2\n"
		}
		if w.Body.String() != tc.want+last {
			t.Errorf("%q, want %q", w.Body.String(), tc.want+last)
		}
	}
}

// TestBrokenConnection keeps the first error: nothing is tried again, and it counts as the client's leaving.
func TestBrokenConnection(t *testing.T) {
	w := &broken{httptest.NewRecorder(), 1}
	e := New(w, time.Second, time.Hour)
	defer e.Close()
	if err := e.Send("", 1); err != nil {
		t.Fatal(err)
	}
	first := e.Send("", 2)
	w.left = 9
	if again := e.Send("", 3); tandem.KindOf(first) != tandem.Canceled || !errors.Is(again, first) ||
		!strings.Contains(first.Error(), "reset by peer") {
		t.Errorf("errors %v, then %v", first, again)
	}
	if _, err := e.State(); !errors.Is(err, first) {
		t.Errorf("the state is %v", err)
	}
	if got := w.Body.String(); got != "data: 1\n\n" {
		t.Errorf("sent %q", got)
	}
}

// TestPing sends comments while nothing else is sent, also before the first event. No empty line follows them.
func TestPing(t *testing.T) { synctest.Test(t, ping) }

func ping(t *testing.T) {
	w := httptest.NewRecorder()
	e := New(w, time.Second, 5*time.Millisecond)
	testkit.Sleep(300 * time.Millisecond)
	e.Close()
	if n := strings.Count(w.Body.String(), ": ping\n"); n < 59 || len(w.Body.String()) != n*len(": ping\n") {
		t.Errorf("in 300 ms of silence: %q", w.Body.String())
	}
}
