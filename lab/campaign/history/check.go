package history

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// Documented are the kinds of errors that an answer may have while processes die and networks fail. Others, such as INTERNAL, are faults
// of tandem's.
var Documented = []string{"UNAVAILABLE", "EXHAUSTED", "DEADLINE"}

const (
	warm      = 2 * time.Minute // of a process's life, which its slope leaves out: caches fill
	leastLife = 3 * time.Minute // behind that, for a slope
	sameFiles = 16              // descriptors that an idle process may have more than before: connections that were made again
)

// Check judges a history. The order of the records is that of their times.
func Check(all []Record) *Report {
	c := checker{r: newReport(), references: map[string]Record{}, open: map[int]Record{}, levels: map[string]Record{},
		samples: map[life][]Record{}}
	for _, r := range all {
		c.take(r)
		c.r.Seconds = max(c.r.Seconds, r.At.Seconds())
	}
	for _, id := range sortedKeys(c.open) {
		c.r.Lost++
		c.wrong("request %d (%s by %s) has neither an answer nor an error", id, c.open[id].Ask, c.open[id].Via)
	}
	c.slopes()
	return c.r
}

// life is one process from its start to its end.
type life struct {
	process string
	pid     int
}

type checker struct {
	r          *Report
	references map[string]Record
	open       map[int]Record // requests without an end
	levels     map[string]Record
	samples    map[life][]Record
}

func (c *checker) wrong(format string, args ...any) {
	c.r.Problems = append(c.r.Problems, fmt.Sprintf(format, args...))
}

func (c *checker) take(r Record) {
	switch r.Kind {
	case Reference:
		c.references[r.Ask] = r
	case Request:
		c.r.Requests++
		c.open[r.ID] = r
	case Answer:
		c.answer(r)
	case Fault:
		c.r.Faults[r.What]++
	case Died:
		c.died(r)
	case Sample:
		at := life{r.Process, r.PID}
		c.samples[at] = append(c.samples[at], r)
	case Level:
		c.level(r)
	case Counts:
		if r.Value != r.Told {
			c.wrong("%s counted %v as %s, its clients were told of %v", r.Process, r.Value, r.What, r.Told)
		}
	case Skipped:
		c.r.Skipped[r.What] = r.Message
	}
}

// answer compares an answer with its reference.
func (c *checker) answer(r Record) {
	if _, begun := c.open[r.ID]; !begun {
		c.r.Wrong++
		c.wrong("request %d (%s by %s) has a second answer, or was never put", r.ID, r.Ask, r.Via)
		return
	}
	delete(c.open, r.ID)
	want, known := c.references[r.Ask]
	if !known {
		c.wrong("request %d: %q has no reference", r.ID, r.Ask)
		return
	}
	for _, kind := range r.Errors {
		c.error(r, kind)
	}
	for _, text := range r.Began {
		c.prefix(r, text, want)
	}
	if r.Taken > 0 {
		c.r.Taken++
	}
	switch r.Outcome {
	case Whole:
		c.r.Whole++
		c.whole(r, want)
	case Canceled:
		c.r.Canceled++
		c.prefix(r, r.Text, want)
	case Failed:
		c.r.Failed++
		c.error(r, r.Code)
		c.prefix(r, r.Text, want)
	default:
		c.wrong("request %d has the outcome %q: want whole, canceled or failed", r.ID, r.Outcome)
	}
}

func (c *checker) whole(r, want Record) {
	switch {
	case r.Text != want.Text:
		c.r.Wrong++
		c.wrong("request %d (%s by %s, taken up %d times) has another text than its reference: %s", r.ID, r.Ask, r.Via, r.Taken,
			difference(r.Text, want.Text))
	case r.Prompt != want.Prompt || r.Output != want.Output:
		c.r.Wrong++
		c.wrong("request %d (%s by %s, taken up %d times) is counted as %d and %d tokens: want %d and %d", r.ID, r.Ask, r.Via, r.Taken,
			r.Prompt, r.Output, want.Prompt, want.Output)
	}
}

// prefix wants what came before an error or the client's end to be the beginning of the reference.
func (c *checker) prefix(r Record, text string, want Record) {
	if !strings.HasPrefix(want.Text, text) {
		c.r.Wrong++
		c.wrong("request %d (%s by %s, %s) began with another text than its reference: %s", r.ID, r.Ask, r.Via, r.Outcome,
			difference(text, want.Text))
	}
}

func (c *checker) error(r Record, kind string) {
	c.r.Errors[kind]++
	if !slices.Contains(Documented, kind) {
		c.wrong("request %d (%s by %s) has the error %s: want one of %v: %s", r.ID, r.Ask, r.Via, kind, Documented, r.Message)
	}
}

// difference shows where got leaves want.
func difference(got, want string) string {
	n := 0
	for n < min(len(got), len(want)) && got[n] == want[n] {
		n++
	}
	part := func(s string) string { return s[n:min(len(s), n+40)] }
	return fmt.Sprintf("behind %d bytes %q, want %q", n, part(got), part(want))
}

// died counts a death that a fault explains, and reports any other.
func (c *checker) died(r Record) {
	if r.Excuse == "" {
		c.r.Crashes++
		c.wrong("%s (pid %d) has ended by itself at %.1f s: %s", r.Process, r.PID, r.At.Seconds(), r.How)
		return
	}
	c.r.Kills[r.Role]++
}

// level compares a figure of an idle process with what it was before the faults.
func (c *checker) level(r Record) {
	key := r.Process + " " + r.What
	if r.When == "before" {
		c.levels[key] = r
		return
	}
	before, known := c.levels[key]
	most := before.Value
	if r.What == "descriptors" {
		most += sameFiles
	}
	if known && r.Value > most {
		c.wrong("%s has %v %s after the faults, and had %v before", r.Process, r.Value, r.What, before.Value)
	}
}

// slopes fits a line to the memory of each process that has lived long enough.
func (c *checker) slopes() {
	for at, samples := range c.samples {
		begun := samples[0].At + warm
		samples = slices.DeleteFunc(samples, func(r Record) bool { return r.At < begun })
		if len(samples) < 3 || samples[len(samples)-1].At-begun < leastLife {
			continue
		}
		s := Slope{Hours: (samples[len(samples)-1].At - samples[0].At).Hours(), PerHour: slope(samples),
			Late: slope(samples[len(samples)/2:]), First: samples[0].Bytes, Last: samples[len(samples)-1].Bytes}
		if old, ok := c.r.Slopes[at.process]; !ok || s.Hours > old.Hours { // the longest life is the surest
			c.r.Slopes[at.process] = s
		}
	}
}

// slope returns the least squares' slope of the samples' memory in bytes an hour.
func slope(samples []Record) float64 {
	var x, y, xx, xy float64
	n := float64(len(samples))
	for _, r := range samples {
		t, b := r.At.Hours(), float64(r.Bytes)
		x, y, xx, xy = x+t, y+b, xx+t*t, xy+t*b
	}
	return (n*xy - x*y) / (n*xx - x*x)
}
