package engine

import (
	"fmt"
	"math"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/engine/memory"
	"github.com/tandem-llm/tandem/kernels"
	"github.com/tandem-llm/tandem/kernels/testdevice"
	"golang.org/x/sys/unix"
)

const shippedDraft = "../models/gopher-draft-all-f16.gguf"

// Measure returns the memory that a loaded model takes.
func TestMeasure(t *testing.T) {
	o := Options{Device: testdevice.CPU(t, 1), KVPages: 7, MaxRows: 33, MaxWanted: 5}
	p, err := Measure(shippedDraft, o)
	if err != nil {
		t.Fatal(err)
	}
	m, err := Open(shippedDraft, o)
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	if got := (memory.Footprint{Weights: m.loaded.Store.Bytes(), PageBytes: m.Passes().KVBytes() * kernels.PageRows, Pages: m.Pages(),
		Scratch: m.loaded.Footprint.Scratch, Logits: p.Logits, Block: p.Block, Tokens: m.Vocab().Size(),
		StatePlaces: p.StatePlaces, Output: p.Output}); got != p {
		t.Errorf("measured %+v, loaded %+v", p, got)
	}
	o.KVType = "q8_0"
	if q, err := Measure(shippedDraft, o); err != nil || q.PageBytes <= p.PageBytes/2 || q.PageBytes > p.PageBytes*6/10 ||
		q.Weights != p.Weights {
		t.Errorf("with a q8_0 cache %+v, %v: want a little more than half of the cache in %+v", q, err, p)
	}
	if m.loaded.Cache.Bytes() != p.KV() {
		t.Errorf("a cache of %d bytes, measured %d", m.loaded.Cache.Bytes(), p.KV())
	}
}

// An impossible cache is refused before anything is loaded.
func TestTooLarge(t *testing.T) {
	for _, pages := range []int{-1, 1 << 24, kernels.MaxPages, math.MaxInt} {
		loaded := false
		_, err := Open(shippedDraft, Options{Device: testdevice.CPU(t, 0), KVPages: pages, Progress: func(int64, int64) { loaded = true }})
		if tandem.KindOf(err) != tandem.Exhausted || !strings.Contains(err.Error(), fmt.Sprint(pages)) &&
			!strings.Contains(err.Error(), "allows") {
			t.Errorf("%d pages: error %v: want Exhausted, with the number", pages, err)
		}
		if loaded {
			t.Errorf("%d pages: weights were loaded", pages)
		}
	}
}

// Under a limit of address space (ulimit -v) that the weights do not fit into, loading is refused with
// the figures. The test runs itself as a process that limits itself.
func TestAddressSpace(t *testing.T) {
	if os.Getenv("TANDEM_TEST_LIMITED") != "" {
		used, _ := processPages()
		limit := uint64(used*os.Getpagesize() + 512<<20)
		err := unix.Setrlimit(unix.RLIMIT_AS, &unix.Rlimit{Cur: limit, Max: limit})
		var p memory.Footprint
		if err == nil {
			p, err = Measure(shippedDraft, Options{Device: testdevice.CPU(t, 0), KVPages: 1})
		}
		if err == nil {
			_, err = Open(shippedDraft, Options{Device: testdevice.CPU(t, 0), KVPages: int(1 << 30 / p.PageBytes)})
		}
		fmt.Println(tandem.KindOf(err), err)
		return
	}
	if _, err := processPages(); err != nil {
		t.Skip("no /proc: the process's size is not known")
	}
	cmd := exec.Command(os.Args[0], "-test.run", "^TestAddressSpace$")
	cmd.Env = append(os.Environ(), "TANDEM_TEST_LIMITED=1")
	out, err := cmd.CombinedOutput()
	if err != nil || !strings.Contains(string(out), "exhausted") || !strings.Contains(string(out), "ulimit -v") {
		t.Errorf("%v: %s: want an error of kind exhausted that names the limit", err, out)
	}
}

// processPages returns how many pages of address space the process has.
func processPages() (n int, err error) {
	b, err := os.ReadFile("/proc/self/statm")
	if err == nil {
		_, err = fmt.Sscan(string(b), &n)
	}
	return n, err
}
