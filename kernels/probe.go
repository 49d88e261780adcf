package kernels

// #include "tk.h"
import "C"

import (
	"time"
	"unsafe"
)

// Limits is what a pool's threads can do at most together, measured: the bounds that the speed of a
// pass is a share of.
type Limits struct {
	ReadBytes float64 // bytes per second read from memory
	IntMACs   float64 // int8 multiply-adds per second
	FloatMACs float64 // f32 fused multiply-adds per second
}

// Limits measures for about a third of `long` each, in passes of a millisecond or so of which the best
// counts, so that other work on the machine disturbs little. It reads bytes of fresh memory, which
// should be far more than the caches hold.
func (p *Pool) Limits(bytes int, long time.Duration) (Limits, error) {
	buf, err := Alloc(max(1, bytes/probeWindow) * probeWindow)
	if err != nil {
		return Limits{}, err
	}
	defer buf.Free()
	for i := 0; i < len(buf.b); i += 512 {
		buf.b[i] = 1
	}
	var l Limits
	k := C.tk_kernels_of(C.int(p.isa))
	for _, m := range []struct {
		kind, units int
		each        float64
		out         *float64
	}{
		{C.TK_PROBE_READ, probeWindow / probePiece, probePiece, &l.ReadBytes},
		{C.TK_PROBE_INT, 8 * p.threads, float64(C.tk_int_macs(k, probeRounds)), &l.IntMACs},
		{C.TK_PROBE_FLOAT, 8 * p.threads, float64(C.tk_float_macs(k, probeRounds)), &l.FloatMACs},
	} {
		if *m.out, err = p.rate(m.kind, m.units, buf, m.each, long/3); err != nil {
			return Limits{}, err
		}
	}
	return l, nil
}

const (
	probeRounds = 4000
	probeWindow = 32 << 20 // read in one pass
	probePiece  = 1 << 18  // read in one unit
)

// rate runs passes of one probe operation until the time is up and returns the best pass's amount per
// second; each of the units counts for `each`.
func (p *Pool) rate(kind, units int, buf *Memory, each float64, long time.Duration) (float64, error) {
	var l layout
	prog, op, sync := l.add(C.sizeof_tk_prog), l.add(C.sizeof_tk_op), l.add(int(C.tk_sync_bytes()))
	mem, err := Alloc(l.size)
	if err != nil {
		return 0, err
	}
	defer mem.Free()
	defer p.quiet()
	c, o := (*C.tk_prog)(mem.at(prog)), (*C.tk_op)(mem.at(op))
	c.ops, c.sync, c.nops = o, (*C.tk_sync)(mem.at(sync)), 1
	c.pass.rows = C.int(units)
	o.kind, o.dim, o.gbytes = C.int(kind), probeRounds, probePiece
	best := 0.0
	for start, at := time.Now(), 0; time.Since(start) < long; at = (at + probeWindow) % len(buf.b) {
		o.w = (*C.uint8_t)(unsafe.Pointer(&buf.b[at]))
		t := time.Now()
		if err := p.run(c); err != nil {
			return 0, err
		}
		best = max(best, float64(units)*each/time.Since(t).Seconds())
	}
	return best, nil
}
