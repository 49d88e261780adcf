package rpc

import (
	"context"
	"path/filepath"
	"strconv"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
)

// TestWhenGone has processes come, lose a connection of several or their only one, come back in time, and go. Who gives no
// number or a bad one is nobody's concern.
func TestWhenGone(t *testing.T) {
	t.Parallel()
	addr := "unix://" + filepath.Join(t.TempDir(), "s")
	s, err := NewServer(ServerConfig{Listen: addr})
	if err != nil {
		t.Fatal(err)
	}
	gone := make(chan uint64, 10)
	s.WhenGone(func(process uint64) { gone <- process })
	s.callers.after = 100 * time.Millisecond
	s.SetServing(true)
	ctx, stop := context.WithCancel(context.Background())
	var work sync.WaitGroup
	work.Go(func() {
		if err := s.Run(ctx); err != nil {
			t.Error(err)
		}
	})
	defer func() { stop(); work.Wait() }()

	call := func(conn *grpc.ClientConn, number string) {
		t.Helper()
		ctx := context.Background()
		if number != "" {
			ctx = metadata.AppendToOutgoingContext(ctx, headerProcess, number)
		}
		if _, err := grpc_health_v1.NewHealthClient(conn).Check(ctx, &grpc_health_v1.HealthCheckRequest{},
			grpc.WaitForReady(true)); err != nil {
			t.Fatal(err)
		}
	}
	as := func(number string) (leave func()) {
		t.Helper()
		conn, err := grpc.NewClient(addr, grpc.WithTransportCredentials(insecure.NewCredentials()))
		if err != nil {
			t.Fatal(err)
		}
		call(conn, number)
		call(conn, number)
		return func() { _ = conn.Close() }
	}
	nobody := func(when string) {
		t.Helper()
		select {
		case n := <-gone:
			t.Fatalf("%s: %x counts as gone", when, n)
		case <-time.After(3 * s.callers.after):
		}
	}
	want := func(number uint64) {
		t.Helper()
		select {
		case n := <-gone:
			if n != number {
				t.Fatalf("%x counts as gone: want %x", n, number)
			}
		case <-time.After(30 * time.Second):
			t.Fatalf("%x does not count as gone", number)
		}
	}
	for _, stranger := range []string{"", "x", "0", "10000000000000000"} {
		as(stranger)()
	}
	first, second, other := as("a1"), as("a1"), as("b2")
	first()
	nobody("one connection of two is closed")
	for try := 1; ; try++ {
		begun := time.Now()
		second()
		second = as("a1")
		if time.Since(begun) < s.callers.after {
			nobody("it was back in time")
			break
		}
		if try == 100 {
			t.Fatalf("not once in %d times was a process back within %v", try, s.callers.after)
		}
		select { // too late, because the machine is busy: it may count as gone
		case n := <-gone:
			if n != 0xa1 {
				t.Fatalf("%x counts as gone", n)
			}
		case <-time.After(3 * s.callers.after):
		}
	}
	second()
	want(0xa1)
	as("a1")() // in its second life for the server
	want(0xa1)
	conn, err := Dial(addr) // this process, as all of tandem's
	if err != nil {
		t.Fatal(err)
	}
	call(conn, "")
	_ = conn.Close()
	me, err := strconv.ParseUint(number(addr), 16, 64)
	if err != nil {
		t.Fatal(err)
	}
	want(me)
	stop()
	work.Wait()
	other()
	nobody("the server has ended")
}
