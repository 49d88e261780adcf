package pair

import (
	"slices"
	"strings"
	"testing"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/engine"
	"github.com/tandem-llm/tandem/kernels/testdevice"
	"github.com/tandem-llm/tandem/roles"
	"github.com/tandem-llm/tandem/roles/rolestest"
)

const (
	target = "../../models/gopher-19m-q8_0.gguf"
	draft  = "../../models/gopher-draft-all-f16.gguf"
)

// TestOtherTexts: a draft whose ids mean other texts is refused with the first of them, or left out if there are others.
func TestOtherTexts(t *testing.T) {
	other := rolestest.Refit(t, draft, rolestest.Refitted{Tokens: 4200, Pieces: map[int]string{3500: "\u2581other", 4001: "x", 4150: "y"}})
	on := engine.Options{Device: testdevice.CPU(t, 1)}
	p := Pair{Target: target, Drafts: []string{other}, Options: on}
	told := func(err error) { t.Errorf("left out although it is alone: %v", err) }
	if err := p.LeaveOut(told); err != nil || len(p.Drafts) != 1 {
		t.Errorf("drafts %v, %v", p.Drafts, err)
	}
	for _, drafts := range [][]string{{other}, {"lookup", other}} {
		err := (&Pair{Target: target, Drafts: drafts, Options: on}).Check("", func(note string) { t.Error(note) })
		if tandem.KindOf(err) != tandem.Invalid || !strings.Contains(err.Error(), `token 3500 is "`) ||
			!strings.Contains(err.Error(), `and "▁other" in the draft`) {
			t.Errorf("%v: %v: want both texts", drafts, err)
		}
	}
	var why []string
	p.Drafts = []string{other, draft, "lookup"}
	leave := func(err error) { why = append(why, err.Error()) }
	if err := p.LeaveOut(leave); err != nil || !slices.Equal(p.Drafts, []string{draft, "lookup"}) {
		t.Errorf("drafts %v, %v", p.Drafts, err)
	}
	if len(why) != 1 || !strings.Contains(why[0], other) || !strings.Contains(why[0], "token 3500") {
		t.Errorf("left out because %q", why)
	}
	if err := p.Check("func main() {", func(note string) { t.Error(note) }); err != nil {
		t.Error(err)
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
		{Pair{Target: target, Sizes: roles.Sizes{Ctx: 1}}, "", tandem.Invalid, "--ctx is 1"},
		{Pair{Target: target, Sizes: roles.Sizes{Ctx: 64}}, strings.Repeat("x ", 100), tandem.Invalid, "64"},
	} {
		c.p.Options.Device = testdevice.CPU(t, 1)
		err := c.p.Check(c.prompt, func(string) {})
		if tandem.KindOf(err) != c.kind || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%+v: %v: want %v that says %q", c.p, err, c.kind, c.says)
		}
	}
	p := Pair{Target: target, Drafts: []string{draft, "none.gguf"}}
	if err := p.LeaveOut(func(err error) { t.Error(err) }); err == nil {
		t.Error("a draft that is not there is left out")
	}
}
