package token

import (
	"cmp"
	"math"
	"slices"

	"github.com/tandem-llm/tandem"
)

// Count adds to counts, which has Size elements, how often each token is in a text.
func (v *Vocab) Count(counts []int, text string) {
	for _, t := range v.Encode(text, false) {
		counts[t]++
	}
}

// Needed returns the tokens without which no text can be told to its end, ascending: single bytes, of which every text can be made, among
// them ASCII's characters; control and user-defined tokens, of which chat templates and calls of tools consist; the ends of a generation;
// the unknown token.
func (v *Vocab) Needed() (all []tandem.Token) {
	for i, k := range v.kinds {
		t := tandem.Token(i)
		if k == control || k == userDefined || k == single || k == unknown || len(v.prints[i]) == 1 || v.IsEnd(t) {
			all = append(all, t)
		}
	}
	return all
}

// usual is what chat answers are made of whatever they are about. Their tokens are rare in the texts that tokenizers are trained on.
const usual = "```\n```python\n```go\n```javascript\n```typescript\n```java\n```cpp\n```c\n```rust\n```bash\n```sh\n```sql\n```json\n" +
	"```yaml\n```html\n```css\n```xml\n```\n\n ```\n   ```\n\n# A\n\n## A\n\n### A\n\n#### A\n\n- **A**: a\n  - **`a`**: a\n\n* a\n\n" +
	"1. **A:**\n\n2. a `a`, `a`. `a()`\n\n| A | B |\n|---|---|\n| --- | --- |\n---\n\nSure! Here is\nCertainly! Here are\n" +
	"Of course, \nHere's\nBelow is\nLet's\nTo\nYes, \nNo, \nNote: \nIn this example, \nThis code\nExplanation:\n\n" +
	"Example usage:\n\nOutput:\n\nStep 1: First, \nFinally, "

// zipf is the number of Zipf and Mandelbrot's law: the token of rank r, from 0 on, is as frequent as 1/(r + zipf).
const zipf = 2.7

// Frequent returns n tokens, ascending, those that a draft can say if it has only so many: the needed ones, those of usual answers, and
// then the likeliest. How likely a token is, is half its share of the tokens that counts has, and half what Zipf's law says of its rank:
// the order in which the tokenizer's training made the tokens, which is by their frequency in its texts. Texts of another kind than the
// answers to come so spoil little. counts may be nil. Errors: Invalid for an n that the needed tokens exceed, or that leaves nothing out.
func (v *Vocab) Frequent(n int, counts []int) ([]tandem.Token, error) {
	needed := v.Needed()
	if n <= len(needed) || n >= v.Size() {
		return nil, tandem.Errorf(op, tandem.Invalid, "%d tokens to keep: want more than the %d that every text needs (bytes, control "+
			"tokens, markers of templates), and fewer than all %d", n, len(needed), v.Size())
	}
	chance := v.chances(counts)
	for _, t := range v.Encode(usual, false) {
		chance[t] = 1
	}
	for _, t := range needed {
		chance[t] = 2
	}
	all := make([]tandem.Token, v.Size())
	for i := range all {
		all[i] = tandem.Token(i)
	}
	slices.SortFunc(all, func(a, b tandem.Token) int { return cmp.Or(cmp.Compare(chance[b], chance[a]), int(a-b)) })
	all = all[:n]
	slices.Sort(all)
	return all, nil
}

// chances returns how likely each token is, as Frequent has it.
func (v *Vocab) chances(counts []int) []float64 {
	total, norm := 0, 0.0
	for i := range v.Size() {
		norm += 1 / (float64(i) + zipf)
	}
	for _, n := range counts {
		total += n
	}
	all := make([]float64, v.Size())
	for i, rank := range v.made() {
		all[i] = 1 / (float64(rank) + zipf) / norm / 2
		if total > 0 {
			all[i] += float64(counts[i]) / float64(total) / 2
		}
	}
	return all
}

// made returns for each token when the training of its tokenizer made it: the place of its merge, or of its score among all scores; those
// without are the last. A file with neither merges nor scores has its tokens in that order.
func (v *Vocab) made() []int {
	at := make([]int, v.Size())
	switch {
	case v.bpe != nil && len(v.bpe.table().order) > 0:
		table := v.bpe.table()
		for i := range at {
			at[i] = math.MaxInt32
		}
		for i, pair := range table.order {
			if to := table.merges[pair].symbol; int(to) < len(at) {
				at[to] = min(at[to], i)
			}
		}
	case v.scores != nil:
		order := make([]tandem.Token, v.Size())
		for i := range order {
			order[i] = tandem.Token(i)
		}
		slices.SortStableFunc(order, func(a, b tandem.Token) int { return cmp.Compare(v.scores[b], v.scores[a]) })
		for i, t := range order {
			at[t] = i
		}
	default:
		for i := range at {
			at[i] = i
		}
	}
	return at
}
