package terminal

import (
	"fmt"
	"io"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync"
)

// Loading passes the lines of processes that start together on to a terminal. What they say of loading it shows in one line, which it
// overwrites, and removes once all have loaded. Each Write must be one line. Safe for concurrent use. NewLoading makes it.
type Loading struct {
	to    io.Writer
	mu    sync.Mutex
	names []string          // of the processes that load, in the order in which they began
	done  map[string]string // how far
	drawn bool
	over  bool // Close was called
}

// loads is a line of a process that tells how far Progress is.
var loads = regexp.MustCompile(`^(\w+): loading .*: (\d+) % of (.*)\n$`)

// NewLoading returns the writer for the lines of processes that start together: a *Loading if to is a terminal, else to itself. Close it.
func NewLoading(to io.Writer) io.Writer {
	if f, ok := to.(*os.File); !ok || !Is(f) {
		return to
	}
	return &Loading{to: to, done: map[string]string{}}
}

// Write implements io.Writer.
func (l *Loading) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	m := loads.FindStringSubmatch(string(p))
	if m == nil {
		if l.drawn {
			fmt.Fprint(l.to, "\r\x1b[K")
		}
		n, err := l.to.Write(p)
		if l.drawn {
			l.draw()
		}
		return n, err
	}
	if l.over {
		return len(p), nil
	}
	name := m[1]
	if _, known := l.done[name]; !known {
		l.names = append(l.names, name)
	}
	l.done[name] = m[2] + " % of " + m[3]
	if slices.ContainsFunc(l.names, func(name string) bool { return !strings.HasPrefix(l.done[name], "100 ") }) {
		l.draw()
		return len(p), nil
	}
	l.end()
	return len(p), nil
}

// draw writes the line.
func (l *Loading) draw() {
	all := make([]string, len(l.names))
	for i, name := range l.names {
		all[i] = name + " " + l.done[name]
	}
	fmt.Fprintf(l.to, "\r\x1b[Kloading: %s", strings.Join(all, ", "))
	l.drawn = true
}

// end removes the line.
func (l *Loading) end() {
	if l.drawn {
		fmt.Fprint(l.to, "\r\x1b[K")
	}
	l.names, l.done, l.drawn = nil, map[string]string{}, false
}

// Close removes the line that w, a writer by NewLoading, may still show. Call it once the processes serve or have ended. w stays usable,
// but shows no loading on a terminal any more: there may be an answer.
func Close(w io.Writer) {
	if l, ok := w.(*Loading); ok {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.end()
		l.over = true
	}
}
