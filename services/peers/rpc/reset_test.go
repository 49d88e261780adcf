package rpc

import (
	"context"
	"runtime"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/health/grpc_health_v1"

	peerv1 "github.com/tandem-llm/tandem/proto/peer/v1"
	"github.com/tandem-llm/tandem/test/testkit"
)

// TestResetStreams: a stream that its client resets before it has sent a message leaves no memory behind, however long the server would
// have waited for the message.
func TestResetStreams(t *testing.T) {
	const streams, most = 10000, 600 // bytes of a stream that may stay: other tests allocate too, and the context alone takes 2 KiB
	open := healthServer(t, ServerConfig{Listen: "unix://" + t.TempDir() + "/s", Receive: time.Hour})
	own, _ := internal(t, ServerConfig{Listen: "unix://" + t.TempDir() + "/s", Receive: time.Hour})
	for name, addr := range map[string]string{"a client's": open, "a process's": own} {
		t.Run(name, func(t *testing.T) {
			conn := dialed(t, addr)
			reset := func(n int) {
				for range n {
					ctx, cancel := context.WithCancel(t.Context())
					_, err := conn.NewStream(ctx, &grpc.StreamDesc{ClientStreams: true, ServerStreams: true},
						peerv1.VerifierService_Verdicts_FullMethodName)
					cancel()
					if err != nil {
						t.Fatal(err)
					}
				}
				// it has seen them
				if _, err := grpc_health_v1.NewHealthClient(conn).Check(t.Context(), &grpc_health_v1.HealthCheckRequest{}); err != nil {
					t.Fatal(err)
				}
			}
			reset(200) // pools and buffers have their size
			before := heap()
			reset(streams)
			testkit.Eventually(t, "memory of streams is not given back", func() bool { return heap() < before+streams*most })
		})
	}
}

// heap returns the bytes that are in use.
func heap() int64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}
