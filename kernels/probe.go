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

// Limits measures for about a third of `long` each; it reads bytes of fresh memory, which should be far
// more than the caches hold.
func (p *Pool) Limits(bytes int, long time.Duration) (Limits, error) {
	const piece = 1 << 18
	units := max(4*p.threads, bytes/piece)
	buf, err := Alloc(units * piece)
	if err != nil {
		return Limits{}, err
	}
	defer buf.Free()
	for i := 0; i < len(buf.b); i += 512 {
		buf.b[i] = 1
	}
	var l Limits
	if l.ReadBytes, err = p.rate(C.TK_PROBE_READ, units, buf, piece, long/3); err != nil {
		return Limits{}, err
	}
	k := C.tk_kernels_of(C.int(p.isa))
	macs := float64(C.tk_int_macs(k, probeRounds))
	if l.IntMACs, err = p.rate(C.TK_PROBE_INT, 8*p.threads, buf, macs, long/3); err != nil {
		return Limits{}, err
	}
	macs = float64(C.tk_float_macs(k, probeRounds))
	l.FloatMACs, err = p.rate(C.TK_PROBE_FLOAT, 8*p.threads, buf, macs, long/3)
	return l, err
}

const probeRounds = 4000

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
	o.kind, o.dim = C.int(kind), probeRounds
	o.w, o.gbytes = (*C.uint8_t)(unsafe.Pointer(&buf.b[0])), C.size_t(len(buf.b)/units)
	best := 0.0
	for start := time.Now(); time.Since(start) < long; {
		t := time.Now()
		if err := p.run(c); err != nil {
			return 0, err
		}
		best = max(best, float64(units)*each/time.Since(t).Seconds())
	}
	return best, nil
}
