package roles

import (
	"testing"

	"github.com/tandem-llm/tandem/engine"
	"github.com/tandem-llm/tandem/kernels"
	"github.com/tandem-llm/tandem/kernels/testdevice"
)

// TestRoomOfLent: an output matrix that a draft maps counts once, with its target; in a room of drafts apart, and as a guest, it counts.
func TestRoomOfLent(t *testing.T) {
	const models = "../../models/"
	size := int64(kernels.Groups16.Bytes(kernels.Q8_0, 4096, 512))
	total := func(lends bool) (*Room, int64) {
		r := &Room{Sizes: sizes(256, 1), Target: models + "gopher-19m-q8_0.gguf", Lends: lends,
			Options: engine.Options{Device: testdevice.CPU(t, 1)}}
		for _, file := range []string{"gopher-19m-q8_0.gguf", "gopher-dovetail-q8_0.gguf"} {
			if err := r.Add(models+file, 8, 8); err != nil {
				t.Fatal(err)
			}
		}
		return r, r.Total()
	}
	_, twice := total(false)
	r, once := total(true)
	if twice-once != size || r.Apart().Total() != twice || r.Total() != once {
		t.Errorf("%d bytes twice, %d once, %d apart: want %d between them", twice, once, r.Apart().Total(), size)
	}
	inside, err := r.Hosting()
	if err != nil {
		t.Fatal(err)
	}
	if a, b := inside.Models[1].Weights, r.Models[1].Weights; a-b != size {
		t.Errorf("%d bytes of weights as a guest, %d in a process: want %d between them", a, b, size)
	}
	if r.Models[0].Borrows() || !r.Models[1].Borrows() {
		t.Error("the target borrows, or the draft does not")
	}
}
