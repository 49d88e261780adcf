package rpc

import (
	"errors"
	"strings"
	"testing"

	"github.com/tandem-llm/tandem"
)

func TestOwners(t *testing.T) {
	var o Owners
	open := func(id tandem.SessionID, process uint64, ok bool) error {
		done, err := o.Open(id, process)
		if err == nil {
			done(ok)
		}
		return err
	}
	want := func(when string, id tandem.SessionID, process uint64) {
		t.Helper()
		if got := o.Of(id); got != process {
			t.Errorf("%s: session %v is of %x: want %x", when, id, got, process)
		}
	}
	want("at first", 1, 0)
	if err := open(1, 0xa, false); err != nil {
		t.Fatal(err)
	}
	want("after an Open that failed", 1, 0)
	if err := open(1, 0xa, true); err != nil {
		t.Fatal(err)
	}
	want("after an Open", 1, 0xa)
	_ = open(1, 0xa, false)
	want("after an Open again that failed", 1, 0xa)
	if err := open(1, 0xb, true); !errors.Is(err, tandem.UnknownSession) {
		t.Errorf("another process opens it: %v", err)
	}
	if err := o.Check(1, 0xb); !errors.Is(err, tandem.UnknownSession) || o.Check(1, 0xa) != nil || o.Check(2, 0) == nil ||
		strings.ReplaceAll(err.Error(), "1", "2") != strings.ReplaceAll(o.Check(2, 0xb).Error(), "1", "2") {
		t.Errorf("checks: %v, %v, %v", err, o.Check(1, 0xa), o.Check(2, 0xb))
	}
	if o.Close(1, 0xb) || !o.Close(1, 0xa) || o.Close(1, 0xa) {
		t.Error("closed by another, or not by its owner, or twice")
	}
	want("after Close", 1, 0)

	done, err := o.Open(3, 0xa)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := o.Open(3, 0xb); err == nil {
		t.Error("another process opens a session while its owner does")
	}
	o.Close(3, 0xa)
	done(true)
	want("closed during an Open that came through", 3, 0xa)
	done, _ = o.Open(3, 0xa)
	o.Forget(0xa)
	done(true)
	want("of a process that is gone", 3, 0)

	o.Assert([]tandem.SessionID{4, 5, 0}, 0xa)
	o.Assert([]tandem.SessionID{4, 5}, 0xb)
	want("asserted", 4, 0xa)
	if err := open(4, 0xb, true); err != nil {
		t.Errorf("an Open of a session that was merely asserted: %v", err)
	}
	want("an Open outweighs an assertion", 4, 0xb)
	want("the other assertion", 5, 0xa)
	o.Forget(0xa)
	o.Forget(0xb)
	if len(o.of) != 0 || len(o.held) != 0 {
		t.Errorf("left: %v, %v", o.of, o.held)
	}

	if err := open(1, 0xa, true); err != nil {
		t.Fatal(err)
	}
	for id := range tandem.SessionID(mostHeld + 10) {
		_ = open(id+100, 0xb, true)
	}
	if len(o.of) != mostHeld+1 || o.held[0xb] != mostHeld {
		t.Errorf("%d sessions are kept, %d of the greedy process: want at most %d of one process", len(o.of), o.held[0xb], mostHeld)
	}
	want("the oldest of a greedy process", 100, 0)
	want("its newest", mostHeld+109, 0xb)
	want("another's", 1, 0xa)
}

// TestNumber: each server is told another number, the same one each time.
func TestNumber(t *testing.T) {
	a, b := number("unix:///a"), number("unix:///b")
	if a == b || a != number("unix:///a") || len(a) < 8 {
		t.Errorf("numbers %q and %q", a, b)
	}
}
