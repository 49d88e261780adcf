package token

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/tandem-llm/tandem"
)

// full are vocabularies whose files have every key of a tokenizer.
func full() map[string]*draft {
	ids := func(d *draft, bos, eos string) *draft {
		for _, key := range []string{"bos", "padding"} {
			d.set(key+"_token_id", uint32(slices.Index(d.pieces, bos)))
		}
		for _, key := range []string{"eos", "eot", "eom"} {
			d.set(key+"_token_id", uint32(slices.Index(d.pieces, eos)))
		}
		return d.set("add_bos_token", true).set("add_eos_token", true).set("add_space_prefix", true).set("added_tokens", []string{"<q>"})
	}
	sentences := newDraft(space, "a", "b", "ab").set("unknown_token_id", uint32(0)).set("merges", []string{})
	bytes := newBytes("qwen2", "a b").add(control, "<s>", "</s>").add(unknown, "<unk>")
	return map[string]*draft{
		"pieces": ids(sentences, "<s>", "</s>"),
		"bytes":  ids(bytes.set("unknown_token_id", uint32(len(bytes.pieces)-1)), "<s>", "</s>"),
		"merged": ids(newMerged(space+"ab", "a b").set("scores", []float32{1}).set("unknown_token_id", uint32(0)), "<s>", "</s>"),
	}
}

// TestOptionalKeys takes each key away: only the tokenizer's name and its tokens must be there, but a token that the file wants
// to begin or end texts with must be known. What a missing key changes is said.
func TestOptionalKeys(t *testing.T) {
	for name, d := range full() {
		keys := []string{"tokens", "scores", "token_type", "model"}
		for key := range d.keys {
			keys = append(keys, strings.TrimPrefix(key, "tokenizer.ggml."))
		}
		whole := d.vocab(t)
		if len(whole.Notes()) > 0 {
			t.Errorf("%s: %q is noted of a whole file", name, whole.Notes())
		}
		for _, key := range keys {
			d := full()[name].set(key, nil)
			v, err := d.parse(t)
			needed := key == "model" || key == "tokens" || name != "pieces" && (key == "bos_token_id" || key == "eos_token_id")
			if needed {
				if !errors.Is(err, tandem.Corrupt) || !strings.Contains(err.Error(), "tokenizer.ggml."+key) {
					t.Errorf("%s without %s: error %v", name, key, err)
				}
				continue
			}
			if err != nil {
				t.Errorf("%s without %s: %v", name, key, err)
				continue
			}
			noted := key == "token_type" || key == "pre" && name == "bytes" || key == "merges" && name != "pieces" ||
				key == "scores" && name == "pieces"
			got, line := strings.Join(v.Notes(), "; "), "tokenizer.ggml."+key+" is missing: "
			if noted != strings.HasPrefix(got, line) || !noted && got != "" {
				t.Errorf("%s without %s: noted %q", name, key, got)
			}
			const text = "ab a\xff<s>"
			have, want := v.EncodeWithControl(text, false), whole.EncodeWithControl(text, false)
			if !noted && key != "add_space_prefix" && !slices.Equal(have, want) {
				t.Errorf("%s without %s: %q is %s: want %s", name, key, text, pieces(v, have), pieces(v, want))
			}
			if back := v.Decode(v.Encode("ab a\xff", true)); back != "ab a\xff" {
				t.Errorf("%s without %s: a text becomes %q", name, key, back)
			}
		}
	}
}

// TestGuessedTypes: without types, bytes are bytes and special tokens print nothing.
func TestGuessedTypes(t *testing.T) {
	d := newDraft(space, "a", "<x>").set("token_type", nil)
	v := d.vocab(t)
	if got := pieces(v, v.EncodeWithControl("aé<x></s>", true)); got != "<s>|▁|a|<0xC3>|<0xA9>|<0x3C>|<0x78>|<0x3E>|</s>" {
		t.Errorf("encoded as %s", got)
	}
	if v.Decode([]tandem.Token{1, 260, 2}) != "a" || !v.IsEnd(2) || v.IsEnd(1) {
		t.Errorf("special tokens print %q; ends %v", v.Decode([]tandem.Token{1, 260, 2}), v.ends)
	}
	if v.Pre() != "" || newBytes("qwen2").vocab(t).Pre() != "qwen2" || newBytes("x").set("pre", nil).vocab(t).Pre() != "default" {
		t.Error("the name of the pre-tokenizer is wrong")
	}
	w := newBytes("qwen2").add(normal, "<s>").set("token_type", nil).set("bos_token_id", uint32(256)).vocab(t)
	if got := pieces(w, w.EncodeWithControl("a<s>", false)); got != "a|<s>" || w.Decode([]tandem.Token{256}) != "" {
		t.Errorf("byte-level: %s", got)
	}
}
