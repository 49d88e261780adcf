package shm

import (
	"encoding/binary"
	"errors"
	"io"
	"net"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/modelfile/files"
)

const (
	helloSize  = 16 // bytes: magic, peer id
	roleSize   = 8  // bytes: magic, role
	handshake  = time.Second
	maxReaders = 64 // connections at once
)

// Serve passes the segment's descriptor to every process of the same user that connects to the unix
// listener, until the segment is closed. It takes the listener over and returns at once. Call it at most once.
func (s *Segment) Serve(listener net.Listener) error {
	l, ok := listener.(*net.UnixListener)
	if !ok {
		_ = listener.Close()
		return tandem.Errorf("shm", tandem.Invalid, "%s: only a unix socket can pass shared memory", listener.Addr())
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed || s.listener != nil {
		_ = l.Close()
		return tandem.Errorf("shm", tandem.Invalid, "segment is closed or served already")
	}
	s.listener = l
	s.work.Go(func() {
		for {
			c, err := l.AcceptUnix()
			if errors.Is(err, net.ErrClosed) {
				return
			}
			if err != nil { // out of descriptors, for example: others go on, and this ends
				time.Sleep(20 * time.Millisecond)
				continue
			}
			s.work.Go(func() {
				defer c.Close()
				if s.enter(c) {
					defer s.leave(c)
					s.attend(c)
				}
			})
		}
	})
	return nil
}

// enter records a connection, so that Close can end it, unless there are too many.
func (s *Segment) enter(c *net.UnixConn) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed || len(s.conns) >= maxReaders {
		return false
	}
	s.conns[c] = struct{}{}
	return true
}

func (s *Segment) leave(c *net.UnixConn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.conns, c)
}

// attend serves one reader's connection until it ends.
func (s *Segment) attend(c *net.UnixConn) {
	if !files.SameUser(c) || c.SetDeadline(time.Now().Add(handshake)) != nil {
		return
	}
	var hello [helloSize]byte
	if n, err := c.Read(hello[:]); err != nil || n != helloSize || binary.LittleEndian.Uint64(hello[:]) != helloMagic {
		return
	}
	peer := binary.LittleEndian.Uint64(hello[8:])
	if !s.admit(peer) {
		return
	}
	defer s.dismiss(peer)
	if _, _, err := c.WriteMsgUnix(hello[:8], unix.UnixRights(s.file), nil); err != nil {
		return
	}
	_ = c.SetDeadline(time.Time{})
	var said [roleSize]byte
	if _, err := io.ReadFull(c, said[:]); err != nil { // either end has closed: a reader of an earlier release says nothing
		return
	}
	role := Role(binary.LittleEndian.Uint32(said[4:]))
	if binary.LittleEndian.Uint32(said[:]) != roleMagic || role == 0 || role >= roles {
		return
	}
	s.readers[role].Add(1)
	defer s.readers[role].Add(-1)
	_, _ = c.Read(hello[:]) // returns when either end closes: a reader has nothing more to say
}

// admit enters a reader under its id, unless the id is taken or 0.
func (s *Segment) admit(peer uint64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, taken := s.peers[peer]; taken || peer == 0 {
		return false
	}
	s.peers[peer] = s.puts
	return true
}

// dismiss forgets a reader whose connection has ended, and ends the leases for which it was the last reader.
func (s *Segment) dismiss(peer uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	since := s.peers[peer]
	delete(s.peers, peer)
	if s.closed { // the owner leaves, not they: readers with a mapping may still read its payloads
		return
	}
	for i := range s.slots {
		if t := &s.slots[i]; t.leased && t.put > since {
			if t.readers--; t.readers == 0 {
				s.end(uint32(i))
			}
		}
	}
}
