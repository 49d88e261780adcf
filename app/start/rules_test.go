package start

import (
	"reflect"
	"strings"
	"testing"

	"github.com/alecthomas/kong"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/gateway"
	"github.com/tandem-llm/tandem/processes/settings"
	"github.com/tandem-llm/tandem/spec/learn"
)

// parseRules reads rule flags as the command line does.
func parseRules(t *testing.T, args ...string) (settings.Strategies, error) {
	t.Helper()
	var c struct{ settings.Strategies }
	k, err := kong.New(&c)
	if err != nil {
		t.Fatal(err)
	}
	_, err = k.Parse(args)
	return c.Strategies, err
}

func TestRules(t *testing.T) {
	f, err := parseRules(t)
	if err != nil {
		t.Fatal(err)
	}
	got, err := Rules(f)
	if want := (gateway.Rules{Alpha: 0.01, Branch: 0.3, Weights: learn.DefaultWeightRule, Length: learn.DefaultLengthRule,
		Explore: 0.015}); err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("defaults %+v, %v: want %+v", got, err, want)
	}
	f, err = parseRules(t, "--alpha=0.02", "--length-start=2", "--length-max=9", "--length-rule=paper", "--reward=1.3",
		"--acceptance-window=3", "--explore=0.1")
	if err != nil {
		t.Fatal(err)
	}
	got, err = Rules(f)
	if err != nil || got.Alpha != 0.02 || got.Length.Start != 2 || got.Length.Most != 9 || got.Length.Rule != learn.LengthPaper ||
		got.Weights.Reward != 1.3 || got.Weights.Window != 3 || got.Explore != 0.1 {
		t.Errorf("changed %+v, %v", got, err)
	}
	for want, arg := range map[string]string{"--alpha is 0": "--alpha=0", "--branch is NaN": "--branch=NaN", "length": "--length-start=0",
		`length rule is "best": want curve or paper`: "--length-rule=best", "reward": "--reward=0.5",
		"punish": "--punish=2", "--explore": "--explore=0",
		"--weights /no/such": "--weights=/no/such"} {
		f, err := parseRules(t, arg)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := Rules(f); tandem.KindOf(err) != tandem.Invalid || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v: want %s", arg, err, want)
		}
	}
}
