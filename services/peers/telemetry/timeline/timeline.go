// Package timeline shows stretches of time in lanes on one clock: as a trace file that Perfetto (ui.perfetto.dev) and
// chrome://tracing open, and as a picture.
package timeline

import (
	"cmp"
	"encoding/json"
	"io"
	"slices"
	"time"
)

// Timeline is a set of events on one clock.
type Timeline struct {
	Title     string
	Lanes     []Lane // from top to bottom
	Stretches []Stretch
}

// Lane is one line of a timeline.
type Lane struct {
	Name   string
	Indent int // levels below the lane that it belongs to, for pictures
}

// Stretch is a stretch of time in one lane. Those of a lane do not overlap.
type Stretch struct {
	Lane     int // index into Timeline.Lanes
	Name     string
	Kind     string // equal kinds have equal colours
	From, To time.Duration
	Args     map[string]any // shown when a reader clicks on it
}

// event is one of the Trace Event Format (Chromium), as far as it is used here. Times are microseconds.
type event struct {
	Name     string         `json:"name"`
	Category string         `json:"cat,omitempty"`
	Phase    string         `json:"ph"`
	Time     float64        `json:"ts"`
	Duration *float64       `json:"dur,omitempty"`
	Process  int            `json:"pid"`
	Thread   int            `json:"tid"`
	Args     map[string]any `json:"args,omitempty"`
}

// WriteChrome writes t as a trace file: one process, a thread for each lane, events by time.
func (t Timeline) WriteChrome(w io.Writer) error {
	const process = 1
	events := []event{{Name: "process_name", Phase: "M", Process: process, Args: map[string]any{"name": t.Title}}}
	for i, l := range t.Lanes {
		events = append(events,
			event{Name: "thread_name", Phase: "M", Process: process, Thread: i + 1, Args: map[string]any{"name": l.Name}},
			event{Name: "thread_sort_index", Phase: "M", Process: process, Thread: i + 1, Args: map[string]any{"sort_index": i}})
	}
	for _, s := range t.sorted() {
		took := micros(s.To - s.From)
		events = append(events, event{Name: s.Name, Category: s.Kind, Phase: "X", Time: micros(s.From), Duration: &took,
			Process: process, Thread: s.Lane + 1, Args: s.Args})
	}
	return json.NewEncoder(w).Encode(struct {
		Unit   string  `json:"displayTimeUnit"`
		Events []event `json:"traceEvents"`
	}{"ms", events})
}

func micros(d time.Duration) float64 { return float64(d) / float64(time.Microsecond) }

// sorted returns the stretches by time.
func (t Timeline) sorted() []Stretch {
	out := slices.Clone(t.Stretches)
	slices.SortStableFunc(out, func(a, b Stretch) int { return cmp.Or(cmp.Compare(a.From, b.From), cmp.Compare(a.Lane, b.Lane)) })
	return out
}

// Between returns the part of t from one time to another; stretches that are partly inside are cut.
func (t Timeline) Between(from, to time.Duration) Timeline {
	out := Timeline{Title: t.Title, Lanes: t.Lanes}
	for _, s := range t.Stretches {
		if s.From < to && s.To > from {
			s.From, s.To = max(s.From, from), min(s.To, to)
			out.Stretches = append(out.Stretches, s)
		}
	}
	return out
}
