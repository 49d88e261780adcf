package grammar

import (
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/test/testkit"
	"github.com/tandem-llm/tandem/text/token"
)

// tokens makes a vocabulary of these texts; the last token is the end.
func tokens(texts ...string) *Vocabulary {
	end := tandem.Token(len(texts))
	return NewVocabulary(func(t tandem.Token) []byte {
		if t == end {
			return nil
		}
		return []byte(texts[t])
	}, len(texts)+1, []tandem.Token{end})
}

// small is a vocabulary of all bytes and of tokens that cross the borders of JSON's parts.
var small = sync.OnceValue(func() *Vocabulary {
	var texts []string
	for c := range 256 {
		texts = append(texts, string([]byte{byte(c)}))
	}
	return tokens(append(texts, `": `, `","`, `", "`, `"}`, `"},{"`, `{"`, `[[`, `]]`, `\"`, `\u`, `\ud8`, `dd1e`, "ä", "€", "\xe2\x82", "\x82\xac", "x€",
		"true", "tr", "ue", " t", "  ", "    ", "\n  ", "ab", "abc",
		"12", ".5", "e+", "-1", "-", "00", "", "€\"", "a\xe2", "<call>", "<c", "call>{", "}}", "null", "null,", "string", strings.Repeat("x", 300), "dup", "dup", "ü", "é", `{"a": 1}`, "2026-", "-01-", "T00:", "@", "://")...)
})

// brute is the mask, token by token.
func brute(v *Vocabulary, s State) Mask {
	m := make(Mask, len(v.all))
	for t := range v.size {
		if v.Allows(s, tandem.Token(t)) {
			m[t>>6] |= 1 << (t & 63)
		}
	}
	return m
}

// check compares the mask of s with brute force, and Single with the mask.
func check(t *testing.T, v *Vocabulary, s State, so []byte) Mask {
	t.Helper()
	m := v.Mask(s)
	if want := brute(v, s); !slices.Equal(m, want) {
		for id := range v.size {
			if id := tandem.Token(id); m.Has(id) != want.Has(id) {
				t.Errorf("after %q: token %d, %q: the mask says %v", so, id, v.bytes(id), m.Has(id))
			}
		}
		t.FailNow()
	}
	var few []tandem.Token
	for id := range v.size {
		if m.Has(tandem.Token(id)) {
			few = append(few, tandem.Token(id))
		}
	}
	if id, ok := v.Single(s); ok != (len(few) == 1) || ok && id != few[0] {
		t.Fatalf("after %q: %d tokens are allowed, and Single says %d, %v", so, len(few), id, ok)
	}
	return m
}

// walk draws allowed tokens until the text ends or is too long, and compares masks with brute force in every state. It returns the text,
// and whether it has ended.
func walk(t *testing.T, v *Vocabulary, g *Grammar, r *rand.Rand, most int, masks bool) (string, bool) {
	t.Helper()
	s, out := g.Start(), []byte(nil)
	for range most {
		var m Mask
		if masks {
			m = check(t, v, s, out)
		} else {
			m = v.Mask(s)
		}
		var ids []tandem.Token
		for id := range v.size {
			if m.Has(tandem.Token(id)) {
				ids = append(ids, tandem.Token(id))
			}
		}
		if len(ids) == 0 {
			t.Fatalf("after %q nothing is allowed", out)
		}
		if s.Done() && (s.Ended() || r.IntN(4) == 0) {
			return string(out), true
		}
		forced := s.Forced()
		id := ids[r.IntN(len(ids))]
		if slices.Contains(v.ends, id) {
			return string(out), true
		}
		text := v.bytes(id)
		if n := min(len(forced), len(text)); string(forced[:n]) != string(text[:n]) {
			t.Fatalf("after %q: %q is forced, and token %q is allowed", out, forced, text)
		}
		next, ok := v.Next(s, id)
		if !ok {
			t.Fatalf("after %q: token %q is in the mask and cannot be read", out, text)
		}
		s, out = next, append(out, text...)
	}
	return string(out), false
}

// specs are constraints of all kinds.
var specs = []Spec{
	{Text: "abc€"}, {Choices: []string{"ab", "abc", "x€", "\"}"}}, {Regex: `[a-c€]*x?`}, {Regex: `(?s).*`}, {Regex: `[^"]{2,5}`}, schema(`{}`), {Object: true},
	{Object: true, Indent: true}, {Repeat: &Repeat{Of: schema(`true`), Separator: "\n", Min: 1, Max: 2}},
	{Until: &Until{Markers: []string{"<call>", "abc"}, End: true, Then: []Spec{{Object: true}, {Regex: "[0-9]+"}}}},
	{Seq: []Spec{{Until: &Until{Markers: []string{"\n"}}}, {Any: []Spec{{Text: "true"}, {Regex: "t?r*"}}}}},
}

func TestMaskIsBruteForce(t *testing.T) {
	for i, spec := range specs {
		g := compile(t, spec)
		for seed := range uint64(20) {
			walk(t, small(), g, rand.New(rand.NewPCG(uint64(i), seed)), 30, true)
		}
	}
	for seed := range uint64(200) {
		m := maker{rand.New(rand.NewPCG(seed, 1))}
		if g, err := Compile(schema(m.whole()), Limits{}); err == nil {
			walk(t, small(), g, m.Rand, 30, true)
		}
	}
}

// vocabularies are files that hold one: shipped, and real.
var vocabularies = map[string]string{"shipped": "../../models/gopher-19m-q8_0.gguf", "smollm": testkit.SmolLM2, "gemma": testkit.Gemma3,
	"qwen": testkit.Qwen05}

// open reads a vocabulary of that name.
func open(t testing.TB, name string) *Vocabulary {
	path := vocabularies[name]
	if name != "shipped" {
		path = testkit.RealModel(t, path)
	}
	v, err := token.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	var ends []tandem.Token
	for id := range v.Size() {
		if v.IsEnd(tandem.Token(id)) {
			ends = append(ends, tandem.Token(id))
		}
	}
	return NewVocabulary(v.Bytes, v.Size(), ends)
}

func TestRealVocabularies(t *testing.T) {
	for name := range vocabularies {
		t.Run(name, func(t *testing.T) {
			v := open(t, name)
			for i, spec := range specs {
				walk(t, v, compile(t, spec), rand.New(rand.NewPCG(uint64(i), 0)), 6, true)
			}
			for seed := range uint64(12) {
				m := maker{rand.New(rand.NewPCG(seed, 9))}
				if g, err := Compile(schema(m.whole()), Limits{}); err == nil {
					walk(t, v, g, m.Rand, 6, true)
				}
			}
			t.Logf("%d tokens, %d and %d nodes, %d kinds of subtrees", v.size, len(v.inside.nodes), len(v.others.nodes), len(v.groups))
		})
	}
}

func TestNoConstraint(t *testing.T) {
	v := tokens("a", "b")
	m := v.Mask(State{})
	for id := range tandem.Token(3) {
		if !m.Has(id) || !v.Allows(State{}, id) {
			t.Errorf("token %d is not allowed", id)
		}
	}
	if _, ok := v.Single(State{}); ok || m.Has(3) || m.Has(-1) {
		t.Error("something is wrong with no constraint")
	}
}

// TestConcurrent: goroutines that share a grammar and a vocabulary find the same texts as one alone.
func TestConcurrent(t *testing.T) {
	g, v := compile(t, schema(`{}`)), small()
	text := func(seed uint64) string {
		out, _ := walk(t, v, g, rand.New(rand.NewPCG(seed, 1)), 60, false)
		return out
	}
	var want [8]string
	for i := range want {
		want[i] = text(uint64(i))
	}
	g = compile(t, schema(`{}`))
	var all sync.WaitGroup
	for i := range want {
		all.Go(func() {
			if got := text(uint64(i)); got != want[i] {
				t.Errorf("beside others %q, alone %q", got, want[i])
			}
		})
	}
	all.Wait()
}
