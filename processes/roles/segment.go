package roles

import (
	"errors"
	"strings"

	"github.com/tandem-llm/tandem/services/peers/rpc"
	"github.com/tandem-llm/tandem/services/peers/shm"
)

// Besides returns the socket, beside a process's own, on which its shared memory is handed out; "" for a process on TCP, whose
// trees travel inside messages.
func Besides(addr string) string {
	path, isUnix := strings.CutPrefix(addr, "unix://")
	if !isUnix {
		return ""
	}
	return strings.TrimSuffix(path, ".sock") + "-shm.sock"
}

// OpenSegment makes shared memory for what a process hands out, serves its descriptor on a socket, unless that is "", and adds gauges of
// how full it is. The zero shape is for trees.
func (r *Process) OpenSegment(socket string, shape shm.SegmentConfig) (*shm.Segment, error) {
	segment, err := shm.New(shape)
	if err != nil {
		return nil, err
	}
	if socket != "" {
		l, err := rpc.Listen("unix://" + socket)
		if err == nil {
			err = segment.Serve(l)
		}
		if err != nil {
			return nil, errors.Join(err, segment.Close())
		}
	}
	r.Gauge("shm.leased", func() int64 { return int64(segment.Leased()) })
	r.Gauge("shm.slots", func() int64 { return int64(segment.Slots()) })
	return segment, nil
}
