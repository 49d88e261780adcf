package hub

import (
	"strings"
	"testing"

	"github.com/tandem-llm/tandem"
)

// TestParse: names of every form are read, and written again in their shortest form.
func TestParse(t *testing.T) {
	for text, want := range map[string]Name{
		"hf:Qwen/Qwen3-0.6B-GGUF":                     {Source: Hugging, Org: "Qwen", Repo: "Qwen3-0.6B-GGUF", Revision: "main"},
		"hf:a/b:Q8_0":                                 {Source: Hugging, Org: "a", Repo: "b", Revision: "main", Quant: "Q8_0"},
		"hf:a/b@v1:sub/m-Q8_0.gguf":                   {Source: Hugging, Org: "a", Repo: "b", Revision: "v1", Path: "sub/m-Q8_0.gguf"},
		"hf.co/a/b:UD-Q4_K_XL":                        {Source: Hugging, Org: "a", Repo: "b", Revision: "main", Quant: "UD-Q4_K_XL"},
		"https://hub.example/a/b/resolve/main/x.gguf": {Source: Hugging, Org: "a", Repo: "b", Revision: "main", Path: "x.gguf"},
		"https://other.example/d/x.gguf?k=1":          {Source: Web, URL: "https://other.example/d/x.gguf?k=1"},
		"qwen3:0.6b":                                  {Source: Ollama, Namespace: "library", Model: "qwen3", Tag: "0.6b"},
		"qwen3":                                       {Source: Ollama, Namespace: "library", Model: "qwen3", Tag: "latest"},
		"me/qwen3":                                    {Source: Ollama, Namespace: "me", Model: "qwen3", Tag: "latest"},
		"reg.example:5000/me/qwen3:1": {Source: Ollama, Host: "reg.example:5000", Namespace: "me", Model: "qwen3",
			Tag: "1"},
		"http://127.0.0.1:5000/me/qwen3:1": {Source: Ollama, Scheme: "http", Host: "127.0.0.1:5000", Namespace: "me",
			Model: "qwen3", Tag: "1"},
		"./qwen3":          {Source: File, Path: "./qwen3"},
		"models/none.gguf": {Source: File, Path: "models/none.gguf"},
		".":                {Source: File, Path: "."},
		"hubtest":          {Source: File, Path: "hubtest"}, // a folder that is there
	} {
		got, err := Parse(text, "https://hub.example")
		if err != nil || got != want {
			t.Errorf("%s: %+v, %v: want %+v", text, got, err, want)
			continue
		}
		if again, err := Parse(got.String(), "https://hub.example"); err != nil || again != got {
			t.Errorf("%s is written %s, which is %+v, %v", text, got, again, err)
		}
	}
}

// TestParseRefuses: no name leads out of a store, and the error says what would be right.
func TestParseRefuses(t *testing.T) {
	for _, text := range []string{"hf:a", "hf:a/b/c", "hf:../b", "hf:a/..", "hf:a/b:..", "hf:a/b:../x.gguf", "hf:a/b:/x.gguf",
		"hf:a/b:x\\y.gguf",
		"hf:a/b:c\x00.gguf", "hf:a/b\n", "hf:a--b/c", "hf:a/b@../x", "hf:a/b@refs/pr/1", "hf:/b", "hf:a/b:.hidden.gguf", "qwen3:..",
		"..:x", "a/b/c/d",
		"qwen3:a/b", "a//b", "qwen 3", "q\x1b[31m", "https://user:secret@h.example/x.gguf", "ftp://h.example/x.gguf", "https:///x.gguf",
		"https://h.example/a b.gguf", "https://h.example/a/b/c/d", "a..b/c:d", "ex..ample/a/b",
		strings.Repeat("x", 200)} {
		n, err := Parse(text, "https://hub.example")
		if tandem.KindOf(err) != tandem.Invalid || !strings.Contains(err.Error(), "hf:ORG/REPO") || strings.ContainsAny(err.Error(),
			"\n\x1b\x00") {
			t.Errorf("%q is %+v, error %v", text, n, err)
		}
	}
}

// TestChoose: which file of a repository is meant.
func TestChoose(t *testing.T) {
	many := []string{"README.md", "m-Q8_0.gguf", "m-Q4_K_M.gguf", "m-Q4_K_S.gguf", "m-UD-Q4_K_XL.gguf", "mmproj-m-f16.gguf",
		"mtp-m-Q8_0.gguf", "dspark-m-Q8_0.gguf",
		"m-f16.gguf"}
	split := []string{"Q4_K_M/m-Q4_K_M-00002-of-00002.gguf", "Q4_K_M/m-Q4_K_M-00001-of-00002.gguf", "BF16/m-BF16-00001-of-00002.gguf"}
	for _, c := range []struct {
		files       []string
		quant, want string // "!" and what an error says
	}{
		{many, "", "m-Q4_K_M.gguf"},
		{many, "q8_0", "m-Q8_0.gguf"},
		{many, "Q4_K_XL", "m-UD-Q4_K_XL.gguf"},
		{many, "UD-Q4_K_XL", "m-UD-Q4_K_XL.gguf"},
		{many, "mmproj-m-f16.gguf", "mmproj-m-f16.gguf"},
		{many, "Q2_K", `!no Q2_K: want one of ["Q4_K_M" "Q4_K_S" "Q8_0" "UD-Q4_K_XL" "F16"]`},
		{many[1:2], "", "m-Q8_0.gguf"},
		{[]string{"m.IQ3_XS.gguf"}, "", "m.IQ3_XS.gguf"},
		{[]string{"m-Q5_K_M.gguf", "m-Q6_K.gguf"}, "", `!neither Q4_K_M nor Q8_0 nor F16 nor BF16: want one of ["Q5_K_M" "Q6_K"]`},
		{[]string{"m-f16.gguf", "m-bf16.gguf"}, "", "m-f16.gguf"},
		{[]string{"a-Q8_0.gguf", "b-Q8_0.gguf"}, "Q8_0", `!2 files could be meant: want one of ["a-Q8_0.gguf" "b-Q8_0.gguf"]`},
		{[]string{"a-Q8_0.gguf", "more/b-Q8_0.gguf"}, "Q8_0", "a-Q8_0.gguf"},
		{split, "", "Q4_K_M/m-Q4_K_M-00001-of-00002.gguf Q4_K_M/m-Q4_K_M-00002-of-00002.gguf"},
		{split, "BF16", `!"BF16/m-BF16-00002-of-00002.gguf" is missing`},
		{[]string{"mmproj-f16.gguf"}, "", `!no GGUF file of a language model, only ["mmproj-f16.gguf"]`},
		{[]string{"../m-Q8_0.gguf", "/m.gguf", "a\n.gguf"}, "", "!no GGUF file"},
	} {
		var entries []Entry
		for _, f := range c.files {
			entries = append(entries, Entry{Path: f, Size: 1})
		}
		got, err := Choose(entries, c.quant)
		var names []string
		for _, f := range got.Files {
			names = append(names, f.Path)
		}
		says, refused := strings.CutPrefix(c.want, "!")
		if refused && (tandem.KindOf(err) != tandem.Invalid || !strings.Contains(err.Error(), says)) || !refused &&
			(err != nil || strings.Join(names, " ") != c.want) {
			t.Errorf("%q of %q: %q, %v: want %s", c.quant, c.files, names, err, c.want)
		}
	}
	if c, _ := Choose([]Entry{{Path: "m-Q8_0.gguf"}, {Path: "mmproj-f16.gguf"}}, ""); len(c.Left) != 1 || c.Quant != "Q8_0" {
		t.Errorf("left %q, quantisation %s", c.Left, c.Quant)
	}
}
