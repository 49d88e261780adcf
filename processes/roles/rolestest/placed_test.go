package rolestest

import (
	"context"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tandem-llm/tandem/app/device"
	"github.com/tandem-llm/tandem/engine"
	"github.com/tandem-llm/tandem/kernels"
	"github.com/tandem-llm/tandem/kernels/cpu"
	"github.com/tandem-llm/tandem/kernels/cuda/emulated"
	"github.com/tandem-llm/tandem/kernels/testdevice"
	"github.com/tandem-llm/tandem/processes/placement"
	"github.com/tandem-llm/tandem/processes/profile"
	"github.com/tandem-llm/tandem/processes/roles"
	"github.com/tandem-llm/tandem/processes/roles/verifier"
	tandemv1 "github.com/tandem-llm/tandem/proto/tandem/v1"
	"github.com/tandem-llm/tandem/services/peers/rpc"
)

// slowCores are cores with passes of a tenth of a second, beside which an emulated GPU is fast.
type slowCores struct {
	kernels.Device
	own *cpu.Device
}

func (d slowCores) Close() { d.own.Close() }

func newSlowCores() (roles.Device, error) {
	d, err := cpu.New(1, cpu.Auto)
	if err != nil {
		return nil, err
	}
	return slowCores{testdevice.Slow(d, func(int) time.Duration { return 100 * time.Millisecond }), d}, nil
}

// survey returns a survey of the system's target: on the GPU, beside its verifier, which measures itself.
func (s *System) survey(w *verifier.Watch, kept profile.Kept, gpu kernels.Device, told *Log) *placement.Survey {
	return &placement.Survey{KVType: "f16", Kept: kept, Idle: w.Idle, Pause: 10 * time.Millisecond,
		Target: placement.Surveyed{File: s.target, Places: []device.Spec{{GPU: new(int)}}, Costs: w.Target},
		Needs:  func(device.Spec, string) map[string]int64 { return nil },
		Open: func(_ device.Spec, path string, o engine.Options) (*engine.Model, func(), error) {
			o.Device = gpu
			m, err := engine.Open(path, o)
			if err != nil {
				return nil, nil, err
			}
			return m, m.Close, nil
		},
		Tell: func(format string, args ...any) { told.Write([]byte(format)) }}
}

// TestPlacedByMeasurement: a verifier on slow cores answers at once. In idle moments it is measured what the target takes on a GPU, where
// it is faster; requests that come between get their text, and the measurement begins anew. Then a second verifier there gets the new
// conversations, with the same text. When the GPU is lost in the middle of a request, that goes on, on the cores, as do the next.
func TestPlacedByMeasurement(t *testing.T) {
	if testing.Short() {
		t.Skip("an emulated GPU verifies slowly: skipped with -short")
	}
	s := Start(t, filepath.Join(sides, "target.gguf"))
	s.measures = t.TempDir()
	request := fed(3, 0.8, true)
	want := s.first(request)
	same := func(what string) {
		t.Helper()
		s.again(what, request, want)
	}
	s.VerifierOn(newSlowCores)
	same("on slow cores")

	peer, program := s.of("survey")
	r, err := roles.Start(t.Context(), rpc.Verifier, peer, program, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	defer r.Server.Close()
	access, err := r.PoolAccess(t.Context(), s.pool())
	if err != nil {
		t.Fatal(err)
	}
	w, err := verifier.NewWatch(r, r.Pool(access), s.addr("verifier"))
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	gpu, driver := testdevice.GPU(t, emulated.Options{})
	told, kept := new(Log), profile.Kept{Cache: s.measures, Version: "test", GPU: "emulated"}
	survey := s.survey(w, kept, gpu, told)
	var asked atomic.Int64
	between := make(chan error, 1)
	var running atomic.Bool
	survey.Idle = func() bool {
		if w.Idle() && asked.Add(1) == 4 { // between two passes
			running.Store(true)
			go func() {
				got, _, _, err := s.Generate(request)
				if err == nil && !slices.Equal(got, want) {
					t.Errorf("a request during the survey: tokens %v, want %v", got, want)
				}
				running.Store(false)
				between <- err
			}()
		}
		return w.Idle() && !running.Load()
	}
	now, all, err := survey.Run(t.Context())
	if err != nil || told.String() != "" || all[0].Device != "cuda" || now.Device != "cpu" || len(all) != 2 {
		t.Fatalf("%+v, now %+v, %v, told %q: want the GPU", all, now, err, told)
	}
	if err := <-between; err != nil {
		t.Errorf("a request during the survey: %v", err)
	}
	if line := placement.Reason(all, now); !strings.Contains(line, "the target on cuda: about ") {
		t.Errorf("the reason is %q", line)
	}
	same("after the survey")

	with, ended := models, make(chan error, 1)
	with.Device = func(int) (roles.Device, error) { return gpu, nil }
	s.run("placed", func(ctx context.Context) error {
		c := s.verifierSetup("placed", with)
		ended <- verifier.Run(ctx, c)
		return nil
	})
	passes := func() (on int64) {
		d, err := s.Client.Describe(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range d.GetProcesses() {
			if p.GetRole() == "verifier" && p.GetDevice() == "cuda" {
				on += p.GetCounters()["passes"]
			}
		}
		return on
	}
	s.Await("the verifier on the GPU", func(p *tandemv1.Process) bool {
		return p.GetRole() == "verifier" && p.GetDevice() == "cuda" && p.GetUp()
	})
	s.await("a conversation on the GPU", func() bool {
		same("beside a verifier on the GPU")
		return passes() > 0
	})
	driver.FailLaunch(50)
	s.await("the GPU's loss", func() bool {
		same("while the GPU is lost")
		return gpu.Lost() != nil
	})
	select {
	case err := <-ended:
		if err == nil || !strings.Contains(err.Error(), "is lost") {
			t.Errorf("the verifier on the GPU ended with %v: want that its device is lost", err)
		}
	case <-time.After(patience):
		t.Fatal("it goes on without its device")
	}
	same("on the cores again")
}
