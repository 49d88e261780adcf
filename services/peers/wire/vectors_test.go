package wire

import (
	"math"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/tandem-llm/tandem"
	peerv1 "github.com/tandem-llm/tandem/proto/peer/v1"
)

func TestVectorsSurvive(t *testing.T) {
	q := tandem.VectorQuery{Tenant: "a", Inputs: [][]tandem.Token{{1, math.MaxInt32}, {0}}, Pooling: tandem.PoolingMean, Fingerprint: "f"}
	same(t, ToVectorQuery(over(t, FromVectorQuery(q))), q)
	v := tandem.Vectors{Identity: "i", Rows: [][]float32{{1, -0.5, math.MaxFloat32}, {0, float32(math.Inf(1)), 3}}}
	got, err := ToVectors(over(t, FromVectors(v)), 2)
	if err != nil {
		t.Fatal(err)
	}
	same(t, got, v)
}

// FuzzToVectors: an answer is either what was asked for or Corrupt.
func FuzzToVectors(f *testing.F) {
	valid, _ := proto.Marshal(&peerv1.Vectors{Identity: "i", Width: 2, Rows: make([]byte, 16)})
	f.Add(valid, 2)
	f.Add([]byte{}, 0)
	f.Fuzz(func(t *testing.T, data []byte, inputs int) {
		var m peerv1.Vectors
		if proto.Unmarshal(data, &m) != nil || inputs < 1 || inputs > 1000 {
			return
		}
		v, err := ToVectors(&m, inputs)
		if err == nil {
			err = v.Validate(inputs)
		} else if tandem.KindOf(err) == tandem.Corrupt {
			return
		}
		if err != nil {
			t.Fatalf("%d inputs: %v", inputs, err)
		}
	})
}
