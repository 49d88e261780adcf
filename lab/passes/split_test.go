package passes

import (
	"testing"

	"github.com/tandem-llm/tandem/kernels"
	"github.com/tandem-llm/tandem/kernels/testdevice"
)

// TestMeeting: two groups of cores meet in much less than a pass.
func TestMeeting(t *testing.T) {
	us, err := meetingUS([2]kernels.Device{testdevice.CPU(t, 1), testdevice.CPU(t, 1)})
	if err != nil || us <= 0 || us > 10_000 {
		t.Errorf("a meeting takes %v µs, %v", us, err)
	}
}
