package prefixes

import (
	"bytes"
	"crypto/aes"
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"os"
	"syscall"
	"time"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/modelfile/files"
)

// A file is a header, a sum for each segment, and the segments.
//
//	magic       16  with the version of this format
//	kind         8  page or state
//	sealed       8  1: the segments are encrypted
//	length       8  of the data
//	name        32
//	salt        16  random; the file's key is made from it and the tenant's
//	sums        16  for each segment: the tag of AES-GCM, or a CRC-32C and zeros
//
// A segment is 256 KiB, the last what is left. Its sum covers the header and the segment's number too, so segments of another place, file,
// tenant or length fail. Numbers are little-endian. A file's key has 16 bytes, as much as a tenant's name; it encrypts each
// segment once, with the number as nonce.
const (
	magic        = "tandem prefix 1\n"
	headBytes    = 88
	sumBytes     = 16
	saltAt       = 72
	segmentBytes = 256 << 10
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

func segments(n int) int { return (n + segmentBytes - 1) / segmentBytes }

// sizeOf returns the size of a file with so many bytes of data.
func sizeOf(n int) int64 { return headBytes + sumBytes*int64(segments(n)) + int64(n) }

// header returns the header of a file but for its salt.
func (t *Tenant) header(n Name, k Kind, length int) []byte {
	h := make([]byte, headBytes)
	copy(h, magic)
	copy(h[16:24], k)
	if t.secret != nil {
		h[24] = 1
	}
	binary.LittleEndian.PutUint64(h[32:], uint64(length))
	copy(h[40:], n[:])
	return h
}

// sealer returns the cipher of a file with that header; nil if its segments are not encrypted.
func (t *Tenant) sealer(header []byte) (cipher.AEAD, error) {
	if t.secret == nil {
		return nil, nil
	}
	key, err := hkdf.Key(sha256.New, t.secret, header[saltAt:], "tandem prefixes 1 file", 16)
	if err != nil {
		return nil, err
	}
	block, err := aes.NewCipher(key)
	if err != nil {
		return nil, err
	}
	return cipher.NewGCM(block)
}

func nonce(segment int) []byte {
	return binary.LittleEndian.AppendUint64(make([]byte, 4, 12), uint64(segment))
}

// plainSum returns the sum of a segment that is not encrypted.
func plainSum(header, data []byte, segment int) (sum [sumBytes]byte) {
	c := crc32.Update(crc32.Checksum(header, castagnoli), castagnoli, nonce(segment))
	binary.LittleEndian.PutUint32(sum[:], crc32.Update(c, castagnoli, data))
	return sum
}

// write writes a file by rule 1. It encrypts data in place.
func (t *Tenant) write(n Name, k Kind, data []byte, used time.Time) error {
	h := t.header(n, k, len(data))
	if _, err := rand.Read(h[saltAt:]); err != nil {
		return err
	}
	seal, err := t.sealer(h)
	if err != nil {
		return err
	}
	head, buf := bytes.Clone(h), make([]byte, 0, segmentBytes+sumBytes)
	for i := range segments(len(data)) {
		piece := data[i*segmentBytes : min(len(data), (i+1)*segmentBytes)]
		if seal == nil {
			sum := plainSum(h, piece, i)
			head = append(head, sum[:]...)
			continue
		}
		sealed := seal.Seal(buf, nonce(i), piece, h)
		head = append(head, sealed[copy(piece, sealed):]...)
	}
	err = ownFolder(t.dir)
	if err == nil {
		err = t.save(t.path(n, k), head, data, used)
	}
	return err
}

// save puts a file in its place. The caller holds the store's mu.
func (t *Tenant) save(path string, head, data []byte, used time.Time) error {
	f, err := os.CreateTemp(t.dir, partPrefix+"*")
	if err != nil {
		return tandem.Errorf(op, tandem.Unavailable, "writing to %s: %w", t.dir, files.Reason(err))
	}
	defer os.Remove(f.Name()) // fails once it is renamed
	if err = syscall.Flock(int(f.Fd()), syscall.LOCK_EX); err == nil {
		_, err = f.Write(head)
	}
	if err == nil {
		_, err = f.Write(data)
	}
	err = errors.Join(err, f.Close())
	if err == nil {
		err = errors.Join(os.Chtimes(f.Name(), used, used), os.Rename(f.Name(), path))
	}
	if err != nil {
		kind := tandem.Unavailable
		if errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) {
			kind = tandem.Exhausted
		}
		return tandem.Errorf(op, kind, "writing to %s: %w", t.dir, files.Reason(err))
	}
	t.store.total += int64(len(head) + len(data))
	return nil
}

// Read fills dst with the data of a file, which has exactly so many bytes. After an error dst may hold anything. Errors: fs.ErrNotExist if
// there is none, or none that is young enough; Corrupt if it fails its check. Then the file is removed, and a line says why.
func (t *Tenant) Read(n Name, k Kind, dst []byte) error {
	path := t.path(n, k)
	f, err := files.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return err
	}
	if t.store.old(st) {
		return fs.ErrNotExist
	}
	if err = t.check(f, st.Size(), t.header(n, k, len(dst)), dst); err != nil {
		t.store.cfg.Log.Warn("a kept prefix is not used and removed", "file", path, "error", err)
		_ = os.Remove(path)
		return tandem.Errorf(op, tandem.Corrupt, "%s: %w", path, err)
	}
	return nil
}

// check reads a file into dst and says what is wrong with it. want is its header but for the salt.
func (t *Tenant) check(f io.Reader, size int64, want, dst []byte) error {
	if size != sizeOf(len(dst)) {
		return fmt.Errorf("it has %d bytes instead of %d", size, sizeOf(len(dst)))
	}
	head := make([]byte, headBytes+sumBytes*segments(len(dst)))
	if _, err := io.ReadFull(f, head); err != nil {
		return err
	}
	h, sums := head[:headBytes], head[headBytes:]
	if !bytes.Equal(h[:saltAt], want[:saltAt]) {
		return errors.New("it is of another version, place or tenant")
	}
	seal, err := t.sealer(h)
	if err != nil {
		return err
	}
	var buf []byte
	if seal != nil {
		buf = make([]byte, segmentBytes+sumBytes)
	}
	for i := range segments(len(dst)) {
		piece, sum := dst[i*segmentBytes:min(len(dst), (i+1)*segmentBytes)], sums[i*sumBytes:(i+1)*sumBytes]
		into := piece
		if seal != nil {
			into = buf[:len(piece)]
		}
		if _, err := io.ReadFull(f, into); err != nil {
			return err
		}
		if seal == nil {
			if got := plainSum(h, piece, i); !bytes.Equal(got[:], sum) {
				return errors.New("its bytes have changed")
			}
			continue
		}
		if _, err := seal.Open(piece[:0], nonce(i), append(into, sum...), h); err != nil {
			return errors.New("its bytes have changed, or it was written with another key")
		}
	}
	return nil
}
