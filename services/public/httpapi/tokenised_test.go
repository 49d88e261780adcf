package httpapi

import (
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/test/testkit"
)

// counting is an alphabet that counts what it is given.
type counting struct {
	alphabet
	texts, bytes *atomic.Int64
}

func (c counting) Encode(text string, special bool) []tandem.Token {
	c.texts.Add(1)
	c.bytes.Add(int64(len(text)))
	return c.alphabet.Encode(text, special)
}

func (c counting) EncodeWithControl(text string, special bool) []tandem.Token {
	c.texts.Add(1)
	c.bytes.Add(int64(len(text)))
	return c.alphabet.EncodeWithControl(text, special)
}

func (c counting) FillIn(before, after string, files ...tandem.Excerpt) ([]tandem.Token, []string) {
	c.bytes.Add(int64(len(before) + len(after)))
	return c.alphabet.FillIn(before, after, files...)
}

func (c counting) serve(t *testing.T) *site {
	return serve(t, script(nil), func(cfg *Config) { cfg.Vocab = c })
}

// TestPartsTooLong: texts that are short one by one, and together far longer than the context, are not tokenised.
func TestPartsTooLong(t *testing.T) {
	c := counting{texts: new(atomic.Int64), bytes: new(atomic.Int64)}
	s := c.serve(t)
	text := `"` + strings.Repeat("x", smallBody-1) + `"`
	parts := strings.Repeat(text+",", 50)
	for path, body := range map[string]string{
		"/completion":     `{"prompt":[` + parts + `1]}`,
		"/v1/completions": `{"prompt":[` + strings.Repeat(text+",", 15) + text + `]}`,
		"/infill": `{"input_prefix":"","input_suffix":"","input_extra":[` + strings.Repeat(`{"text":`+text+`},`, 50) + `{"text":"a"}],` +
			`"prompt":` + text + `}`,
	} {
		c.bytes.Store(0)
		answer, all := s.ask(t, "POST", path, body)
		if n := c.bytes.Load(); answer.StatusCode != 400 || !strings.Contains(all, "maximum context length") || n > smallBody {
			t.Errorf("%s: %.200s after %d bytes were tokenised", path, all, n)
		}
	}
}

// TestTokensCountAsBodies: tokens of large texts count among large bodies until their answer is written, so few of them are there at once.
func TestTokensCountAsBodies(t *testing.T) {
	c := counting{texts: new(atomic.Int64), bytes: new(atomic.Int64)}
	s := c.serve(t)
	body := `{"with_pieces":true,"content":"` + strings.Repeat("x", mostTokenized) + `"}`
	var wg sync.WaitGroup
	leave := make(chan struct{})
	for range 12 {
		wg.Go(func() {
			answer, err := http.Post(s.url+"/tokenize", "application/json", strings.NewReader(body))
			<-leave // the answer is not read: it is larger than what the system keeps of it
			if err == nil {
				answer.Body.Close()
			}
		})
	}
	testkit.Eventually(t, "most wait", func() bool { return s.waiting() >= 8 })
	if n := c.texts.Load(); n < 1 || n > 4 {
		t.Errorf("%d texts of 1 MiB were tokenised at once: want at most 4", n)
	}
	s.refused(t, "POST", "/v1/chat/completions", `{"messages":5}`) // small bodies wait for nobody
	close(leave)
	wg.Wait()
}
