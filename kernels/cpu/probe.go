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

// Max returns the larger of each.
func (l Limits) Max(o Limits) Limits {
	return Limits{max(l.ReadBytes, o.ReadBytes), max(l.IntMACs, o.IntMACs), max(l.FloatMACs, o.FloatMACs)}
}

// Limits measures for about a third of `long` each, in passes of a millisecond or so of which the best
// counts, so that other work on the machine disturbs little. It reads bytes of fresh memory, which
// should be far more than the caches hold.
func (p *Pool) Limits(bytes int, long time.Duration) (Limits, error) {
	b, err := p.NewProbe(bytes)
	if err != nil {
		return Limits{}, err
	}
	defer b.Close()
	var best Limits
	for start := time.Now(); time.Since(start) < long; {
		l, err := b.Sample(0)
		if err != nil {
			return Limits{}, err
		}
		best = best.Max(l)
	}
	return best, nil
}

const (
	probeRounds = 4000
	probeWindow = 32 << 20 // read in one pass
	probePiece  = 1 << 18  // read in one unit
)

// Probe measures limits again and again, between the passes of something else. It holds memory of its
// own to read, is used by one goroutine at a time, and ends with Close.
type Probe struct {
	pool *Pool
	buf  *Memory // read from, window by window
	at   int     // of the next window
	mem  *Memory // prog and op, where C sees them
	prog *C.tk_prog
	op   *C.tk_op
}

// NewProbe returns a probe of p's threads that reads bytes of memory in turn, which should be far more
// than the caches hold.
func (p *Pool) NewProbe(bytes int) (*Probe, error) {
	buf, err := Alloc(max(1, bytes/probeWindow) * probeWindow)
	if err != nil {
		return nil, err
	}
	for i := 0; i < len(buf.b); i += 512 {
		buf.b[i] = 1
	}
	var l layout
	prog, op, sync := l.add(C.sizeof_tk_prog), l.add(C.sizeof_tk_op), l.add(int(C.tk_sync_bytes()))
	mem, err := Alloc(l.size)
	if err != nil {
		buf.Free()
		return nil, err
	}
	b := &Probe{pool: p, buf: buf, mem: mem, prog: (*C.tk_prog)(mem.at(prog)), op: (*C.tk_op)(mem.at(op))}
	b.prog.ops, b.prog.sync, b.prog.nops = b.op, (*C.tk_sync)(mem.at(sync)), 1
	b.op.dim, b.op.gbytes = probeRounds, probePiece
	return b, nil
}

// Close gives the probe's memory back; a second Close does nothing.
func (b *Probe) Close() {
	b.pool.quiet()
	b.buf.Free()
	b.mem.Free()
	b.prog, b.op = nil, nil
}

// Sample measures each limit over about long, in passes of a millisecond or so one after the other, at
// least one: what the machine gives in a time as long as that of the thing that it is compared with.
func (b *Probe) Sample(long time.Duration) (Limits, error) {
	var l Limits
	k := C.tk_kernels_of(C.int(b.pool.isa))
	threads := b.pool.threads
	for _, m := range []struct {
		kind, units int
		each        float64
		out         *float64
	}{
		{C.TK_PROBE_READ, probeWindow / probePiece, probePiece, &l.ReadBytes},
		{C.TK_PROBE_INT, 8 * threads, float64(C.tk_int_macs(k, probeRounds)), &l.IntMACs},
		{C.TK_PROBE_FLOAT, 8 * threads, float64(C.tk_float_macs(k, probeRounds)), &l.FloatMACs},
	} {
		var err error
		if *m.out, err = b.rate(m.kind, m.units, m.each, long); err != nil {
			return Limits{}, err
		}
	}
	return l, nil
}

// rate runs passes of one probe operation until long is over and returns the amount per second; each of
// the units counts for `each`.
func (b *Probe) rate(kind, units int, each float64, long time.Duration) (float64, error) {
	b.prog.pass.rows, b.op.kind = C.int(units), C.int(kind)
	start, n := time.Now(), 0
	for n == 0 || time.Since(start) < long {
		b.op.w = (*C.uint8_t)(unsafe.Pointer(&b.buf.b[b.at]))
		b.at = (b.at + probeWindow) % len(b.buf.b)
		if err := b.pool.run(b.prog); err != nil {
			return 0, err
		}
		n++
	}
	return float64(n*units) * each / time.Since(start).Seconds(), nil
}

// setStreams switches between reading weights as one stream and as several, and returns what it was: see tk_streams. For tests.
func setStreams(on bool) (was bool) {
	was = C.tk_streams != 0
	C.tk_streams = 0
	if on {
		C.tk_streams = 1
	}
	return was
}
