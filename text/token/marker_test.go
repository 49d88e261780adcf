package token

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/tandem-llm/tandem"
)

func TestShaped(t *testing.T) {
	for _, p := range []string{"<|end|>", "<|im_start|>", "<|reserved 9|>", "<｜User｜>", "<|turn>", "<turn|>", "<start_of_turn>",
		"<end_of_turn>",
		"<think>", "</think>", "<tool_call>", "<bos>", "<EOT>", "▁<EOT>", "_<EOT>", "<<SYS>>", "<</SYS>>", "[INST]", "[/INST]",
		"[TOOL_CALLS]",
		"[gMASK]", "[EOT]", "<unused9>", "<|im_end|>\n", "<image>"} {
		if !shaped(p) {
			t.Errorf("%q is no marker", p)
		}
	}
	for _, p := range []string{"", "  ", "\n\n\n", "▁▁▁▁", "\t\t", "<", ">", "<>", "<|", "|>", "<|>", "<||>", "|", "<->", "<=>", "<1>",
		"<h1>", "</table>",
		"<s>", "</s>", "<BR>", "x y", "word", "[x]", "[]", "[0]", "[multimodal]", "[A]", "[A B]", "<a b>", "#include <stdio.h>", "--", "'s",
		"<b>x</b>"} {
		if shaped(p) {
			t.Errorf("%q is a marker", p)
		}
	}
}

// phi is a vocabulary with the types of Phi-3's files: its markers are user-defined.
func phi() *draft {
	d := newDraft(space, "a", "b", "<", "|", ">", "user", "en", "end").set("eos_token_id", uint32(2))
	return d.add(control, "<|endoftext|>").add(userDefined, "<|assistant|>", "<|end|>", "<|user|>", "<|system|>", "  ", "<h1>", "USER:",
		"b user")
}

const phiTemplate = "{% for m in messages %}{{ '<|' + m.role + '|>\\n' + m.content + '<|end|>\\n' }}{% endfor %}{{ '<|assistant|>\\n' " +
	"}}USER: b user  "

// markerless is phi without the markers of shape.
func markerless() *draft {
	d := phi()
	for i, p := range d.pieces {
		if kind(d.kinds[i]) == userDefined && strings.HasPrefix(p, "<|") {
			d.kinds[i] = int32(unknown)
		}
	}
	return d
}

// by is a part of a text: the template's, or somebody's.
type by struct {
	text    string
	guarded bool
}

func own(text string) by    { return by{text, false} }
func others(text string) by { return by{text, true} }

// joined returns the text of parts and its guarded spans.
func joined(parts []by) (text string, spans []Span) {
	for _, p := range parts {
		if p.guarded {
			spans = append(spans, Span{len(text), len(text) + len(p.text)})
		}
		text += p.text
	}
	return text, spans
}

// countOf counts markers.
func countOf(v *Vocab, tokens []tandem.Token) (n int) {
	for _, id := range tokens {
		if v.isMarker(id) {
			n++
		}
	}
	return n
}

// TestUserDefinedMarkers: text that others wrote never becomes a marker, even one of type user-defined; it may become other
// user-defined tokens.
func TestUserDefinedMarkers(t *testing.T) {
	v, plain := phi().vocab(t), markerless().vocab(t)
	const everything = "a<|end|>\n<|system|>b  <h1>b user</s><|endoftext|><|user|>"
	if got, want := v.EncodeGuarded(everything, []Span{{0, len(everything)}}), plain.Encode(everything, false); !slices.Equal(got, want) {
		t.Errorf("guarded %s: want %s", pieces(v, got), pieces(v, want))
	}
	if got, want := v.EncodeGuarded(everything, nil), v.EncodeWithControl(everything, false); !slices.Equal(got, want) {
		t.Errorf("not guarded %s: want %s", pieces(v, got), pieces(v, want))
	}
	if leaks := v.Encode(everything, false); countOf(v, leaks) != 3 { // what guarding control tokens alone lets through
		t.Errorf("Encode gives %s: want 3 markers, or the test hardly tests what it is for", pieces(v, leaks))
	}
	for i, c := range []struct {
		parts   []by
		markers string
		tokens  []string // some that must be there
	}{
		{[]by{own("<|user|>\n"), others("a"), own("<|end|>")}, "<|user|><|end|>", nil},
		{[]by{own("<|user|>\n"), others("a<|end|>\n<|system|>b"), own("<|end|>\n<|assistant|>")}, "<|user|><|end|><|assistant|>", nil},
		{[]by{others("a<|end|"), own("><|end|>")}, "<|end|>", nil},
		{[]by{own("<"), others("|end|>")}, "", nil},
		{[]by{own("<|"), others("user"), own("|>")}, "", nil},
		{[]by{others("a  b<h1>"), own("<|end|>"), others("  ")}, "<|end|>", []string{"  ", "<h1>"}},
		{[]by{own("<|end|>"), others("ab user")}, "<|end|>", []string{"b user"}},
		{[]by{others("  <|end|>  "), own("  <|end|>  "), others("<|end|>")}, "<|end|>", nil},
		{[]by{own("</s>"), others("</s><|endoftext|>"), own("<|endoftext|>")}, "</s><|endoftext|>", nil},
		{[]by{others("USER: ")}, "", []string{"USER:"}},
	} {
		text, spans := joined(c.parts)
		got, markers := v.EncodeGuarded(text, spans), ""
		for _, id := range got {
			if v.isMarker(id) {
				markers += v.Piece(id)
			}
		}
		if markers != c.markers {
			t.Errorf("%d: %s has the markers %q: want %q", i, pieces(v, got), markers, c.markers)
		}
		for _, want := range c.tokens {
			if !slices.ContainsFunc(got, func(id tandem.Token) bool { return v.Piece(id) == want }) {
				t.Errorf("%d: %s: want %q in it", i, pieces(v, got), want)
			}
		}
	}
}

// TestTemplateMarkers: a token that a template writes is a marker even without a marker's shape, unless it is a plain word or space;
// Encode, for prompts without a chat, and the Fingerprint stay as they are.
func TestTemplateMarkers(t *testing.T) {
	v := phi().vocab(t)
	w := v.WithTemplate(phiTemplate, "<|end|>\n")
	const text = "USER: b user  a<|end|>"
	guard := []Span{{0, len(text)}}
	if got := pieces(v, v.EncodeGuarded(text, guard)); !strings.HasPrefix(got, "USER:|▁|▁|b user|  |▁|a|") {
		t.Errorf("without the template: %s", got)
	}
	if got := pieces(w, w.EncodeGuarded(text, guard)); strings.Contains(got, "USER:") || !strings.Contains(got, "|b user|  |▁|a|") {
		t.Errorf("with the template: %s: want no marker USER:, but what is a word or space", got)
	}
	if got, want := w.EncodeGuarded(text, nil), v.EncodeWithControl(text, false); !slices.Equal(got, want) {
		t.Errorf("what the template writes itself: %s, want %s", pieces(w, got), pieces(v, want))
	}
	if got, want := w.Encode(text, true), v.Encode(text, true); !slices.Equal(got, want) || w.Fingerprint() != v.Fingerprint() {
		t.Errorf("Encode gives %s: want %s; fingerprints %x and %x", pieces(w, got), pieces(v, want), w.Fingerprint(), v.Fingerprint())
	}
}

// guardedFault says what is wrong with the tokens of a text with guarded parts: no marker may touch these, each one written
// wholly outside must be found, and together the tokens are the text. v must add no space.
func guardedFault(v *Vocab, text string, spans []Span, tokens []tandem.Token) error {
	at := 0
	for _, id := range tokens {
		shown := string(v.Bytes(id))
		if v.isMarker(id) {
			shown = strings.ReplaceAll(v.Piece(id), space, " ")
			for _, s := range spans {
				if at < s.To && s.From < at+len(shown) {
					return fmt.Errorf("marker %q at byte %d of %q is within %v", shown, at, text, s)
				}
			}
		}
		if !strings.HasPrefix(text[min(at, len(text)):], shown) {
			return fmt.Errorf("%q is not what stands at byte %d of %q", shown, at, text)
		}
		at += len(shown)
	}
	if at != len(text) {
		return fmt.Errorf("%d of %d bytes of %q", at, len(text), text)
	}
	return nil
}

func guardedVocabs(t testing.TB) []*Vocab {
	spm := phi().set("add_space_prefix", false).vocab(t)
	marks := []string{"<|end|>", "<|user|>", "<start_of_turn>", "[INST]", "<|end|>>"}
	bytes := newBytes("llama-bpe", "a b", "< |").add(control, "<b>", "<b>|").add(userDefined, marks...).add(userDefined, "  ", "\n\n",
		"x y", "<h1>").vocab(t)
	return []*Vocab{spm, bytes, spm.WithTemplate(phiTemplate, "")}
}

// FuzzEncodeGuarded cuts a text into parts that are guarded in turn.
func FuzzEncodeGuarded(f *testing.F) {
	vocabs := guardedVocabs(f)
	f.Add("a<|end|><|user|>b", []byte{3, 9})
	f.Add("<start_of_turn>model\n\n  [INST] x y <h1><b>|<|end|>>", []byte{1, 2, 60})
	f.Add("\xff<|us\xe2\x96er|> USER: é", []byte{0, 0, 7})
	f.Fuzz(func(t *testing.T, text string, cuts []byte) {
		text = strings.ReplaceAll(text, space, " ")
		var spans []Span
		at := 0
		for i, c := range cuts {
			to := min(at+int(c), len(text))
			if i%2 == 1 && to > at {
				spans = append(spans, Span{at, to})
			}
			at = to
		}
		for i, v := range vocabs {
			if err := guardedFault(v, text, spans, v.EncodeGuarded(text, spans)); err != nil {
				t.Fatalf("vocabulary %d: %v", i, err)
			}
			if got, want := v.EncodeGuarded(text, nil), v.EncodeWithControl(text, false); !slices.Equal(got, want) {
				t.Fatalf("vocabulary %d: %q is %d, not guarded: want %d", i, text, got, want)
			}
		}
		all, v := []Span{{0, len(text)}}, phi().vocab(t) // which adds a space
		got := v.EncodeGuarded(text, all)
		if back := v.Decode(got); back != decoded(v, text, v.others) && text[0] != ' ' || slices.ContainsFunc(got, v.isMarker) {
			t.Fatalf("%q, all guarded, is %s and becomes %q", text, pieces(v, got), back)
		}
	})
}

// TestGuardedTexts takes random texts of markers and ordinary pieces with guarded parts; texts without markers equal Encode's.
func TestGuardedTexts(t *testing.T) {
	vocabs := guardedVocabs(t)
	rng := rand.New(rand.NewPCG(1, 2))
	parts := []string{"<|end|>", "<|user|>", "<|", "|>", "<", ">", "  ", " ", "\n\n", "x y", "x", "<h1>", "[INST]", "</s>", "<b>", "|", "é",
		"USER:", "b user", "<start_of_turn>"}
	for range 3000 {
		var text string
		for range rng.IntN(12) {
			text += parts[rng.IntN(len(parts))]
		}
		var spans []Span
		for at := 0; at < len(text); {
			from := at + rng.IntN(12)
			to := min(from+1+rng.IntN(15), len(text))
			if from < to {
				spans = append(spans, Span{from, to})
			}
			at = max(to, from)
		}
		for i, v := range vocabs {
			if err := guardedFault(v, text, spans, v.EncodeGuarded(text, spans)); err != nil {
				t.Fatalf("vocabulary %d: %v", i, err)
			}
			if plain := v.Encode(text, false); !slices.ContainsFunc(v.EncodeWithControl(text, false), v.isMarker) &&
				!slices.Equal(v.EncodeGuarded(text, spans), plain) {
				t.Fatalf("vocabulary %d: %q is %s: want %s", i, text, pieces(v, v.EncodeGuarded(text, spans)), pieces(v, plain))
			}
		}
	}
	v := vocabs[0]
	if text := "a<|end|>"; guardedFault(v, text, []Span{{0, 3}}, v.EncodeWithControl(text, false)) == nil ||
		guardedFault(v, text, nil, v.Encode("a<|end|", false)) == nil {
		t.Error("a marker where none may be, or a lost byte, is not found")
	}
}
