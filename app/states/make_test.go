package states

import (
	"bytes"
	"compress/gzip"
	"context"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/text/token"
)

// made are files and what the instructions made of them are about, in order.
var made = []struct {
	name, text string
	about      []string
}{
	{"a.go", "// Add returns the sum of its two numbers.\nfunc Add(a, b int) (int, error) {\n" +
		"\t// if the sum is too large it is an error\n\tif big(a) {\n}\n\nfunc bare() {}\n\n// short\nfunc short() {}\n",
		[]string{"```\n// Add returns the sum of its two numbers.\nfunc Add(a, b int) (int, error)\n```"}},
	{"a.py", "class A:\n    def f(self, x):\n        \"\"\"Returns twice what it is given.\"\"\"\n        return 2 * x\n",
		[]string{"```\ndef f(self, x):\n        \"\"\"Returns twice what it is given.\"\"\"\n```"}},
	{"a.c", "/* Frees all nodes\n * of a list. */\nvoid list_free(struct list *l) {\n}\nint x = f(1);\n",
		[]string{"```\n/* Frees all nodes\n * of a list. */\nvoid list_free(struct list *l)\n```"}},
	{"a.sh", "# prints the number of lines of a file\nlines() {\n", []string{"# prints the number of lines of a file\nlines()"}},
	{"a.md", "# The guide\n\ntext\n\n## Start it\n\n### Stop it ###\n", []string{`"Start it"`, `"Stop it"`}},
	{"a.1", ".TH A 1\n.SH NAME\na \\- does a thing\n.SH OPTIONS\n.SS \"More options\"\n", []string{"a", `"OPTIONS"`, `"More options"`}},
	{"a.2", "no manual page", nil}, {"a.txt", "# no heading", nil}, {"none.md", "text", nil},
}

// TestInstructions: what is asked about a file holds its comments, signatures and headings.
func TestInstructions(t *testing.T) {
	for _, x := range made {
		got := instructions("dir/"+x.name, x.text)
		if len(got) != len(x.about) {
			t.Errorf("%s: %q: want %d", x.name, got, len(x.about))
			continue
		}
		for i, about := range x.about {
			if !strings.Contains(got[i], about) || strings.Contains(got[i], "%!") {
				t.Errorf("%s: %q: want one that holds %q", x.name, got[i], about)
			}
		}
		if again := instructions("x/"+x.name+".gz", x.text); !slices.Equal(got, again) {
			t.Errorf("%s: other instructions when it is packed: %q", x.name, again)
		}
	}
	for _, way := range slices.Concat(aboutCode, aboutPart, aboutPage) {
		if n := strings.Count(way, "%"); n != 2 {
			t.Errorf("%q has %d places: want 2", way, n)
		}
	}
}

// TestMadePrompts: instructions are answered, those of a file on one side of the split; a packed file is unpacked.
func TestMadePrompts(t *testing.T) {
	texts := map[string]string{}
	for _, x := range made {
		texts["src/"+x.name] = x.text
	}
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	must(z.Write([]byte(made[5].text)))
	must(0, z.Close())
	texts["src/b.1.gz"], texts["src/bad.gz"] = b.String(), "x"
	c := config(t)
	dir := write(t, texts)
	c.Texts, c.Prompts, c.Raw, c.MakePrompts = []string{filepath.Join(dir, "src")}, nil, false, true
	c.Context = 256
	c.Render = renderer(c.Vocab)
	r, _, one := mustRun(t, c)
	if r.Texts != 12 || r.Answers != 12 || r.LeftOut != 1 {
		t.Errorf("%+v: want 12 answers", r)
	}
	held := map[string]bool{}
	for _, x := range one.Texts {
		file, _, _ := strings.Cut(x.Origin, "#")
		if side, seen := held[file]; seen && side != x.Held {
			t.Errorf("%s is on the other side than another instruction of its file", x.Origin)
		}
		held[file] = x.Held
	}
	c.Texts = []string{write(t, map[string]string{"a.txt": "x", "b.txt": "y", "c.go": "package c", "d.md": "z", "e.1": "w"})}
	if _, err := Run(t.Context(), c); tandem.KindOf(err) != tandem.Invalid || !strings.Contains(err.Error(), "--make-prompts: 5 files") {
		t.Errorf("%v: want Invalid that says of how many files nothing can be made", err)
	}
}

// renderer returns a Renderer that takes the last message as it is.
func renderer(v *token.Vocab) Renderer {
	return func(_ context.Context, c Chat) ([]tandem.Token, int, error) {
		tokens := v.Encode(c.Messages[len(c.Messages)-1].Content, true)
		return tokens, len(tokens), nil
	}
}
