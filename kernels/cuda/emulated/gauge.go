package emulated

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"strings"
)

// mostCaches is how many sizes the child's Moved has room for.
const mostCaches = 4

// Moved is what a kernel has moved through the caches of Options.Gauge, in bytes. A cache has lines of 128 bytes, whose sectors of 32 are
// filled one by one, and 16 ways; each block of threads has 64 KiB before it.
type Moved struct {
	Kernel                    string
	Launches, Blocks, Threads int64
	NearRead, NearWritten     int64   // between the multiprocessors and the second level
	MappedRead, MappedWritten int64   // of these what is the processor's memory too, which a GPU may not keep in that level
	Read, Written             []int64 // between each second-level cache and memory
}

func checkGauge(o *Options) error {
	if len(o.Gauge) > mostCaches || o.Resident < 1 {
		return fmt.Errorf("emulated GPU: %d caches and %d blocks side by side: want at most %d, and at least 1", len(o.Gauge), o.Resident,
			mostCaches)
	}
	for _, kib := range o.Gauge {
		if kib < 2 {
			return fmt.Errorf("emulated GPU: a cache of %d KiB: want at least 2", kib)
		}
	}
	return nil
}

func caches(kib []int) string { return strings.Trim(fmt.Sprint(kib), "[]") }

// Moved returns what each kernel has moved since the last call, in the order of their first launches. What lies in the caches stays there.
func (d *Driver) Moved() ([]Moved, error) {
	if err := d.ready("Moved"); err != nil {
		return nil, err
	}
	if d.gauges == 0 {
		return nil, errors.New("emulated GPU: Moved without Options.Gauge")
	}
	if err := d.process.send(moved, 0, nil); err != nil {
		return nil, err
	}
	n, err := d.process.answer(4)
	if err != nil {
		return nil, err
	}
	raw := make([]struct {
		Kernel                                         [40]byte
		Launches, Blocks, Threads, NearRead, NearWrite int64
		MappedRead, MappedWrite                        int64
		Read, Written                                  [mostCaches]int64
	}, n)
	b := make([]byte, binary.Size(raw))
	if _, err := io.ReadFull(d.process.out, b); err != nil {
		return nil, d.process.die(err)
	}
	if _, err := binary.Decode(b, binary.NativeEndian, raw); err != nil {
		return nil, err
	}
	all := make([]Moved, n)
	for i := range raw {
		r := &raw[i]
		name, _, _ := bytes.Cut(r.Kernel[:], []byte{0})
		all[i] = Moved{string(name), r.Launches, r.Blocks, r.Threads, r.NearRead, r.NearWrite, r.MappedRead, r.MappedWrite,
			r.Read[:d.gauges], r.Written[:d.gauges]}
	}
	return all, nil
}
