package prefixes

import (
	"io"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// BenchmarkOpen measures what a segment's check takes that lies in the cache.
func BenchmarkOpen(b *testing.B) {
	for what, tenant := range tenants {
		b.Run(what, func(b *testing.B) {
			c, _ := config(b.TempDir())
			of := open(b, c).Tenant(tenant)
			h := of.header(Name{}, Page, segmentBytes)
			seal, err := of.sealer(h)
			if err != nil {
				b.Fatal(err)
			}
			data := random(1, segmentBytes)
			if seal != nil {
				data = seal.Seal(nil, nonce(0), data, h)
			}
			dst := make([]byte, 0, segmentBytes)
			b.SetBytes(segmentBytes)
			for b.Loop() {
				if seal == nil {
					plainSum(h, data, 0)
				} else if _, err := seal.Open(dst, nonce(0), data, h); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkRestore reads the pages of 23,000 tokens of a 1.5-billion model, 660 MB in 360 files from the page cache, into memory that
// nobody has touched, four files at a time as the verifier does. ratio is its time over that of reading the same bytes of the same files in
// the same way without checking them. Both take turns.
func BenchmarkRestore(b *testing.B) {
	const size, pages, readers = 1835008, 360, 4
	for what, tenant := range tenants {
		b.Run(what, func(b *testing.B) {
			c, _ := config(b.TempDir())
			c.Limit = 2 * pages * size
			of := open(b, c).Tenant(tenant)
			names := of.Names(text(1, pages*pageTokens))
			for i, n := range names {
				write(b, of, n, Page, random(uint64(i), size))
			}
			plain := func(i int, dst []byte) error {
				f, err := os.Open(of.path(names[i], Page))
				if err != nil {
					return err
				}
				defer f.Close()
				_, err = io.ReadFull(io.NewSectionReader(f, sizeOf(size)-size, size), dst)
				return err
			}
			checked := func(i int, dst []byte) error { return of.Read(names[i], Page, dst) }
			run := func(read func(i int, dst []byte) error) time.Duration {
				mem, err := syscall.Mmap(-1, 0, pages*size, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_ANON|syscall.MAP_PRIVATE)
				if err != nil {
					b.Fatal(err)
				}
				defer syscall.Munmap(mem)
				_ = syscall.Madvise(mem, 14) // as for the memory of keys and values; MADV_HUGEPAGE, only advice
				begun := time.Now()
				var all sync.WaitGroup
				var next atomic.Int64
				for range readers {
					all.Go(func() {
						for i := int(next.Add(1)) - 1; i < pages; i = int(next.Add(1)) - 1 {
							if err := read(i, mem[i*size:(i+1)*size]); err != nil {
								b.Error(err)
							}
						}
					})
				}
				all.Wait()
				return time.Since(begun)
			}
			run(plain)
			var took, bare time.Duration
			for b.Loop() {
				bare += run(plain)
				took += run(checked)
			}
			b.ReportMetric(took.Seconds()*1e3/float64(b.N), "ms-checked")
			b.ReportMetric(bare.Seconds()*1e3/float64(b.N), "ms-plain")
			b.ReportMetric(took.Seconds()/bare.Seconds(), "ratio")
		})
	}
}
