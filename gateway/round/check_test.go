package round

import (
	"errors"
	"math"
	"strings"
	"testing"

	"github.com/tandem-llm/tandem"
)

func TestCheckLogprobs(t *testing.T) {
	nan, inf := float32(math.NaN()), float32(math.Inf(-1))
	good := []tandem.Logprob{{LogProb: -1, Top: []tandem.TopLogprob{{Token: 9, LogProb: 0}, {Token: 0, LogProb: -9999}}}, {}}
	for _, c := range []struct {
		list   []tandem.Logprob
		wanted bool
		text   string // of the error; "" for none
	}{
		{good, true, ""},
		{nil, false, ""},
		{nil, true, "has 0 log-probabilities: want 2"},
		{good[:1], true, "has 1 log-probabilities: want 2"},
		{good, false, "has 2 log-probabilities: want 0"},
		{[]tandem.Logprob{{LogProb: 0.1}, {}}, true, "log-probability 0.1"},
		{[]tandem.Logprob{{}, {LogProb: nan}}, true, "NaN"},
		{[]tandem.Logprob{{}, {LogProb: inf}}, true, "-Inf"},
		{[]tandem.Logprob{{}, {Top: []tandem.TopLogprob{{Token: 10}}}}, true, "token 10"},
		{[]tandem.Logprob{{}, {Top: []tandem.TopLogprob{{Token: -1}}}}, true, "token -1"},
		{[]tandem.Logprob{{}, {Top: []tandem.TopLogprob{{LogProb: nan}}}}, true, "NaN of token 0"},
	} {
		err := checkLogprobs(tandem.Verdict{Tokens: make([]tandem.Token, 2), Logprobs: c.list}, c.wanted, 10)
		if (err == nil) != (c.text == "") || err != nil && (!errors.Is(err, tandem.Corrupt) || !strings.Contains(err.Error(), c.text)) {
			t.Errorf("%+v, wanted %v: %v, want %q", c.list, c.wanted, err, c.text)
		}
	}
}
