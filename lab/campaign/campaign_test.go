package campaign

import (
	"bytes"
	"io"
	"net"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"
)

// TestLayout: every layout has three NATS servers, and groups whose parts are all there, at addresses of their own.
func TestLayout(t *testing.T) {
	for boxes := 1; boxes <= 9; boxes++ {
		checkLayout(t, boxes, Groups(boxes))
		checkLayout(t, boxes, Fleet(boxes))
		l := Groups(boxes)
		for _, g := range l.groups() {
			if len(l.of(Gateway, g)) != 1 || len(l.of(Verifier, g)) != 1 || len(l.of(Drafter, g)) != 2 {
				t.Errorf("%d boxes: group %d lacks a part", boxes, g)
			}
		}
		if f := Fleet(boxes); len(f.groups()) != 1 || len(f.of(Verifier, 1)) != boxes {
			t.Errorf("%d boxes: groups %v and %d verifiers in a fleet", boxes, f.groups(), len(f.of(Verifier, 1)))
		}
	}
}

func checkLayout(t *testing.T, boxes int, l Layout) {
	t.Helper()
	names, addresses, used := map[string]bool{}, map[string]bool{}, map[int]bool{}
	for _, m := range l.Members {
		if names[m.Name] || addresses[m.listen()] || m.Box < 1 || m.Box > boxes {
			t.Errorf("%d boxes: %+v at %s is there twice, or in no box", boxes, m, m.listen())
		}
		names[m.Name], addresses[m.listen()], used[m.Box] = true, true, true
		if args := l.command(m); len(args) < 8 {
			t.Errorf("%s has the command line %q", m.Name, args)
		}
	}
	if len(used) != boxes || len(l.of(NATS, 0)) != 3 {
		t.Errorf("%d boxes: %d are used, with %d NATS servers", boxes, len(used), len(l.of(NATS, 0)))
	}
}

// TestSchedule: equal seeds give equal faults, others give others; kills fall on all roles alike, and the others take turns.
func TestSchedule(t *testing.T) {
	l, length := Groups(3), 10*time.Minute
	kinds, err := ParseKinds("all")
	if err != nil {
		t.Fatal(err)
	}
	all := schedule(l, kinds, length, 2*time.Second, 7)
	if !reflect.DeepEqual(all, schedule(l, kinds, length, 2*time.Second, 7)) {
		t.Error("the same seed gave another schedule")
	}
	if reflect.DeepEqual(all, schedule(l, kinds, length, 2*time.Second, 8)) {
		t.Error("another seed gave the same schedule")
	}
	kills, seen, until := map[string]int{}, map[string]bool{}, time.Duration(0)
	for _, f := range all {
		seen[f.kind] = true
		if f.at+f.span > length || f.at < 0 {
			t.Errorf("%+v is outside of %v", f, length)
		}
		if f.kind == Kill {
			kills[strings.SplitN(f.name, "-", 2)[0]]++
			continue
		}
		if f.at < until {
			t.Errorf("%s at %v begins before %v, when the one before ends", f.kind, f.at, until)
		}
		if until = f.at + min(f.span, most); f.from == f.box && slices.Contains([]string{Partition, Asymmetric, HalfOpen, Cut}, f.kind) {
			t.Errorf("%s of box %d from itself", f.kind, f.box)
		}
		if f.kind == Stop && f.span < 10*time.Second && f.at+f.span < length {
			t.Errorf("a process is stopped for %v: want at least 10 s", f.span)
		}
	}
	for _, role := range Roles {
		if n := kills[role]; n < 60 || n > 100 {
			t.Errorf("%d kills of %s: want about 75", n, role)
		}
	}
	for _, k := range Kinds {
		if !seen[k] {
			t.Errorf("no %s in %v", k, length)
		}
	}
	if _, err := ParseKinds("kill,flood"); err == nil || !strings.Contains(err.Error(), `"flood"`) {
		t.Errorf("error %v: want one about flood", err)
	}
}

// TestForwarder: what goes through comes out, in order and later; closing it ends its connections.
func TestForwarder(t *testing.T) {
	server, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	go func() {
		for {
			c, err := server.Accept()
			if err != nil {
				return
			}
			go io.Copy(c, c)
		}
	}()
	const mean = 20 * time.Millisecond
	f, err := forward("127.0.0.1:0", server.Addr().String(), mean, 1)
	if err != nil {
		t.Fatal(err)
	}
	c, err := net.Dial("tcp", f.addr())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	want, begun := bytes.Repeat([]byte("0123456789"), 20_000), time.Now()
	go c.Write(want)
	got := make([]byte, len(want))
	if _, err := io.ReadFull(c, got); err != nil || !bytes.Equal(got, want) {
		t.Errorf("%d bytes came back, error %v: want the %d that were sent", len(got), err, len(want))
	}
	if took := time.Since(begun); took < mean {
		t.Errorf("there and back took %v: want at least %v", took, mean)
	}
	if err := f.close(); err != nil {
		t.Error(err)
	}
	if _, err := c.Read(got); err == nil {
		t.Error("the connection outlives its forwarder")
	}
}

// TestAsks: names and APIs' bodies are whole.
func TestAsks(t *testing.T) {
	names := map[string]bool{}
	for _, a := range asks([]string{"a", "b"}) {
		names[a.name] = true
		if path, body := a.body(); body["seed"] != a.seed || a.chat != (path == "/v1/chat/completions") {
			t.Errorf("%s goes to %s as %v", a.name, path, body)
		}
	}
	if len(names) != len(asks([]string{"a"})) {
		t.Errorf("%d names of %d asks", len(names), len(asks([]string{"a"})))
	}
}
