// Package rolestest starts whole roles in the process of a test, so that their cooperation is tested without starting programs.
package rolestest

import (
	"bytes"
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/client"
	"github.com/tandem-llm/tandem/engine"
	"github.com/tandem-llm/tandem/kernels/cpu"
	"github.com/tandem-llm/tandem/processes/roles"
	"github.com/tandem-llm/tandem/processes/roles/drafter"
	"github.com/tandem-llm/tandem/processes/roles/gateway"
	"github.com/tandem-llm/tandem/processes/roles/verifier"
	"github.com/tandem-llm/tandem/processes/settings"
	tandemv1 "github.com/tandem-llm/tandem/proto/tandem/v1"
	front "github.com/tandem-llm/tandem/services/public/ask"
)

// patience is how long a test waits for something that the system does by itself.
const patience = 4 * time.Minute

// Key is sent by the client that Start makes. A gateway without keys ignores it.
const Key = "first"

// System is a gateway and a verifier, and the drafters that are started, on sockets of their own. They end with the test.
type System struct {
	Client *client.Client
	Log    *Log // of all of them

	t       testing.TB
	dir     string
	gateway func() (end func()) // starts it
	end     func()              // of the gateway
	target  string

	verifier    func(heads []string) (end func())
	endVerifier func()
	taps        []int
	sessions    int                             // of the processes that are started next; less than 2: 2
	heads       []string                        // the running verifier's side files
	guest       string                          // the draft in the process of the next verifier; "": none
	device      func(int) (roles.Device, error) // of the next verifier with side files; nil: the processor
	measures    string                          // the cache in which the next verifiers keep what they measure; "": none does
	wrong       sync.Map                        // by name: the time.Duration by which a process's wall clock is wrong
}

// Start returns a gateway and a verifier of a target once both serve. change, if given, may change the gateway's configuration.
func Start(t testing.TB, target string, change ...func(*gateway.Setup)) *System {
	t.Helper()
	return StartTapped(t, target, nil, change...)
}

// StartTapped is Start with a verifier that hands out hidden states.
func StartTapped(t testing.TB, target string, taps []int, change ...func(*gateway.Setup)) *System {
	t.Helper()
	dir, err := os.MkdirTemp("", "roles") // t.TempDir would be too long a path for a socket
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	s := &System{Log: new(Log), t: t, dir: dir, target: target}
	s.taps = taps
	s.verifier = func(heads []string) (end func()) {
		with := models
		with.Sides = map[string][]string{target: heads}
		if s.device != nil {
			with.Device = s.device
		}
		return s.run("verifier", func(ctx context.Context) error {
			return verifier.Run(ctx, s.verifierSetup("verifier", with))
		})
	}
	s.endVerifier = s.verifier(nil)
	serve := func(ctx context.Context) error {
		peer, program := s.of("gateway")
		c := gateway.Setup{Gateway: settings.Gateway{Target: target, Peer: peer, Web: settings.Web{HTTP: settings.NoHTTP},
			GatewayOptions: settings.GatewayOptions{LookupDrafts: settings.LookupDrafts{Lookup: true}}}, Program: program,
			Defaults: front.Defaults{MaxTokens: 48, Sampling: tandem.Sampling{TopP: 1},
				Bounds: tandem.DefaultBounds(tandem.StrategyFixed), Strategy: tandem.StrategyFixed, Vote: tandem.VoteAuto}}
		c.Verifier, c.PoolFile = []string{s.addr("verifier")}, filepath.Join(dir, "pool")
		for _, f := range change {
			f(&c)
		}
		return gateway.Run(ctx, c)
	}
	s.gateway = func() (end func()) { return s.run("gateway", serve) }
	s.end = s.gateway()
	s.dial(Key)
	s.awaitVerifier()
	return s
}

// Restart ends the gateway and returns once another one of the same configuration serves.
func (s *System) Restart() {
	s.t.Helper()
	s.end()
	s.end = s.gateway()
	s.awaitVerifier()
}

// Heads ends the verifier and returns once another one, with these side files, serves.
func (s *System) Heads(files ...string) {
	s.t.Helper()
	s.endVerifier()
	s.Await("the verifier to go", func(p *tandemv1.Process) bool { return p.GetRole() == "verifier" && !p.GetUp() })
	s.heads = files
	s.endVerifier = s.verifier(files)
	s.Await("the verifier with its heads", func(p *tandemv1.Process) bool {
		return p.GetRole() == "verifier" && p.GetUp() && len(p.GetWays()) == len(files)
	})
}

// RestartVerifier ends the verifier and returns once another one, with the same side files, serves.
func (s *System) RestartVerifier() {
	s.t.Helper()
	s.endVerifier()
	s.endVerifier = s.verifier(s.heads)
	s.awaitVerifier()
}

// Beside starts a further verifier of the target, which the gateway finds only through the pool's server, on a device that device makes;
// nil: the processor.
func (s *System) Beside(name string, device func() (roles.Device, error)) (end func()) {
	with := models
	if device != nil {
		with.Device = func(int) (roles.Device, error) { return device() }
	}
	return s.run(name, func(ctx context.Context) error {
		return verifier.Run(ctx, s.verifierSetup(name, with))
	})
}

// VerifierOn ends the verifier and returns once another one, on a device that device makes, serves. ended gets the error with which it
// ended.
func (s *System) VerifierOn(device func() (roles.Device, error)) (ended <-chan error) {
	s.t.Helper()
	s.endVerifier()
	s.Await("the verifier to go", func(p *tandemv1.Process) bool { return p.GetRole() == "verifier" && !p.GetUp() })
	with, why := models, make(chan error, 1)
	with.Device = func(int) (roles.Device, error) { return device() }
	s.endVerifier = s.run("verifier", func(ctx context.Context) error {
		why <- verifier.Run(ctx, s.verifierSetup("verifier", with))
		return nil
	})
	s.Await("the verifier on its device", func(p *tandemv1.Process) bool {
		select {
		case err := <-why:
			s.t.Fatal("the verifier ended: ", err)
		default:
		}
		return p.GetRole() == "verifier" && p.GetUp()
	})
	return why
}

// As returns the same system for a client with another key. Only the system that Start returned can Restart.
func (s *System) As(key string) *System {
	s.t.Helper()
	other := &System{Log: s.Log, t: s.t, dir: s.dir}
	other.dial(key)
	return other
}

// dial makes the system's client, which sends key.
func (s *System) dial(key string) {
	s.t.Helper()
	c, err := client.Dial(s.addr("gateway"), client.WithToken(key))
	if err != nil {
		s.t.Fatal(err)
	}
	s.Client = c
	s.t.Cleanup(func() { c.Close() })
}

// awaitVerifier waits until the gateway knows that the verifier is there.
func (s *System) awaitVerifier() {
	s.t.Helper()
	s.Await("the verifier", func(p *tandemv1.Process) bool { return p.GetRole() == "verifier" && p.GetUp() })
}

// Drafter starts a process of drafters that the others find only through the pool's server; end stops it. name is
// the process's, not a drafter's.
func (s *System) Drafter(name string, drafts ...string) (end func()) {
	s.t.Helper()
	return s.DrafterWith(name, nil, drafts...)
}

// DrafterWith is Drafter with side files of the drafts, by their files.
func (s *System) DrafterWith(name string, sides map[string][]string, drafts ...string) (end func()) {
	own := models
	own.Sides = sides
	own.Target = s.target
	own.Open = func(path string, o engine.Options) (*engine.Model, error) { return engine.OpenDraft(path, s.target, o) }
	return s.run(name, func(ctx context.Context) error {
		return drafter.Run(ctx, s.drafterSetup(name, own, drafts))
	})
}

// DrafterOn is Drafter on a device that device makes. ended gets the error with which the process ended.
func (s *System) DrafterOn(name string, device func() (roles.Device, error), drafts ...string) (ended <-chan error) {
	own, why := models, make(chan error, 1)
	own.Device = func(int) (roles.Device, error) { return device() }
	s.run(name, func(ctx context.Context) error {
		c := s.drafterSetup(name, own, drafts)
		c.AheadGain, c.Host = drafter.Measured, func() (roles.Device, error) { return cpu.New(1, cpu.Auto) }
		why <- drafter.Run(ctx, c)
		return nil
	})
	return why
}

// models are the settings with which all roles compute.
var models = roles.Models{Threads: 1, Device: func(threads int) (roles.Device, error) { return cpu.New(threads, cpu.Auto) },
	Open: engine.Open}

func (s *System) addr(name string) string { return "unix://" + filepath.Join(s.dir, name) }
func (s *System) pool() string            { return "file:" + filepath.Join(s.dir, "pool") }

// of returns what the settings of all roles have in common, for the process of that name, and what it gets of the program.
func (s *System) of(name string) (settings.Peer, roles.Program) {
	now := func() time.Time {
		by, _ := s.wrong.LoadOrStore(name, time.Duration(0))
		return time.Now().Add(by.(time.Duration))
	}
	return settings.Peer{Addresses: settings.Addresses{Listen: s.addr(name)},
			Process: settings.Process{Sizes: settings.Sizes{Sessions: max(s.sessions, 2)}}},
		roles.Program{Version: "test", Now: now,
			Log: slog.New(slog.NewTextHandler(s.Log, &slog.HandlerOptions{Level: slog.LevelWarn}))}
}

// verifierSetup returns how to run a verifier of the system's target.
func (s *System) verifierSetup(name string, with roles.Models) verifier.Setup {
	peer, program := s.of(name)
	peer.Pool = s.pool()
	c := verifier.Setup{Program: program, Models: with, Verifier: settings.Verifier{Target: s.target, Peer: peer,
		Taps: settings.Taps{Taps: s.taps}, VerifierOptions: settings.VerifierOptions{FeatureMemory: 1}}}
	if c.Cache = s.measures; c.Cache != "" {
		c.Measure, c.Calm = true, func() bool { return true }
	}
	if s.guest != "" {
		c.Guest = s.drafterSetup(name, roles.Models{}, []string{s.guest})
	}
	return c
}

// drafterSetup returns how to run a process of drafters, which asks the system's verifier for hidden states.
func (s *System) drafterSetup(name string, with roles.Models, drafts []string) drafter.Setup {
	peer, program := s.of(name)
	peer.Pool, peer.Verifier = s.pool(), []string{s.addr("verifier")}
	return drafter.Setup{Program: program, Models: with, Drafter: settings.Drafter{Draft: drafts, Peer: peer}}
}

// run runs a role until end is called, at the end of the test at the latest.
func (s *System) run(name string, do func(ctx context.Context) error) (end func()) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := do(ctx); err != nil {
			s.t.Errorf("%s ended: %v", name, err)
		}
	}()
	end = func() {
		cancel()
		<-done
	}
	s.t.Cleanup(end)
	return end
}

// Await waits until the condition holds for one of the processes that the gateway knows.
func (s *System) Await(what string, is func(*tandemv1.Process) bool) {
	s.t.Helper()
	s.await(what, func() bool {
		d, err := s.Client.Describe(s.t.Context())
		return err == nil && slices.ContainsFunc(d.GetProcesses(), is)
	})
}

// await waits for what the system does by itself.
func (s *System) await(what string, is func() bool) {
	s.t.Helper()
	for late := time.Now().Add(patience); !is(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(late) {
			s.t.Fatalf("waited %v for %s; logged %s", patience, what, s.Log)
		}
	}
}

// first returns the tokens of a request, or fails the test if there are none.
func (s *System) first(r client.Request) []uint32 {
	s.t.Helper()
	want, _, _, err := s.Generate(r)
	if err != nil || len(want) == 0 {
		s.t.Fatalf("tokens %v, %v: want some", want, err)
	}
	return want
}

// again fails the test unless a request has these tokens.
func (s *System) again(what string, r client.Request, want []uint32) {
	s.t.Helper()
	if got, _, _, err := s.Generate(r); err != nil || !slices.Equal(got, want) {
		s.t.Fatalf("%s: tokens %v, %v: want %v", what, got, err, want)
	}
}

// Generate runs r to its end.
func (s *System) Generate(r client.Request) (tokens []uint32, text string, done client.Finished, err error) {
	for e, err := range s.Client.Generate(s.t.Context(), r) {
		switch {
		case err != nil:
			return tokens, text, done, err
		case e.Delta != nil:
			tokens = append(tokens, e.Delta.Tokens...)
			text += e.Delta.Text
		case e.Finished != nil:
			done = *e.Finished
		}
	}
	return tokens, text, done, nil
}

// Log is what roles have logged. Safe for concurrent use.
type Log struct {
	mu  sync.Mutex
	all bytes.Buffer
}

// Write implements io.Writer.
func (l *Log) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.all.Write(p)
}

// String returns all of it.
func (l *Log) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.all.String()
}
