package chat

import (
	"context"
	"errors"
	"syscall"
	"time"

	"github.com/tandem-llm/tandem"
)

// limits bound what one template may cost. A conversation of 2,000 turns and 2 MB takes 170,000 steps in ChatML.
type limits struct {
	steps  int           // nodes evaluated, loop turns, 256-byte pieces copied
	depth  int           // expressions, statements and macro calls inside one another
	spent  int           // bytes of all strings, lists and dictionaries made, including those already dropped
	output int           // bytes rendered
	cpu    time.Duration // processor time of one Render
}

// trial are the limits of one rendering that finds out what a template does. A usual one takes a tenth of them; a template that passes
// them counts as one that does nothing special.
var trial = limits{steps: 1 << 16, depth: 1000, spent: 4 << 20, output: 256 << 10, cpu: 500 * time.Millisecond}

// errLimit is in the error of a template that passes a limit.
var errLimit = errors.New("the template")

// defaults keep one rendering, with the source and its tree, below 64 MiB.
var defaults = limits{steps: 1 << 19, depth: 1000, spent: 32 << 20, output: 4 << 20, cpu: 5 * time.Second}

// meter counts what one rendering costs, on one goroutine. A method panics with a failure when the rendering cannot go on, and Render
// turns that into an error: otherwise every node of the tree and every filter would need an error path.
type meter struct {
	ctx    context.Context
	limits limits
	begun  time.Duration // the thread's processor time then

	steps, polled int // polled: steps when the clock was last looked at
	spentBytes    int
	depth         int
	line          int // of the statement under way, for errors
}

type failure struct{ err error }

func (m *meter) fail(k tandem.Kind, format string, args ...any) {
	panic(failure{failed(m.line, k, format, args...)})
}

// invalid fails because the template does what Jinja does not allow, unknown because it uses what tandem does not have.
func (m *meter) invalid(format string, args ...any) { m.fail(tandem.Invalid, format, args...) }

func (m *meter) invalidIf(is bool, format string, args ...any) {
	if is {
		m.invalid(format, args...)
	}
}

func (m *meter) unknown(format string, args ...any) {
	m.fail(tandem.Unsupported, "tandem does not know "+format, args...)
}

func (m *meter) unknownIf(is bool, format string, args ...any) {
	if is {
		m.unknown(format, args...)
	}
}

// refused fails because the sandbox of chat templates does not allow something.
func (m *meter) refused(why string) { m.fail(tandem.Unsupported, "%s", why) }

// failed is an error at a line; 0 for none.
func failed(line int, k tandem.Kind, format string, args ...any) error {
	err := tandem.Errorf(op, k, format, args...)
	if line > 0 {
		var e *tandem.Error
		errors.As(err, &e)
		err = tandem.Errorf(op, k, "template line %d: %w", line, e.Err)
	}
	return err
}

// step counts n units of work.
func (m *meter) step(n int) {
	m.steps += n
	if m.steps > m.limits.steps {
		m.invalid("%w takes more than %d steps", errLimit, m.limits.steps)
	}
	if m.steps-m.polled < 1024 {
		return
	}
	m.polled = m.steps
	if err := m.ctx.Err(); err != nil {
		m.fail(tandem.KindOf(err), "%w", err)
	}
	if threadTime()-m.begun > m.limits.cpu {
		m.invalid("%w takes more than %v of processor time", errLimit, m.limits.cpu)
	}
}

// threadTime returns the processor time of the calling thread, 0 if the system does not tell it.
func threadTime() time.Duration {
	const thread = 1 // RUSAGE_THREAD of Linux
	var u syscall.Rusage
	if syscall.Getrusage(thread, &u) != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// spend counts bytes that are about to be allocated.
func (m *meter) spend(bytes int) {
	m.work(bytes)
	m.spentBytes += bytes
	if m.spentBytes > m.limits.spent {
		m.invalid("%w makes more than %d bytes of values", errLimit, m.limits.spent)
	}
}

// work counts bytes that are about to be read.
func (m *meter) work(bytes int) { m.step(1 + bytes/256) }

func (m *meter) enter() {
	if m.depth++; m.depth > m.limits.depth {
		m.invalid("%w nests or calls itself more than %d deep", errLimit, m.limits.depth)
	}
}

func (m *meter) leave() { m.depth-- }
