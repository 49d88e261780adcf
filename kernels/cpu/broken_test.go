//go:build brokenkernel

package cpu_test

import (
	"testing"

	"github.com/tandem-llm/tandem/kernels/kerneltest"
	"github.com/tandem-llm/tandem/kernels/testdevice"
)

// TestWidthDependentKernelIsCaught: in a build with the broken kernel a row alone differs from the row in a wide pass,
// and the comparison that every build makes sees it.
func TestWidthDependentKernelIsCaught(t *testing.T) {
	for _, d := range testdevice.CPUs(t, 1) {
		if !kerneltest.RowsDiffer(t, d) {
			t.Errorf("%v: a kernel that depends on the width of the pass went unnoticed", d.About())
		}
	}
}
