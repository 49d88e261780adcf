package rolestest

import (
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tandem-llm/tandem/kernels/cpu"
	"github.com/tandem-llm/tandem/kernels/cuda/emulated"
	"github.com/tandem-llm/tandem/kernels/testdevice"
	"github.com/tandem-llm/tandem/processes/roles"
	"github.com/tandem-llm/tandem/processes/roles/gateway"
	tandemv1 "github.com/tandem-llm/tandem/proto/tandem/v1"
)

// loaded is a system with several verifiers under requests.
type loaded struct {
	*System
	t    *testing.T
	want map[int][]uint32 // tokens of requests, by number

	stop atomic.Bool
	work sync.WaitGroup
	done atomic.Int64 // requests that have ended
}

// load has clients ask without a pause until end is called. Every text must be that of plain decoding, whatever happens to verifiers.
func (f *loaded) load(clients int) (end func()) {
	for c := range clients {
		f.work.Go(func() {
			for n := c; !f.stop.Load(); n++ {
				r := fed(n%8, 0.8*float64(n%2), false)
				if got, _, _, err := f.Generate(r); err != nil || !slices.Equal(got, f.want[n%8]) {
					f.t.Errorf("request %d: tokens %v, %v: want %v", n%8, got, err, f.want[n%8])
					return
				}
				f.done.Add(1)
			}
		})
	}
	return func() {
		f.stop.Store(true)
		f.work.Wait()
	}
}

// more waits until so many requests more have ended.
func (f *loaded) more(n int64) {
	f.t.Helper()
	n += f.done.Load()
	f.await("requests to end", func() bool { return f.done.Load() >= n || f.t.Failed() })
}

// verifiers returns how many verifiers are up, and the sum of a counter of theirs.
func (f *loaded) verifiers(counter string) (up int, sum int64) {
	d, err := f.Client.Describe(f.t.Context())
	if err != nil {
		f.t.Fatal(err)
	}
	for _, p := range d.GetProcesses() {
		if p.GetRole() == "verifier" && p.GetUp() {
			up++
			sum += p.GetCounters()[counter]
		}
	}
	return up, sum
}

func (f *loaded) awaits(up int) {
	f.t.Helper()
	f.await("verifiers to come or go", func() bool { n, _ := f.verifiers(""); return n == up })
}

// TestVerifiersComeAndGo: a gateway works with a verifier that it is configured with and with others that announce themselves, on other
// devices. They come and go under requests of drafts that read the target's states, and no request fails or gets other tokens.
func TestVerifiersComeAndGo(t *testing.T) {
	s := StartTapped(t, filepath.Join(sides, "target.gguf"), []int{-1, 3, 1, 2}, func(c *gateway.Setup) { c.Sessions = 6 })
	f := &loaded{System: s, t: t, want: map[int][]uint32{}}
	for n := range 8 {
		tokens, _, _, err := s.Generate(fed(n, 0.8*float64(n%2), true))
		if err != nil || len(tokens) != 30 {
			t.Fatal(tokens, err)
		}
		f.want[n] = tokens
	}
	s.Drafter("drafter", filepath.Join(sides, "eagle.gguf"))
	s.Await("the drafter", func(p *tandemv1.Process) bool {
		return p.GetRole() == "drafter" && p.GetModel() != "lookup" && p.GetUp()
	})
	end := f.load(5)
	defer end()
	f.more(10)

	sets := cpu.Supported() // instruction sets of this machine; the first verifier takes the best
	on := func(i int) func() (roles.Device, error) {
		return func() (roles.Device, error) { return cpu.New(1, sets[i%len(sets)]) }
	}
	endSecond := s.Beside("second", on(0))
	f.awaits(2)
	f.await("sessions at both", func() bool {
		d, _ := s.Client.Describe(t.Context())
		n := 0
		for _, p := range d.GetProcesses() {
			if p.GetRole() == "verifier" && p.GetCounters()["sessions.opened"]+p.GetCounters()["passes"] > 10 {
				n++
			}
		}
		return n == 2
	})
	s.endVerifier() // the one that the gateway is configured with
	f.awaits(1)
	f.more(20)
	s.endVerifier = s.verifier(nil)
	f.awaits(2)
	gpu := func() (roles.Device, error) {
		d, _ := testdevice.GPU(t, emulated.Options{})
		return d, nil
	}
	s.Beside("third", gpu)
	f.awaits(3)
	endSecond()
	f.awaits(2)
	f.more(20)
	s.Beside("second", on(1))
	f.awaits(3)
	time.Sleep(100 * time.Millisecond)
	f.more(10)
	if _, n := f.verifiers("tickets.unknown_session"); n > 100 {
		t.Errorf("%d tickets went to a verifier without their session", n)
	}
}
