package gateway

import (
	"cmp"
	"fmt"
	"hash/fnv"
	"path/filepath"
	"strings"

	"github.com/tandem-llm/tandem/processes/roles"
	"github.com/tandem-llm/tandem/services/peers/shm"
	"github.com/tandem-llm/tandem/services/peers/trees"
)

// segmentSocket returns the socket on which a gateway hands out its shared memory. It is in the folder of the verifier's socket,
// because only the verifier reads it, and named after the gateway's address, because several gateways may use one verifier; "" for a
// verifier on TCP. A supervisor removes that folder with the group, so that a killed gateway leaves nothing.
func segmentSocket(listen, verifier string) string {
	path, isUnix := strings.CutPrefix(verifier, "unix://")
	if !isUnix {
		return ""
	}
	own := fnv.New32a()
	own.Write([]byte(listen))
	return filepath.Join(filepath.Dir(path), fmt.Sprintf("gw%05x-shm.sock", own.Sum32()&0xfffff)) // no longer than the drafter's
}

// segment returns a writer of the gateway's merged trees into shared memory for the verifier, and the socket on which that is handed
// out. They are nil and "" if the verifier is on another host or shared memory is not available: then trees travel inside tickets.
func segment(r *roles.Process, verifiers []string) (w *trees.Writer, socket string, undo func()) {
	for _, addr := range verifiers {
		socket = cmp.Or(socket, segmentSocket(r.Server.Addr(), addr))
	}
	if socket == "" {
		return nil, "", func() {}
	}
	segment, err := r.OpenSegment(socket, shm.SegmentConfig{})
	if err != nil {
		r.Log.Warn("the verifier cannot be given this gateway's shared memory: merged trees travel inside tickets", "error", err)
		return nil, "", func() {}
	}
	return trees.NewWriter(segment, 0, r.Counters), socket, func() { segment.Close() }
}
