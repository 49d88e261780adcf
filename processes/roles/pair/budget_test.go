package pair

import (
	"errors"
	"testing"

	"github.com/tandem-llm/tandem/engine"
	"github.com/tandem-llm/tandem/kernels"
	"github.com/tandem-llm/tandem/kernels/cpu"
	"github.com/tandem-llm/tandem/kernels/stream"
	"github.com/tandem-llm/tandem/kernels/testdevice"
	"github.com/tandem-llm/tandem/processes/roles"
	"github.com/tandem-llm/tandem/processes/settings"
)

// TestBudget: with more memory a target never reads more from the disk, until it reads nothing. Beside what is read keys and values hold
// what was asked for, a session of --ctx and each of --sessions, and nothing else.
func TestBudget(t *testing.T) {
	const mib, ctx = 1 << 20, 512
	fit := func(budget int64, sessions int) (p Pair, err error) {
		p = Pair{Target: target, Sizes: settings.Sizes{Ctx: ctx, Sessions: sessions},
			Options: engine.Options{Device: testdevice.CPU(t, 1)}, Streaming: &roles.Streaming{Budget: budget,
				On: func(d kernels.Device, memory int64) kernels.Streamer {
					return stream.New(d, stream.Config{Memory: memory, Pack: cpu.Pack})
				}}}
		err = p.Check("", func(string) {})
		return p, err
	}
	var small *roles.TooLittle
	if _, err := fit(100*mib, 1); !errors.As(err, &small) {
		t.Fatalf("100 MiB: %v", err)
	} else if p, err := fit(small.Least, 1); err != nil || !p.Streamed {
		t.Errorf("%d bytes, the least that was told: %v, streamed %v", small.Least, err, p.Streamed)
	}
	streamed, before, rows, both := 0, int64(0), 0, false
	for budget := int64(140 * mib); ; budget += mib {
		p, err := fit(budget, 1)
		if err != nil {
			if streamed > 0 {
				t.Fatalf("%d MiB: %v, and less was enough", budget/mib, err)
			}
			continue
		}
		if !p.Streamed {
			break
		}
		if p.Reads > before && streamed > 0 && p.Rows < rows+8 { // there is more than the least for buffers now
			t.Errorf("%d MiB: %d bytes are read in a pass, and with less memory %d", budget/mib, p.Reads, before)
		}
		before, rows = p.Reads, p.Rows
		if streamed++; p.Fit.Tokens < ctx || p.Fit.Tokens >= ctx+kernels.PageRows {
			t.Errorf("%d MiB: keys and values for %d tokens, want those of a session of %d", budget/mib, p.Fit.Tokens, ctx)
		}
		two, err := fit(budget, 2)
		if both = err == nil && two.Fit.Tokens >= 2*ctx; err == nil && (two.Fit.Tokens < ctx || two.Reads < p.Reads) {
			t.Errorf("%d MiB, two sessions: keys and values for %d tokens, %d bytes read", budget/mib, two.Fit.Tokens, two.Reads)
		}
	}
	if streamed == 0 || !both {
		t.Errorf("streamed within %d budgets; within the last there was memory for two sessions: %v", streamed, both)
	}
}
