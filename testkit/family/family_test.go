package family

import (
	"bytes"
	"testing"
)

// TestRandom: a seed decides a model's bytes, and different seeds give different ones.
func TestRandom(t *testing.T) {
	for _, name := range Names() {
		a, again, b := Random(name, 1).Bytes(t), Random(name, 1).Bytes(t), Random(name, 2).Bytes(t)
		if !bytes.Equal(a, again) || bytes.Equal(a, b) {
			t.Errorf("%s: seed 1 gives %d and %d bytes, seed 2 %d", name, len(a), len(again), len(b))
		}
		t.Logf("%s: %d bytes", name, len(a))
	}
}
