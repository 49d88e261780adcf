package main

import (
	"fmt"
	"io"
	"os"
	"runtime"
	"time"

	"github.com/tandem-llm/tandem/engine"
	"github.com/tandem-llm/tandem/roles"
)

// openModel loads a model and shows its progress on stderr.
func (a *app) openModel(path string, o engine.Options) (*engine.Model, error) {
	return a.loading(path, o, engine.Open)
}

// openDrafts returns openModel for models among which are drafts that read the hidden states of target.
func (a *app) openDrafts(target string) func(path string, o engine.Options) (*engine.Model, error) {
	return func(path string, o engine.Options) (*engine.Model, error) {
		return a.loading(path, o, func(path string, o engine.Options) (*engine.Model, error) { return engine.OpenDraft(path, target, o) })
	}
}

// loading calls open with options that show the progress.
func (a *app) loading(path string, o engine.Options, open func(string, engine.Options) (*engine.Model, error)) (*engine.Model, error) {
	p := newLoading(a.stderr, shown(roles.ModelName(path)))
	defer p.end()
	told := o.Progress
	o.Progress = func(done, total int64) {
		if told != nil {
			told(done, total)
		}
		p.step(done, total)
	}
	defer wide()()
	return open(path, o)
}

// wide gives Go all processors until back is called: loading hashes what it reads, in Go.
func wide() (back func()) {
	if os.Getenv("GOMAXPROCS") != "" {
		return func() {}
	}
	before := runtime.GOMAXPROCS(runtime.NumCPU())
	return func() { runtime.GOMAXPROCS(before) }
}

// loading shows the progress of loading a model, or of another task called name: on a terminal one line that is
// overwritten and removed at the end, elsewhere a line for each quarter. It shows nothing for tasks of less than half a
// second.
type loading struct {
	to       io.Writer
	name     string
	terminal bool
	start    time.Time
	shown    int64 // percent, -1 for nothing yet
	drawn    time.Time
	counts   bool // the total is a number of things, not of bytes
}

const quiet = 500 * time.Millisecond

func newLoading(to io.Writer, name string) *loading {
	f, ok := to.(*os.File)
	return &loading{to: to, name: "loading " + name, terminal: ok && isTerminal(f), start: time.Now(), shown: -1}
}

// step is engine.Options.Progress.
func (p *loading) step(done, total int64) {
	now := time.Now()
	if now.Sub(p.start) < quiet || total == 0 {
		return
	}
	percent, of := 100*done/total, engine.Bytes(total)
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

// end removes the line from a terminal.
func (p *loading) end() {
	if p.terminal && p.shown >= 0 {
		fmt.Fprint(p.to, "\r\x1b[K")
	}
}
