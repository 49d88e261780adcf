package cpu

// #include "tk.h"
import "C"

import (
	"time"
	"unsafe"

	"github.com/tandem-llm/tandem/kernels"
)

const (
	probeRounds = 4000
	probeWindow = 32 << 20 // read in one pass
	probePiece  = 1 << 18  // read in one unit
)

// probe is a kernels.Probe of a device's threads.
type probe struct {
	dev  *Device
	buf  *Memory // read from, window by window
	at   int     // of the next window
	mem  *Memory // prog and op, where C sees them
	prog *C.tk_prog
	op   *C.tk_op
}

// NewProbe returns a probe of the device's threads.
func (d *Device) NewProbe(bytes int) (kernels.Probe, error) {
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
	b := &probe{dev: d, buf: buf, mem: mem, prog: (*C.tk_prog)(mem.at(prog)), op: (*C.tk_op)(mem.at(op))}
	b.prog.ops, b.prog.sync, b.prog.nops = b.op, (*C.tk_sync)(mem.at(sync)), 1
	b.op.dim, b.op.gbytes = probeRounds, probePiece
	return b, nil
}

// Close gives the probe's memory back; a second Close does nothing.
func (b *probe) Close() {
	b.dev.quiet()
	b.buf.Free()
	b.mem.Free()
	b.prog, b.op = nil, nil
}

// Sample measures each limit.
func (b *probe) Sample(long time.Duration) (kernels.Limits, error) {
	var l kernels.Limits
	k := C.tk_kernels_of(C.int(b.dev.isa))
	threads := b.dev.Threads()
	for _, m := range []struct {
		kind  C.tk_kind
		units int
		each  float64
		out   *float64
	}{
		{C.TK_PROBE_READ, probeWindow / probePiece, probePiece, &l.ReadBytes},
		{C.TK_PROBE_INT, 8 * threads, float64(C.tk_int_macs(k, probeRounds)), &l.IntMACs},
		{C.TK_PROBE_FLOAT, 8 * threads, float64(C.tk_float_macs(k, probeRounds)), &l.FloatMACs},
	} {
		var err error
		if *m.out, err = b.rate(m.kind, m.units, m.each, long); err != nil {
			return kernels.Limits{}, err
		}
	}
	return l, nil
}

// rate runs passes of one probe operation for long and returns the amount per second; each unit counts for `each`.
func (b *probe) rate(kind C.tk_kind, units int, each float64, long time.Duration) (float64, error) {
	b.prog.pass.rows, b.op.kind = C.int(units), kind
	start, n := time.Now(), 0
	for n == 0 || time.Since(start) < long {
		b.op.w = (*C.uint8_t)(unsafe.Pointer(&b.buf.b[b.at]))
		b.at = (b.at + probeWindow) % len(b.buf.b)
		if err := b.dev.run(b.prog, 0, 1); err != nil {
			return 0, err
		}
		n++
	}
	return float64(n*units) * each / time.Since(start).Seconds(), nil
}
