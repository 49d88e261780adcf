package gguf

import (
	"encoding/binary"
	"testing"

	"github.com/tandem-llm/tandem"
)

// TestForeign: a file that is no model is called what it is, and what would be right is said.
func TestForeign(t *testing.T) {
	length := binary.LittleEndian.AppendUint64(nil, 2000)
	matrix := append([]byte{210, 0, 0, 0, 19, 0, 0, 0}, "blk.0.attn_q.weight"...)
	for what, data := range map[string][]byte{
		"pointer of Git LFS":    []byte("version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 123\n"),
		"web page":              []byte("\n<!DOCTYPE html><html>"),
		"error message":         []byte("<?xml version=\"1.0\"?><Error><Code>AccessDenied</Code></Error>"),
		"JSON":                  []byte(`{"error":"Invalid username or password."}`),
		"zip archive":           []byte("PK\x03\x04\x00\x00"),
		"pickle":                []byte("\x80\x02}q\x00"),
		"gzip":                  []byte("\x1f\x8b\x08\x00"),
		"safetensors":           append(length, `{"model.embed_tokens.weight":{"dtype":"BF16"}}`...),
		"imatrix":               matrix,
		"time before GGUF":      []byte("tjgg\x03\x00\x00\x00"),
		"LoRA adapter":          []byte("algg\x01\x00\x00\x00"),
		"llamafile":             []byte("MZqFpD='\n"),
		`it begins with "hell"`: []byte("hello"),
	} {
		_, err := Open(save(t, data))
		wantError(t, err, tandem.Invalid, "not a GGUF file", what)
	}
}

// TestLanguageModel: GGUF files of other kinds are told from language models, by either of the keys that say so.
func TestLanguageModel(t *testing.T) {
	for _, tc := range []struct{ key, value, what string }{
		{"general.architecture", "clip", "projector"}, {"general.type", "mmproj", "projector"}, {"general.type", "adapter", "LoRA"},
		{"adapter.type", "lora", "LoRA"}, {"general.type", "imatrix", "imatrix"}, {"imatrix.datasets", "x", "imatrix"},
		{"general.type", "model", ""}, {"general.architecture", "llama", ""},
	} {
		w := NewWriter()
		w.Set(tc.key, tc.value)
		f, err := Open(save(t, written(t, w)))
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		if err = f.LanguageModel(); tc.what != "" {
			wantError(t, err, tandem.Unsupported, f.Path(), tc.what)
		} else if err != nil {
			t.Errorf("%s %s: %v", tc.key, tc.value, err)
		}
	}
}
