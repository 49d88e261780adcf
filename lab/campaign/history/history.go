// Package history is what a campaign wrote down, and what follows from it: records as JSON lines, their check, and reports that add up.
// It starts nothing and measures nothing, so that a history can be judged again, elsewhere and later.
package history

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"sync"
	"time"
)

// Kinds of records.
const (
	Reference = "reference" // what a request's answer is where nothing is disturbed
	Request   = "request"   // a client begins
	Answer    = "answer"    // a client has ended, with one of the outcomes
	Fault     = "fault"     // a fault begins; Process or Target is its victim
	Healed    = "healed"    // a fault is over
	Died      = "died"      // a process has ended
	Up        = "up"        // a process serves
	Sample    = "sample"    // memory, descriptors and threads of a process
	Level     = "level"     // figures of an idle gateway or process, When "before" or "after"
	Counts    = "counts"    // what a gateway counted over undisturbed requests, beside what their clients were told
	Skipped   = "skipped"   // a kind of fault that cannot be had here, and why
)

// Outcomes of answers.
const (
	Whole    = "whole"    // the text came to its end
	Failed   = "failed"   // an error, Code says of what kind
	Canceled = "canceled" // the client itself gave up, on purpose; Text is what had come
)

// Record is one line of a history. Its fields are those of its Kind; the rest is zero.
type Record struct {
	At   time.Duration `json:"at"` // since the campaign's start
	Kind string        `json:"kind"`

	ID  int    `json:"id,omitempty"`  // Request, Answer: which; Fault, Healed: which
	Ask string `json:"ask,omitempty"` // Reference, Request, Answer: name of the request
	Via string `json:"via,omitempty"` // Request, Answer: API, such as "http"

	Outcome  string   `json:"outcome,omitempty"`
	Text     string   `json:"text,omitempty"`
	Prompt   int      `json:"prompt,omitempty"` // tokens, as the gateway counted them
	Output   int      `json:"output,omitempty"`
	Taken    int      `json:"taken,omitempty"`    // Answer: how often its stream was taken up again
	Errors   []string `json:"errors,omitempty"`   // Answer: kinds of the errors on the way, after which the client asked again
	Began    []string `json:"began,omitempty"`    // Answer: texts that broke off for good, before the client asked anew
	Code     string   `json:"code,omitempty"`     // Failed: the kind of error
	Message  string   `json:"message,omitempty"`  // of the error; Skipped: why
	Gateways []string `json:"gateways,omitempty"` // Answer: those that were asked

	What    string  `json:"what,omitempty"`    // Fault: its kind; Level, Counts: the figure
	Target  string  `json:"target,omitempty"`  // Fault: its victim
	Process string  `json:"process,omitempty"` // Died, Up, Sample, Level, Counts: which, as "gateway-1"
	Role    string  `json:"role,omitempty"`    // of Process or of a killed one: gateway, verifier, drafter, nats
	PID     int     `json:"pid,omitempty"`
	How     string  `json:"how,omitempty"`    // Died: exit status or signal
	Excuse  string  `json:"excuse,omitempty"` // Died: the fault that explains it; "" for none
	When    string  `json:"when,omitempty"`   // Level: before or after
	Value   float64 `json:"value,omitempty"`  // Level, Counts
	Told    float64 `json:"told,omitempty"`   // Counts: by the clients
	Bytes   int64   `json:"bytes,omitempty"`  // Sample: resident memory
	Files   int     `json:"files,omitempty"`  // Sample: descriptors
	Threads int     `json:"threads,omitempty"`
}

// Log writes records and keeps them. Safe for concurrent use.
type Log struct {
	begun time.Time

	mu  sync.Mutex
	to  *json.Encoder
	all []Record
	err error // of the first write that failed
}

// NewLog returns a history that begins now, written to w as JSON lines.
func NewLog(w io.Writer) *Log { return &Log{begun: time.Now(), to: json.NewEncoder(w)} }

// Add stamps and writes a record.
func (l *Log) Add(r Record) {
	l.mu.Lock()
	defer l.mu.Unlock()
	r.At = time.Since(l.begun)
	l.all = append(l.all, r)
	if err := l.to.Encode(r); err != nil && l.err == nil {
		l.err = err
	}
}

// Records returns all records so far, and the error of the first that could not be written.
func (l *Log) Records() ([]Record, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return append([]Record(nil), l.all...), l.err
}

// mostLine is the longest line of a history in bytes.
const mostLine = 4 << 20

// Read reads a history. Errors name the line.
func Read(r io.Reader) (all []Record, err error) {
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, mostLine)
	for n := 1; lines.Scan(); n++ {
		var one Record
		if err := json.Unmarshal(lines.Bytes(), &one); err != nil {
			return all, fmt.Errorf("line %d of the history: %w", n, err)
		}
		all = append(all, one)
	}
	return all, lines.Err()
}
