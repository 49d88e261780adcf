package terminal

import (
	"fmt"
	"io"
	"os"
	"runtime"
	"time"

	"github.com/tandem-llm/tandem/engine"
	"github.com/tandem-llm/tandem/engine/memory"
	"github.com/tandem-llm/tandem/processes/roles"
)

// Open loads the model at path with open, such as engine.Open, and shows the progress on to. o.Progress is called too. Errors: open's.
func Open(to io.Writer, path string, o engine.Options, open func(string, engine.Options) (*engine.Model, error)) (*engine.Model, error) {
	p := NewProgress(to, "loading "+Shown(roles.ModelName(path)))
	defer p.End()
	told := o.Progress
	o.Progress = func(done, total int64) {
		if told != nil {
			told(done, total)
		}
		p.Step(done, total)
	}
	defer Wide()()
	return open(path, o)
}

// Wide lets Go code run on all processors until back is called, unless GOMAXPROCS is set. It is for loading, which hashes in Go.
func Wide() (back func()) {
	if os.Getenv("GOMAXPROCS") != "" {
		return func() {}
	}
	before := runtime.GOMAXPROCS(runtime.NumCPU())
	return func() { runtime.GOMAXPROCS(before) }
}

// Progress shows the progress of a task: on a terminal one line that is overwritten and removed at the end, elsewhere a line for each
// quarter. It shows nothing for tasks of less than half a second.
type Progress struct {
	to       io.Writer
	name     string
	terminal bool
	start    time.Time
	shown    int64 // percent, -1 for nothing yet
	drawn    time.Time
	counts   bool // the total is a number of things, not of bytes
}

const quiet = 500 * time.Millisecond

// NewProgress shows the progress of a task called name on to.
func NewProgress(to io.Writer, name string) *Progress {
	f, ok := to.(*os.File)
	return &Progress{to: to, name: name, terminal: ok && Is(f), start: time.Now(), shown: -1}
}

// Step shows how much is done, in bytes; it has the form of engine.Options.Progress. One goroutine at a time may call it.
func (p *Progress) Step(done, total int64) {
	now := time.Now()
	if now.Sub(p.start) < quiet || total == 0 {
		return
	}
	percent, of := 100*done/total, memory.Bytes(total)
	if p.counts {
		of = fmt.Sprint(total)
	}
	switch {
	case p.terminal && (now.Sub(p.drawn) > 100*time.Millisecond || done == total):
		fmt.Fprintf(p.to, "\r%s: %3d %% of %s", p.name, percent, of)
		p.drawn, p.shown = now, percent
	case !p.terminal && percent/25 > p.shown/25 || p.shown < 0 && !p.terminal:
		fmt.Fprintf(p.to, "%s: %d %% of %s\n", p.name, percent, of)
		p.shown = percent
	}
}

// End removes the line, if there is one, from a terminal.
func (p *Progress) End() {
	if p.terminal && p.shown >= 0 {
		fmt.Fprint(p.to, "\r\x1b[K")
	}
}

// Steps shows the progress of one task after another, each as Progress does. One goroutine at a time may use it.
type Steps struct {
	To     io.Writer
	Counts bool // tasks are counted, not measured in bytes
	doing  string
	now    *Progress
}

// Step shows how much of the task called doing is done. Another name ends the task before.
func (s *Steps) Step(doing string, done, total int64) {
	if s.now == nil || doing != s.doing {
		s.End()
		s.doing, s.now = doing, NewProgress(s.To, doing)
		s.now.counts = s.Counts
	}
	s.now.Step(done, total)
}

// End ends the last task, if there was one.
func (s *Steps) End() {
	if s.now != nil {
		s.now.End()
	}
}
