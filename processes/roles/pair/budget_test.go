package pair

import (
	"errors"
	"testing"

	"github.com/tandem-llm/tandem/drafter"
	"github.com/tandem-llm/tandem/engine"
	"github.com/tandem-llm/tandem/engine/memory"
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

// TestBudgetOfGuest: what is planned for a draft in its target's process does not depend on the plan for one in a process of its own, which
// is tried first.
func TestBudgetOfGuest(t *testing.T) {
	const mib, draft = 1 << 20, "../../../models/gopher-dovetail-q8_0.gguf"
	p := Pair{Target: target, Drafts: []string{draft}, Features: 64 * mib, Sizes: settings.Sizes{Ctx: 512, Sessions: 1},
		Options: engine.Options{Device: testdevice.CPU(t, 1)}, Streaming: &roles.Streaming{
			On: func(d kernels.Device, memory int64) kernels.Streamer {
				return stream.New(d, stream.Config{Memory: memory, Pack: cpu.Pack})
			}}}
	room := roles.Room{Sizes: p.Sizes.OrDefault(), Options: p.Options, Target: p.Target}
	if err := p.addTarget(&room, nil); err != nil {
		t.Fatal(err)
	}
	if err := room.Add(draft, drafter.DefaultTreeRows, roles.DraftRows(room.Sizes)); err != nil {
		t.Fatal(err)
	}
	inside := 0
	for budget := int64(168); budget < 240; budget += 4 {
		p.Streaming.Budget = budget * mib
		c := p.choose(&room, memory.Free(), p.Drafts)
		if !c.inside {
			continue
		}
		inside++
		want, err := room.Of(true, 0, 1).Hosting()
		if err != nil {
			t.Fatal(err)
		}
		d, err := p.Streaming.Divide(want, memory.Free())
		if err != nil || c.err != nil || d.Budget != c.Budget || d.Streams.Streamed != c.Streams.Streamed ||
			want.Models[0].Pages != c.room.Models[0].Pages {
			t.Errorf("%d MiB: %v, %v; %d bytes read and %d pages, want %d and %d", budget, c.err, err, c.Streams.Streamed,
				c.room.Models[0].Pages, d.Streams.Streamed, want.Models[0].Pages)
		}
	}
	if inside == 0 {
		t.Error("the draft was never planned inside")
	}
}
