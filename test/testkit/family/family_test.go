package family

import (
	"bytes"
	"flag"
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

var writeTo = flag.String("goldens", "", "folder to write golden models to, also with weights in f32: for test/scripts/golden-figures")

// TestGolden: golden models are made again with the same bytes. With -goldens they are written, too.
func TestGolden(t *testing.T) {
	for _, name := range Goldens() {
		m := Golden(name)
		if !bytes.Equal(m.Bytes(t), makeGolden(name).Bytes(t)) {
			t.Errorf("%s: made twice, the bytes differ", name)
		}
		if *writeTo != "" {
			m.Write(t, *writeTo)
			m.Name += "-f32"
			m.Widen()
			m.Write(t, *writeTo)
		}
	}
}
