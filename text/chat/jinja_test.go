package chat

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"os"
	"testing"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/test/testkit"
)

var jinjaCases = flag.String("jinja", "testdata/jinja2.jsonl.gz", "cases of TestJinja2, which testdata/generate.py writes")

// TestJinja2 renders random templates: the output is that of Jinja2, and where Jinja2 fails there is an error. With -rewrite the file loses
// the cases that tandem refuses by name.
func TestJinja2(t *testing.T) {
	file, err := os.Open(*jinjaCases)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	z, err := gzip.NewReader(file)
	if err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(z)
	lines.Buffer(nil, 1<<20)
	var kept bytes.Buffer
	next := func(to any) bool {
		if !lines.Scan() {
			return false
		}
		if err := json.Unmarshal(lines.Bytes(), to); err != nil {
			t.Fatalf("%v: %.200s", err, lines.Bytes())
		}
		return true
	}
	keep := func() {
		kept.Write(lines.Bytes())
		kept.WriteByte('\n')
	}
	var head struct{ Variables map[string]json.RawMessage }
	if !next(&head) {
		t.Fatal("no variables")
	}
	keep()
	o := Options{Extra: head.Variables}
	total, differ, failed := 0, 0, 0
	for {
		var c struct {
			T string
			W *string
		}
		if !next(&c) {
			break
		}
		total++
		out, err := renderOnce(c.T, o)
		if errors.Is(err, tandem.Unsupported) && c.W != nil && *testkit.Rewrite {
			continue
		}
		keep()
		switch {
		case err == nil && c.W != nil && out == *c.W:
			continue
		case errors.Is(err, tandem.Internal):
			t.Errorf("%q: %v", c.T, err)
		case err != nil && c.W == nil:
			failed++
			continue
		}
		if differ++; differ <= 20 {
			want := "an error"
			if c.W != nil {
				want = *c.W
			}
			t.Errorf("%q\n got %q, %v\nwant %q", c.T, out, err, want)
		}
	}
	t.Logf("%d templates, %d of them errors: %d differ", total, failed, differ)
	if differ > 0 || total < 100 {
		t.Errorf("%d of %d differ", differ, total)
	}
	if *testkit.Rewrite {
		var packed bytes.Buffer
		w, _ := gzip.NewWriterLevel(&packed, gzip.BestCompression)
		_, err := w.Write(kept.Bytes())
		if err := errors.Join(err, w.Close(), os.WriteFile(*jinjaCases, packed.Bytes(), 0o644)); err != nil {
			t.Fatal(err)
		}
	}
}

func renderOnce(source string, o Options) (string, error) {
	t, err := Parse(source, llama)
	if err != nil {
		return "", err
	}
	out, err := t.Render(context.Background(), nil, o)
	return out.Text, err
}
