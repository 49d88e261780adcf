package test

import (
	"bytes"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tandem-llm/tandem/test/testkit"
)

// TestHugeBodies sends bodies of 8 MB, each full of one thing, to every route that reads one: none takes the gateway 256 MiB or two seconds
// of processor time, and another tenant's first token does not come much later. In a minute come some of them, other ones each time; in
// the long form all.
func TestHugeBodies(t *testing.T) {
	mayBeSlow(t)
	h := newHuge(t)
	calm := h.probe(t, 20)
	done, stopped := make(chan struct{}), make(chan []time.Duration)
	go func() {
		var all []time.Duration
		for {
			select {
			case <-done:
				stopped <- all
				return
			default:
				all = append(all, h.probe(t, 1)...)
			}
		}
	}()
	most := time.Minute
	if *long {
		most = 24 * time.Hour
	}
	n := h.sendFor(t, rand.NewPCG(rand.Uint64(), 0), most)
	close(done)
	busy := <-stopped
	slices.Sort(calm)
	slices.Sort(busy)
	t.Logf("%d bodies; another's first token after %v at the median, %v without them; the most memory %d MiB, the most time %v", n,
		busy[len(busy)/2], calm[len(calm)/2], h.most.Load()>>20, time.Duration(h.longest.Load()))
	if was, is := calm[len(calm)/2], busy[len(busy)/2]; is > was*3/2+20*time.Millisecond {
		t.Errorf("another tenant's first token came after %v at the median, %v without the bodies", is, was)
	}
}

// TestSomeHugeBodies does the same with some of the bodies, spread over all APIs, always the same as far as it comes in five seconds.
func TestSomeHugeBodies(t *testing.T) {
	h := newHuge(t)
	n := h.sendFor(t, rand.NewPCG(43, 0), 5*time.Second)
	t.Logf("%d bodies; the most memory %d MiB, the most time %v", n, h.most.Load()>>20, time.Duration(h.longest.Load()))
}

// sendFor sends bodies in the order of a generator until all are sent or a time is over, and returns how many.
func (h *huge) sendFor(t testing.TB, order rand.Source, most time.Duration) (n int) {
	t.Helper()
	all := slices.Collect(testkit.HugeBodies())
	rand.New(order).Shuffle(len(all), func(i, k int) { all[i], all[k] = all[k], all[i] })
	for begun := time.Now(); n < len(all) && time.Since(begun) < most; n++ {
		h.send(t, all[n], 8_000_000)
	}
	return n
}

// huge is a gateway that gets large bodies.
type huge struct {
	*webGroup
	gateway       int // its process
	other         string
	most, longest atomic.Int64
}

func newHuge(t testing.TB) *huge {
	t.Helper()
	keys := filepath.Join(t.TempDir(), "keys")
	if err := os.WriteFile(keys, []byte("key-alice-0123456789\nkey-bob-0123456789abc\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	g := upWeb(t, template, "--api-keys", keys)
	g.key = "key-alice-0123456789"
	return &huge{webGroup: g, gateway: g.w.role("gateway")[0], other: "key-bob-0123456789abc"}
}

// send sends a body and looks at what it takes.
func (h *huge) send(t testing.TB, b testkit.HugeBody, size int) {
	t.Helper()
	body := b.Make(size)
	h.measure(t, fmt.Sprintf("%s %s (%d bytes)", b.Path, b.Name, len(body)), func() (int, string) { return h.ask(t, "POST", b.Path, body) })
}

// measure looks at what a request takes, which returns its status and answer.
func (h *huge) measure(t testing.TB, name string, ask func() (int, string)) {
	t.Helper()
	_ = os.WriteFile(fmt.Sprintf("/proc/%d/clear_refs", h.gateway), []byte("5"), 0o200) // the peak begins anew
	before := processorTime(t, h.gateway)
	status, answer := ask()
	took := processorTime(t, h.gateway) - before
	high, _ := peak(t, h.gateway)
	h.most.Store(max(h.most.Load(), high))
	h.longest.Store(max(h.longest.Load(), int64(took)))
	report := t.Logf
	if high > 256<<20 || took > 2*time.Second || status >= 500 {
		report = t.Errorf
	}
	if high > 192<<20 || took > time.Second || status >= 500 {
		report("%s: status %d %.120s, %d MiB, %v", name, status, answer, high>>20, took)
	}
}

// processorTime returns the processor time that a process has taken.
func processorTime(t testing.TB, pid int) time.Duration {
	t.Helper()
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		t.Fatal(err)
	}
	f := strings.Fields(string(raw[bytes.LastIndexByte(raw, ')')+1:]))
	user, _ := strconv.Atoi(f[11])
	system, _ := strconv.Atoi(f[12])
	return time.Duration(user+system) * 10 * time.Millisecond
}

// probe returns after how long another tenant's first token came, so many times.
func (h *huge) probe(t testing.TB, n int) (all []time.Duration) {
	for range n {
		r, _ := http.NewRequest("POST", h.url+"/v1/completions", strings.NewReader(`{"prompt":"Once","max_tokens":2,"stream":true}`))
		r.Header.Set("Authorization", "Bearer "+h.other)
		begun := time.Now()
		a, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Error(err)
			return all
		}
		_, err = a.Body.Read(make([]byte, 1))
		all = append(all, time.Since(begun))
		if err != nil || a.StatusCode != http.StatusOK {
			t.Errorf("another tenant: %s, %v", a.Status, err)
		}
		_, _ = io.Copy(io.Discard, a.Body)
		a.Body.Close()
	}
	return all
}
