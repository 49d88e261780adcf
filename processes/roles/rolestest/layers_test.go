package rolestest

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tandem-llm/tandem/client"
	"github.com/tandem-llm/tandem/kernels/cuda"
	"github.com/tandem-llm/tandem/kernels/cuda/emulated"
	"github.com/tandem-llm/tandem/kernels/layers"
	"github.com/tandem-llm/tandem/kernels/testdevice"
	"github.com/tandem-llm/tandem/processes/roles"
)

// layered is a verifier's device: the processor, with layers on a GPU.
type layered struct{ *layers.Device }

func (layered) Close() {} // its devices are the test's

// onGPU makes devices with layers on a GPU.
func onGPU(t *testing.T, gpu *cuda.Device, budget int64, tell func(layers.Placement)) func() (roles.Device, error) {
	return func() (roles.Device, error) {
		return layered{layers.New(layers.Config{Near: testdevice.CPU(t, 1), Far: gpu, Budget: budget, Tell: tell})}, nil
	}
}

// TestLayersOnGPU: with layers of the target on a GPU the text is that of plain decoding on the processor, with a draft and without. When
// the GPU is lost in the middle of a request, the verifier ends and says why, and the request goes on with its successor.
func TestLayersOnGPU(t *testing.T) {
	if testing.Short() {
		t.Skip("an emulated GPU verifies slowly: skipped with -short")
	}
	s := Start(t, target)
	request := client.Request{Prompt: "func (r *Reader) Read(", Temperature: new(0.8), Seed: new(uint64(7)), NoDraft: true,
		MaxTokens: new(24), IgnoreEOS: true}
	want := s.first(request)
	same := func(what string) {
		t.Helper()
		s.again(what, request, want)
	}
	gpu, driver := testdevice.GPU(t, emulated.Options{})
	var placed layers.Placement
	ended := s.VerifierOn(onGPU(t, gpu, 28<<20, func(p layers.Placement) { placed = p }))
	if placed.Layers < 1 || placed.Layers >= placed.Of || placed.Weights+placed.KV+placed.Buffers > 28<<20 {
		t.Fatalf("%v: want some layers on the GPU", placed)
	}
	same("plain, with layers on the GPU")
	s.Drafter("drafter", draft)
	request.NoDraft = false
	s.awaitDrafted("drafted, with layers on the GPU", request, want)

	driver.FailLaunch(40)
	lost := make(chan error, 1)
	go func() {
		got, _, _, err := s.Generate(request)
		if err == nil && !slices.Equal(got, want) {
			t.Errorf("over the loss of the GPU: tokens %v, want %v", got, want)
		}
		lost <- err
	}()
	select {
	case err := <-ended:
		if err == nil || !strings.Contains(err.Error(), "the far device (cuda): cuda: emulated GPU is lost") {
			t.Errorf("the verifier ended with %v, want that its device is lost", err)
		}
	case <-time.After(patience):
		t.Fatal("the verifier goes on without its device")
	}
	s.RestartVerifier()
	select {
	case err := <-lost:
		if err != nil {
			t.Errorf("the request over the loss of the GPU: %v", err)
		}
	case <-time.After(patience):
		t.Fatal("the request does not end")
	}
	same("on the processor again")
}
