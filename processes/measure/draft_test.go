package measure

import (
	"context"
	"errors"
	"testing"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/engine"
	"github.com/tandem-llm/tandem/kernels/testdevice"
)

// TestDraft: one row, and as many rows of a prompt as fit, are measured, and the cache is left empty.
func TestDraft(t *testing.T) {
	for _, tc := range []struct {
		name                string
		most, pages, ctx    int
		rows, least, passes int
	}{
		{"all fits", 64, 5, 0, 64, 2, 2 * draftRounds},
		{"narrow passes", 5, 2, 0, 5, 2, 2 * draftRounds},
		{"a short context", 64, 4, 100, 64, 2, 2},
		{"a shorter context than a pass", 64, 2, 40, 39, 2, 2},
		{"no room for a prompt", 1, 2, 0, 1, 1, draftRounds},
	} {
		m, err := engine.Open(draftPath, engine.Options{Device: testdevice.CPU(t, 1), MaxRows: tc.most, KVPages: tc.pages, Context: tc.ctx})
		if err != nil {
			t.Fatal(tc.name, err)
		}
		passes := 0
		costs, err := Draft(t.Context(), m, func() { passes++ })
		if err != nil || passes < tc.least || passes > tc.passes || m.FreePages() != m.Pages() {
			t.Errorf("%s: %d passes, %d of %d pages free, %v: want %d to %d", tc.name, passes, m.FreePages(), m.Pages(), err, tc.least,
				tc.passes)
		}
		if len(costs) != min(tc.rows, 2) || costs[0].Rows != 1 || costs[len(costs)-1].Rows != tc.rows {
			t.Fatalf("%s: %+v: want 1 and %d rows", tc.name, costs, tc.rows)
		}
		for _, c := range costs {
			if !c.Valid() || c.Time < costs[0].Time {
				t.Errorf("%s: %+v", tc.name, costs)
			}
		}
		m.Close()
	}
	const sides = "../../engine/testdata/sides/"
	block, err := engine.OpenDraft(sides+"dflash.gguf", sides+"target.gguf", engine.Options{Device: testdevice.CPU(t, 1), KVPages: 5})
	if err != nil {
		t.Fatal(err)
	}
	defer block.Close()
	if costs, err := Draft(t.Context(), block, nil); err != nil || len(costs) != 2 || costs[0].Rows != 1 || costs[1].Rows != 64 {
		t.Errorf("a block draft: %+v, %v: want a block, called one row, and 64 rows of a prompt", costs, err)
	}
	full, err := engine.Open(draftPath, engine.Options{Device: testdevice.CPU(t, 1), KVPages: 1})
	if err != nil {
		t.Fatal(err)
	}
	defer full.Close()
	if _, err := Draft(t.Context(), full, nil); !errors.Is(err, tandem.Exhausted) {
		t.Errorf("without memory: %v: want Exhausted", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := Draft(ctx, open(t), nil); !errors.Is(err, context.Canceled) {
		t.Errorf("ended: %v: want Canceled", err)
	}
}
