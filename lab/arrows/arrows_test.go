package arrows

import (
	"os"
	"path/filepath"
	"testing"
)

// TestCount: a room of two packages, in which a method in low.go calls back into high.go, and a field and a constant are used. Locals, what
// lies outside the room, and a file's own names are no arrows.
func TestCount(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	for name, text := range map[string]string{
		"go.mod":         "module example\n\ngo 1.26\n",
		"other/other.go": "package other\n\nconst Ten = 10\n",
		"room/high.go": "package room\n\nimport \"example/room/deep\"\n\ntype T struct{ n int }\n\n" +
			"func (t *T) Run() int { return t.low() + deep.Depth }\nfunc (t *T) size() int { n := t.n; return n }\n",
		"room/low.go":      "package room\n\nimport \"example/other\"\n\nfunc (t *T) low() int { return t.size() + t.n + other.Ten }\n",
		"room/low_test.go": "package room\n\nvar _ = (*T).Run\n",
		"room/deep/a.go":   "package deep\n\nconst Depth = two\n",
		"room/deep/b.go":   "package deep\n\nconst two = 2\n",
	} {
		file := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	rooms, err := Count(root, []string{"room"})
	if err != nil {
		t.Fatal(err)
	}
	r := rooms[0]
	if len(r.Files) != 4 || len(r.Down) != 3 || len(r.Up) != 1 {
		t.Fatalf("%d files, down %v, up %v: want 4, 3 and 1", len(r.Files), r.Down, r.Up)
	}
	// Which of the two arrows between high and low counts as back up is the order's choice; both are there with their names.
	names := map[string]int{}
	for _, a := range append(r.Down, r.Up...) {
		names[a.From+" "+a.To] = len(a.Names)
	}
	for arrow, n := range map[string]int{"high.go low.go": 1, "low.go high.go": 3, "high.go deep/a.go": 1, "deep/a.go deep/b.go": 1} {
		if names[arrow] != n {
			t.Errorf("%s uses %d names: want %d", arrow, names[arrow], n)
		}
	}
	if _, err := Count(root, []string{"none"}); err == nil {
		t.Error("a folder that is not there: no error")
	}
}

// TestArrange: of a ring with a chord the one arrow is turned back up that leaves the least.
func TestArrange(t *testing.T) {
	t.Parallel()
	uses := map[pair]map[string]bool{}
	for _, p := range []pair{{"a", "b"}, {"b", "c"}, {"c", "d"}, {"d", "a"}, {"b", "d"}} {
		uses[p] = map[string]bool{"x": true}
	}
	r := arrange("ring", []string{"a", "b", "c", "d"}, uses)
	if len(r.Up) != 1 || len(r.Down) != 4 {
		t.Errorf("back up %v: want one arrow, d to a, a to b", r.Up)
	}
}
