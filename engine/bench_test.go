package engine_test

import (
	"fmt"
	"testing"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/engine"
	"github.com/tandem-llm/tandem/engine/enginetest"
	"github.com/tandem-llm/tandem/kernels/testdevice"
)

// BenchmarkPass times one pass over the shipped models at a context of 128, by model and width.
func BenchmarkPass(b *testing.B) {
	for name, path := range map[string]string{"target": enginetest.Target, "draft": enginetest.Draft} {
		for _, width := range []int{1, 4, 10, 16, 64} {
			b.Run(fmt.Sprintf("%s/W=%d", name, width), func(b *testing.B) {
				m := enginetest.Open(b, path, engine.Options{Device: testdevice.CPU(b, 1)})
				s := enginetest.NewSeq(b, m, 200, 64)
				enginetest.Forward(b, m, 0, engine.Part{Seq: s, Extend: make([]tandem.Token, 128)})
				parents := make([]int32, width)
				for i := range parents {
					parents[i] = int32(i) - 1
				}
				for b.Loop() {
					enginetest.Forward(b, m, 10, engine.Part{Seq: s, Nodes: make([]tandem.Token, width), Parents: parents,
						Want: engine.WantTail})
					if err := s.Truncate(128); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
	}
}
