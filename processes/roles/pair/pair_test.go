package pair

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/engine"
	"github.com/tandem-llm/tandem/kernels/testdevice"
	"github.com/tandem-llm/tandem/modelfile/gguf"
	"github.com/tandem-llm/tandem/processes/roles/rolestest"
	"github.com/tandem-llm/tandem/processes/settings"
)

const (
	target = "../../../models/gopher-19m-q8_0.gguf"
	draft  = "../../../models/gopher-draft-all-f16.gguf"
)

// TestOtherTexts: of a draft whose ids mean other texts one line tells what differs first and what translating costs. Prompt tokens are not
// translated.
func TestOtherTexts(t *testing.T) {
	other := rolestest.Refit(t, draft, rolestest.Refitted{Tokens: 4200, Pieces: map[int]string{3500: "\u2581other", 4001: "x", 4150: "y"}})
	on := engine.Options{Device: testdevice.CPU(t, 1)}
	for _, drafts := range [][]string{{other}, {"lookup", draft, other}} {
		var notes []string
		say := func(note string) { notes = append(notes, note) }
		err := (&Pair{Target: target, Drafts: drafts, Options: on}).Check("func main() {", say)
		if err != nil || len(notes) != 1 || !strings.Contains(notes[0], other+" has another vocabulary") ||
			!strings.Contains(notes[0], "it drafts in its own tokens") || !strings.Contains(notes[0], `token 3500 is "`) {
			t.Errorf("%v: told %q, %v", drafts, notes, err)
		}
	}
	err := (&Pair{Target: target, Drafts: []string{other}, DraftHeads: []string{"../../../models/gopher-ppd-f16.gguf"},
		Options: on}).Check("", func(string) {})
	if tandem.KindOf(err) != tandem.Invalid || !strings.Contains(err.Error(), "prompt tokens are not translated") {
		t.Errorf("with prompt tokens: %v", err)
	}
}

// TestCheck: what cannot run is refused before a process is started.
func TestCheck(t *testing.T) {
	for _, c := range []struct {
		p      Pair
		prompt string
		kind   tandem.Kind
		says   string
	}{
		{Pair{Target: "none.gguf"}, "", tandem.Invalid, "none.gguf"},
		{Pair{Target: target, Drafts: []string{draft, "none.gguf"}}, "", tandem.Invalid, "none.gguf"},
		{Pair{Target: target, Sizes: settings.Sizes{Ctx: 1}}, "", tandem.Invalid, "--ctx is 1"},
		{Pair{Target: target, Sizes: settings.Sizes{Ctx: 64}}, strings.Repeat("x ", 100), tandem.Invalid, "64"},
	} {
		c.p.Options.Device = testdevice.CPU(t, 1)
		err := c.p.Check(c.prompt, func(string) {})
		if tandem.KindOf(err) != c.kind || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%+v: %v: want %v that says %q", c.p, err, c.kind, c.says)
		}
	}
}

// TestShorterContexts: a draft or a target with a shorter context than what is asked for is told of, once; the models run.
func TestShorterContexts(t *testing.T) {
	f, err := gguf.Open(draft)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	w := gguf.CopyOf(f)
	w.Set("llama.context_length", uint32(64))
	short := filepath.Join(t.TempDir(), "short.gguf")
	out, err := os.Create(short)
	if err != nil {
		t.Fatal(err)
	}
	_, err = w.WriteTo(out)
	if err = errors.Join(err, out.Close()); err != nil {
		t.Fatal(err)
	}
	on := engine.Options{Device: testdevice.CPU(t, 1)}
	for _, tc := range []struct {
		drafts []string
		ctx    int
		says   []string
	}{
		{[]string{draft}, 0, nil},
		{[]string{short}, 64, nil},
		{[]string{"lookup", short}, 0, []string{short + " has a context of 64 tokens, and the target"}},
		{[]string{draft}, 100000, []string{"--ctx 100000 is more than the context of target"}},
	} {
		var notes []string
		err := (&Pair{Target: target, Drafts: tc.drafts, Options: on, Sizes: settings.Sizes{Ctx: tc.ctx, Sessions: 1}}).Check("",
			func(note string) { notes = append(notes, note) })
		if err != nil || len(notes) != len(tc.says) || len(notes) > 0 && !strings.Contains(notes[0], tc.says[0]) {
			t.Errorf("%v, --ctx %d: told %q, %v: want %q", tc.drafts, tc.ctx, notes, err, tc.says)
		}
	}
}
