package campaign

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"strconv"
	"sync"
	"time"
)

// delay makes connections to a process slow. Where the kernel has netem, its box's network is. Elsewhere new connections to the process are
// led through a forwarder in the hub, which holds back what it reads, and those that exist are reset so that new ones are made.
func (h *hub) delay(ctx context.Context, f fault) (heal func() error, err error) {
	pid := h.boxes[f.box].cmd.Process.Pid
	mean := time.Duration(2+f.seed%40) * time.Millisecond
	err = tool(ctx, pid, fmt.Sprintf("tc qdisc add dev eth0 root netem delay %dms %dms", mean.Milliseconds(), mean.Milliseconds()/2))
	if err == nil {
		return func() error { return tool(context.WithoutCancel(ctx), pid, "tc qdisc del dev eth0 root") }, nil
	}
	m := h.members[f.name].Member
	to := net.JoinHostPort(address(m.Box), strconv.Itoa(m.port()))
	fw, err := forward(hubAddress+":0", to, mean, f.seed)
	if err != nil {
		return nil, err
	}
	table := "slow" + strconv.FormatUint(f.seed, 36)
	undo := []func() error{fw.close}
	heal = func() error {
		var errs []error
		for _, u := range undo {
			errs = append(errs, u())
		}
		return errors.Join(errs...)
	}
	for n := range h.layout.Boxes + 1 {
		box := 0
		if n > 0 {
			box = h.boxes[n].cmd.Process.Pid
		}
		if n == m.Box || n == 0 { // the hub is where the forwarder itself dials from
			continue
		}
		lines := nft(table, "out", "type nat hook output priority -100",
			fmt.Sprintf("ip daddr %s tcp dport %d dnat to %s", address(m.Box), m.port(), fw.addr()))
		if err := tool(ctx, box, lines); err != nil {
			return heal, err
		}
		undo = append(undo, func() error { return tool(context.WithoutCancel(ctx), box, "nft delete table ip "+table) })
	}
	reset := f
	reset.kind, reset.seed = Cut, f.seed+1
	for n := range h.layout.Boxes {
		if reset.from = n + 1; reset.from == m.Box {
			continue
		}
		reset.box = m.Box
		lift, err := h.disturb(ctx, reset)
		if err != nil {
			return heal, err
		}
		if err := lift(); err != nil {
			return heal, err
		}
	}
	return heal, nil
}

// forwarder is a listener that passes connections on, later.
type forwarder struct {
	l    net.Listener
	to   string
	mean time.Duration
	seed uint64

	mu    sync.Mutex
	conns map[net.Conn]bool // nil when closed
	wait  sync.WaitGroup
}

// forward listens at an address and passes connections on to an address.
func forward(listen, to string, mean time.Duration, seed uint64) (*forwarder, error) {
	l, err := net.Listen("tcp", listen)
	if err != nil {
		return nil, err
	}
	f := &forwarder{l: l, to: to, mean: mean, seed: seed, conns: map[net.Conn]bool{}}
	f.wait.Go(f.accept)
	return f, nil
}

func (f *forwarder) addr() string { return f.l.Addr().String() }

// close resets all connections, and waits until they are gone.
func (f *forwarder) close() error {
	err := f.l.Close()
	f.mu.Lock()
	for c := range f.conns {
		if t, ok := c.(*net.TCPConn); ok {
			_ = t.SetLinger(0)
		}
		c.Close()
	}
	f.conns = nil
	f.mu.Unlock()
	f.wait.Wait()
	return err
}

// keep notes a connection, which close then closes, and reports whether the forwarder is open.
func (f *forwarder) keep(c net.Conn) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.conns == nil {
		c.Close()
		return false
	}
	f.conns[c] = true
	return true
}

func (f *forwarder) accept() {
	for {
		near, err := f.l.Accept()
		if err != nil {
			return
		}
		far, err := net.DialTimeout("tcp", f.to, 5*time.Second)
		if err != nil {
			near.Close()
			continue
		}
		if !f.keep(near) || !f.keep(far) {
			near.Close()
			return
		}
		f.wait.Go(func() { f.pass(near, far, 1) })
		f.wait.Go(func() { f.pass(far, near, 2) })
	}
}

// piece is what was read at once, and when it goes on.
type piece struct {
	data []byte
	due  time.Time
}

// pass passes on what comes from one side, in order, each piece after the mean delay or up to twice that.
func (f *forwarder) pass(from, to net.Conn, side uint64) {
	pieces := make(chan piece, 1024)
	f.wait.Go(func() {
		defer to.Close()
		for p := range pieces {
			time.Sleep(time.Until(p.due))
			if _, err := to.Write(p.data); err != nil {
				break
			}
		}
		for range pieces { // what nobody takes
		}
	})
	defer close(pieces)
	for r := rand.New(rand.NewPCG(f.seed, side)); ; {
		data := make([]byte, 16<<10)
		n, err := from.Read(data)
		if n > 0 {
			pieces <- piece{data[:n], time.Now().Add(f.mean/2 + upTo(f.mean, r))}
		}
		if err != nil {
			if !errors.Is(err, io.EOF) {
				from.Close()
			}
			return
		}
	}
}
