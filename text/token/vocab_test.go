package token

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"math"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"pgregory.net/rapid"

	"github.com/tandem-llm/tandem"
)

func TestDecoder(t *testing.T) {
	v := newDraft(space, "a", space+"a", "é").vocab(t)
	const a, spaceA = 260, 261
	byteToken := func(b byte) tandem.Token { return v.bytes[b] }
	for _, c := range []struct {
		name   string
		prev   []tandem.Token
		tokens []tandem.Token
		want   []string // one per token, and what Flush returns
	}{
		{"the added space goes", nil, []tandem.Token{1, spaceA, spaceA}, []string{"", "a", " a", ""}},
		{"after BOS it goes too", []tandem.Token{1}, []tandem.Token{spaceA}, []string{"a", ""}},
		{"after a text it stays", []tandem.Token{1, spaceA}, []tandem.Token{spaceA}, []string{" a", ""}},
		{"a space of its own goes", nil, []tandem.Token{259, a}, []string{"", "a", ""}},
		{"a text may begin without", nil, []tandem.Token{a, spaceA}, []string{"a", " a", ""}},
		{"a character of four bytes", []tandem.Token{a}, []tandem.Token{byteToken(0xF0), byteToken(0x9F), byteToken(0xA6), byteToken(0x99)},
			[]string{"", "", "", "🦙", ""}},
		{"half a character", []tandem.Token{a}, []tandem.Token{byteToken(0xC3), a, byteToken(0xE2), byteToken(0x96)},
			[]string{"", "\uFFFDa", "", "", "\uFFFD"}},
		{"no start of a character", []tandem.Token{a}, []tandem.Token{byteToken(0x80), byteToken(0xFF)}, []string{"\uFFFD", "\uFFFD", ""}},
		{"overlong", []tandem.Token{a}, []tandem.Token{byteToken(0xC0), byteToken(0x80)}, []string{"\uFFFD", "\uFFFD", ""}},
		{"begun in the prompt", []tandem.Token{a, byteToken(0xC3)}, []tandem.Token{byteToken(0xA9)}, []string{"é", ""}},
		{"nothing printed", nil, []tandem.Token{0, 1, 2, -1, 9999}, []string{"", "", "", "", "", ""}},
	} {
		t.Run(c.name, func(t *testing.T) {
			d := NewDecoder(v, false, c.prev...)
			for i, id := range c.tokens {
				if got := d.Next(id); got != c.want[i] {
					t.Errorf("token %d (%d) gives %q: want %q", i, id, got, c.want[i])
				}
			}
			if got := d.Flush(); got != c.want[len(c.tokens)] {
				t.Errorf("Flush gives %q: want %q", got, c.want[len(c.tokens)])
			}
			if got := d.Flush(); got != "" {
				t.Errorf("a second Flush gives %q", got)
			}
		})
	}
	plain := newDraft(space+"a").set("add_space_prefix", false).vocab(t)
	if got := NewDecoder(plain, false).Next(259) + plain.Decode([]tandem.Token{259}); got != " a a" {
		t.Errorf("without an added space: %q", got)
	}
}

// TestDecoderOverAnyBytes: however bytes are spread over tokens, a stream says what decoding them at once says.
func TestDecoderOverAnyBytes(t *testing.T) {
	v := newDraft(space, "a", "é").vocab(t)
	rapid.Check(t, func(t *rapid.T) {
		some := rapid.SampledFrom([]byte("a\x80\x9f\xa0\xbf\xc3\xe0\xe2\xed\xf0\xf4\xff"))
		all := append([]byte("a"), rapid.SliceOfN(some, 0, 12).Draw(t, "bytes")...)
		d, got := NewDecoder(v, false, v.bytes['a']), "a"
		for _, b := range all[1:] {
			piece := d.Next(v.bytes[b])
			if got += piece; !utf8.ValidString(piece) {
				t.Fatalf("% x: %q comes", all, piece)
			}
		}
		if got += d.Flush(); got != tandem.Lossy(all) {
			t.Fatalf("% x: %q comes in all, want %q", all, got, tandem.Lossy(all))
		}
	})
}

func TestWritten(t *testing.T) {
	v := newDraft(space, "a", space+"a").vocab(t)
	const a, spaceA = 260, 261
	for _, c := range []struct {
		tokens         []tandem.Token
		prints, writes string
	}{
		{[]tandem.Token{1, spaceA, a, 2}, "aa", "<s>aa</s>"},
		{[]tandem.Token{0, 1, 2}, "", "<unk><s></s>"},
		{[]tandem.Token{1, spaceA, 2, spaceA}, "a a", "<s>a</s> a"},
		{[]tandem.Token{-1, 9999}, "", ""},
	} {
		if got := v.Decode(c.tokens); got != c.prints {
			t.Errorf("%v prints %q: want %q", c.tokens, got, c.prints)
		}
		if got := v.DecodeWritten(c.tokens); got != c.writes {
			t.Errorf("%v is written %q: want %q", c.tokens, got, c.writes)
		}
	}
}

func TestBadVocabulary(t *testing.T) {
	for _, c := range []struct {
		name string
		d    *draft
		kind tandem.Kind
		says string
	}{
		{"no tokenizer", newDraft().set("model", nil), tandem.Corrupt, `key "tokenizer.ggml.model" is missing`},
		{"bert", newDraft().set("model", "bert"), tandem.Unsupported,
			`tokenizer.ggml.model is "bert": want "llama" (SentencePiece), "gpt2" (byte-level) or "gemma4"`},
		{"model of another type", newDraft().set("model", uint32(3)), tandem.Corrupt, `"tokenizer.ggml.model" is 3 (u32): want a string`},
		{"no tokens", newDraft().set("tokens", nil), tandem.Corrupt, `"tokenizer.ggml.tokens" is missing`},
		{"tokens of another type", newDraft().set("tokens", []int32{1}), tandem.Corrupt, "want an array of strings"},
		{"empty", newDraft().set("tokens", []string{}), tandem.Corrupt, "tokenizer.ggml.tokens is empty"},
		{"few scores", newDraft().set("scores", []float32{1}), tandem.Corrupt, "tokenizer.ggml.scores has 1 elements: want 259"},
		{"many types", newDraft().set("token_type", make([]int32, 300)), tandem.Corrupt,
			"tokenizer.ggml.token_type has 300 elements: want 259"},
		{"type 7", newDraft().add(kinds, "x"), tandem.Corrupt, "has 7 (i32) as element 259: want an integer from 0 to 6"},
		{"bos -1", newDraft().set("bos_token_id", int32(-1)), tandem.Corrupt,
			`"tokenizer.ggml.bos_token_id" is -1 (i32): want an integer from 0 to 258`},
		{"eos 259", newDraft().set("eos_token_id", uint32(259)), tandem.Corrupt,
			`eos_token_id" is 259 (u32): want an integer from 0 to 258`},
		{"eot huge", newDraft().set("eot_token_id", uint64(1<<63)), tandem.Corrupt, `eot_token_id" is 9223372036854775808`},
		{"eom a string", newDraft().set("eom_token_id", "x"), tandem.Corrupt, `eom_token_id" is "x" (string)`},
		{"flag of another type", newDraft().set("add_bos_token", uint8(1)), tandem.Corrupt, `add_bos_token" is 1 (u8): want a bool`},
		{"byte token of another form", newDraft().add(single, "<0xGG>"), tandem.Corrupt,
			`token 259 is "<0xGG>" of type byte: want <0x00> to <0xFF>`},
		{"user-defined and long", newDraft().add(userDefined, strings.Repeat("x", 257)), tandem.Corrupt,
			"user-defined token 259 has 257 bytes"},
		{"user-defined and no text", newDraft().add(userDefined, "a\x96"), tandem.Corrupt,
			`user-defined token 259 is "a\x96": want valid UTF-8`},
	} {
		t.Run(c.name, func(t *testing.T) {
			v, err := c.d.parse(t)
			if v != nil || !errors.Is(err, c.kind) || !strings.Contains(err.Error(), c.says) || strings.Contains(err.Error(), "\n") {
				t.Errorf("error %v of kind %v: want %v and %q", err, tandem.KindOf(err), c.kind, c.says)
			}
		})
	}
	gap := newDraft()
	gap.kinds[3+0x41] = int32(normal)
	if _, err := gap.parse(t); !errors.Is(err, tandem.Corrupt) || !strings.Contains(err.Error(), "no token <0x41> of type byte") {
		t.Errorf("without a byte token: %v", err)
	}
	bos := newDraft()
	bos.kinds[1] = int32(normal)
	if _, err := bos.parse(t); !errors.Is(err, tandem.Corrupt) || !strings.Contains(err.Error(), "bos_token_id is missing") {
		t.Errorf("without BOS: %v", err)
	}
	eos := newDraft().set("add_eos_token", true)
	eos.kinds[2] = int32(normal)
	if _, err := eos.parse(t); !errors.Is(err, tandem.Corrupt) || !strings.Contains(err.Error(), "eos_token_id is missing") {
		t.Errorf("without EOS: %v", err)
	}
}

// TestCompare: a draft may have more tokens, fewer, another eos and other types; ids that both have must mean the same text.
func TestCompare(t *testing.T) {
	base := func() *draft { return newDraft("a", "b").add(control, "<|eot|>").add(unused, "[PAD262]") }
	target := base().vocab(t)
	with := func(i int, k kind, piece string) *draft {
		d := base()
		d.kinds[i], d.pieces[i] = int32(k), piece
		return d
	}
	rescored := base().set("add_eos_token", true)
	rescored.scores[260] = 9
	short := base()
	short.pieces, short.scores, short.kinds = short.pieces[:261], short.scores[:261], short.kinds[:261]
	for name, c := range map[string]struct {
		d          *draft
		note, says string // parts of the note, "" for none, and of the error, "" for none
		other      bool   // its fingerprint
	}{
		"the same":               {base(), "", "", false},
		"other scores and flags": {rescored, "", "", false},
		"another begin":          {base().set("bos_token_id", uint32(2)), "", "", true},
		"more tokens": {base().add(unused, "[PAD263]", "[PAD264]"),
			"it has 265 tokens, the target 263: it never drafts the others", "", true},
		"fewer tokens":          {short, "it has 261 tokens, the target 263: it reads a stand-in", "", true},
		"another eos":           {base().set("eos_token_id", uint32(261)), "its texts end with token 261, the target's with 2", "", true},
		"another end of a turn": {base().set("eot_token_id", uint32(261)), "", "", true},
		"another type": {with(260, userDefined, "b"),
			`1 tokens have another type, the first is token 260, "b": type 4 instead of 1`, "", true},
		"padding of another name":   {with(262, unused, "<pad3>"), "", "", true},
		"padding that is text here": {with(262, normal, "c"), "", `token 262 is "[PAD262]" in the target and "c" in the draft`, true},
		"another text":              {with(260, normal, "c"), "", `token 260 is "b" in the target and "c" in the draft`, true},
		"another text and size":     {with(260, normal, "c").add(normal, "d"), "", `token 260 is "b"`, true},
		"another control token": {with(261, control, "<|end|>"), "", `token 261 is "<|eot|>" in the target and "<|end|>" in the draft`,
			true},
	} {
		draft := c.d.vocab(t)
		note, err := Compare(target.Listing(), draft.Listing())
		if c.says == "" && err != nil || c.says != "" && (!errors.Is(err, tandem.Invalid) || !strings.Contains(err.Error(), c.says)) {
			t.Errorf("%s: error %v: want %q", name, err, c.says)
		}
		if (note == "") != (c.note == "") || !strings.Contains(note, c.note) {
			t.Errorf("%s: note %q: want %q", name, note, c.note)
		}
		if (target.Fingerprint() != draft.Fingerprint()) != c.other {
			t.Errorf("%s: fingerprints %x and %x", name, target.Fingerprint(), draft.Fingerprint())
		}
	}
	spaces, written := newDraft(space+space).vocab(t), newDraft().add(userDefined, "  ").vocab(t)
	if _, err := Compare(spaces.Listing(), written.Listing()); err != nil {
		t.Errorf("two ways of writing two spaces: %v", err)
	}
	part := target.Listing()
	part.Pieces, part.Kinds = part.Pieces[:9], part.Kinds[:9]
	if _, err := Compare(target.Listing(), part); !errors.Is(err, tandem.Invalid) {
		t.Errorf("a vocabulary of which most is not known: %v", err)
	}
}

// TestStandIn: it is always a token that the model has.
func TestStandIn(t *testing.T) {
	if got := shipped(t).StandIn(); shipped(t).Piece(got) != "<unk>" {
		t.Errorf("stand-in %d of a vocabulary with an unknown token", got)
	}
	d := newBytes("llama3").add(control, "<|end|>")
	last := len(d.pieces) - 1
	if got := d.set("eos_token_id", uint32(last)).vocab(t).StandIn(); int(got) != last {
		t.Errorf("stand-in %d: want the end of the text, %d", got, last)
	}
	if got := newBytes("llama3").vocab(t).StandIn(); got != 0 {
		t.Errorf("stand-in %d: want the first token", got)
	}
}

func TestShippedVocabulariesAgree(t *testing.T) {
	target := shipped(t)
	if target.Size() != 4096 || target.Model() != "llama" {
		t.Errorf("size %d, model %q", target.Size(), target.Model())
	}
	for _, name := range []string{"all", "go", "py", "prose"} {
		draft := load(t, "../../models/gopher-draft-"+name+"-f16.gguf")
		if note, err := Compare(target.Listing(), draft.Listing()); note != "" || err != nil ||
			target.Fingerprint() != draft.Fingerprint() {
			t.Errorf("%s: %s, %v, fingerprints %x and %x", name, note, err, target.Fingerprint(), draft.Fingerprint())
		}
	}
	if _, err := Compare(target.Listing(), load(t, cutVocabs+"llama-spm.gguf").Listing()); err == nil ||
		!strings.Contains(err.Error(), "vocabularies differ: token 2") {
		t.Errorf("difference from another model: %v", err)
	}
}

// FuzzVocab makes vocabularies of byte tokens and arbitrary pieces (one a line; type and score from the
// bytes of traits): FromGGUF refuses them by an error or encodes by the definition, and decodes.
func FuzzVocab(f *testing.F) {
	f.Add("a\nab\n\u2581\n\u2581a\nb", []byte{1, 1, 1, 1, 1}, int32(1), true, "ab a b\n\xff")
	f.Add("<a>\nx y\na\n", []byte{4, 4, 9, 13, 2}, int32(2), false, "<a>x y</s>")
	f.Add("<0x41>\n<0x4>", []byte{6, 14}, int32(-1), true, "A")
	f.Fuzz(func(t *testing.T, lines string, traits []byte, bos int32, prefix bool, text string) {
		if len(lines) > 200 || len(text) > 100 {
			return // the definition takes cubic time
		}
		d := newDraft().set("bos_token_id", bos).set("add_space_prefix", prefix)
		for i, piece := range strings.Split(lines, "\n") {
			var b byte
			if i < len(traits) {
				b = traits[i]
			}
			d.add(kind(b%8), piece)
			d.scores[len(d.scores)-1] = float32(b / 8)
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
		if err := checkPieces(v, text, v.Encode(text, false)); err != nil {
			t.Fatal(err)
		}
	})
}

// checkPieces says how the tokens of text differ from the definition.
func checkPieces(v *Vocab, text string, got []tandem.Token) error {
	if want := slow(v, text); !slices.Equal(got, want) {
		return fmt.Errorf("%q is %q: want %q", text, pieces(v, got), pieces(v, want))
	}
	if back, want := v.Decode(got), decoded(v, text, v.user); back != want && !strings.HasPrefix(text, " ") {
		return fmt.Errorf("%q became %q", want, back)
	}
	return nil
}

// The oracle of FuzzVocab finds faulty encoders: one that treats scores as equal, one that cuts a word
// where a merge could cross.
func TestBrokenEncodersAreFound(t *testing.T) {
	v := newDraft(space, "a", "ab", "bc", space+"a", "é", "aé").vocab(t)
	const text = "abc aéa abcc"
	if err := checkPieces(v, text, v.Encode(text, false)); err != nil {
		t.Fatal(err)
	}
	level := *v
	level.scores, level.cache = make([]float32, v.Size()), newCache()
	cuts := *v
	cuts.joins, cuts.cache = &joins{}, newCache()
	for name, broken := range map[string]*Vocab{"scores": &level, "cuts": &cuts} {
		if checkPieces(v, text, broken.Encode(text, false)) == nil {
			t.Errorf("%s: not found", name)
		}
	}
}

// TestFNV: the hash of fingerprints is FNV-1a, as in hash/fnv.
func TestFNV(t *testing.T) {
	ours, theirs := fnvBasis, fnv.New64a()
	for _, n := range []int64{0, 1, 255, 256, 1 << 40, -1, math.MinInt64, math.MaxInt64} {
		ours.word(n)
		theirs.Write(binary.LittleEndian.AppendUint64(nil, uint64(n)))
		text := fmt.Sprint(n)
		write(&ours, text)
		theirs.Write(append(binary.LittleEndian.AppendUint64(nil, uint64(len(text))), text...))
		if uint64(ours) != theirs.Sum64() {
			t.Fatalf("after %d: %x: want %x", n, ours, theirs.Sum64())
		}
	}
}
