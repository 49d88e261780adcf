package ask

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tandem-llm/tandem"
)

// offered are tools of these names.
func offered(names string) (all []Tool) {
	for _, name := range strings.Fields(names) {
		all = append(all, Tool{Name: name, JSON: []byte(`{"function":{"name":"` + name + `"}}`)})
	}
	return all
}

// TestOffer: of the tools those are left that the choice allows, in its order, as they were written.
func TestOffer(t *testing.T) {
	for _, c := range []struct {
		choice      Choice
		tools, want string // want: what is left, or what the error says
	}{
		{Choice{}, "f g", "f g"},
		{Choice{Must: true}, "f g", "f g"},
		{Choice{None: true}, "f g", ""},
		{Choice{}, "", ""},
		{Choice{Only: []string{"g", "f"}}, "f g", "g f"},
		{Choice{Only: []string{"h"}}, "f g", `"h", which is not in tools: want one of f, g`},
		{Choice{Must: true}, "", "no functions in tools"},
	} {
		got, err := c.choice.Offer(offered(c.tools))
		is, want := (&Request{Tools: got}).Conversation().Tools, (&Request{Tools: offered(c.want)}).Conversation().Tools
		if err != nil {
			if tandem.FieldOf(err) != "tool_choice" || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%+v of %s: %v, want an error with %q", c.choice, c.tools, err, c.want)
			}
		} else if string(is) != string(want) {
			t.Errorf("%+v of %s: %s, want %s", c.choice, c.tools, is, want)
		}
	}
}

// TestOfferOnce: a tool is offered once, however often the choice names it, the first of a name, and a long list of tools is gone through
// once.
func TestOfferOnce(t *testing.T) {
	tools := offered("f " + strings.Repeat("g ", 20_000) + "h")
	tools[2].JSON = []byte("{}")
	begun := time.Now()
	got, err := Choice{Only: slices.Repeat([]string{"f", "h", "g"}, 20_000)}.Offer(tools)
	const want = `[{"function":{"name":"f"}},{"function":{"name":"h"}},{"function":{"name":"g"}}]`
	if is := (&Request{Tools: got}).Conversation().Tools; err != nil || string(is) != want {
		t.Errorf("%.200s, %v: want %s", is, err, want)
	}
	if took := time.Since(begun); took > 3*time.Second {
		t.Errorf("60,000 names of 20,002 tools took %v", took)
	}
}
