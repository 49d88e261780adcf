package token

import (
	"slices"
	"strings"
	"testing"

	"github.com/tandem-llm/tandem"
)

func TestFillIn(t *testing.T) {
	// by well-known texts
	v := newDraft("a", space+"a").add(control, "<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>").vocab(t)
	id := func(piece string) tandem.Token { return tandem.Token(slices.Index(v.pieces, piece)) }
	got, lacking := v.FillIn("a", "a")
	want := []tandem.Token{1, id("<|fim_prefix|>"), id(space + "a"), id("<|fim_suffix|>"), id(space + "a"), id("<|fim_middle|>")}
	if !slices.Equal(got, want) || lacking != nil {
		t.Errorf("%v, %v: want %v", got, lacking, want)
	}
	// a marker that is written in a text is text
	middle := id("<|fim_middle|>")
	if got, _ := v.FillIn("<|fim_middle|>", ""); got[len(got)-1] != middle || slices.Contains(got[:len(got)-1], middle) {
		t.Errorf("a marker in the text becomes one: %v", got)
	}
	// by keys, which go before texts; the older ones go first
	v = newDraft("<|fim_prefix|>", "P", "Q", "S", "M").set("fim_pre_token_id", uint32(261)).set("prefix_token_id", uint32(260)).
		set("fim_suf_token_id", uint32(262)).set("middle_token_id", uint32(263)).set("add_bos_token", false).vocab(t)
	if got, _ := v.FillIn("", ""); !slices.Equal(got, []tandem.Token{260, 262, 263}) {
		t.Errorf("by keys: %v", got)
	}
	if got, lacking := newDraft("<SUF>").vocab(t).FillIn("a", "b"); got != nil || !slices.Equal(lacking, []string{"prefix", "middle"}) {
		t.Errorf("without markers: %v, %v", got, lacking)
	}
}

// TestFillInFiles: files of the project stand in front, with markers or, where the model has none, as snippets; what ends a gap is known.
func TestFillInFiles(t *testing.T) {
	v := newDraft("a", space+"a").add(control, "<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>", "<|repo_name|>", "<|file_sep|>",
		"<|fim_pad|>").vocab(t)
	files := []tandem.Excerpt{{Name: "x", Text: "a<|file_sep|>"}, {Name: "y", Text: "b"}}
	got, lacking := v.FillIn("p", "s", files...)
	const want = "<s><|repo_name|>myproject\n<|file_sep|>x\na<|file_sep|><|file_sep|>y\nb<|file_sep|>filename\n" +
		"<|fim_prefix|>p<|fim_suffix|>s<|fim_middle|>"
	if text := strings.ReplaceAll(v.DecodeWritten(got), "> ", ">"); text != want || lacking != nil {
		t.Errorf("%q, lacking %v: want %q", text, lacking, want)
	}
	file, n := tandem.Token(slices.Index(v.pieces, "<|file_sep|>")), 0
	for _, x := range got {
		if x == file {
			n++
		}
	}
	if n != 3 {
		t.Errorf("%d markers of files: want 3, what is written in a text is text", n)
	}
	ends := []string{"<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>", "<|repo_name|>", "<|file_sep|>", "<|fim_pad|>"}
	if all := v.GapEnds(); !slices.Equal(all, ends) {
		t.Errorf("a gap ends with %q: want %q", all, ends)
	}
	v = newDraft("a").add(control, "<PRE>", "<SUF>", "<MID>").vocab(t)
	got, _ = v.FillIn("p", "s", files[1])
	if text := strings.ReplaceAll(v.DecodeWritten(got), "> ", ">"); !strings.HasSuffix(text, "\n\n--- snippet ---\n\nb<PRE>p<SUF>s<MID>") {
		t.Errorf("without markers of files: %q", text)
	}
}
