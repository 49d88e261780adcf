package measure

import (
	"testing"

	"github.com/tandem-llm/tandem/engine"
	"github.com/tandem-llm/tandem/kernels/testdevice"
)

// TestChains: guesses that are always right take as many passes as their length allows, guesses that never are take one a token, and the
// texts are those of plain decoding.
func TestChains(t *testing.T) {
	const tokens = 12
	for right, passes := range map[float64]int{1: 2 * 3, 0: 2 * tokens} {
		g := Guessing{Context: 5, Tokens: tokens, Chains: []int{3}, Right: right, Rounds: 2}
		m, err := engine.Open("../../models/gopher-19m-q8_0.gguf", engine.Options{Device: testdevice.CPU(t, 2), KVPages: g.Pages(),
			MaxRows: 16, MaxWanted: 8})
		if err != nil {
			t.Fatal(err)
		}
		defer m.Close()
		got, err := Chains(t.Context(), m, g)
		if err != nil {
			t.Fatal(err)
		}
		if len(got) != 2 || got[0].Passes != 2*tokens || got[1].Passes != passes || got[1].Tokens != 2*tokens || got[0].Guesses != 0 {
			t.Errorf("right with a chance of %v: %+v, want %d passes", right, got, passes)
		}
	}
}
