package test

import (
	"bufio"
	"bytes"
	"io"
	"math/rand/v2"
	"net"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// chaos is what happens to messages that pass a natsProxy, each by its share.
type chaos struct {
	drop, double, delay float64
	longest             time.Duration // of a delay: others overtake the message meanwhile
	subjects            func(string) bool
}

// natsProxy stands between processes and a NATS server. It reads what the clients send message by
// message, and loses, doubles and reorders those that chaos says; what the server sends passes as it is.
type natsProxy struct {
	chaos    chaos
	listener net.Listener
	server   string
	conns    sync.WaitGroup

	mu       sync.Mutex
	random   *rand.Rand
	open     []net.Conn
	closed   bool
	on       bool // chaos is at work
	messages int
	dropped  int
	doubled  int
	delayed  int
}

// newNATSProxy returns a proxy before the server at "nats://host:port", harmless until disturb is called.
func newNATSProxy(t testing.TB, serverURL string, c chaos) *natsProxy {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &natsProxy{chaos: c, listener: l, server: strings.TrimPrefix(serverURL, "nats://"), random: newRandom(t)}
	p.conns.Go(p.accept)
	t.Cleanup(p.close)
	return p
}

// url is what clients connect to.
func (p *natsProxy) url() string { return "nats://" + p.listener.Addr().String() }

// disturb switches chaos on or off.
func (p *natsProxy) disturb(on bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.on = on
}

// track keeps c to be closed with the proxy; false if that has happened.
func (p *natsProxy) track(c net.Conn) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.open = append(p.open, c)
	return !p.closed
}

func (p *natsProxy) close() {
	p.listener.Close()
	p.mu.Lock()
	p.closed = true
	for _, c := range p.open {
		c.Close()
	}
	p.mu.Unlock()
	p.conns.Wait()
}

func (p *natsProxy) accept() {
	for {
		from, err := p.listener.Accept()
		if err != nil {
			return
		}
		to, err := net.Dial("tcp", p.server)
		if err != nil {
			from.Close()
			continue
		}
		if !p.track(from) || !p.track(to) {
			from.Close()
			to.Close()
			return
		}
		both := func() { from.Close(); to.Close() }
		p.conns.Go(func() {
			defer both()
			_, _ = io.Copy(from, to)
		})
		p.conns.Go(func() {
			defer both()
			p.carry(from, to)
		})
	}
}

// carry passes on what a client says: lines, and after PUB and HPUB a payload of as many bytes as the
// line's last word says, with a line end.
func (p *natsProxy) carry(from io.Reader, to net.Conn) {
	r := bufio.NewReaderSize(from, 64<<10)
	var writing sync.Mutex // delayed messages are written by timers
	write := func(b []byte) error {
		writing.Lock()
		defer writing.Unlock()
		_, err := to.Write(b)
		return err
	}
	for {
		line, err := r.ReadBytes('\n')
		if err != nil {
			return
		}
		words := bytes.Fields(line)
		message := len(words) >= 3 && (bytes.EqualFold(words[0], []byte("PUB")) || bytes.EqualFold(words[0], []byte("HPUB")))
		if message {
			n, err := strconv.Atoi(string(words[len(words)-1]))
			if err != nil || n < 0 {
				return
			}
			head := len(line)
			line = append(line, make([]byte, n+2)...)
			if _, err := io.ReadFull(r, line[head:]); err != nil {
				return
			}
		}
		if !message || !p.chaos.subjects(string(words[1])) {
			if write(line) != nil {
				return
			}
			continue
		}
		times, after := p.fate()
		for range times {
			if after == 0 {
				err = write(line)
			} else {
				time.AfterFunc(after, func() { _ = write(line) })
			}
		}
		if err != nil {
			return
		}
	}
}

// fate says how often a message is sent, and after which time.
func (p *natsProxy) fate() (times int, after time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.messages++
	if !p.on {
		return 1, 0
	}
	switch x := p.random.Float64(); {
	case x < p.chaos.drop:
		p.dropped++
		return 0, 0
	case x < p.chaos.drop+p.chaos.double:
		p.doubled++
		return 2, 0
	case x < p.chaos.drop+p.chaos.double+p.chaos.delay:
		p.delayed++
		return 1, between(p.random, time.Microsecond, p.chaos.longest)
	}
	return 1, 0
}

// counts returns how many messages there were, and what became of them.
func (p *natsProxy) counts() (messages, dropped, doubled, delayed int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.messages, p.dropped, p.doubled, p.delayed
}
