package rolestest

import (
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tandem-llm/tandem/client"
	"github.com/tandem-llm/tandem/kernels"
	"github.com/tandem-llm/tandem/kernels/cpu"
	"github.com/tandem-llm/tandem/kernels/testdevice"
	"github.com/tandem-llm/tandem/processes/roles"
	"github.com/tandem-llm/tandem/processes/roles/gateway"
	"github.com/tandem-llm/tandem/services/peers/pool"
)

// slowCPU is a processor whose passes take as long as those of a larger model: 40 ms, and 1 ms a row.
func slowCPU() (roles.Device, error) {
	d, err := cpu.New(1, cpu.Auto)
	if err != nil {
		return nil, err
	}
	return slowed{testdevice.Slow(d, func(rows int) time.Duration { return time.Duration(40+rows) * time.Millisecond }), d}, nil
}

type slowed struct {
	kernels.Device
	own *cpu.Device
}

// Close implements roles.Device.
func (s slowed) Close() { s.own.Close() }

// BenchmarkFleet measures fleets of 1, 2, 4 and 8 verifiers with one gateway and one drafter: tokens per second with two sessions for each
// verifier, and what goes through the pool's server: messages of an idle fleet in a second, and messages and bytes of a round. Passes have
// emulated times, because the verifiers share this machine's cores; their arithmetic is real. docs/fleet.md has results.
func BenchmarkFleet(b *testing.B) {
	first := 0.0
	for _, n := range []int{1, 2, 4, 8} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			rate := benchmarkFleet(b, n)
			if n == 1 {
				first = rate
			}
			b.ReportMetric(rate/first, "×one")
		})
	}
}

func benchmarkFleet(b *testing.B, n int) (rate float64) {
	server, err := pool.StartServer()
	if err != nil {
		b.Fatal(err)
	}
	defer server.Close()
	s := Start(b, target, func(c *gateway.Setup) {
		if err := roles.WritePoolFile(c.PoolFile, server.Access()); err != nil {
			b.Fatal(err)
		}
		c.Sessions, c.Pool, c.PoolFile = 2*n, "file:"+c.PoolFile, ""
	})
	s.VerifierOn(slowCPU)
	for i := 1; i < n; i++ {
		s.Beside(fmt.Sprint("verifier", i), slowCPU)
	}
	s.sessions = 2 * n
	s.Drafter("drafter", draft)
	s.await("the fleet", func() bool {
		d, err := s.Client.Describe(b.Context())
		up := 0
		for _, p := range d.GetProcesses() {
			if p.GetUp() && p.GetModel() != "lookup" {
				up++
			}
		}
		return err == nil && up == n+2
	})
	idle := server.Traffic()
	time.Sleep(2 * time.Second)
	quiet := server.Traffic().Since(idle)
	var tokens, rounds atomic.Int64
	begun, busy := time.Now(), server.Traffic()
	for b.Loop() {
		var all sync.WaitGroup
		for i := range 2 * n {
			all.Go(func() {
				r := client.Request{Prompt: fmt.Sprintf("// Function %d returns", i%2), MaxTokens: new(120), IgnoreEOS: true,
					Temperature: new(0.0), Drafters: []string{draftName}}
				got, _, done, err := s.Generate(r)
				if err != nil {
					b.Error(err)
				}
				tokens.Add(int64(len(got)))
				rounds.Add(int64(done.Statistics.Rounds))
			})
		}
		all.Wait()
	}
	took, moved := time.Since(begun), server.Traffic().Since(busy)
	rate = float64(tokens.Load()) / took.Seconds()
	beats := took.Seconds() / 2 * float64(quiet.Messages)
	b.ReportMetric(rate, "tok/s")
	b.ReportMetric(float64(quiet.Messages)/2, "idle-msg/s")
	b.ReportMetric(float64(quiet.Bytes)/2, "idle-B/s")
	b.ReportMetric((float64(moved.Messages)-beats)/float64(rounds.Load()), "msg/round")
	b.ReportMetric((float64(moved.Bytes)-took.Seconds()/2*float64(quiet.Bytes))/float64(rounds.Load()), "B/round")
	b.ReportMetric(float64(tokens.Load())/float64(rounds.Load()), "tok/round")
	b.ReportMetric(0, "ns/op")
	return rate
}
