package rpc

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/tandem-llm/tandem"
	tandemv1 "github.com/tandem-llm/tandem/proto/tandem/v1"
	"github.com/tandem-llm/tandem/test/testkit"
)

// limited serves health with limits.
func limited(t *testing.T, cfg ServerConfig) (addr string, counters *tandem.Counters) {
	t.Helper()
	cfg.Listen, cfg.Counters = "unix://"+filepath.Join(t.TempDir(), "s"), new(tandem.Counters)
	return healthServer(t, cfg), cfg.Counters
}

func dialed(t *testing.T, addr string) *grpc.ClientConn {
	t.Helper()
	conn, err := Dial(addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// watch begins a call that goes on until its ctx ends.
func watch(ctx context.Context, conn *grpc.ClientConn) (grpc.ServerStreamingClient[grpc_health_v1.HealthCheckResponse], error) {
	s, err := grpc_health_v1.NewHealthClient(conn).Watch(ctx, &grpc_health_v1.HealthCheckRequest{})
	if err == nil {
		_, err = s.Recv()
	}
	return s, err
}

// TestStreamsOfAConnection: more calls at once than a connection may have wait for one to end; others do not.
func TestStreamsOfAConnection(t *testing.T) {
	t.Parallel()
	addr, _ := limited(t, ServerConfig{Streams: 3})
	conn := dialed(t, addr)
	first, end := context.WithCancel(t.Context())
	for range 3 {
		if _, err := watch(first, conn); err != nil {
			t.Fatal(err)
		}
	}
	short, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	if _, err := watch(short, conn); !errors.Is(err, tandem.Deadline) {
		t.Errorf("a fourth call: %v: want it to wait", err)
	}
	if err := check(t, dialed(t, addr), nil); err != nil {
		t.Errorf("another connection: %v", err)
	}
	end()
	if err := check(t, conn, nil); err != nil {
		t.Errorf("after the others have ended: %v", err)
	}
}

// TestConnections: those that say nothing, and those that are idle, make room for new ones; those at work stay.
func TestConnections(t *testing.T) {
	t.Parallel()
	addr, counters := limited(t, ServerConfig{Connections: 4})
	path := addr[len("unix://"):]
	silent := make([]net.Conn, 10)
	for i := range silent {
		c, err := net.Dial("unix", path)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		silent[i] = c
	}
	busy := make([]grpc.ServerStreamingClient[grpc_health_v1.HealthCheckResponse], 3)
	for i := range busy {
		var err error
		if busy[i], err = watch(t.Context(), dialed(t, addr)); err != nil {
			t.Fatalf("connection %d, among silent ones: %v", i, err)
		}
	}
	idle := dialed(t, addr)
	if err := check(t, dialed(t, addr), nil); err != nil {
		t.Errorf("a fourth connection: %v", err)
	}
	end, stop := context.WithCancel(t.Context())
	defer stop()
	if _, err := watch(end, idle); err != nil {
		t.Errorf("in the place of one that is idle: %v", err)
	}
	if n := counters.Snapshot(); n["rpc.connections.displaced"] < 9 {
		t.Errorf("counted %v: want 9 or more displaced", n)
	}
	for end := time.Now().Add(30 * time.Second); counters.Snapshot()["rpc.connections.refused"] == 0; {
		if err := check(t, dialed(t, addr), nil); err == nil {
			t.Fatal("a fifth connection is let in, beside four at work")
		}
		if time.Now().After(end) {
			t.Fatal("no connection is refused, and none let in")
		}
	}
	for i, b := range busy {
		if b.Context().Err() != nil {
			t.Errorf("connection %d, which was at work, is gone", i)
		}
	}
	stop()
	testkit.Eventually(t, "a call has ended, and a connection is let in", func() bool { return check(t, dialed(t, addr), nil) == nil })
}

// frame is an HTTP/2 frame.
func frame(kind, flags byte, stream uint32, payload []byte) []byte {
	b := binary.BigEndian.AppendUint32(nil, uint32(len(payload))<<8|uint32(kind))
	return append(binary.BigEndian.AppendUint32(append(b, flags), stream), payload...)
}

// headers are those of a call, without compression (RFC 7541, 6.2.2).
func headers(fields ...string) (out []byte) {
	for i := 0; i < len(fields); i += 2 {
		out = append(append(append(out, 0, byte(len(fields[i]))), fields[i]...), byte(len(fields[i+1])))
		out = append(out, fields[i+1]...)
	}
	return out
}

// dialRaw begins HTTP/2 at a server by hand.
func dialRaw(t *testing.T, addr string) net.Conn {
	t.Helper()
	c, err := net.Dial("unix", addr[len("unix://"):])
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	if _, err := c.Write(append([]byte("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"), frame(4, 0, 0, nil)...)); err != nil { // preface, SETTINGS
		t.Fatal(err)
	}
	return c
}

// raw begins a call by hand whose message of 100 bytes does not come whole.
func raw(t *testing.T, addr string) net.Conn {
	t.Helper()
	c := dialRaw(t, addr)
	begin := frame(1, 4, 1, headers(":method", "POST", ":scheme", "http", ":path", grpc_health_v1.Health_Check_FullMethodName,
		":authority", "x", "content-type", "application/grpc")) // HEADERS, all
	if _, err := c.Write(append(begin, frame(0, 0, 1, []byte{0, 0, 0, 0, 100, 1})...)); err != nil { // DATA: one byte of 100
		t.Fatal(err)
	}
	return c
}

// TestTrickledMessage: a call ends when its message does not come in time, however steadily it comes.
func TestTrickledMessage(t *testing.T) {
	t.Parallel()
	addr, _ := limited(t, ServerConfig{Receive: 2100 * time.Millisecond}) // a third of it to begin the connection
	begun := time.Now()
	c := raw(t, addr)
	stop := make(chan struct{})
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			select {
			case <-stop:
				return
			case <-time.After(50 * time.Millisecond):
				if _, err := c.Write(frame(0, 0, 1, []byte{1})); err != nil {
					return
				}
			}
		}
	}()
	defer func() { close(stop); <-done }()
	_ = c.SetReadDeadline(time.Now().Add(30 * time.Second))
	answered := make([]byte, 0, 4096)
	for {
		b := make([]byte, 512)
		n, err := c.Read(b)
		if answered = append(answered, b[:n]...); ended(answered) {
			break
		}
		if err != nil {
			t.Fatalf("the call was not ended within 30 s: %v after %q", err, answered)
		}
	}
	if took := time.Since(begun); took < 2100*time.Millisecond {
		t.Errorf("ended after %v already: want 2.1 s", took)
	}
}

// head is the head of a frame.
type head struct {
	kind, flags byte
	stream      uint32
}

// frames returns the heads of the frames that a server sent.
func frames(b []byte) (out []head) {
	for len(b) >= 9 {
		out = append(out, head{b[3], b[4], binary.BigEndian.Uint32(b[5:])})
		b = b[min(9+(int(b[0])<<16|int(b[1])<<8|int(b[2])), len(b)):]
	}
	return out
}

// ended reports whether frames that a server sent end its stream 1.
func ended(b []byte) bool {
	return slices.ContainsFunc(frames(b), func(f head) bool {
		return f.stream == 1 && (f.kind == 1 && f.flags&1 != 0 || f.kind == 3) // HEADERS with END_STREAM, RST_STREAM
	})
}

// TestCallsOutliveTheLimit: it is for the message to come, not for the call to end.
func TestCallsOutliveTheLimit(t *testing.T) {
	t.Parallel()
	addr, _ := limited(t, ServerConfig{Receive: 1500 * time.Millisecond, Idle: 300 * time.Millisecond})
	s, err := watch(t.Context(), dialed(t, addr))
	if err != nil {
		t.Fatal(err)
	}
	gone := make(chan error, 1)
	go func() {
		_, err := s.Recv()
		gone <- err
	}()
	select {
	case err := <-gone:
		t.Errorf("a standing stream ended: %v", err)
	case <-time.After(1800 * time.Millisecond):
	}
}

// TestSilentConnections are closed: one that never begins, and one on which nothing is called any more. A client notices
// nothing of the latter.
func TestSilentConnections(t *testing.T) {
	t.Parallel()
	addr, _ := limited(t, ServerConfig{Receive: 1500 * time.Millisecond, Idle: 300 * time.Millisecond})
	c, err := net.Dial("unix", addr[len("unix://"):])
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	_ = c.SetReadDeadline(time.Now().Add(30 * time.Second))
	if _, err := io.ReadAll(c); err != nil {
		t.Errorf("a connection that says nothing: %v: want it closed", err)
	}
	quiet := dialRaw(t, addr)
	_ = quiet.SetReadDeadline(time.Now().Add(30 * time.Second))
	told := make([]byte, 0, 4096)
	for b := make([]byte, 512); !slices.ContainsFunc(frames(told), func(f head) bool { return f.kind == 7 }); { // GOAWAY
		n, err := quiet.Read(b)
		if told = append(told, b[:n]...); err != nil {
			t.Fatalf("a connection without a call is not told to go: %v after %q", err, told)
		}
	}
	conn := dialed(t, addr)
	for range 3 {
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
		if _, err := grpc_health_v1.NewHealthClient(conn).Check(ctx, &grpc_health_v1.HealthCheckRequest{}); err != nil {
			t.Errorf("after a pause: %v", err)
		}
		cancel()
		time.Sleep(400 * time.Millisecond)
	}
}

// TestAdmitComesFirst: a call is judged before its message is there, and a connection that is refused again and again is
// closed.
func TestAdmitComesFirst(t *testing.T) {
	t.Parallel()
	counters := new(tandem.Counters)
	s, err := NewServer(ServerConfig{Listen: "unix://" + filepath.Join(t.TempDir(), "s"), Counters: counters})
	if err != nil {
		t.Fatal(err)
	}
	s.Admit(func(_ string, header metadata.MD) error {
		if bytes.Equal([]byte(header.Get("authorization")[0]), []byte("right")) {
			return nil
		}
		return tandem.Errorf("key", tandem.Unauthenticated, "wrong key")
	})
	run(t, s)
	conn := dialed(t, s.Addr())
	const method = "/grpc.health.v1.Health/Watch"
	for range mostRefused + 10 {
		ctx, cancel := context.WithTimeout(metadata.AppendToOutgoingContext(t.Context(), "authorization", "wrong"), 30*time.Second)
		stream, err := conn.NewStream(ctx, &grpc.StreamDesc{ClientStreams: true, ServerStreams: true}, method, grpc.WaitForReady(true))
		if err == nil {
			err = stream.RecvMsg(new(grpc_health_v1.HealthCheckResponse)) // although nothing was sent
		}
		cancel()
		if err = FromStatus(err); !errors.Is(err, tandem.Unauthenticated) && !errors.Is(err, tandem.Unavailable) {
			t.Fatalf("the wrong key: %v", err)
		}
	}
	ctx := metadata.AppendToOutgoingContext(t.Context(), "authorization", "right")
	if _, err := watch(ctx, conn); err != nil {
		t.Errorf("the right key: %v", err)
	}
	if n := counters.Snapshot()["rpc.refused"]; n < mostRefused {
		t.Errorf("%d refused calls counted", n)
	}
}

// TestMessagesAreCounted: a request of many small messages or texts is refused before they are decoded; as many as a request may have are
// not.
func TestMessagesAreCounted(t *testing.T) {
	list := func(field protowire.Number, n int) []byte {
		one := protowire.AppendBytes(protowire.AppendTag(nil, field, protowire.BytesType), nil)
		return bytes.Repeat(one, n)
	}
	call := protowire.AppendBytes(protowire.AppendTag(nil, 1, protowire.BytesType), list(4, 80_000)) // messages[0].tool_calls
	for name, c := range map[string]struct {
		raw     []byte
		refused string
	}{
		"messages":       {list(1, 1_900_000), "messages is one too many"},
		"tool calls":     {call, "is one too many"},
		"texts":          {list(14, 1_900_000), "texts"},
		"some messages":  {list(1, 60_000), ""},
		"a broken one":   {append(list(1, 60_000), 0x0a, 0x7f), "request cannot be decoded"},
		"unknown fields": {list(1000, 900_000), ""},
	} {
		var m tandemv1.ChatRequest
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		if err := newCodec().Unmarshal(mem.BufferSlice{mem.SliceBuffer(c.raw)}, &m); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		runtime.ReadMemStats(&after)
		if err := decoded(&m); (err == nil) != (c.refused == "") || err != nil && !strings.Contains(err.Error(), c.refused) {
			t.Errorf("%s: %v, want %q", name, err, c.refused)
		}
		if took := after.TotalAlloc - before.TotalAlloc; took > 48<<20 {
			t.Errorf("%s: %d bytes were allocated for %d", name, took, len(c.raw))
		}
	}
}
