package find

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/modelfile/side"
	"github.com/tandem-llm/tandem/models"
	"github.com/tandem-llm/tandem/processes/roles"
	"github.com/tandem-llm/tandem/processes/roles/drafter"
	"github.com/tandem-llm/tandem/test/testkit/family"
)

func TestModelPath(t *testing.T) {
	dir := t.TempDir()
	below := filepath.Join(dir, "a", "b")
	if err := os.MkdirAll(below, 0o700); err != nil {
		t.Fatal(err)
	}
	gone := filepath.Join(dir, "gone")
	if err := os.Mkdir(gone, 0o700); err != nil {
		t.Fatal(err)
	}
	t.Chdir(gone)
	if err := os.Remove(gone); err != nil {
		t.Fatal(err)
	}
	if _, err := Target(""); tandem.KindOf(err) != tandem.Invalid || strings.Contains(err.Error(), "getwd") {
		t.Errorf("in a removed folder: %v: want that no model is named", err)
	}
	t.Chdir(below)
	if _, err := Target(""); tandem.KindOf(err) != tandem.Invalid {
		t.Errorf("outside of a checkout: %v", err)
	}
	if err := os.WriteFile(filepath.Join(dir, "go.mod"), []byte("module "+modulePath+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "a", "go.mod"), []byte("module example.com/other\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if got, err := Target(""); err != nil || got != filepath.Join(dir, "models", models.Target) {
		t.Errorf("default target %q, %v", got, err)
	}
	for _, c := range []struct {
		drafts []string
		r      tandem.Request
		want   []string
	}{
		{nil, tandem.Request{Strategy: tandem.StrategyPlanner}, models.Experts()},
		{[]string{""}, tandem.Request{Strategy: tandem.StrategyMinions}, models.Experts()},
		{nil, tandem.Request{Strategy: tandem.StrategyFixed}, []string{models.Draft}},
		{nil, tandem.Request{Strategy: tandem.StrategyLLMCad, Vote: tandem.VoteAuto}, []string{models.Draft}},
		{nil, tandem.Request{Strategy: tandem.StrategyFixed, Vote: tandem.VoteTree}, models.Experts()},
		{[]string{"own.gguf"}, tandem.Request{Strategy: tandem.StrategyFixed}, nil},
		{[]string{"dovetail"}, tandem.Request{Strategy: tandem.StrategyPlanner}, []string{models.Dovetail}},
	} {
		want := []string{"own.gguf"}
		for i, name := range c.want {
			want = append(want[:i], filepath.Join(dir, "models", name))
		}
		if got, err := Drafts(c.drafts, "", c.r); err != nil || !slices.Equal(got, want) {
			t.Errorf("drafts %q of %s, vote %q: %q, %v: want %q", c.drafts, c.r.Strategy, c.r.Vote, got, err, want)
		}
	}
	want := []string{filepath.Join(dir, "models", models.Medusa), "medusa.gguf", filepath.Join(dir, "models", models.PPD)}
	if got, err := Heads([]string{"medusa", "medusa.gguf", "ppd"}); err != nil || !slices.Equal(got, want) {
		t.Errorf("heads %q, %v: want %q", got, err, want)
	}
}

// TestDraftsOfOtherTargets: a target whose tokens mean other texts than the shipped drafts' is drafted for by what comes with it.
func TestDraftsOfOtherTargets(t *testing.T) {
	dir := t.TempDir()
	with := family.Random("qwen35", 6)
	with.Name = "with"
	with.WithMTP(6)
	for _, c := range []struct{ target, want string }{
		{family.Random("qwen35", 6).Write(t, dir), drafter.Lookup},
		{with.Write(t, dir), string(side.MTP)},
		{"../../models/gopher-19m-q8_0.gguf", filepath.Base(models.Draft)},
	} {
		got, err := Drafts(nil, c.target, tandem.Request{Strategy: tandem.StrategyFixed})
		if err != nil || len(got) != 1 || roles.ModelName(got[0]) != strings.TrimSuffix(c.want, ".gguf") {
			t.Errorf("drafts for %s: %q, %v: want %s", c.target, got, err, c.want)
		}
	}
	if got, err := Drafts(nil, filepath.Join(dir, "none.gguf"), tandem.Request{}); err == nil {
		t.Errorf("drafts for a target that is not there: %q", got)
	}
}
