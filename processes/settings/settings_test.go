package settings

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tandem-llm/tandem"
)

// TestTags: every setting has a unique name, a group and a sentence of help, a default that its type can read and a rule that can be
// checked.
func TestTags(t *testing.T) {
	seen := map[string]bool{}
	for _, s := range List() {
		if seen[s.Name] {
			t.Errorf("two settings are called %s", s.Name)
		}
		seen[s.Name] = true
		if !slices.Contains(Groups, s.Group) {
			t.Errorf("%s is in group %q: want one of %q", s.Key, s.Group, Groups)
		}
		if !strings.HasSuffix(s.Help, ".") {
			t.Errorf("help of %s is no sentence: %q", s.Key, s.Help)
		}
	}
	if len(seen) < 90 {
		t.Errorf("%d settings: want all of them", len(seen))
	}
	all := Default[All]()
	if err := Check(&all); err != nil {
		t.Errorf("defaults are refused: %v", err)
	}
	if all.Grace != 25*time.Second || all.CacheLimit != 8<<30 || !all.Measure || all.AheadGain != -1 || all.MaxTokens != 128 {
		t.Errorf("defaults are %+v", all)
	}
}

// TestRoles: a role has no setting that All has not.
func TestRoles(t *testing.T) {
	for role, data := range map[string][]byte{"gateway": Marshal(new(Gateway)), "drafter": Marshal(new(Drafter)),
		"verifier": Marshal(new(Verifier))} {
		lines := strings.Split(strings.TrimSpace(string(data)), "\n")
		if len(lines) < 5 {
			t.Errorf("%s: zero values that are no defaults are %q", role, lines)
		}
		for _, line := range lines {
			key, _, _ := strings.Cut(line, ":")
			if _, ok := Find(key); !ok {
				t.Errorf("%s: setting %s is not in All", role, key)
			}
		}
	}
}

func TestCheck(t *testing.T) {
	for want, change := range map[string]func(*All){
		"--batches is -2: want -1 or more":                  func(a *All) { a.Batches = -2 },
		"--feature-memory is 0: want 1 or more and at most": func(a *All) { a.FeatureMemory = 0 },
		"--inline-limit is -1: want 0 or more bytes":        func(a *All) { a.InlineLimit = -1 },
		"--alpha is 0: want more than 0 and less than 1":    func(a *All) { a.Alpha = 0 },
		"--branch is NaN: want more than 0":                 func(a *All) { a.Branch = nan() },
		"--kv-type is q4_0: want f16 or q8_0":               func(a *All) { a.KVType = "q4_0" },
		"--kv-memory is 0.0 MiB: want more than 0":          func(a *All) { a.KVMemory = new(Size(0)) },
		"--repeat-limit is 64: want 0, or 128 or more":      func(a *All) { a.RepeatLimit = 64 },
		"--max-output-tokens is -5: want 0 or more":         func(a *All) { a.MaxOutputTokens = -5 },
		"--taps names 3 twice: want each hidden state once": func(a *All) { a.Taps.Taps = []int{3, 3} },
		"--explore is 1: want more than 0 and less than 1":  func(a *All) { a.Explore = 1 },
		"": func(a *All) { a.KVMemory, a.KVType = new(Size(1)), "q8_0" },
	} {
		all := Default[All]()
		change(&all)
		err := Check(&all)
		if want == "" && err != nil || want != "" && (tandem.KindOf(err) != tandem.Invalid || !strings.Contains(err.Error(), want)) {
			t.Errorf("%v: want %q", err, want)
		}
	}
}

func nan() float64 {
	zero := 0.0
	return zero / zero
}

// TestMarshal: defaults are left out, and what YAML cannot hold is written in base64.
func TestMarshal(t *testing.T) {
	v := Default[Verifier]()
	if got := string(Marshal(&v)); got != "" {
		t.Errorf("defaults are written: %q", got)
	}
	v.Target, v.Heads, v.Taps.Taps, v.Measure = "a: \"b\" #c", []string{"x,y", "\xff.gguf"}, []int{-1, 4}, false
	v.KVMemory, v.CacheLimit, v.Grace = new(Size(1<<30+1)), 5, 0
	want := `target: "a: \"b\" #c"
taps: "-1,4"
grace: "0s"
kv-memory: "1073741825"
heads: ["x,y", !!binary "/y5nZ3Vm"]
measure: "false"
cache-limit: "5"
`
	if got := string(Marshal(&v)); got != want {
		t.Errorf("the file is\n%swant\n%s", got, want)
	}
}

// TestBeside: lookup is off without drafts, and finds nothing of earlier texts while nothing else of ended sessions is kept.
// Recycling, which keeps what later sessions draft from, goes with both.
func TestBeside(t *testing.T) {
	for _, c := range []struct {
		l      LookupDrafts
		cache  string
		drafts bool
		want   LookupDrafts
		wrong  bool
	}{
		{l: LookupDrafts{true, true, "auto"}, cache: "auto", drafts: true, want: LookupDrafts{true, true, "auto"}},
		{l: LookupDrafts{true, true, "4096"}, cache: "8192", drafts: true, want: LookupDrafts{true, true, "4096"}},
		{l: LookupDrafts{true, true, "auto"}, cache: "off", drafts: true, want: LookupDrafts{true, false, "off"}},
		{l: LookupDrafts{true, true, "4096"}, cache: "off", drafts: true, wrong: true},
		{l: LookupDrafts{false, false, "auto"}, cache: "auto", drafts: true, want: LookupDrafts{false, false, "auto"}},
		{l: LookupDrafts{true, true, "auto"}, cache: "auto", want: LookupDrafts{false, false, "auto"}},
	} {
		got, err := c.l.Beside(Prefixes{c.cache}, c.drafts)
		if c.wrong && tandem.KindOf(err) != tandem.Invalid || !c.wrong && (err != nil || got != c.want) {
			t.Errorf("%+v: %+v, %v", c, got, err)
		}
	}
}
