package cpu

// #include "tk.h"
import "C"

import (
	"fmt"
	"sync"
	"time"
	"unsafe"
)

// Reading is how weights are read with one or two rows, when a pass waits for memory. All give the same bits.
type Reading int

const ( // as in tk.h
	Alone   Reading = iota // as one stream, left to the processor's prefetcher; but AVX2 without VNNI fetches quantised weights ahead
	Ahead                  // as one stream; types of few bits are fetched ahead
	Streams                // as several streams, fetched ahead
)

func (r Reading) String() string {
	return [...]string{"one stream", "one stream, types of few bits fetched ahead", "several streams, fetched ahead"}[r]
}

// ReadingChoice is the Reading in use, and the reason.
type ReadingChoice struct {
	Reading Reading
	Why     string // "known for this processor", or what was measured
}

// ChosenReading returns how weights are read on this machine. The first call decides: by the processor's family, and on
// a processor that is not known by a measurement of some 50 ms. New calls it.
func ChosenReading() ReadingChoice { return chooseReading() }

var chooseReading = sync.OnceValue(func() ReadingChoice {
	c := ReadingChoice{Reading(C.tk_reading_known()), "known for this processor"}
	if c.Reading < 0 {
		c = measureReading()
	}
	setReading(c.Reading)
	return c
})

// setReading sets tk_reading and returns its old value. No pass may be running.
func setReading(r Reading) (was Reading) {
	was = Reading(C.tk_reading)
	C.tk_reading = C.int(r)
	return was
}

// setPermutes is for tests: kernels as on a processor without VBMI. No pass may be running.
func setPermutes(on bool) {
	C.tk_no_permutes = 1
	if on {
		C.tk_no_permutes = 0
	}
}

// assumeVNNI is for tests, which emulate AVX-VNNI where the processor lacks it. It returns what was assumed.
func assumeVNNI(on bool) (was bool) {
	was = C.tk_assume_avxvnni != 0
	C.tk_assume_avxvnni = 0
	if on {
		C.tk_assume_avxvnni = 1
	}
	return was
}

const (
	readingFactor = 1.3 // by how much another Reading must be faster than Alone to be chosen, so that noise does not decide
	readingInputs = 2048
	readingBytes  = 48 << 20 // of weights: more than most last-level caches hold for one core
	readingRounds = 5
)

// measureReading times one row times a matrix of Q4_K, which gains most, on one thread and returns the fastest way.
func measureReading() ReadingChoice {
	group := int(C.tk_group_bytes(C.TK_Q4_K, readingInputs))
	groups := readingBytes / group
	mem, err := Alloc(groups*group + 16*groups*4 + readingInputs/32*C.sizeof_tk_qblock)
	if err != nil {
		return ReadingChoice{Alone, fmt.Sprintf("not measured: %v", err)}
	}
	defer mem.Free()
	for i := 0; i < len(mem.b); i += 512 {
		mem.b[i] = 1 // a page that nobody has written to takes no time to read
	}
	all := Supported()
	var times [Streams + 1]time.Duration
	defer setReading(setReading(Alone))
	for round := range readingRounds + 1 {
		for r := range times {
			setReading(Reading(r))
			start := time.Now()
			C.tk_read_product(C.int(all[len(all)-1]), (*C.uint8_t)(mem.at(0)), C.int(groups), C.int(readingInputs),
				(*C.float)(mem.at(groups*group)), (*C.tk_qblock)(unsafe.Pointer(mem.at(groups*group+16*groups*4))))
			if took := time.Since(start); round > 0 && (times[r] == 0 || took < times[r]) { // the first round finds caches cold
				times[r] = took
			}
		}
	}
	return judgeReading(times)
}

// judgeReading chooses by the times of each Reading.
func judgeReading(times [Streams + 1]time.Duration) ReadingChoice {
	best := Alone
	for r, t := range times {
		if t < times[best] && float64(times[Alone]) > readingFactor*float64(t) {
			best = Reading(r)
		}
	}
	gain := func(r Reading) float64 { return times[Alone].Seconds() / times[r].Seconds() }
	return ReadingChoice{best, fmt.Sprintf("measured: fetched ahead %.2f and several streams %.2f times as fast as one stream; want %.1f",
		gain(Ahead), gain(Streams), readingFactor)}
}
