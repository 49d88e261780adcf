package rpc

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/modelfile/files"
)

const (
	leastSecret = 16   // bytes
	mostSecret  = 1024 // bytes
	lookAgain   = time.Second
	overlap     = time.Minute // for which the previous secret is still accepted
	mostNonce   = 64          // bytes
)

// Secret is shared by processes that talk over TCP without TLS. It is in a file that no other user may
// read, and may be replaced while they run: a process with calls checks the file every second, and at once when it is
// shown an unknown secret; it accepts the previous secret for another minute. A new file that cannot
// be used is logged once, and the secret stays. Safe for concurrent use; nil has none and accepts none.
type Secret struct {
	path string
	log  *slog.Logger // may be nil

	counters atomic.Pointer[tandem.Counters]

	state atomic.Pointer[secrets]
	look  atomic.Int64 // when to look at the file again, Unix nanoseconds

	mu   sync.Mutex
	info os.FileInfo // of the file as last read, nil for none
	said string      // what was wrong with it when last logged
}

// secrets are the accepted ones. now is "" while there is no file yet.
type secrets struct {
	now, before string
	until       time.Time // of before
}

// OpenSecret returns the secret in the file at path. Errors: Invalid, with what is wrong with the file.
func OpenSecret(path string, log *slog.Logger) (*Secret, error) {
	s := &Secret{path: path, log: log}
	s.state.Store(new(secrets))
	err := s.read()
	return s, err
}

// Count makes s count new files that cannot be used: "secrets.refused". A nil s does nothing.
func (s *Secret) Count(counters *tandem.Counters) {
	if s != nil {
		s.counters.Store(counters)
	}
}

// defaultSecret is the secret's file in Folder.
const defaultSecret = "secret"

// DefaultSecret returns the secret in Folder, which all processes of this user find. With make, it is made if it does not exist;
// without, another process may make it later. Errors: Invalid.
func DefaultSecret(make bool, log *slog.Logger) (*Secret, error) {
	dir, err := Folder()
	if err != nil {
		return nil, err
	}
	path := filepath.Join(dir, defaultSecret)
	if make {
		if err := writeSecret(path); err != nil {
			return nil, err
		}
	}
	s, err := OpenSecret(path, log)
	if errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	return s, err
}

// writeSecret writes a random secret to path, unless there is a file.
func writeSecret(path string) error {
	err := files.New(path, []byte(rand.Text()+"\n"))
	if err != nil && !errors.Is(err, fs.ErrExist) {
		return tandem.Errorf("secret", tandem.Invalid, "%s cannot be made: %w", path, files.Reason(err))
	}
	return nil
}

// read reads the file. Called by OpenSecret, or with mu held.
func (s *Secret) read() error {
	const op = "secret"
	f, err := files.Open(s.path)
	if err != nil {
		return tandem.Errorf(op, tandem.Invalid, "secret file %s: %w", s.path, files.Reason(err))
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return tandem.Errorf(op, tandem.Invalid, "secret file %s: %w", s.path, files.Reason(err))
	}
	s.info = info
	uid := os.Getuid()
	switch {
	case info.Mode().Perm()&0o077 != 0:
		return tandem.Errorf(op, tandem.Invalid, "secret file %s has mode %04o: others can read or write it: want 0600 (chmod 600 %s)",
			s.path, info.Mode().Perm(), s.path)
	case owner(info) != uid && owner(info) != 0:
		return tandem.Errorf(op, tandem.Invalid, "secret file %s belongs to user %d: want it to belong to user %d or root", s.path,
			owner(info), uid)
	}
	b, err := io.ReadAll(io.LimitReader(f, mostSecret+2))
	if err != nil {
		return tandem.Errorf(op, tandem.Invalid, "secret file %s: %w", s.path, files.Reason(err))
	}
	text := strings.TrimSpace(string(b))
	if len(text) < leastSecret || len(text) > mostSecret || strings.ContainsFunc(text, func(r rune) bool { return r <= ' ' || r > '~' }) {
		return tandem.Errorf(op, tandem.Invalid, "secret file %s holds %d bytes: want one line of %d to %d visible ASCII characters, "+
			"as of `openssl rand -hex 32`", s.path, len(text), leastSecret, mostSecret)
	}
	if old := s.state.Load(); old.now != text {
		next := &secrets{now: text}
		if old.now != "" {
			next.before, next.until = old.now, time.Now().Add(overlap)
		}
		s.state.Store(next)
	}
	return nil
}

// refresh checks the file if that is due, or at once if now is set.
func (s *Secret) refresh(now bool) {
	at := time.Now().UnixNano()
	if !now && at < s.look.Load() {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.look.Store(at + int64(lookAgain))
	info, err := os.Stat(s.path)
	if err == nil && s.info != nil && os.SameFile(info, s.info) && info.ModTime().Equal(s.info.ModTime()) && info.Size() == s.info.Size() &&
		info.Mode() == s.info.Mode() {
		return
	}
	if errors.Is(err, fs.ErrNotExist) && s.info == nil {
		return // nobody has made it yet
	}
	why := ""
	if err = s.read(); err != nil {
		why = err.Error()
	}
	if why != s.said && why != "" {
		refused(s.log, s.counters.Load(), "secrets", err)
	}
	s.said = why
}

// current returns the secret, "" if there is none.
func (s *Secret) current() string {
	if s == nil {
		return ""
	}
	s.refresh(false)
	return s.state.Load().now
}

// accepts reports, in constant time for texts of one length, whether given is derived from a secret that is valid now.
func (s *Secret) accepts(given string, from func(secret string) string) bool {
	if s == nil || given == "" {
		return false
	}
	s.refresh(false)
	if s.state.Load().accepts(given, from) {
		return true
	}
	s.refresh(true)
	return s.state.Load().accepts(given, from)
}

func (s *secrets) accepts(given string, from func(secret string) string) bool {
	ok := s.now != "" && subtle.ConstantTimeCompare([]byte(given), []byte(from(s.now))) == 1
	if s.before != "" && time.Now().Before(s.until) {
		ok = ok || subtle.ConstantTimeCompare([]byte(given), []byte(from(s.before))) == 1
	}
	return ok
}

// PoolToken returns the token with which a process of that role shows a pool's server that it has the secret; "" without a secret. Who
// sees it can pass for no other role.
func (s *Secret) PoolToken(role Role) string {
	if now := s.current(); now != "" {
		return poolToken(now, role)
	}
	return ""
}

// AcceptsPool reports whether given is a valid PoolToken of the role; role "" is for processes of the release before tokens had one.
func (s *Secret) AcceptsPool(given string, role Role) bool {
	return s.accepts(given, func(secret string) string { return poolToken(secret, role) })
}

// PrefixKey returns the key for summaries of prompts of processes with this secret; no key without a secret.
func (s *Secret) PrefixKey() tandem.PrefixKey { return PrefixKey(s.current()) }

// PrefixKey derives the key for summaries of prompts from a secret of the fleet; no key from "".
func PrefixKey(secret string) (key tandem.PrefixKey) {
	if secret != "" {
		copy(key[:], mac(secret, "tandem prefixes"))
	}
	return key
}

// poolToken derives the token from the secret, because NATS servers that are not tandem's may see it.
func poolToken(secret string, role Role) string {
	if role == "" {
		return derive(secret, "tandem pool")
	}
	return derive(secret, "tandem pool", string(role))
}

// proof returns what shows, for one call of a method, that the caller has the secret: a random number, and a MAC of it and the method.
// Whoever sees it learns neither the secret nor a proof for another method. "" without a secret.
func (s *Secret) proof(method string) string {
	now := s.current()
	if now == "" {
		return ""
	}
	nonce := rand.Text()
	return nonce + "." + callProof(now, method, nonce)
}

// acceptsProof reports whether given is a proof for a call of method.
func (s *Secret) acceptsProof(given, method string) bool {
	nonce, mac, ok := strings.Cut(given, ".")
	return ok && len(nonce) <= mostNonce && s.accepts(mac, func(secret string) string { return callProof(secret, method, nonce) })
}

func callProof(secret, method, nonce string) string {
	return derive(secret, "tandem call", method, nonce)
}

// sign returns a MAC of what a process announces; "" without a secret.
func (s *Secret) sign(message []byte) string {
	if now := s.current(); now != "" {
		return signature(now, message)
	}
	return ""
}

// signed reports whether given is the MAC of message.
func (s *Secret) signed(message []byte, given string) bool {
	return s.accepts(given, func(secret string) string { return signature(secret, message) })
}

func signature(secret string, message []byte) string {
	return derive(secret, "tandem announcement", string(message))
}

// derive returns mac as 64 hexadecimal digits.
func derive(secret string, parts ...string) string { return hex.EncodeToString(mac(secret, parts...)) }

// mac returns HMAC-SHA256 of the parts, each with its length before it. The first part is the purpose.
func mac(secret string, parts ...string) []byte {
	mac := hmac.New(sha256.New, []byte(secret))
	var n [8]byte
	for _, part := range parts {
		binary.BigEndian.PutUint64(n[:], uint64(len(part)))
		mac.Write(n[:])
		mac.Write([]byte(part))
	}
	return mac.Sum(nil)
}
