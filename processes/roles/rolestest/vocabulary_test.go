package rolestest

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/tandem-llm/tandem/client"
	"github.com/tandem-llm/tandem/engine"
	"github.com/tandem-llm/tandem/kernels/testdevice"
	"github.com/tandem-llm/tandem/processes/roles/pair"
)

// draftName is what requests call the drafter of the file draft.
const draftName = "gopher-draft-all-f16"

// ask is a request for 60 tokens.
func ask(temperature float64, plain bool) client.Request {
	return client.Request{Prompt: "func (r *Reader) Read(p []byte) (n int, err error) {\n", MaxTokens: new(60),
		Temperature: &temperature, Seed: new(uint64(5)), NoDraft: plain}
}

// awaitEnlisted waits until requests may name a drafter.
func (s *System) awaitEnlisted(name string) {
	s.t.Helper()
	s.await(name+" to be enlisted", func() bool {
		_, _, _, err := s.Generate(client.Request{Prompt: "x", MaxTokens: new(1), Drafters: []string{name}})
		if err != nil && !strings.Contains(err.Error(), "is not there") {
			s.t.Fatal(err)
		}
		return err == nil
	})
}

// TestNearVocabularies: drafts with more tokens, fewer, another eos and other types draft for the shipped target. The text is that of
// plain decoding, and what differs is told: by whoever starts both, or else by the gateway.
func TestNearVocabularies(t *testing.T) {
	s := Start(t, target)
	temperatures := []float64{0, 0.8}
	texts, tokens := map[float64]string{}, map[float64][]uint32{}
	for _, temperature := range temperatures {
		var err error
		if tokens[temperature], texts[temperature], _, err = s.Generate(ask(temperature, true)); err != nil {
			t.Fatal(err)
		}
	}
	for name, c := range map[string]struct {
		draft Refitted
		says  string
	}{
		"padding": {Refitted{Tokens: 4096 + 128}, "4224 tokens, the target 4096"},
		// the copies are likelier than what they are copies of: without a mask nothing else would be drafted
		"padding that is likely": {Refitted{Tokens: 4096 + 3700, Copies: 3700}, "7796 tokens, the target 4096"},
		"fewer":                  {Refitted{Tokens: 3000}, "3000 tokens, the target 4096"},
		"another eos":            {Refitted{EOS: 13}, "end with token 13, the target's with 2"},
		"other types": {Refitted{Types: map[int]int32{4000: UserType, 4001: UnusedType, 2: UserType, 4002: ControlType}},
			"4 tokens have another type, the first is token 2,"},
		"all at once": {Refitted{Tokens: 4100, Copies: 4, EOS: 5, Types: map[int]int32{4095: UnusedType}},
			"4100 tokens, the target 4096"},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), strings.ReplaceAll(name, " ", "-")+".gguf")
			if err := os.Rename(Refit(t, draft, c.draft), path); err != nil {
				t.Fatal(err)
			}
			var notes []string
			p := pair.Pair{Target: target, Drafts: []string{path}, Options: engine.Options{Device: testdevice.CPU(t, 1)}}
			if err := p.Check("", func(note string) { notes = append(notes, note) }); err != nil {
				t.Fatal(err)
			}
			if len(notes) != 1 || !strings.Contains(notes[0], c.says) || !strings.Contains(notes[0], path) {
				t.Errorf("told %q: want %q, once, with the draft's name", notes, c.says)
			}
			s.t = t
			defer s.Drafter("drafter "+name, path)()
			drafter := strings.TrimSuffix(filepath.Base(path), ".gguf")
			s.awaitEnlisted(drafter)
			for _, temperature := range temperatures {
				r := ask(temperature, false)
				r.Drafters = []string{drafter}
				// On a busy machine a request may end before its drafter has opened it.
				s.await(fmt.Sprintf("an accepted draft at temperature %v", temperature), func() bool {
					got, text, done, err := s.Generate(r)
					if err != nil || text != texts[temperature] || !slices.Equal(got, tokens[temperature]) {
						t.Fatalf("temperature %v: got %q, %v, plain decoding %q", temperature, text, err, texts[temperature])
					}
					return done.Statistics.Accepted > 0
				})
			}
			if n := strings.Count(s.Log.String(), "drafter="+drafter+" "); n != 1 || !strings.Contains(s.Log.String(), c.says) {
				t.Errorf("logged of the drafter %d times: want %q, once: %s", n, c.says, s.Log)
			}
		})
	}
	s.t = t
}

// TestTokensThatTheDraftLacks: the target is made to say, again and again, tokens that its draft has not.
func TestTokensThatTheDraftLacks(t *testing.T) {
	s := Start(t, Refit(t, target, Refitted{Tokens: 4096 + 64}))
	request := ask(1, true)
	request.LogitBias = map[uint32]float32{4100: 8, 4159: 8}
	plain, text, _, err := s.Generate(request)
	if err != nil {
		t.Fatal(err)
	}
	beyond := 0
	for _, id := range plain {
		if id >= 4096 {
			beyond++
		}
	}
	if beyond < 2 || beyond > len(plain)*3/4 {
		t.Fatalf("%d of %d tokens are new: the test hardly tests what it is for", beyond, len(plain))
	}
	s.Drafter("drafter", draft)
	s.awaitEnlisted(draftName)
	s.awaitEnlisted("lookup")
	request.NoDraft = false
	for _, c := range []struct {
		strategy string
		drafters []string
	}{{"fixed", []string{draftName}}, {"planner", []string{draftName}}, {"planner", []string{"lookup"}},
		{"planner", []string{draftName, "lookup"}}} {
		request.Strategy, request.Drafters = c.strategy, c.drafters
		s.await(fmt.Sprintf("%v: an accepted draft", c), func() bool {
			got, words, done, err := s.Generate(request)
			if err != nil || words != text || !slices.Equal(got, plain) {
				t.Fatalf("%v: tokens %v, %v, plain decoding %v", c, got, err, plain)
			}
			return c.strategy != "fixed" || done.Statistics.Accepted > 0
		})
	}
}

// TestNearVocabularyJoins: a drafter process of another vocabulary that only the pool's server tells of. The gateway asks what its ids
// mean, says what differs, and drafts with it; one whose ids mean other texts translates.
func TestNearVocabularyJoins(t *testing.T) {
	s := Start(t, target)
	request := client.Request{Prompt: "func (r *Reader) Read(", MaxTokens: new(48), Temperature: new(0.0), NoDraft: true}
	want, _, _, err := s.Generate(request)
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]Refitted{"padded": {Tokens: 4224, Copies: 90}, "short": {Tokens: 3900},
		"foreign": {Pieces: map[int]string{3600: "\u2581foreign"}}} {
		named := filepath.Join(t.TempDir(), name+".gguf")
		if err := os.Rename(Refit(t, draft, c), named); err != nil {
			t.Fatal(err)
		}
		s.Drafter(name, named)
	}
	for _, name := range []string{"padded", "short", "foreign"} {
		s.awaitEnlisted(name)
		r := request
		r.NoDraft, r.Strategy, r.Drafters = false, "fixed", []string{name}
		s.await(name+": an accepted draft", func() bool {
			got, _, done, err := s.Generate(r)
			if err != nil || !slices.Equal(got, want) {
				t.Fatalf("%s: tokens %v, %v: want %v", name, got, err, want)
			}
			return done.Statistics.Accepted > 0
		})
	}
	for _, part := range []string{"drafter=foreign ", "has another vocabulary than the target: it drafts in its own tokens",
		"token 3600 is"} {
		if n := strings.Count(s.Log.String(), part); n != 1 {
			t.Errorf("logged %q %d times: want once", part, n)
		}
	}
}
