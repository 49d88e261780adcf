package supervise

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/tandem-llm/tandem"
)

// Interval is how often a beat finishes something while it has nothing to do.
const Interval = time.Second

const looks = 10 // at a child within the time after which it hangs

// watch finds out whether a child hangs: one of its beats has finished nothing for GroupConfig.Hang, or for as long as its current pass
// may take (tandem.PassMay), if that is longer. The gateway judges by the same rule whether a prompt is still being read. A pass that
// reads its weights from a disk says so while it gets on (Beat.Goes): a disk that has become slow is no reason to kill a process, since
// the next one would read no faster.
//
// Time is counted in the supervisor's own ticks, not read from a clock. If the machine was suspended or the supervisor got no
// processor, ticks are late, but each counts once; so no child is killed on waking. The time for which the child's threads
// waited for a processor within a tick is subtracted.
//
// A child that is stopped while idle cannot say that work has come for it. So its beats must finish something once
// an Interval even when idle.
type watch struct {
	hang  time.Duration
	still []still // by beat
}

type still struct {
	done uint64
	time time.Duration // in ticks, since done changed
}

// look takes the beats after one more tick and returns what the child was doing if it hangs, else "". waited returns how long the child
// waited for a processor since its last call; look calls it once if a beat has stood still for more than a tick.
func (w *watch) look(beats []beat, tick time.Duration, waited func() time.Duration) string {
	for len(w.still) < len(beats) {
		w.still = append(w.still, still{done: beats[len(w.still)].done})
	}
	counted := time.Duration(-1)
	for i, b := range beats {
		s := &w.still[i]
		if b.done != s.done {
			*s = still{done: b.done}
			continue
		}
		if s.time == 0 { // the interval has not passed, most likely
			s.time = tick
			continue
		}
		if counted < 0 {
			counted = tick - min(waited(), tick)
		}
		s.time += counted
		if s.time >= w.hang && s.time >= b.may() {
			return b.doing(s.time)
		}
	}
	return ""
}

// may returns how long the current operation may take by itself; 0 if it is not a pass.
func (b beat) may() time.Duration {
	switch {
	case b.rows == 0:
		return 0
	case b.time <= 0:
		return tandem.PassMay(-1)
	}
	return tandem.PassMay(b.time)
}

// doing describes what the beat is doing.
func (b beat) doing(d time.Duration) string {
	where := "outside of a pass"
	if b.rows > 0 {
		where = fmt.Sprintf("in a pass of %d rows", b.rows)
		if b.time > 0 {
			where += fmt.Sprintf(" that should take %v", b.time.Round(10*time.Microsecond))
		}
	}
	return fmt.Sprintf("%q has finished nothing for %v, %s", b.name, d.Round(100*time.Millisecond), where)
}

// queued measures how long a process's runnable threads waited for a processor (schedstat of proc(5)).
type queued struct {
	pid  int
	last map[string]uint64 // by thread, nanoseconds; nil before the first look
}

// waited returns the longest wait of a thread since the last call; 0 at the first, and where the system does not tell.
func (q *queued) waited() time.Duration {
	files, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/schedstat", q.pid))
	now, most := map[string]uint64{}, uint64(0)
	for _, f := range files {
		b, err := os.ReadFile(f)
		fields := strings.Fields(string(b))
		if err != nil || len(fields) < 2 {
			continue
		}
		n, err := strconv.ParseUint(fields[1], 10, 64)
		if err != nil {
			continue
		}
		now[f] = n
		if before, known := q.last[f]; known && n > before {
			most = max(most, n-before)
		}
	}
	q.last = now
	return time.Duration(most)
}

// stopped reports whether a signal has stopped the process, or a debugger.
func stopped(pid int) bool {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	_, rest, found := strings.Cut(string(b), ") ")
	return err == nil && found && (strings.HasPrefix(rest, "T") || strings.HasPrefix(rest, "t"))
}
