package token

import (
	"bytes"
	"encoding/json"
	"math/rand/v2"
	"os"
	"strings"
	"testing"
	"time"
)

// Hostile texts of 1 MiB take about as long as prose.
func TestNoQuadraticTime(t *testing.T) {
	const n = 1 << 20
	rng := rand.New(rand.NewPCG(3, 4))
	noise := make([]byte, n)
	for i := range noise {
		noise[i] = byte(rng.IntN(256))
	}
	powers := newDraft(space)
	for k := 1; k <= 1<<16; k *= 2 {
		powers.add(normal, strings.Repeat("a", k))
	}
	stairs := newDraft(space)
	for k := 1; k <= 1000; k++ {
		stairs.add(normal, strings.Repeat("a", k))
		stairs.scores[len(stairs.scores)-1] = float32(k)
	}
	user := newDraft(space, "a").add(userDefined, strings.Repeat("a", maxUser-1)+"b", strings.Repeat("a", maxUser/2)+"b")
	ship := shipped(t)
	for _, c := range []struct {
		name string
		v    *Vocab
		text string
	}{
		{"spaces", ship, strings.Repeat(" ", n)},
		{"one letter", ship, strings.Repeat("a", n)},
		{"two letters", ship, strings.Repeat("re", n/2)},
		{"newlines", ship, strings.Repeat("\n", n)},
		{"letters without a space", ship, strings.Repeat("thereturnoffuncstring", n/21)},
		{"noise", ship, string(noise)},
		{"powers", powers.vocab(t), strings.Repeat("a", n)},
		{"stairs", stairs.vocab(t), strings.Repeat("a", n)},
		{"nearly user-defined", user.vocab(t), strings.Repeat("a", n)},
	} {
		start := time.Now()
		got := c.v.Encode(c.text, false)
		took := time.Since(start)
		t.Logf("%s: %d tokens in %v", c.name, len(got), took)
		if took > time.Minute { // quadratic time would be hours
			t.Errorf("%s: %d bytes took %v", c.name, len(c.text), took)
		}
		if c.v.Decode(got) != c.text {
			t.Errorf("%s: the round trip changed the text", c.name)
		}
	}
}

func BenchmarkEncode(b *testing.B) {
	prompts, err := os.ReadFile("../../testdata/prompts.jsonl")
	if err != nil {
		b.Fatal(err)
	}
	var p struct{ Prompt string }
	var text string
	for line := range bytes.Lines(prompts) {
		if err := json.Unmarshal(line, &p); err != nil {
			b.Fatal(err)
		}
		text += p.Prompt
	}
	v := shipped(b)
	tokens := v.Encode(text, false)
	b.Run("encode", func(b *testing.B) {
		b.SetBytes(int64(len(text)))
		for b.Loop() {
			v.Encode(text, false)
		}
	})
	b.Run("decode", func(b *testing.B) {
		b.SetBytes(int64(len(text)))
		for b.Loop() {
			d := NewDecoder(v)
			for _, t := range tokens {
				d.Next(t)
			}
		}
	})
}
