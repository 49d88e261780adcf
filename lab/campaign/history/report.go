package history

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"slices"
)

// Report is what a campaign showed. Reports of several campaigns add up.
type Report struct {
	Campaigns int     `json:"campaigns"`
	Seconds   float64 `json:"seconds"`
	Requests  int     `json:"requests"`
	Whole     int     `json:"whole"`    // answers with their whole text, right or not
	Taken     int     `json:"taken_up"` // answers whose stream broke off and was taken up again
	Failed    int     `json:"failed"`   // ended with an error that their client kept getting
	Canceled  int     `json:"canceled"` // by their client
	Wrong     int     `json:"wrong"`    // another text or count than the reference
	Lost      int     `json:"lost"`     // neither an answer nor an error
	Crashes   int     `json:"crashes"`  // processes that ended by themselves

	Kills   map[string]int    `json:"kills"`  // by role
	Faults  map[string]int    `json:"faults"` // by kind
	Errors  map[string]int    `json:"errors"` // by kind, those included after which a client asked again
	Skipped map[string]string `json:"skipped,omitempty"`
	Slopes  map[string]Slope  `json:"slopes,omitempty"` // by process
	// Problems are what makes a campaign fail, in plain words.
	Problems []string `json:"problems"`
}

// Slope is how the memory of one process grew.
type Slope struct {
	Hours   float64 `json:"hours"`               // that were watched
	PerHour float64 `json:"bytes_per_hour"`      // slope of the line through all samples
	Late    float64 `json:"late_bytes_per_hour"` // likewise through the later half: less, where memory levels off
	First   int64   `json:"first_bytes"`
	Last    int64   `json:"last_bytes"`
}

func newReport() *Report {
	return &Report{Campaigns: 1, Kills: map[string]int{}, Faults: map[string]int{}, Errors: map[string]int{},
		Skipped: map[string]string{}, Slopes: map[string]Slope{}, Problems: []string{}}
}

// Sum adds reports up. Of a process's slopes it keeps that of the longest watch.
func Sum(all []*Report) *Report {
	s := newReport()
	s.Campaigns = 0
	for _, r := range all {
		s.Campaigns += r.Campaigns
		s.Seconds += r.Seconds
		s.Requests, s.Whole, s.Taken = s.Requests+r.Requests, s.Whole+r.Whole, s.Taken+r.Taken
		s.Failed, s.Canceled = s.Failed+r.Failed, s.Canceled+r.Canceled
		s.Wrong, s.Lost, s.Crashes = s.Wrong+r.Wrong, s.Lost+r.Lost, s.Crashes+r.Crashes
		for of, from := range map[*map[string]int]map[string]int{&s.Kills: r.Kills, &s.Faults: r.Faults, &s.Errors: r.Errors} {
			for k, n := range from {
				(*of)[k] += n
			}
		}
		maps.Copy(s.Skipped, r.Skipped)
		for p, slope := range r.Slopes {
			if slope.Hours > s.Slopes[p].Hours {
				s.Slopes[p] = slope
			}
		}
		s.Problems = append(s.Problems, r.Problems...)
	}
	for kind := range s.Faults { // skipped in one campaign, had in another
		delete(s.Skipped, kind)
	}
	return s
}

// Print writes the report as tables.
func (r *Report) Print(to io.Writer) error {
	p := printer{to: to}
	p.line("%d campaign(s), %.1f minutes", r.Campaigns, r.Seconds/60)
	p.line("requests %d: whole %d (taken up again %d), failed %d, canceled by their clients %d", r.Requests, r.Whole, r.Taken, r.Failed,
		r.Canceled)
	p.line("wrong %d, lost %d, processes that ended by themselves %d", r.Wrong, r.Lost, r.Crashes)
	p.table("kills", r.Kills)
	p.table("faults", r.Faults)
	p.table("errors", r.Errors)
	for _, process := range sortedKeys(r.Slopes) {
		s := r.Slopes[process]
		p.line("memory of %-12s %+8.2f MiB an hour over %.2f h (%.1f to %.1f MiB), %+.2f in the later half", process, s.PerHour/(1<<20),
			s.Hours, float64(s.First)/(1<<20), float64(s.Last)/(1<<20), s.Late/(1<<20))
	}
	for _, kind := range sortedKeys(r.Skipped) {
		p.line("skipped: %s, %s", kind, r.Skipped[kind])
	}
	for _, problem := range r.Problems {
		p.line("PROBLEM: %s", problem)
	}
	return p.err
}

type printer struct {
	to  io.Writer
	err error
}

func (p *printer) line(format string, args ...any) {
	if _, err := fmt.Fprintf(p.to, format+"\n", args...); p.err == nil {
		p.err = err
	}
}

func (p *printer) table(title string, counts map[string]int) {
	line := title + ":"
	for _, k := range sortedKeys(counts) {
		line += fmt.Sprintf("  %s %d", k, counts[k])
	}
	if len(counts) == 0 {
		line += " none"
	}
	p.line("%s", line)
}

func sortedKeys[K cmp.Ordered, V any](m map[K]V) []K { return slices.Sorted(maps.Keys(m)) }
