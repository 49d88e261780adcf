package token

import (
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/tandem-llm/tandem"
)

// firmParts are what texts are made of that a tokenizer may cut anew once more follows.
var firmParts = []string{" ", "  ", "\n", "\r\n", "\t", "'", "'s", "'l", "'r", "e", "l", "v", "a", "b", "ab", "A", "AB", "Ab", "1", "23",
	"½", "/",
	"(", ").", "=", "é", "日本", "ǅ", "\u0301", "\xc3", "\xa9", "\xff", "\xe2\x96", "\x81", space, "<a>", "<a", ">", "<a>b", "x y", "x",
	"word", "\U0001F600"}

func firmText(rng *rand.Rand, most int) string {
	var b strings.Builder
	for range rng.IntN(most + 1) {
		b.WriteString(firmParts[rng.IntN(len(firmParts))])
	}
	return b.String()
}

// firmVocabs are vocabularies of every tokenizer and pre-tokenizer, with merges that compete.
func firmVocabs(t testing.TB) map[string]*Vocab {
	users := []string{"<a>", "<a>b>", "x y", ">("}
	out := map[string]*Vocab{
		"shipped": shipped(t),
		"pieces": newDraft(space, space+space, space+"a", "ab", "abA", "bA", space+"word", "a"+space+"b", "1"+space, "é", "日本", "'s",
			"e"+space).
			add(userDefined, users...).vocab(t),
		"merged": newMerged("ab"+space+"'swordé", "a b", "w o", "o r", "wo rd", "r d", space+" "+space, space+" a",
			"b "+space).add(userDefined, users...).vocab(t),
		"bytes": newBytes("gpt-2").vocab(t),
	}
	for _, p := range pres {
		out[p.names[0]] = newBytes(p.names[0], "a b", "b A", "Ġ Ġ", "ĠĠ a", "Ġ a", "Ã ©", "w o", "r d", "wo rd", "o r", "2 3", "1 23",
			"Ċ Ċ", ") .",
			"' s", "l l", "ab A").add(userDefined, users...).vocab(t)
		rng := rand.New(rand.NewPCG(3, uint64(len(out))))
		d := randomBytes(rng)
		out["random "+p.names[0]] = d.set("pre", p.names[0]).vocab(t)
	}
	return out
}

// firmFault returns what is wrong with the settled part and the firm tokens of a text, seen from the tokens of it and more; "" for nothing.
func firmFault(v *Vocab, text, more string) string {
	n := v.Settled(text)
	if n < 0 || n > len(text) {
		return "out of the text"
	}
	all := v.EncodeNext(text + more)
	if two := append(v.EncodeNext(text[:n]), v.EncodeNext(text[n:]+more)...); !slices.Equal(two, all) {
		return "settled " + text[:n] + ": " + pieces(v, two) + " instead of " + pieces(v, all)
	}
	firm := v.Firm(text)
	if len(firm) > len(all) || !slices.Equal(firm, all[:len(firm)]) {
		return "firm " + pieces(v, firm) + " does not begin " + pieces(v, all)
	}
	return ""
}

// TestFirm: no further text changes what was called settled or firm, for random texts and every tokenizer.
func TestFirm(t *testing.T) {
	for name, v := range firmVocabs(t) {
		rng := rand.New(rand.NewPCG(1, 2))
		settled, firm, size := 0, 0, 0
		for range 3000 {
			text, more := firmText(rng, 8), firmText(rng, 4)
			if fault := firmFault(v, text, more); fault != "" {
				t.Errorf("%s: %q + %q: %s", name, text, more, fault)
				break
			}
			settled, size = settled+v.Settled(text), size+len(text)
			for _, id := range v.Firm(text) {
				firm += len(v.Bytes(id))
			}
		}
		t.Logf("%s: of %d bytes %d are settled and %d firm", name, size, settled, firm)
		if settled == 0 || firm < settled {
			t.Errorf("%s: %d bytes are settled and %d firm", name, settled, firm)
		}
	}
}

// TestFirmCases: how much stays, where a text could go on as another.
func TestFirmCases(t *testing.T) {
	bytes := newBytes("gpt-2", "a b", "Ġ ab", "Ġab c").vocab(t)
	sentences := newDraft(space, space+"ab", space+"abc", "ab", "cd", "abcd").vocab(t)
	for _, c := range []struct {
		v             *Vocab
		text, settled string
		firm          string
	}{
		{v: bytes, text: "", settled: "", firm: ""},
		{v: bytes, text: "x ab", settled: "x", firm: "x"},           // Ġabc could come
		{v: bytes, text: "x abc", settled: "x", firm: "x|Ġabc"},     // no piece begins with it
		{v: bytes, text: "x ab ", settled: "x ab", firm: "x|Ġab"},   // the space may join the next word
		{v: bytes, text: "x\xc3", settled: "", firm: "x"},           // half a character
		{v: bytes, text: "(a", settled: "(", firm: "("},             // ab
		{v: sentences, text: "x ab", settled: "x", firm: "<0x78>"},  // ▁abc
		{v: sentences, text: "x abc", settled: "x", firm: "<0x78>"}, // could end with cd
		{v: sentences, text: "x abcdx", settled: "x abcd", firm: "<0x78>|▁abc|<0x64>|<0x78>"},
		{v: sentences, text: "x ab\xe2", settled: "x", firm: "<0x78>"},
	} {
		n := c.v.Settled(c.text)
		if firm := pieces(c.v, c.v.Firm(c.text)); c.text[:n] != c.settled || firm != c.firm {
			t.Errorf("%q: settled %q, firm %q: want %q and %q", c.text, c.text[:n], firm, c.settled, c.firm)
		}
	}
}

// FuzzFirm is TestFirm for any text.
func FuzzFirm(f *testing.F) {
	vocabs := firmVocabs(f)
	var names []string
	for name := range vocabs {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, text := range []string{"func main() {", "a\n  b", "don't", "\xc3", "日本A"} {
		for i := range names {
			f.Add(uint8(i), text, "re 12")
		}
	}
	f.Fuzz(func(t *testing.T, which uint8, text, more string) {
		name := names[int(which)%len(names)]
		if fault := firmFault(vocabs[name], text, more); fault != "" {
			t.Errorf("%s: %q + %q: %s", name, text, more, fault)
		}
	})
}

// TestEncodeNext: nothing is added to a text that continues another.
func TestEncodeNext(t *testing.T) {
	v := shipped(t)
	whole := v.Encode("return nil", false)
	if got := v.EncodeNext(" return nil"); !slices.Equal(got, whole) {
		t.Errorf("%s: want %s", pieces(v, got), pieces(v, whole))
	}
	if got := v.EncodeNext(""); len(got) != 0 {
		t.Errorf("nothing has tokens %v", []tandem.Token(got))
	}
}
