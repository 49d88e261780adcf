package roles

import (
	"bytes"
	"os"
	"strconv"
	"strings"
)

const (
	// calmShare is the share of the processors' time that other work may take in a moment in which passes are measured. Assumed: a desktop
	// with nothing to do takes a few hundredths, a process that loads a model takes a core.
	calmShare = 0.2
	// mostWaits is how often a measurement is put off, about a second each time, on a machine that is never calm: then what it is like
	// there is what passes cost.
	mostWaits = 30
)

// calm tells whether the machine had nothing to do since it was last asked.
type calm struct {
	busy, all uint64 // of the processors' time, in ticks
	waits     int
}

// now reports whether the machine was calm since the last call, or never is. It is not at the first call, except where the system does not
// tell.
func (c *calm) now() bool {
	stat, _ := os.ReadFile("/proc/stat") // missing outside Linux
	return c.after(stat)
}

func (c *calm) after(stat []byte) bool {
	busy, all := ticks(stat)
	before := *c
	c.busy, c.all, c.waits = busy, all, c.waits+1
	switch {
	case all == 0 || c.waits > mostWaits:
	case before.all == 0 || all <= before.all || float64(busy-before.busy) > calmShare*float64(all-before.all):
		return false
	}
	c.waits = 0
	return true
}

// ticks returns the time of all processors in /proc/stat (proc_stat(5)), and how much of it was not idle: all but the fields idle and
// iowait. 0, 0 if it is not there.
func ticks(stat []byte) (busy, all uint64) {
	line, _, _ := bytes.Cut(stat, []byte("\n"))
	fields := strings.Fields(string(line))
	if len(fields) < 6 || fields[0] != "cpu" {
		return 0, 0
	}
	for i, f := range fields[1:min(len(fields), 9)] { // later ones are counted in user already
		n, err := strconv.ParseUint(f, 10, 63)
		if err != nil {
			return 0, 0
		}
		if all += n; i != 3 && i != 4 {
			busy += n
		}
	}
	return busy, all
}
