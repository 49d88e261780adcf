package logs

import (
	"testing"
	"time"
)

func TestLimit(t *testing.T) {
	var l Limit
	now := time.Unix(1000, 0)
	lines := 0
	for range 500 {
		if dropped, ok := l.Allow(now); ok {
			lines++
			if dropped != 0 {
				t.Errorf("line %d: %d dropped before it: want none", lines, dropped)
			}
		}
	}
	if lines != Most {
		t.Errorf("%d lines in one moment: want %d", lines, Most)
	}
	if dropped, ok := l.Allow(now.Add(window)); !ok || dropped != 490 {
		t.Errorf("a minute later: %v, %d dropped: want 490", ok, dropped)
	}
	if dropped, ok := l.Allow(now.Add(window)); !ok || dropped != 0 {
		t.Errorf("the next line: %v, %d dropped: want none", ok, dropped)
	}
}
