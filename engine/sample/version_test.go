package sample

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/kernels/ref"
)

// digests are those of draws from fixed logits, by the version of the arithmetic.
var digests = map[int]string{1: "f1aaa3fe1a565e67794c9284b9b09803", 2: "9326068211760909de2ce66331d93376",
	3: "9326068211760909de2ce66331d93376"}

// The draws of a version of the arithmetic never change. If this fails after an intended change, ref.Version takes the next number,
// and the digest is added.
func TestVersion(t *testing.T) {
	r, h := rand.New(rand.NewPCG(1, 2)), sha256.New()
	var s Sampler
	for i := range 400 {
		logits := make([]float32, 300)
		for j := range logits {
			logits[j] = float32(r.NormFloat64() * 4)
		}
		p := tandem.Sampling{Temperature: float64(i%5) * 0.4, TopK: i % 3 * 40, TopP: 1 - float64(i%4)*0.1, MinP: float64(i%2) * 0.02,
			Seed:          uint64(i),
			RepeatPenalty: 1 + float64(i%3)*0.1, FrequencyPenalty: float64(i%2) * 0.5, PresencePenalty: float64(i%4) * 0.25,
			Bias: []tandem.Bias{{Token: 7, Add: 1.5}}}
		history := NewHistory(p, []tandem.Token{1, 2, 3, 3, tandem.Token(i % 300)}, 2)
		shaped := s.Shape(logits, p, history)
		fmt.Fprintln(h, s.Draw(shaped, p, tandem.Position(i)), s.Logprob(logits, tandem.Token(i%300), 3))
	}
	if got := hex.EncodeToString(h.Sum(nil)[:16]); got != digests[ref.Version] {
		t.Errorf("draws of version %d give %s: want %s", ref.Version, got, digests[ref.Version])
	}
}
