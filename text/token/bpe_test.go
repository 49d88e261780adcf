package token

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"

	"golang.org/x/text/unicode/norm"

	"github.com/tandem-llm/tandem"
)

// written in GPT-2's alphabet of bytes
func alphabet(s string) string {
	var b strings.Builder
	for i := range len(s) {
		b.WriteRune(rune(slices.Index(runeBytes[:], int16(s[i]))))
	}
	return b.String()
}

// newBytes is a byte-level vocabulary: a token for each byte, by its number, then what the merges make.
func newBytes(pre string, merges ...string) *draft {
	d := &draft{keys: map[string]any{}}
	d.set("model", "gpt2").set("pre", pre).set("scores", nil)
	for b := range 256 {
		d.add(normal, alphabet(string([]byte{byte(b)})))
	}
	return d.merge(merges...)
}

// merge adds merges, "a b" in plain text without spaces, and their tokens.
func (d *draft) merge(merges ...string) *draft {
	list, _ := d.keys["tokenizer.ggml.merges"].([]string)
	for _, m := range merges {
		list = append(list, m)
		if piece := strings.Replace(m, " ", "", 1); !slices.Contains(d.pieces, piece) {
			d.add(normal, piece)
		}
	}
	if list == nil {
		list = []string{}
	}
	return d.set("merges", list)
}

func TestByteLevelCases(t *testing.T) {
	d := newBytes("llama-bpe", "a b", "b c", "Ġ a", "Ġa b", "c c", "d e").add(normal, "abc", alphabet("\n\n"))
	d.add(control, "<|eot|>", "<|e").add(userDefined, "{x}", "{x}y", "õ")
	v := d.vocab(t)
	for _, c := range []struct{ text, plain, marked string }{
		{"", "", ""},
		{"abc", "abc", ""},               // a word that is a token, though the merges make "ab|c"
		{"abcb", "ab|c|b", ""},           // "a b" before "b c"
		{"bcc", "bc|c", ""},              // the leftmost, though both are as good: "b c" is better
		{"ccc", "cc|c", ""},              // of equals the leftmost
		{" ab", "Ġab", ""},               // likewise
		{" a\xff", "Ġa|ÿ", ""},           //
		{"\n\n", "ĊĊ", ""},               //
		{"{x}yab{x}", "{x}y|ab|{x}", ""}, // user-defined
		{"õ", "õ", ""},                   // user-defined texts are not in the alphabet of bytes
		{"<|eot|>de", "<|||e|o|t|||>|de", "<|eot|>|de"},
		{"<|e<|eot|", "<|||e|<|||e|o|t||", "<|e|<|e|o|t||"},
	} {
		if c.marked == "" {
			c.marked = c.plain
		}
		plain, marked := v.Encode(c.text, false), v.EncodeWithControl(c.text, false)
		if pieces(v, plain) != c.plain || pieces(v, marked) != c.marked {
			t.Errorf("%q is %s, with control tokens %s: want %s and %s", c.text, pieces(v, plain), pieces(v, marked), c.plain, c.marked)
		}
		if back := v.Decode(plain); back != c.text {
			t.Errorf("%q decodes as %q", c.text, back)
		}
	}
	if got := pieces(v, v.Encode("ccc", false)); got != "cc|c" {
		t.Errorf("a second time: %s", got)
	}
	d.keys["tokenizer.ggml.pre"] = "dbrx"
	w := d.vocab(t)
	if got := pieces(w, w.Encode("abc ab", false)); got != "ab|c|Ġ|ab" { // "a b" is better than "Ġ a"
		t.Errorf("without whole words, abc ab is %s", got)
	}
}

func TestControlTokensInSentencePiece(t *testing.T) {
	v := newDraft(space+"a", "a", "b").add(control, "[X]").add(userDefined, "[X]b").vocab(t)
	for _, c := range []struct{ text, want string }{{"[X]a", "[X]|▁a"}, {"a[X]b[X][X] b", "▁a|[X]b|[X]|[X]|<0x20>|<0x20>|b"},
		{"a</s>", "▁a|</s>"}, {"a<unk>[X]ba", "▁a|<unk>|[X]b|▁a"}} {
		if got := pieces(v, v.EncodeWithControl(c.text, false)); got != c.want {
			t.Errorf("%q is %s: want %s", c.text, got, c.want)
		}
	}
}

func TestByteLevelBOS(t *testing.T) {
	for _, c := range []struct {
		d    *draft
		want string
	}{
		{newBytes("llama-bpe").add(control, "<b>").set("bos_token_id", uint32(256)), "<b>|a"},
		{newBytes("llama-bpe").add(control, "<b>").set("bos_token_id", uint32(256)).set("add_bos_token", false), "a"},
		{newBytes("llama-bpe"), "a"},
		{newBytes("qwen2").add(control, "<b>").set("bos_token_id", uint32(256)), "a"},
		{newBytes("gpt-2").add(control, "<b>").set("bos_token_id", uint32(256)).set("eos_token_id", uint32(256)).set("add_bos_token",
			true).set("add_eos_token", true), "<b>|a|<b>"},
		{newBytes("gpt-2").set("pre", nil).set("add_space_prefix", true), "a"},
	} {
		v := c.d.vocab(t)
		if got := pieces(v, v.Encode("a", true)); got != c.want {
			t.Errorf("a is %s: want %s", got, c.want)
		}
		if v.bpe.pre.names[0] == "default" && c.d.keys["tokenizer.ggml.pre"] != nil {
			t.Errorf("pre-tokenizer %v", v.bpe.pre.names)
		}
	}
}

func TestBadByteLevelVocabulary(t *testing.T) {
	missing := func(b byte) *draft {
		d := newBytes("gpt-2")
		d.pieces[b] = "xx"
		return d
	}
	for _, c := range []struct {
		name string
		d    *draft
		kind tandem.Kind
		says string
	}{
		{"merges of another type", newBytes("gpt-2").set("merges", []int32{1}), tandem.Corrupt, "want an array of strings"},
		{"merge of one", newBytes("gpt-2", "a b", "ab"), tandem.Corrupt, `merges has "ab" as element 1: want two pieces`},
		{"merge of three", newBytes("gpt-2", "a b c"), tandem.Corrupt, `merges has "a b c" as element 0`},
		{"merge with nothing", newBytes("gpt-2", "a "), tandem.Corrupt, `merges has "a " as element 0`},
		{"nothing with a merge", newBytes("gpt-2", " a"), tandem.Corrupt, `merges has " a" as element 0`},
		{"empty merge", newBytes("gpt-2", ""), tandem.Corrupt, `merges has "" as element 0`},
		{"merge in another alphabet", newBytes("gpt-2", "a 漢"), tandem.Corrupt, `merges has "a 漢" as element 0`},
		{"merge of no UTF-8", newBytes("gpt-2", "a \xff"), tandem.Corrupt, "as element 0"},
		{"pre of another type", newBytes("gpt-2").set("pre", uint32(1)), tandem.Corrupt, `pre" is 1 (u32): want a string`},
		{"pre of no name", newBytes(""), tandem.Unsupported, `tokenizer.ggml.pre is "": want one of`},
		{"few types", newBytes("gpt-2").set("token_type", []int32{1}), tandem.Corrupt, "token_type has 1 elements: want 256"},
		{"no letter q", missing('q'), tandem.Corrupt, "no token for the byte 'q'"},
		{"no newline", missing('\n'), tandem.Corrupt, `no token for the byte '\n'`},
		{"BOS asked for and absent", newBytes("gpt-2").set("add_bos_token", true), tandem.Corrupt, "bos_token_id is missing"},
		{"byte token of another form", newBytes("gpt-2").add(single, "x"), tandem.Corrupt, `token 256 is "x" of type byte`},
		{"unknown token of another type", newBytes("gpt-2").set("unknown_token_id", "x"), tandem.Corrupt, `unknown_token_id" is "x"`},
	} {
		v, err := c.d.parse(t)
		if v != nil || !errors.Is(err, c.kind) || !strings.Contains(err.Error(), c.says) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: error %v of kind %v: want %v and %q", c.name, err, tandem.KindOf(err), c.kind, c.says)
		}
	}
}

// Odd files that other engines accept mean the same here.
func TestOddByteLevelVocabulary(t *testing.T) {
	d := newBytes("gpt-2", "a b", "ab c", "a b", "x y")
	d.pieces[256], d.pieces[258] = "漢字", "b" // "ab" and "xy" are no tokens; "b" is there twice
	d.pieces[0xFF] = "ÿÿ"
	v := d.vocab(t)
	for text, want := range map[string]string{"abc": "abc", "ab": "a|b", "xy": "x|y", "b\xff": "b", "\xff\xff": ""} {
		if got := pieces(v, v.Encode(text, false)); got != want {
			t.Errorf("%q is %s: want %s", text, got, want)
		}
	}
	if got := v.Decode([]tandem.Token{256, 257}); got != "漢字abc" {
		t.Errorf("decodes as %q", got)
	}
	if got := v.Encode("b", false); got[0] != 'b' {
		t.Errorf("of equal tokens %d: want the lowest, %d", got[0], 'b')
	}
	w := d.add(unknown, "<unk>").add(single, "<0x41>").set("unknown_token_id", uint32(259)).vocab(t)
	if got := pieces(w, w.Encode("\xffA", false)); got != "<unk>|A" {
		t.Errorf("a byte without a token is %s", got)
	}
}

// TestByteLevelFingerprint: it depends on everything that changes how text is encoded, also if Compare ignores it.
func TestByteLevelFingerprint(t *testing.T) {
	base := func() *draft { return newBytes("llama3", "a b", "b c") }
	a := base().vocab(t)
	for _, c := range []struct {
		d    *draft
		same bool
	}{
		{base(), true},
		{base().set("pre", "llama-bpe"), true},
		{base().set("pre", "smaug-bpe"), false},
		{base().set("merges", []string{"b c", "a b"}), false},
		{base().set("merges", []string{"a b"}), false},
		{base().set("merges", []string{"a b", "b q"}), false},
	} {
		b := c.d.vocab(t)
		if note, err := Compare(a.Listing(), b.Listing()); note != "" || err != nil {
			t.Errorf("%v: %s, %v", c.d.keys, note, err)
		}
		if (a.Fingerprint() == b.Fingerprint()) != c.same {
			t.Errorf("%v: fingerprints %x and %x", c.d.keys, a.Fingerprint(), b.Fingerprint())
		}
	}
	if _, err := Compare(a.Listing(), newDraft().vocab(t).Listing()); err == nil || !strings.Contains(err.Error(), "token 0 is") {
		t.Errorf("a SentencePiece vocabulary: %v", err)
	}
}

// slowBytes is the definition of byte-level encoding: in each word of the text, which is composed first where the pre-tokenizer says so,
// the best merge, and of equal ones the leftmost, until none is left. It reads only the draft.
func slowBytes(d *draft, p *pre, text string) (out []tandem.Token) {
	token := func(s string) tandem.Token { return tandem.Token(slices.Index(d.pieces, alphabet(s))) }
	rank := map[[2]string]int{}
	merges := d.keys["tokenizer.ggml.merges"].([]string)
	for i := range merges {
		l, r, _ := strings.Cut(merges[len(merges)-1-i], " ")
		rank[[2]string{l, r}] = len(merges) - 1 - i
	}
	if p.composed {
		text = norm.NFC.String(text)
	}
	split(text, p.stages, func(word string) {
		if id := token(word); p.whole && id >= 0 {
			out = append(out, id)
			return
		}
		var parts []string
		for i := range len(word) {
			parts = append(parts, alphabet(word[i:i+1]))
		}
		for {
			best, at := len(merges), -1
			for i := range len(parts) - 1 {
				if r, ok := rank[[2]string{parts[i], parts[i+1]}]; ok && r < best {
					best, at = r, i
				}
			}
			if at < 0 {
				break
			}
			parts = slices.Replace(parts, at, at+2, parts[at]+parts[at+1])
		}
		for _, s := range parts {
			if id := slices.Index(d.pieces, s); id >= 0 {
				out = append(out, tandem.Token(id))
				continue
			}
			for _, r := range s {
				out = append(out, tandem.Token(slices.Index(d.pieces, string(r))))
			}
		}
	})
	return out
}

// checkBytes says how encode differs from the definition.
func checkBytes(d *draft, v *Vocab, text string, encode func(string) []tandem.Token) error {
	got, want := encode(text), slowBytes(d, v.bpe.pre, text)
	if !slices.Equal(got, want) {
		return fmt.Errorf("%q with merges %q is %q: want %q", text, d.keys["tokenizer.ggml.merges"], pieces(v, got), pieces(v, want))
	}
	if v.bpe.pre.composed {
		text = norm.NFC.String(text)
	}
	if back := v.Decode(got); back != text {
		return fmt.Errorf("%q became %q", text, back)
	}
	return nil
}

// randomBytes makes a vocabulary of a few letters, some of whose merges pass through strings without a token.
func randomBytes(rng *rand.Rand) *draft {
	d := newBytes(pres[rng.IntN(len(pres))].names[0])
	known := []string{"a", "b", "Ġ", "'", "Ã", "©"}
	var merges []string
	for range rng.IntN(25) {
		l, r := known[rng.IntN(len(known))], known[rng.IntN(len(known))]
		if len(l+r) > 12 {
			continue
		}
		known = append(known, l+r)
		merges = append(merges, l+" "+r)
		if rng.IntN(4) > 0 && !slices.Contains(d.pieces, l+r) {
			d.add(normal, l+r)
		}
	}
	rng.Shuffle(len(merges), func(i, j int) { merges[i], merges[j] = merges[j], merges[i] })
	return d.set("merges", append([]string{}, merges...))
}

func randomWord(rng *rand.Rand) string {
	var b strings.Builder
	for range rng.IntN(40) {
		b.WriteString([]string{"a", "a", "b", "b", " ", "'", "é", "\xc3", "e\u0301"}[rng.IntN(9)])
	}
	return b.String()
}

func TestByteLevelIsItsDefinition(t *testing.T) {
	rng := rand.New(rand.NewPCG(9, 10))
	for range 300 {
		d := randomBytes(rng)
		v := d.vocab(t)
		for range 5 {
			if err := checkBytes(d, v, randomWord(rng), func(s string) []tandem.Token { return v.Encode(s, false) }); err != nil {
				t.Fatalf("%v: %v", v.bpe.pre.names, err)
			}
		}
	}
}

// FuzzMerges makes byte-level vocabularies of arbitrary merges (one a line): FromGGUF refuses them by an
// error or encodes by the definition, and decodes.
func FuzzMerges(f *testing.F) {
	f.Add("a b\nab c\nb c", "ab\nabc", byte(0), "abcabc bc")
	f.Add("a a\naa aa\na aa", "aa\naaaa", byte(3), "aaaaaaa a")
	f.Add("a b\na b\n\nx", "", byte(1), "ab")
	f.Add("Ã ©\nĠ Ã", "é", byte(2), "é é\xc3")
	f.Add("a \xff\na  b\n b", "漢", byte(4), "a")
	f.Add("", "", byte(slices.IndexFunc(pres, func(p *pre) bool { return p.composed })), "A\u0323 e\u0301\xcc") // composed first
	f.Fuzz(func(t *testing.T, merges, tokens string, which byte, text string) {
		if len(merges) > 300 || len(tokens) > 300 || len(text) > 100 {
			return // the definition takes cubic time
		}
		d := newBytes(pres[int(which)%len(pres)].names[0])
		if merges != "" {
			d.set("merges", strings.Split(merges, "\n"))
		}
		if tokens != "" {
			d.add(normal, strings.Split(tokens, "\n")...)
		}
		v, err := d.parse(t)
		if err != nil {
			if !errors.Is(err, tandem.Corrupt) || strings.Contains(err.Error(), "\n") {
				t.Fatalf("error %q of kind %v", err, tandem.KindOf(err))
			}
			return
		}
		if note, err := Compare(v.Listing(), v.Listing()); note != "" || err != nil {
			t.Fatal(note, err)
		}
		for range 2 { // the second time from the cache
			if err := checkBytes(d, v, text, func(s string) []tandem.Token { return v.Encode(s, false) }); err != nil {
				t.Fatal(err)
			}
		}
	})
}

// The oracle of FuzzMerges finds encoders with a fault.
func TestBrokenMergesAreFound(t *testing.T) {
	longest := func(v *Vocab, text string) (out []tandem.Token) { // the longest token each time
		for text != "" {
			n := min(len(text), v.longest)
			for v.ids()[text[:n]] == 0 && n > 1 {
				n--
			}
			out = append(out, v.ids()[text[:n]])
			text = text[n:]
		}
		return out
	}
	unranked := func(v *Vocab, text string) []tandem.Token { // the leftmost merge, whatever its rank
		w, b := *v, *v.bpe
		w.bpe, w.cache = &b, newCache()
		table := *v.bpe.table()
		table.merges = map[uint64]merge{}
		for k, m := range v.bpe.table().merges {
			table.merges[k] = merge{0, m.symbol}
		}
		b.table = func() *merged { return &table }
		return w.Encode(text, false)
	}
	unsplit := func(v *Vocab, text string) []tandem.Token { // merges across words
		w, b := *v, *v.bpe
		w.bpe, w.cache = &b, newCache()
		b.pre = &pre{names: v.bpe.pre.names}
		return w.Encode(text, false)
	}
	for name, broken := range map[string]func(*Vocab, string) []tandem.Token{"longest": longest, "unranked": unranked, "unsplit": unsplit} {
		rng := rand.New(rand.NewPCG(11, 12))
		found := slices.ContainsFunc(make([]int, 200), func(int) bool {
			d := randomBytes(rng)
			v := d.vocab(t)
			return checkBytes(d, v, randomWord(rng), func(s string) []tandem.Token { return broken(v, s) }) != nil
		})
		if !found {
			t.Errorf("%s: not found", name)
		}
	}
}

// Many goroutines share a vocabulary and its cache.
func TestConcurrentEncode(t *testing.T) {
	d := newBytes("gpt-2", "a b", "Ġ a", "b a", "ab a")
	v := d.vocab(t)
	rng := rand.New(rand.NewPCG(13, 14))
	texts := make([]string, 2000)
	for i := range texts {
		texts[i] = randomWord(rng)
	}
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			for _, s := range texts {
				if err := checkBytes(d, v, s, func(s string) []tandem.Token { return v.Encode(s, false) }); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	all.Wait()
}
