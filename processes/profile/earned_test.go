package profile

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/spec/worth"
)

// TestEarned: what answers said of a draft adds up over processes, for the same files and version alone. It takes three answers; later ones
// count for more. A file that cannot be believed counts for nothing, and is replaced.
func TestEarned(t *testing.T) {
	dir, k := t.TempDir(), Kept{Cache: t.TempDir(), Version: "1"}
	see := func(name, content string) Sighting {
		t.Helper()
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		s, err := See(path)
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	target, draft := see("target.gguf", "x"), see("draft.gguf", "y")
	earn := func(k Kept, plain, took time.Duration) Earned {
		t.Helper()
		e, err := k.Earn(target, draft, worth.Earned{Rounds: 40, Plain: plain, Took: took})
		if err != nil {
			t.Fatal(err)
		}
		return e
	}
	const s, least = time.Second, 1.02
	for i := 1; i <= 4; i++ {
		if e := earn(k, s, s); e.Answers != i || e.Useless(least) != (i >= 3) {
			t.Errorf("%d answers that were no faster: %v, useless %v", i, e, e.Useless(least))
		}
	}
	if e, err := k.Earned(target, draft); err != nil || !e.Useless(least) {
		t.Errorf("remembered: %v, %v", e, err)
	}
	for name, other := range map[string]func() (Earned, error){
		"version": func() (Earned, error) { return Kept{Cache: k.Cache, Version: "2"}.Earned(target, draft) },
		"draft":   func() (Earned, error) { return k.Earned(target, see("draft.gguf", "yy")) },
		"target":  func() (Earned, error) { return k.Earned(see("other.gguf", "x"), draft) },
	} {
		if e, err := other(); err != nil || e.Answers != 0 {
			t.Errorf("of another %s: %v, %v", name, e, err)
		}
	}
	for range 3 { // of text on which it pays
		earn(k, 3*s, 2*s)
	}
	if e := earn(k, s, s); e.Useless(least) || e.Gain() < 1.2 {
		t.Errorf("with text on which it pays: %v", e)
	}
	for range 100 {
		if e := earn(k, s, 2*s); e.Answers > mostAnswers {
			t.Fatalf("%d answers count", e.Answers)
		}
	}
	if e, _ := k.Earned(target, draft); e.Gain() > 0.51 || e.Gain() < 0.49 {
		t.Errorf("after a hundred answers that took twice as long: %v", e)
	}

	file := k.file(earnedFile)
	whole, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{"torn": string(whole[:len(whole)/2]), "garbage": "{", "no machine": `{"format":1}`,
		"negative": strings.Replace(string(whole), `"took_ns": `, `"took_ns": -`, 1), "no name": strings.Replace(string(whole), "draft.gguf", "", 1),
		"too many": strings.Replace(string(whole), `"answers": `, `"answers": 99`, 1)} {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if e, err := k.Earned(target, draft); tandem.KindOf(err) != tandem.Corrupt || e.Answers != 0 {
			t.Errorf("%s: %v, %v: want nothing, Corrupt", name, e, err)
		}
		if e := earn(k, s, s); e.Answers != 1 {
			t.Errorf("%s: %v afterwards: want one answer", name, e)
		}
	}
	if e := earn(Kept{Version: "1"}, s, 2*s); e.Answers != 1 || e.Gain() != 0.5 {
		t.Errorf("without a cache: %v", e)
	}
	if _, err := See(filepath.Join(dir, "none")); err == nil {
		t.Error("a file that is not there was seen")
	}
}
