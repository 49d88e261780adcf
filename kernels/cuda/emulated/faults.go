package emulated

import "sync/atomic"

// faults are what a test wants to go wrong.
type faults struct {
	launches  atomic.Int64 // until one fails; 0 is never
	elsewhere atomic.Int64 // bytes that others have taken
}

// FailLaunch makes the n-th launch from now fail, counted from 1, those of graphs too. Like a fault of a GPU it is seen by the next
// call that waits, and the device is lost. 0 takes the fault back.
func (f *faults) FailLaunch(n int) { f.launches.Store(int64(n)) }

// TakeMemory is as if other processes held so many bytes of the GPU's memory.
func (f *faults) TakeMemory(bytes int64) { f.elsewhere.Store(bytes) }

// due returns which of the next n launches is to fail, or -1.
func (f *faults) due(n int) int {
	left := f.launches.Load()
	if left == 0 {
		return -1
	}
	f.launches.Store(max(0, left-int64(n)))
	if left > int64(n) {
		return -1
	}
	return int(left) - 1
}

// Calls is how often a driver was called. Launches are those outside of graphs, Waits the calls that return when the GPU has done what came
// before: Wait, Read and Release.
type Calls struct{ Writes, Reads, Launches, Graphs, Allocs, Waits int64 }

type calls struct{ writes, reads, launches, graphs, allocs, waits atomic.Int64 }

// Calls returns how often the driver was called since the last call of Calls.
func (c *calls) Calls() Calls {
	return Calls{c.writes.Swap(0), c.reads.Swap(0), c.launches.Swap(0), c.graphs.Swap(0), c.allocs.Swap(0), c.waits.Swap(0)}
}
