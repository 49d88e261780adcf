package prefixes

import (
	"testing"
	"time"
)

// TestClockSteps: a step of the wall clock, while a store is open or between two starts, makes no file old; time that passes does.
func TestClockSteps(t *testing.T) {
	c, _ := config(t.TempDir())
	c.Age = 24 * time.Hour
	step, passed := time.Duration(0), time.Duration(0)
	begun := time.Now()
	c.clock = func() (time.Time, time.Duration) { return begun.Add(step + passed), passed }
	wall := func() time.Time { return begun.Add(step + passed) }
	s := open(t, c)
	names := s.Tenant("").Names(text(1, 3*pageTokens))
	keeps := func(when string, want ...bool) {
		t.Helper()
		for i, want := range want {
			if of := s.Tenant(""); of.Has(names[i], Page) != want {
				t.Errorf("%s: page %d is there: %v, want %v", when, i, !want, want)
			}
		}
	}
	put := func(i int) {
		t.Helper()
		if err := s.Tenant("").Write(names[i], Page, random(1, 100), 0, wall()); err != nil {
			t.Fatal(err)
		}
	}
	put(0)
	passed += 20 * time.Hour
	put(1)
	step += 365 * 24 * time.Hour
	keeps("just after a step forward", true, true)
	passed += 2 * time.Hour
	put(2) // which looks at the folder
	keeps("two hours after it", true, true, true)
	passed += 3 * time.Hour
	keeps("when the first has become old", false, true, true)
	put(2)
	if uses, err := List(c.Dir); err != nil || uses[0].Files != 2 {
		t.Errorf("%+v, error %v: want the old file removed", uses, err)
	}
	step -= 365 * 24 * time.Hour
	keeps("after a step back", false, true, true)
	s = open(t, c)
	keeps("after a start behind it", false, true, true)
	step += 1000 * 24 * time.Hour
	s = open(t, c)
	keeps("after a start behind a step forward", false, true, true)
	passed += 20 * time.Hour
	put(2)
	keeps("when the second has become old", false, false, true)
	passed += 10 * time.Hour // in which the store was closed
	s = open(t, c)
	keeps("after ten hours off", false, false, true)
}
