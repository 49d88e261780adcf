package spec

import (
	"math/rand/v2"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/tandem-llm/tandem"
)

// agree returns how many tokens the ends of a and b have in common.
func agree(a, b []tandem.Token) (n int) {
	for n < min(len(a), len(b)) && a[len(a)-1-n] == b[len(b)-1-n] {
		n++
	}
	return n
}

// TestTextsAgainstSearch: while nothing is too old, and no token stands at more places than are looked at, the longest match is found,
// and what followed it is what followed it.
func TestTextsAgainstSearch(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		alphabet := rapid.IntRange(2, 30).Draw(t, "alphabet")
		token := func() tandem.Token { return tandem.Token(rapid.IntRange(0, alphabet-1).Draw(t, "token")) }
		x := NewTexts(1 << 14)
		var texts [][]tandem.Token
		places := 0
		for range rapid.IntRange(0, 4).Draw(t, "texts") {
			var text []tandem.Token
			for range rapid.IntRange(0, 60).Draw(t, "tokens") {
				text = append(text, token())
			}
			places += len(text)
			texts = append(texts, text)
			x.Add(text)
		}
		var now []tandem.Token
		p := Occurrence{}
		for range rapid.IntRange(1, 60).Draw(t, "now") {
			if len(texts) > 0 && rapid.Bool().Draw(t, "quote") { // go on as an earlier text does, so that there is something to find
				if all := x.Matches(p, now, 1, 1); len(all) > 0 {
					now = append(now, all[0].Next[0])
				} else {
					now = append(now, token())
				}
			} else {
				now = append(now, token())
			}
			p = x.Follow(p, now)
			best := 0
			for _, text := range texts {
				for end := range len(text) {
					best = max(best, agree(text[:end+1], now))
				}
			}
			if best < gram {
				best = 0
			}
			if p.Length > best || p.Length < best && places <= mostPlaces {
				t.Fatalf("%v in %v: a match of %d tokens: want %d", now, texts, p.Length, best)
			}
			matches := x.Matches(p, now, 5, 3)
			if len(matches) > 3 || p.Length == 0 && len(matches) > 0 {
				t.Fatalf("%v at %v: %v", now, p, matches)
			}
			for i, m := range matches {
				if i > 0 && m.Length > matches[i-1].Length || len(m.Next) < 1 || len(m.Next) > 5 || m.Count < 1 {
					t.Fatalf("%v", matches)
				}
				quoted := slices.Concat(now[len(now)-m.Length:], m.Next)
				if !slices.ContainsFunc(texts, func(text []tandem.Token) bool { return occurs(text, quoted) }) {
					t.Fatalf("%v never stood in %v", quoted, texts)
				}
			}
		}
	})
}

// TestTextsForget: the memory stays within its bound however much is added; the latest text is found, the first one no longer.
func TestTextsForget(t *testing.T) {
	for _, most := range []int{1, 7, 1000, 1 << 12, 5000} {
		x := NewTexts(most)
		r := rand.New(rand.NewPCG(1, 2))
		var first, last []tandem.Token
		for range 200 {
			last = make([]tandem.Token, 100)
			for i := range last {
				last[i] = tandem.Token(r.IntN(1000))
			}
			if first == nil {
				first = last
			}
			x.Add(last)
			if x.Bytes() > 12*most {
				t.Fatalf("%d bytes for at most %d tokens", x.Bytes(), most)
			}
		}
		if most < 100 {
			continue
		}
		if p := x.Follow(Occurrence{}, last[:50]); p.Length != 50 {
			t.Errorf("of %d tokens: %d found of the latest text", most, p.Length)
		}
		if p := x.Follow(Occurrence{}, first[:50]); p.Length != 0 {
			t.Errorf("of %d tokens: %d found of the first text", most, p.Length)
		}
	}
}

// TestTextsKeepNewTokens: a conversation that is sent again with each turn takes little more than its last turn each time, and all of it
// is found; after an edit the nearest place goes first.
func TestTextsKeepNewTokens(t *testing.T) {
	x := NewTexts(1 << 16)
	r := rand.New(rand.NewPCG(1, 2))
	var talk []tandem.Token
	for range 20 {
		for range 300 {
			talk = append(talk, tandem.Token(r.IntN(5000)))
		}
		x.Add(talk)
	}
	if x.end > uint32(len(talk)+20*(2*textContext+knownStep+1)) {
		t.Errorf("%d places for %d tokens", x.end, len(talk))
	}
	p := Occurrence{}
	for i := range talk[:len(talk)-1] {
		if p = x.Follow(p, talk[:i+1]); i < gram {
			continue
		}
		if all := x.Matches(p, talk[:i+1], 8, 2); len(all) == 0 || all[0].Next[0] != talk[i+1] {
			t.Fatalf("after %d tokens: %v, then came %d", i+1, all, talk[i+1])
		}
	}
	// One line stands at two places, each with another end. After an edit it goes on where the text was.
	line, a, b := []tandem.Token{1, 2, 3, 4, 5}, []tandem.Token{70, 71, 72, 73, 74}, []tandem.Token{80, 81, 82, 83, 84}
	x = NewTexts(1 << 14)
	x.Add(slices.Concat(a, line, []tandem.Token{7}))
	for i := range 2 * nearby {
		x.Add([]tandem.Token{tandem.Token(1000 + i)})
	}
	x.Add(slices.Concat(b, line, []tandem.Token{8}))
	for _, c := range []struct {
		from []tandem.Token
		want tandem.Token
	}{{a, 7}, {b, 8}} {
		now, p := []tandem.Token(nil), Occurrence{}
		for _, tok := range slices.Concat(c.from, []tandem.Token{9}, line) {
			now = append(now, tok)
			p = x.Follow(p, now)
		}
		if got := x.Matches(p, now, 3, 2); len(got) != 2 || got[0].Next[0] != c.want || got[0].Length != len(line) {
			t.Errorf("after %v and an edit: %v: want %d first", c.from, got, c.want)
		}
	}
}

// TestContinueLongest: between this text and an earlier one, the longer match goes first; a long one goes on as deep as the bounds allow.
func TestContinueLongest(t *testing.T) {
	a := NewAutomaton()
	a.Append(1, 2, 3, 9, 1, 2, 3)
	quote := []Match{{Length: 10, Count: 1, Next: slices.Repeat([]tandem.Token{5}, 31)}, {Length: 4, Count: 2, Next: []tandem.Token{9, 6}}}
	b := tandem.Bounds{Nodes: 4, Depth: 1, Width: 3}
	if got := a.Continue(b, quote...); got.Tokens[1] != 5 || got.Tokens[2] != 9 {
		t.Errorf("10 tokens in an earlier text, 3 in this one: %v", got.Tokens)
	}
	quote[0].Length = 2
	if got := a.Continue(b, quote[:1]...); got.Tokens[1] != 9 || got.Tokens[2] != 5 {
		t.Errorf("2 tokens in an earlier text, 3 in this one: %v", got.Tokens)
	}
	quote[0].Length = 100
	for _, width := range []int{1, 4} {
		got := a.Continue(tandem.Bounds{Nodes: 64, Depth: 31, Width: width}, quote[:1]...)
		if _, depth := got.Depths(); depth != 31 {
			t.Errorf("width %d: depth %d of 31", width, depth)
		}
		if err := got.Validate(64, 100); err != nil {
			t.Error(err)
		}
	}
}

func BenchmarkTextsAdd(b *testing.B) {
	r := rand.New(rand.NewPCG(1, 2))
	text := make([]tandem.Token, 8192)
	for i := range text {
		text[i] = tandem.Token(r.IntN(200))
	}
	x := NewTexts(1 << 20)
	for b.Loop() {
		for i := range text {
			text[i] = (text[i]*7 + 3) % 200
		}
		x.Add(text)
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(len(text)), "ns/token")
}
