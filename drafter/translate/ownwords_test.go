package translate

import (
	"bytes"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/drafter/draftertest"
	"github.com/tandem-llm/tandem/modelfile/gguf"
	"github.com/tandem-llm/tandem/text/token"
)

// byteVocab returns a byte-level vocabulary with merges, each of two texts of letters or "Ġ" for a space. Token 0 begins texts and ends
// them.
func byteVocab(t testing.TB, merges ...string) *token.Vocab {
	t.Helper()
	pieces, kinds := []string{"<|end|>", "<|user|>"}, []int32{3, 3}
	next := 0x100
	for b := range 0x100 {
		if b > ' ' && b <= '~' || b > 0xA0 && b != 0xAD {
			pieces = append(pieces, string(rune(b)))
		} else {
			pieces = append(pieces, string(rune(next)))
			next++
		}
		kinds = append(kinds, 1)
	}
	for _, m := range merges {
		if joined := strings.ReplaceAll(m, " ", ""); !slices.Contains(pieces, joined) {
			pieces, kinds = append(pieces, joined), append(kinds, 1)
		}
	}
	w := gguf.NewWriter()
	for key, value := range map[string]any{"model": "gpt2", "pre": "gpt-2", "tokens": pieces, "token_type": kinds, "merges": merges,
		"bos_token_id": uint32(0), "eos_token_id": uint32(0), "add_bos_token": true} {
		w.Set("tokenizer.ggml."+key, value)
	}
	var b bytes.Buffer
	if _, err := w.WriteTo(&b); err != nil {
		t.Fatal(err)
	}
	v, err := token.Parse(b.Bytes())
	if err != nil {
		t.Fatal(err)
	}
	return v
}

// vocabPairs are pairs of vocabularies, the target's first: tokens of many bytes against single ones, both ways round, and merges that
// divide the same texts otherwise.
func vocabPairs(t testing.TB) map[string][2]*token.Vocab {
	t.Helper()
	shipped, err := token.Open(draftertest.ModelFile)
	if err != nil {
		t.Fatal(err)
	}
	single := byteVocab(t, "Ã ©")
	some := byteVocab(t, "Ġ t", "h e", "Ġt he", "i n", "r e", "re t", "u r", "ret ur", "retur n", "Ċ Ċ", "( )", "Ġ Ġ", "f u", "fu n", "n c")
	others := byteVocab(t, "e t", "Ġ r", "t h", "th e", "u r", "Ġr et", "n c", "u nc", "( )", "Ġ (", "Ċ Ġ", "i n", "t u")
	return map[string][2]*token.Vocab{"bytes for pieces": {shipped, single}, "pieces for bytes": {single, shipped},
		"merges for pieces": {shipped, some}, "pieces for merges": {some, shipped}, "merges for merges": {some, others},
		"the same": {some, some}}
}

// someTokens are random tokens of v, most of them of ordinary text, some of them any: bytes alone, parts of characters, tokens that steer.
func someTokens(rng *rand.Rand, v *token.Vocab, n int) (out []tandem.Token) {
	texts := []string{"return nil", " the", "\n\t", "func (r *Reader) Read(", "é", "日本", " ", "don't", "\xc3", "()", "  x"}
	for len(out) < n {
		if rng.IntN(4) == 0 {
			out = append(out, tandem.Token(rng.IntN(v.Size())))
		} else {
			out = append(out, v.EncodeNext(texts[rng.IntN(len(texts))])...)
		}
	}
	return out[:n]
}

// TestOwnWords: however a text comes, the draft's tokens are those of the whole text; they print what the target's print; and what is
// called settled stays.
func TestOwnWords(t *testing.T) {
	for name, pair := range vocabPairs(t) {
		of, own := pair[0], pair[1]
		rng := rand.New(rand.NewPCG(1, 1))
		for round := range 300 {
			all := append(of.Begin(), someTokens(rng, of, 1+rng.IntN(30))...)
			w, stay := newOwnWords(of, own), []tandem.Token(nil)
			for at := 0; at < len(all); {
				n := 1 + rng.IntN(min(4, len(all)-at))
				w.add(all[at : at+n]...)
				at += n
				got, settled := w.tokens()
				if len(got) < len(stay) || !slices.Equal(got[:len(stay)], stay) {
					t.Fatalf("%s, round %d: %v was settled, now %v", name, round, stay, got)
				}
				stay = slices.Clone(got[:settled])
				whole := newOwnWords(of, own)
				whole.add(all[:at]...)
				if want, _ := whole.tokens(); !slices.Equal(got, want) {
					t.Fatalf("%s, round %d: %d tokens in parts are %v, at once %v", name, round, at, got, want)
				}
				if mine, theirs := strings.TrimLeft(own.Decode(got), " "), strings.TrimLeft(of.Decode(all[:at]), " "); mine != theirs &&
					!steers(of, all[:at]) {
					t.Fatalf("%s, round %d: %q prints %q", name, round, theirs, mine)
				}
			}
		}
	}
}

func steers(v *token.Vocab, tokens []tandem.Token) bool {
	return slices.ContainsFunc(tokens[1:], v.Steers)
}

// TestOwnWordsOfWhole: of a text that is tokenised at once, the draft's tokens are those of its own tokenizer.
func TestOwnWordsOfWhole(t *testing.T) {
	const text = "func (r *Reader) Read(p []byte) (n int, err error) {\n\treturn 0, io.EOF // été\n}\n\ndon't  stop"
	for name, pair := range vocabPairs(t) {
		w := newOwnWords(pair[0], pair[1])
		w.add(pair[0].Encode(text, true)...)
		if got, _ := w.tokens(); !slices.Equal(got, pair[1].Encode(text, true)) {
			t.Errorf("%s: %v, want %v", name, got, pair[1].Encode(text, true))
		}
	}
}

// TestCounterparts: a token that steers is read as the draft's own of the same name or meaning, or not at all.
func TestCounterparts(t *testing.T) {
	of, own := byteVocab(t), byteVocab(t, "a b")
	w := newOwnWords(of, own)
	w.add(0, 1) // the beginning, and a token that both have
	w.add(of.EncodeNext("ab")...)
	w.add(1)
	w.add(of.EncodeNext("a")...)
	want := append([]tandem.Token{0, 1}, own.EncodeNext("ab")...)
	want = append(append(want, 1), own.EncodeNext("a")...)
	if got, settled := w.tokens(); !slices.Equal(got, want) || settled != len(want)-1 {
		t.Errorf("%v, %d settled: want %v", got, settled, want)
	}
}

// TestLongWord: a text without a place to begin anew is tokenised again in parts of bounded length.
func TestLongWord(t *testing.T) {
	pair := vocabPairs(t)["bytes for pieces"]
	w := newOwnWords(pair[0], pair[1])
	letters := pair[0].EncodeNext(strings.Repeat("abcdefgh", 1<<12))
	for _, id := range letters {
		w.add(id)
		if len(w.tail) > mostTail {
			t.Fatalf("%d bytes wait", len(w.tail))
		}
	}
	if got, _ := w.tokens(); pair[1].Decode(got) != strings.Repeat("abcdefgh", 1<<12) {
		t.Errorf("%d tokens print another text", len(got))
	}
}

// randomTree is a tree in the draft's tokens.
func randomTree(rng *rand.Rand, own *token.Vocab, nodes int) tandem.Tree {
	tree := tandem.Tree{Tokens: []tandem.Token{0}, Parents: []int32{-1}, LogProbs: []float32{0}}
	pool := someTokens(rng, own, 12)
	for range nodes {
		p := int32(rng.IntN(tree.Len()))
		if rng.IntN(2) == 0 {
			p = int32(tree.Len() - 1)
		}
		id := pool[rng.IntN(len(pool))]
		known := false
		for i, parent := range tree.Parents {
			known = known || parent == p && tree.Tokens[i] == id
		}
		if !known {
			tree.Tokens, tree.Parents = append(tree.Tokens, id), append(tree.Parents, p)
			tree.LogProbs = append(tree.LogProbs, tree.LogProbs[p]-rng.Float32()*3)
		}
	}
	return tree
}

// translationFault returns what is wrong with the translation of a tree; "" for nothing.
func translationFault(w *ownWords, from, to tandem.Tree, root tandem.Token, b tandem.Bounds) string {
	if err := to.Validate(b.Nodes, w.of.Size()); err != nil {
		return err.Error()
	}
	if _, depth := to.Depths(); depth > b.Depth || to.Tokens[0] != root {
		return fmt.Sprintf("depth %d below %d", depth, to.Tokens[0])
	}
	texts := map[string]bool{} // all texts that the draft's nodes begin with
	for i := range from.Tokens {
		text := pathText(w.own, from, i)
		for n := range len(text) + 1 {
			texts[text[:n]] = true
		}
	}
	for i := 1; i < to.Len(); i++ {
		if text := pathText(w.of, to, i); text == "" || !texts[text] {
			return fmt.Sprintf("node %d has the text %q, which was not drafted", i, text)
		}
		if lp := to.LogProbs[i]; lp > to.LogProbs[to.Parents[i]] || lp > to.LogProbs[i-1] || math.IsInf(float64(lp), 0) {
			return fmt.Sprintf("node %d has the log-probability %v behind %v", i, lp, to.LogProbs[:i])
		}
	}
	return ""
}

// pathText is what the tokens from the root, exclusively, to a node print.
func pathText(v *token.Vocab, t tandem.Tree, node int) (text string) {
	for n := int32(node); n > 0; n = t.Parents[n] {
		text = string(v.Bytes(t.Tokens[n])) + text
	}
	return text
}

// TestTranslatedTrees: whatever tree is drafted, what is handed over is a valid tree of drafted texts, within its draftertest.Bounds,
// likely nodes first.
func TestTranslatedTrees(t *testing.T) {
	for name, pair := range vocabPairs(t) {
		rng := rand.New(rand.NewPCG(2, 2))
		nodes, kept := 0, 0
		for round := range 400 {
			w := newOwnWords(pair[0], pair[1])
			w.add(append(pair[0].Begin(), pair[0].EncodeNext("x y")...)...)
			from, b := randomTree(rng, pair[1], rng.IntN(40)), tandem.Bounds{Nodes: 1 + rng.IntN(20), Depth: 1 + rng.IntN(9), Width: 4}
			to := w.theirs(from, 5, b)
			if fault := translationFault(w, from, to, 5, b); fault != "" {
				t.Fatalf("%s, round %d: %s: %+v of %+v", name, round, fault, to, from)
			}
			nodes, kept = nodes+from.Len(), kept+to.Len()
		}
		if t.Logf("%s: %d nodes of %d", name, kept, nodes); kept < nodes/20 {
			t.Errorf("%s: of %d nodes %d are left", name, nodes, kept)
		}
	}
}

// TestTranslatedChances: the text that two paths share has the chance of both, and an end that could go on as another token is cut.
func TestTranslatedChances(t *testing.T) {
	of, own := byteVocab(t, "a b", "ab c"), byteVocab(t, "b x")
	id := func(v *token.Vocab, s string) tandem.Token { return v.EncodeNext(s)[0] }
	w := newOwnWords(of, own)
	w.add(of.EncodeNext("(")...)
	half, quarter := float32(math.Log(0.5)), float32(math.Log(0.25))
	from := tandem.Tree{Parents: []int32{-1, 0, 1, 1, 3}, LogProbs: []float32{0, 0, half, quarter, quarter},
		Tokens: []tandem.Token{0, id(own, "a"), id(own, "bx"), id(own, "b"), id(own, "(")}}
	got := w.theirs(from, id(of, "("), tandem.Bounds{Nodes: 9, Depth: 9, Width: 2})
	want := tandem.Tree{Tokens: []tandem.Token{id(of, "("), id(of, "ab"), id(of, "x"), id(of, "(")}, Parents: []int32{-1, 0, 1, 1},
		LogProbs: []float32{0, float32(math.Log(0.75)), half, quarter}}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("got %v, want %v", got, want)
	}
	from = tandem.Tree{Parents: []int32{-1, 0, 1}, LogProbs: []float32{0, 0, half}, Tokens: []tandem.Token{0, id(own, "a"), id(own, "b")}}
	if got := w.theirs(from, 7, tandem.Bounds{Nodes: 9, Depth: 9, Width: 2}); got.Len() != 1 { // abc could come
		t.Errorf("the end is not cut: %v", got)
	}
}

// TestHindsightInOtherTokens: a token of the target is foreseen if all of the draft's that share its text are.
func TestHindsightInOtherTokens(t *testing.T) {
	of, own := byteVocab(t, "a b", "c d", "cd e"), byteVocab(t, "b c")
	theirs, mine := of.EncodeNext("xabcde"), own.EncodeNext("xabcde") // x ab cde, x a bc d e
	for _, c := range []struct {
		hits uint64 // the lowest bit is e
		want tandem.Hindsight
	}{
		{0b11111, tandem.Hindsight{Tokens: 3, Hits: 0b111}},
		{0b11011, tandem.Hindsight{Tokens: 3, Hits: 0b100}}, // bc is in both
		{0b10111, tandem.Hindsight{Tokens: 3, Hits: 0b101}},
		{0b11110, tandem.Hindsight{Tokens: 3, Hits: 0b110}},
	} {
		if got := hindsight(tandem.Hindsight{Tokens: 5, Hits: c.hits}, own, mine, of, theirs); got != c.want {
			t.Errorf("%05b: %+v, want %+v", c.hits, got, c.want)
		}
	}
	if got := hindsight(tandem.Hindsight{Tokens: 3, Hits: 7}, own, mine, of, theirs); got.Tokens != 1 || got.Hits != 1 {
		t.Errorf("of three tokens: %+v", got)
	}
}

// FuzzTranslation is TestOwnWords and TestTranslatedTrees for any texts of a target and any drafted text, one path.
func FuzzTranslation(f *testing.F) {
	pairs := vocabPairs(f)
	var names []string
	for name := range pairs {
		names = append(names, name)
	}
	slices.Sort(names)
	for i := range names {
		f.Add(uint8(i), "func main() {\n", "\treturn x", uint8(3))
		f.Add(uint8(i), "\xe2\x96", "\x81a", uint8(1))
	}
	f.Fuzz(func(t *testing.T, which uint8, text, drafted string, cut uint8) {
		pair := pairs[names[int(which)%len(names)]]
		w := newOwnWords(pair[0], pair[1])
		all := pair[0].Encode(text, true)
		at := min(int(cut), len(all))
		w.add(all[:at]...)
		w.add(all[at:]...)
		whole := newOwnWords(pair[0], pair[1])
		whole.add(all...)
		got, _ := w.tokens()
		if want, _ := whole.tokens(); !slices.Equal(got, want) && len(text) < mostTail/2 {
			t.Fatalf("in parts %v, at once %v", got, want)
		}
		from := tandem.Root(got[len(got)-1])
		from.LogProbs = []float32{0}
		for i, id := range pair[1].EncodeNext(drafted) {
			from.Tokens, from.Parents = append(from.Tokens, id), append(from.Parents, int32(i))
			from.LogProbs = append(from.LogProbs, -float32(i))
		}
		b := tandem.Bounds{Nodes: 64, Depth: 32, Width: 1}
		w.add(pair[0].EncodeNext("x")...)
		if fault := translationFault(w, from, w.theirs(from, 3, b), 3, b); fault != "" {
			t.Fatal(fault)
		}
	})
}
