package profiler

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/tandem-llm/tandem"
)

// Text is a text to calibrate with.
type Text struct{ Name, Text string }

// ReadTexts returns the texts of files, which --text names, or the small ones if there are none. Errors: Invalid.
func ReadTexts(files []string) ([]Text, error) {
	if len(files) == 0 {
		return smallTexts, nil
	}
	var texts []Text
	for _, file := range files {
		b, err := os.ReadFile(file)
		if err != nil {
			return nil, tandem.Errorf("", tandem.Invalid, "--text %s: %w", file, errors.Unwrap(err))
		}
		name := filepath.Base(file)
		switch {
		case len(b) == 0:
			return nil, tandem.Errorf("", tandem.Invalid, "--text %s is empty: want a text", file)
		case slices.ContainsFunc(texts, func(t Text) bool { return t.Name == name }):
			return nil, tandem.Errorf("", tandem.Invalid, "--text %s: a second text of the name %s", file, name)
		}
		texts = append(texts, Text{name, strings.ToValidUTF8(string(b), "�")})
	}
	return texts, nil
}

// smallTexts are the beginnings of what the target says if no text is given.
var smallTexts = []Text{
	{"go", `// Count returns how many lines r has. An end without a line break counts as a line.
func Count(r io.Reader) (n int, err error) {
	buf := make([]byte, 32*1024)
	for {
		k, err := r.Read(buf)
		n += bytes.Count(buf[:k], []byte{'\n'})
		if err == io.EOF {
			return n, nil
		}
		if err != nil {
			return n, err
		}
	}
}

type pool struct {
	lock  chan struct{}
	free  []*conn
	limit int
}

func (p *pool) get(ctx context.Context) (*conn, error) {
	p.lock <- struct{}{}
	defer func() { <-p.lock }()
	if n := len(p.free); n > 0 {
`},
	{"python", `class Inventory:
    """Counts of things by name."""

    def __init__(self, items=()):
        self._counts = {}
        for name, count in items:
            self.add(name, count)

    def add(self, name, count=1):
        """Adds things; a negative count takes some away."""
        if not isinstance(count, int):
            raise TypeError("count must be an integer")
        self._counts[name] = self._counts.get(name, 0) + count

    def __len__(self):
        return sum(self._counts.values())

def read_config(path):
    with open(path, encoding="utf-8") as f:
        for number, line in enumerate(f, 1):
`},
	{"prose", `The package keeps a list of open files and closes those that nobody has used for a while. A caller that wants to
read a file asks for it by name. If the file is already open, the same handle is returned; otherwise it is opened, and the oldest one may
be closed to make room. The limit is the number of files that may be open at the same time. When an error occurs while a file is closed,
it is reported by the next call, because the caller that caused it has already gone. It is safe to use one list from several threads at
the same time, but a handle must not be used after it was given back, and
`},
}
