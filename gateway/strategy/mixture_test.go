package strategy

import (
	"testing"
	"time"

	"github.com/tandem-llm/tandem"
)

// streamedMixture is a target whose experts come from a disk of 1 GB/s: 20 layers of the shape of Qwen3-30B-A3B in 4 GiB, of which a pass
// of one row takes 39 ms if all are in memory, and reads 101 MiB (docs/measurements/streaming.md). uses are the experts of 1, 2, 4 … rows
// in those of one; what they miss grows alike. A pass of the draft takes that share of a pass of one row.
func streamedMixture(uses []float64, share float64) *box {
	const (
		rest, expert = 15.0, 24.0   // ms of a row in memory: attention and head, experts
		reading      = 101.0 * 1.05 // ms
	)
	var verify, draft []tandem.Cost
	for i, e := range uses {
		ms := max(rest+expert*e, reading*e) + 0.1*min(rest+expert*e, reading*e) // they hide each other, but for the ends
		verify = append(verify, tandem.Cost{Rows: 1 << i, Time: time.Duration(ms * 1e6)})
		draft = append(draft, tandem.Cost{Rows: 1 << i, Time: time.Duration(share * float64(verify[0].Time))})
	}
	return newPairBox(verify, draft)
}

// TestStreamedMixture: where each row reads experts from the disk, the planner loses no more to plain decoding than its looks may cost,
// 1.5 % and two tokens a text, however often the draft is right; and it gains where rows share experts as they do in Qwen3-30B-A3B and the
// draft is right in 0.7 of its tokens or more.
func TestStreamedMixture(t *testing.T) {
	for name, uses := range map[string][]float64{
		"evenly":      {1, 1.94, 3.64, 6.45, 10.3, 14}, // 128 experts, of which 8
		"as the text": {1, 1.55, 2.3, 3.2, 4.2, 5.2},
	} {
		for _, share := range []float64{0.02, 0.07} {
			b := streamedMixture(uses, share)
			for _, right := range []float64{0.05, 0.3, 0.5, 0.7, 0.88, 0.97} {
				list := texts("text", 8, right, 0)
				best, who := b.chains(t, list)
				plain := b.every(t, list, tandem.Request{Strategy: tandem.StrategyFixed}, nil)["text"].rate()
				sum := b.every(t, list, planned(), inventedNames)["text"]
				ratio := sum.rate() / plain
				t.Logf("%s, %.2f, right %.2f: %.3f × plain, %s %.3f; %.2f tokens of %.1f nodes", name, share, right, ratio, who["text"],
					best["text"]/plain, float64(sum.tokens)/float64(sum.rounds), float64(sum.nodes)/float64(sum.rounds))
				if ratio < 0.97 || name == "as the text" && right >= 0.7 && ratio < 1.15 {
					t.Errorf("%s, %.2f, right %.2f: %.3f × plain", name, share, right, ratio)
				}
			}
		}
	}
}
