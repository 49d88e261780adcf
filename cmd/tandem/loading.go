package main

import (
	"fmt"
	"io"
	"os"
	"time"

	"github.com/tandem-llm/tandem/engine"
)

// openModel loads a model, showing on stderr how far it is.
func (a *app) openModel(path string, o engine.Options) (*engine.Model, error) {
	p := newLoading(a.stderr, modelName(path))
	o.Progress = p.step
	m, err := engine.Open(path, o)
	p.end()
	return m, err
}

// loading shows how far the loading of a model is, or another task that name says: on a terminal one line that is written over and goes
// away at the end, elsewhere a line for each quarter. Nothing is shown of what takes less than half a
// second.
type loading struct {
	to       io.Writer
	name     string
	terminal bool
	start    time.Time
	shown    int64 // percent, -1 for nothing yet
	drawn    time.Time
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
	percent := 100 * done / total
	switch {
	case p.terminal && (now.Sub(p.drawn) > 100*time.Millisecond || done == total):
		fmt.Fprintf(p.to, "\r%s: %3d %% of %s", p.name, percent, engine.Bytes(total))
		p.drawn, p.shown = now, percent
	case !p.terminal && percent/25 > p.shown/25 || p.shown < 0 && !p.terminal:
		fmt.Fprintf(p.to, "%s: %d %% of %s\n", p.name, percent, engine.Bytes(total))
		p.shown = percent
	}
}

// end takes the line on a terminal away.
func (p *loading) end() {
	if p.terminal && p.shown >= 0 {
		fmt.Fprint(p.to, "\r\x1b[K")
	}
}
