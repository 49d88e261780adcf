package enlist

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"

	"github.com/tandem-llm/tandem"
)

// told writes down what a gateway and its monitor are told of the verifier.
type told struct {
	name  string
	lines *[]string
}

func (t told) add(format string, args ...any) {
	*t.lines = append(*t.lines, t.name+" "+fmt.Sprintf(format, args...))
}

func (t told) State(up bool)              { t.add("up %v", up) }
func (t told) VerifierRefused(why string) { t.add("refused: %s", why) }
func (t told) Is(d tandem.Description) {
	t.add("is %d costs, %d tokens in pages of %d", len(d.Costs), d.KVCapacity, d.PageTokens)
	for _, w := range d.SelfDrafts {
		t.add("guesses by %s, %d levels", w.Name, w.Levels)
	}
}

// TestVerifier: a verifier that comes up is described to the gateway; one of another vocabulary, or of another identity than the
// one before, is counted and named once.
func TestVerifier(t *testing.T) {
	var lines []string
	b, log := new(book), new(bytes.Buffer)
	m, _, _, counters := members(t, b)
	defer m.Close()
	var here tandem.Description
	var away error
	w := NewVerifier(VerifierConfig{Gateway: told{"gateway", &lines}, Monitor: told{"monitor", &lines}, Members: m,
		Fingerprint: fingerprint, Counters: counters,
		Log: slog.New(slog.NewTextHandler(log, nil)), Describe: func(context.Context) (tandem.Description, error) { return here, away }})
	defer w.Close()
	identity := func(tensors string) tandem.Identity {
		return tandem.IdentityParts{Tensors: tensors, Shape: "s", Rope: "r", KV: "f16", Arithmetic: 1}.Identity()
	}
	// comes lets a verifier come up, and go again, and checks what is told.
	comes := func(what string, d tandem.Description, err error, want ...string) {
		t.Helper()
		lines, here, away = nil, d, err
		w.State(true)
		w.work.Wait()
		w.State(false)
		want = slices.Concat([]string{"gateway up true"}, want, []string{"gateway up false"})
		if !slices.Equal(lines, want) {
			t.Errorf("%s: told %q: want %q", what, lines, want)
		}
	}
	first := tandem.Description{Model: "m", Fingerprint: fingerprint, Identity: identity("a"),
		Costs: make([]tandem.Cost, 3), KVCapacity: 640, PageTokens: 64}
	is := "gateway is 3 costs, 640 tokens in pages of 64"
	comes("the first", first, nil, is)
	comes("it is gone before it has told what it is", first, errors.New("gone"))
	comes("the same again", first, nil, is)
	late := 0
	w.cfg.Describe = func(context.Context) (tandem.Description, error) {
		if late++; late < 3 {
			return here, tandem.Errorf("describe", tandem.Deadline, "not in time")
		}
		return here, nil
	}
	comes("it tells at the third time of asking", first, nil, is)
	w.cfg.Describe = func(context.Context) (tandem.Description, error) { return here, away }
	if m.target != first.Identity || log.Len() != 0 {
		t.Errorf("the members have target %s, logged %s", m.target, log)
	}
	second := first
	second.Identity = identity("b")
	comes("another", second, nil, is)
	comes("and again", second, nil, is)
	if got := log.String(); strings.Count(got, "computes other texts") != 1 ||
		counters.Snapshot()["verifier.other_identity"] != 1 || m.target != second.Identity {
		t.Errorf("logged %q, counted %v: want a word about another identity, once", got, counters.Snapshot())
	}
	other := second
	other.Fingerprint = "of another"
	why := "has vocabulary of another, the gateway's " + fingerprint
	for range 2 {
		lines, here = nil, other
		w.State(true)
		w.work.Wait()
		if len(lines) != 3 || lines[1] != is || !strings.HasPrefix(lines[2], "monitor refused: ") || !strings.Contains(lines[2], why) {
			t.Errorf("told %q: want it refused", lines)
		}
	}
	if got := log.String(); strings.Count(got, why) != 1 || counters.Snapshot()["refused.vocabulary"] != 1 {
		t.Errorf("logged %q, counted %v: want a word about the vocabulary, once", got, counters.Snapshot())
	}
	comes("the right one", second, nil, is)
	w.Refused(errors.New("no certificate"))
	w.Refused(errors.New("no certificate"))
	if got := log.String(); strings.Count(got, "no certificate") != 1 || lines[len(lines)-1] != "monitor refused: no certificate" {
		t.Errorf("logged %q, told %q", got, lines)
	}
}
