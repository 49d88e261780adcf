package token

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/modelfile/gguf"
)

// load reads the vocabulary of a model file.
func load(t testing.TB, path string) *Vocab {
	t.Helper()
	f, err := gguf.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	v, err := FromGGUF(f)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

const shippedPath = "../../models/gopher-19m-q8_0.gguf"

func shipped(t testing.TB) *Vocab { return load(t, shippedPath) }

// draft is a vocabulary before it is checked: <unk>, <s>, </s>, the byte tokens, then pieces with
// falling scores.
type draft struct {
	pieces []string
	scores []float32
	kinds  []int32
	keys   map[string]any // a nil value drops a key
}

func newDraft(pieces ...string) *draft {
	d := &draft{keys: map[string]any{}}
	d.add(unknown, "<unk>").add(control, "<s>", "</s>")
	for b := range 256 {
		d.add(single, fmt.Sprintf("<0x%02X>", b))
	}
	return d.add(normal, pieces...)
}

func (d *draft) add(k kind, pieces ...string) *draft {
	for _, p := range pieces {
		d.pieces = append(d.pieces, p)
		d.scores = append(d.scores, -float32(len(d.pieces)))
		d.kinds = append(d.kinds, int32(k))
	}
	return d
}

func (d *draft) set(key string, value any) *draft {
	d.keys["tokenizer.ggml."+key] = value
	return d
}

func (d *draft) file(t testing.TB) []byte {
	t.Helper()
	w := gguf.NewWriter()
	w.Set("tokenizer.ggml.model", "llama")
	w.Set("tokenizer.ggml.tokens", d.pieces)
	w.Set("tokenizer.ggml.scores", d.scores)
	w.Set("tokenizer.ggml.token_type", d.kinds)
	for k, v := range d.keys {
		if v == nil {
			w.DropKey(k)
		} else {
			w.Set(k, v)
		}
	}
	var b bytes.Buffer
	if _, err := w.WriteTo(&b); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func (d *draft) parse(t testing.TB) (*Vocab, error) {
	t.Helper()
	f, err := gguf.Parse(d.file(t))
	if err != nil {
		t.Fatal(err)
	}
	return FromGGUF(f)
}

func (d *draft) vocab(t testing.TB) *Vocab {
	t.Helper()
	v, err := d.parse(t)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

// pieces renders tokens for comparison: "▁a|b|<0x0A>".
func pieces(v *Vocab, tokens []tandem.Token) string {
	var out []string
	for _, t := range tokens {
		out = append(out, v.Piece(t))
	}
	return strings.Join(out, "|")
}

// slow is the definition of the encoding: merge the best neighbours of the whole text until none are
// left.
func slow(v *Vocab, text string) []tandem.Token {
	var out []tandem.Token
	text = strings.ReplaceAll(text, " ", space)
	plain := func(part string) {
		if part != "" && v.spacePrefix {
			part = space + part
		}
		out = append(out, slowMerge(v, part)...)
	}
	from := 0
	for i := 0; i < len(text); i++ {
		best, length := tandem.Token(-1), 0
		for id, p := range v.pieces {
			p = strings.ReplaceAll(p, " ", space)
			if v.kinds[id] == userDefined && p != "" && strings.HasPrefix(text[i:], p) && len(p) > length {
				best, length = tandem.Token(id), len(p)
			}
		}
		if best >= 0 {
			plain(text[from:i])
			out = append(out, best)
			from = i + length
			i = from - 1
		}
	}
	plain(text[from:])
	return out
}

func slowMerge(v *Vocab, text string) []tandem.Token {
	find := func(s string) tandem.Token {
		for id, p := range v.pieces {
			if k := v.kinds[id]; p == s && (k == normal || k == undefined || k == unused) {
				return tandem.Token(id)
			}
		}
		return -1
	}
	var parts []string
	for len(text) > 0 {
		n := 1
		for n < len(text) && text[n]&0xC0 == 0x80 && strings.ToValidUTF8(text[:n], "") == "" {
			n++
		}
		if strings.ToValidUTF8(text[:n], "") == "" {
			n = 1
		}
		parts = append(parts, text[:n])
		text = text[n:]
	}
	for {
		best := -1
		for i := range len(parts) - 1 {
			if id := find(parts[i] + parts[i+1]); id >= 0 && (best < 0 || v.scores[id] > v.scores[find(parts[best]+parts[best+1])]) {
				best = i
			}
		}
		if best < 0 {
			break
		}
		parts[best] += parts[best+1]
		parts = slices.Delete(parts, best+1, best+2)
	}
	var out []tandem.Token
	for _, p := range parts {
		if id := find(p); id >= 0 {
			out = append(out, id)
			continue
		}
		if p == space {
			p = " "
		}
		for i := range len(p) {
			out = append(out, tandem.Token(3+int(p[i])))
		}
	}
	return out
}

// Random vocabularies and texts over few characters: Encode equals its definition.
func TestEncodeIsItsDefinition(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	letters := []string{"a", "b", "c", space, "é", "\xff", "\xe2\x96"}
	word := func(most int) string {
		var s string
		for range 1 + rng.IntN(most) {
			s += letters[rng.IntN(len(letters))]
		}
		return s
	}
	for range 300 {
		d := newDraft()
		for range 1 + rng.IntN(30) {
			d.add([]kind{normal, normal, normal, normal, undefined, unused, control}[rng.IntN(7)], word(5))
		}
		if rng.IntN(3) == 0 {
			d.add(userDefined, strings.ToValidUTF8(word(3), "é"), strings.ToValidUTF8(word(3), "b"))
		}
		for i := range d.scores {
			d.scores[i] = float32(rng.IntN(6))
		}
		d.set("add_space_prefix", rng.IntN(2) == 0)
		v := d.vocab(t)
		for range 5 {
			text := strings.ReplaceAll(word(40), space, " ")
			if got, want := v.Encode(text, false), slow(v, text); !slices.Equal(got, want) {
				t.Fatalf("%q with pieces %q of types %d and scores %v:\n got %q\nwant %q", text, d.pieces[259:], d.kinds[259:],
					d.scores[259:], pieces(v, got), pieces(v, want))
			}
		}
	}
}

func TestEncodeCases(t *testing.T) {
	d := newDraft(space, "a", "b", "ab", space+"a", "<", "/", "s", ">", "</", "</s")
	d.add(userDefined, "<a>", "<a>b", "x y")
	v := d.vocab(t)
	for _, c := range []struct{ text, want string }{
		{"", ""},
		{" ", "▁|▁"},
		{"ab", "▁|ab"}, // of ▁ a b, "ab" scores above "▁a"
		{"a b", "▁a|▁|b"},
		{"\n\x00", "▁|<0x0A>|<0x00>"},
		{"é", "▁|<0xC3>|<0xA9>"},
		{"\xff\xc3", "▁|<0xFF>|<0xC3>"},
		{"</s>", "▁|</s|>"},                             // control tokens are not read out of text
		{"<0x41>", "▁|<|<0x30>|<0x78>|<0x34>|<0x31>|>"}, // nor are byte tokens
		{"b<a>bb", "▁|b|<a>b|▁|b"},                      // a space is added to each part
		{"<a>a", "<a>|▁a"},
		{"x yx y ", "x y|x y|▁|▁"},
		{"x▁ya", "x y|▁a"},
		{"b<unk>", "▁|b|<|<0x75>|<0x6E>|<0x6B>|>"}, // nor are unknown tokens
	} {
		got := v.Encode(c.text, false)
		if pieces(v, got) != c.want {
			t.Errorf("%q is %s: want %s", c.text, pieces(v, got), c.want)
		}
		if back := v.Decode(got); back != decoded(v, c.text, v.user) {
			t.Errorf("%q decodes as %q", c.text, back)
		}
	}
	none := newDraft("a").set("add_space_prefix", false).vocab(t)
	if got := pieces(none, none.Encode(" a", false)); got != "<0x20>|a" {
		t.Errorf("without a piece for the space: %s", got)
	}
}

func TestSpecialTokens(t *testing.T) {
	v := newDraft("a").add(control, "<|eot|>", "<|eom|>").set("add_eos_token", true).set("eot_token_id", uint32(260)).set("eom_token_id",
		uint32(261)).vocab(t)
	if got := pieces(v, v.Encode("", true)); got != "<s>|</s>" {
		t.Errorf("an empty text is %s", got)
	}
	if got := pieces(v, v.Encode("a", true)); got != "<s>|<0x20>|a|</s>" {
		t.Errorf("a is %s", got)
	}
	for _, id := range []tandem.Token{2, 260, 261} {
		if !v.IsEnd(id) {
			t.Errorf("token %d does not end a generation", id)
		}
	}
	if v.IsEnd(1) || v.IsEnd(-1) || v.IsEnd(0) {
		t.Error("too many tokens end a generation")
	}
	bare := newDraft().set("add_bos_token", false)
	bare.kinds[1], bare.kinds[2] = int32(normal), int32(normal)
	w := bare.vocab(t)
	if id, ok := w.BOS(); ok {
		t.Errorf("BOS is %d: want none", id)
	}
	if id, ok := w.EOS(); ok || w.IsEnd(-1) {
		t.Errorf("EOS is %d: want none", id)
	}
	if p := v.Piece(-1) + v.Piece(262) + string(v.Bytes(99999)) + string(v.Bytes(1)) + string(v.Bytes(0)); p != "" {
		t.Errorf("tokens that print nothing print %q", p)
	}
}

// decoded returns what the tokens of a text print in which tokens of user are found: the text, with a space after each of these tokens
// where texts begin with one.
func decoded(v *Vocab, text string, user *texts) string {
	if v.composes() {
		text = compose(text)
	}
	if v.byteLevel() {
		return text
	}
	var out string
	for done := 0; done < len(text); {
		at, id, n := user.find(text[done:])
		if at > 0 && done > 0 && v.spacePrefix {
			out += " "
		}
		out += text[done : done+at]
		if n > 0 {
			out += string(v.Bytes(id))
		}
		done += at + n
	}
	return strings.ReplaceAll(out, space, " ")
}

// checkRoundTrip says what is wrong with the tokens of text: whole and as a stream they are the text again.
func checkRoundTrip(v *Vocab, text string, tokens []tandem.Token, next func(*Decoder, tandem.Token) string) error {
	want := decoded(v, text, v.user)
	if got := v.Decode(tokens); got != want {
		return fmt.Errorf("%q became %q", want, got)
	}
	d := NewDecoder(v, false)
	var out string
	for _, id := range tokens {
		piece := next(d, id)
		if strings.ToValidUTF8(piece, "") != piece {
			return fmt.Errorf("%q streams %q", text, piece)
		}
		out += piece
	}
	if out += d.Flush(); out != tandem.Lossy(want) {
		return fmt.Errorf("%q streams as %q", want, out)
	}
	return nil
}

func FuzzEncode(f *testing.F) {
	vocabs := []*Vocab{shipped(f), newDraft(space, "a", "ab", "é").add(userDefined, "<a>", "x y").vocab(f),
		newDraft("a").set("add_space_prefix", false).vocab(f),
		newBytes("llama-bpe", "a b", "Ã ©").add(control, "<b>").add(userDefined, "<a>", "x y").set("bos_token_id", uint32(258)).vocab(f)}
	for _, s := range []string{"", " ", "func main() {\n\tfmt.Println(\"héllo\")\n}", "\xff\xe2\x96 \xe2", "a<a>b x yé ", "日本語 🦙"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		for i, v := range vocabs {
			tokens := v.Encode(text, true)
			if bos, _ := v.BOS(); tokens[0] != bos {
				t.Fatalf("vocabulary %d: no BOS before %q", i, text)
			}
			if err := checkRoundTrip(v, text, tokens, (*Decoder).Next); err != nil {
				t.Fatalf("vocabulary %d: %v", i, err)
			}
		}
	})
}

// The oracle of FuzzEncode finds a stream that cuts characters, and a text that loses a byte.
func TestBrokenRoundTripsAreFound(t *testing.T) {
	v := shipped(t)
	const text = "aé\xff 🦙"
	tokens := v.Encode(text, true)
	if err := checkRoundTrip(v, text, tokens, (*Decoder).Next); err != nil {
		t.Fatal(err)
	}
	if checkRoundTrip(v, text, tokens[:len(tokens)-1], (*Decoder).Next) == nil {
		t.Error("a lost byte is not found")
	}
	cut := func(d *Decoder, t tandem.Token) string { return string(d.v.Bytes(t)) }
	if checkRoundTrip(v, text, tokens, cut) == nil {
		t.Error("cut characters are not found")
	}
}
