package shm

import (
	"encoding/binary"
	"errors"
	"net"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tandem-llm/tandem"
)

const (
	helloSize  = 16 // bytes: magic, peer id
	handshake  = time.Second
	maxReaders = 64 // connections at once
)

// Serve passes the segment's descriptor to every process of the same user that connects to the unix
// listener, until the Owner is closed. It takes the listener over and returns at once. Call it at most once.
func (o *Owner) Serve(listener net.Listener) error {
	l, ok := listener.(*net.UnixListener)
	if !ok {
		_ = listener.Close()
		return tandem.Errorf("shm", tandem.Invalid, "%s: only a unix socket can pass shared memory", listener.Addr())
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.closed || o.listener != nil {
		_ = l.Close()
		return tandem.Errorf("shm", tandem.Invalid, "segment is closed or served already")
	}
	o.listener = l
	o.work.Go(func() {
		for {
			c, err := l.AcceptUnix()
			if errors.Is(err, net.ErrClosed) {
				return
			}
			if err != nil { // out of descriptors, for example: others go on, and this ends
				time.Sleep(20 * time.Millisecond)
				continue
			}
			o.work.Go(func() {
				defer c.Close()
				if o.enter(c) {
					defer o.leave(c)
					o.attend(c)
				}
			})
		}
	})
	return nil
}

// enter records a connection, so that Close can end it, unless there are too many.
func (o *Owner) enter(c *net.UnixConn) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.closed || len(o.conns) >= maxReaders {
		return false
	}
	o.conns[c] = struct{}{}
	return true
}

func (o *Owner) leave(c *net.UnixConn) {
	o.mu.Lock()
	defer o.mu.Unlock()
	delete(o.conns, c)
}

// attend serves one reader's connection until it ends.
func (o *Owner) attend(c *net.UnixConn) {
	if !sameUser(c) || c.SetDeadline(time.Now().Add(handshake)) != nil {
		return
	}
	var hello [helloSize]byte
	if n, err := c.Read(hello[:]); err != nil || n != helloSize || binary.LittleEndian.Uint64(hello[:]) != helloMagic {
		return
	}
	peer := binary.LittleEndian.Uint64(hello[8:])
	if !o.admit(peer) {
		return
	}
	defer o.dismiss(peer)
	if _, _, err := c.WriteMsgUnix(hello[:8], unix.UnixRights(o.file), nil); err != nil {
		return
	}
	_ = c.SetDeadline(time.Time{})
	_, _ = c.Read(hello[:]) // returns when either end closes: a reader has nothing more to say
}

// admit enters a reader under its id, unless the id is taken or 0.
func (o *Owner) admit(peer uint64) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	if _, taken := o.peers[peer]; taken || peer == 0 {
		return false
	}
	o.peers[peer] = struct{}{}
	return true
}

// dismiss ends the leases of a peer whose connection has ended.
func (o *Owner) dismiss(peer uint64) {
	o.mu.Lock()
	defer o.mu.Unlock()
	delete(o.peers, peer)
	for i := range o.slots {
		if o.slots[i].leased && o.slots[i].peer == peer {
			o.end(uint32(i))
		}
	}
}

// sameUser reports whether the other end of c runs as this process's user or as root.
func sameUser(c *net.UnixConn) bool {
	raw, err := c.SyscallConn()
	if err != nil {
		return false
	}
	ok := false
	err = raw.Control(func(fd uintptr) {
		cred, err := unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
		ok = err == nil && (int(cred.Uid) == os.Getuid() || cred.Uid == 0)
	})
	return err == nil && ok
}
