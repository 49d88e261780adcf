package gateway

import (
	"context"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/test/testkit"
)

// identified is a verifier that tells what it computes. A lax one takes sessions of any identity.
type identified struct {
	process
	identity   tandem.Identity // guarded by peer.w.mu
	vocabulary string
	lax        bool
}

func (v *identified) Open(ctx context.Context, o tandem.Opening) (tandem.Opened, error) {
	v.w.mu.Lock()
	here := v.identity
	v.w.mu.Unlock()
	switch {
	case o.Fingerprint != v.vocabulary:
		return tandem.Opened{}, tandem.Errorf(tandem.OpVocabulary, tandem.Unavailable, "vocabulary %s here, %s there", v.vocabulary,
			o.Fingerprint)
	case !v.lax && o.Identity != "" && o.Identity != here:
		return tandem.Opened{}, tandem.OtherIdentity(o.Session, o.Identity, here)
	}
	opened, err := v.process.Open(ctx, o)
	opened.Identity = here
	return opened, err
}

// become replaces the verifier by one that computes something else.
func (v *identified) become(i tandem.Identity, weights uint64) {
	v.w.restart("verifier")
	v.w.mu.Lock()
	v.identity, v.w.weights = i, weights
	v.w.mu.Unlock()
	v.w.hint("verifier")
}

const (
	identityA = tandem.Identity("aaaa-s-r-f16-a1")
	identityB = tandem.Identity("bbbb-s-r-q8_0-a1")
)

// atIdentities runs do in a bubble with a gateway whose verifier has identity A.
func atIdentities(t *testing.T, lax bool, do func(w *world, v *identified, g *Gateway)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		v := &identified{process: w.peer("verifier"), identity: identityA, lax: lax}
		c := w.config()
		c.Verifier = v
		g, err := New(c)
		if err != nil {
			t.Fatal(err)
		}
		w.gw = g
		do(w, v, g)
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if err := g.Shutdown(ctx); err != nil {
			t.Error(err)
		}
		w.flights.Wait()
	})
}

func aRequest(seed uint64) tandem.Request {
	return tandem.Request{Prompt: "func ", MaxTokens: 60,
		Sampling: tandem.Sampling{Temperature: 1, TopP: 1, Seed: seed}, Bounds: tandem.Bounds{Nodes: 8, Depth: 4, Width: 2}}
}

// A verifier of another identity comes in the middle of a generation, and the right one 2 s later: the text is that of the right one,
// whether or not the other one refuses. A request that begins meanwhile gets the other one's text, and keeps to it.
func TestOtherIdentity(t *testing.T) {
	for _, lax := range []bool{false, true} {
		atIdentities(t, lax, func(w *world, v *identified, g *Gateway) {
			want, text, _ := w.plain(aRequest(7), 1000)
			w.weights = 99
			other, _, _ := w.plain(aRequest(8), 1000)
			w.weights = 0
			began := time.Now()
			between := make(chan struct{})
			s := &sink{}
			s.each = func(tandem.Delta) {
				if len(s.tokens) < 20 || v.identity == identityB || time.Since(began) > 2*time.Second {
					return
				}
				v.become(identityB, 99)
				close(between)
			}
			done := make(chan error)
			go func() {
				<-between
				second := &sink{}
				res, err := g.Generate(context.Background(), aRequest(8), second)
				if err != nil || !slices.Equal(second.tokens, other) || second.started.Identity != identityB || res.Identity != identityB {
					t.Errorf("lax %v: a new request: %v, identity %q, tokens %v: want those of %s, %v",
						lax, err, second.started.Identity, second.tokens, identityB, other)
				}
				testkit.Sleep(2*time.Second - time.Since(began))
				v.become(identityA, 0)
				done <- nil
			}()
			res, err := g.Generate(context.Background(), aRequest(7), s)
			<-done
			if err != nil || !slices.Equal(s.tokens, want) || s.text != text || s.started.Identity != identityA ||
				res.Identity != identityA {
				t.Errorf("lax %v: %v, identity %q, tokens\n%v, want\n%v", lax, err, s.started.Identity, s.tokens, want)
			}
			if took := time.Since(began); took < 2*time.Second || took > 4*time.Second {
				t.Errorf("lax %v: took %v: want the 2 s that the right verifier was away, and little more", lax, took)
			}
			if n := g.cfg.Counters.Snapshot(); n["refused.identity"] == 0 || lax && n["verifier.open_unavailable"] == 0 {
				t.Errorf("lax %v: counters %v: want refusals", lax, n)
			}
		})
	}
}

// The right verifier never comes back: the request ends as Unavailable, after its patience, with a message that names both; what it
// said before was right.
func TestOtherIdentityForEver(t *testing.T) {
	atIdentities(t, false, func(w *world, v *identified, g *Gateway) {
		want, _, _ := w.plain(aRequest(7), 1000)
		var since time.Time
		s := &sink{}
		s.each = func(tandem.Delta) {
			if len(s.tokens) >= 20 && since.IsZero() {
				since = time.Now()
				v.become(identityB, 99)
			}
		}
		_, err := g.Generate(context.Background(), aRequest(7), s)
		if tandem.KindOf(err) != tandem.Unavailable {
			t.Fatalf("error %v: want unavailable", err)
		}
		for _, part := range []string{string(identityA), string(identityB), "tensors and KV type"} {
			if !strings.Contains(err.Error(), part) {
				t.Errorf("error %q does not name %q", err, part)
			}
		}
		if took := time.Since(since); took < 5*time.Second || took > 7*time.Second {
			t.Errorf("failed after %v: want the patience of 5 s", took)
		}
		if n := len(s.tokens); n < 20 || n > 40 || !slices.Equal(s.tokens, want[:n]) {
			t.Errorf("%d tokens %v: want the first of %v", n, s.tokens, want)
		}
	})
}

// A verifier of another vocabulary is refused at once by a request that begins.
func TestOtherVocabulary(t *testing.T) {
	atIdentities(t, false, func(w *world, v *identified, g *Gateway) {
		v.vocabulary = "ff00"
		began := time.Now()
		_, err := g.Generate(context.Background(), aRequest(7), &sink{})
		if tandem.KindOf(err) != tandem.Unavailable || !strings.Contains(err.Error(), "ff00") || time.Since(began) > time.Second {
			t.Errorf("error %v after %v: want unavailable at once, with the vocabulary", err, time.Since(began))
		}
		if g.cfg.Counters.Snapshot()["refused.vocabulary"] != 1 {
			t.Errorf("counters %v: want a refusal", g.cfg.Counters.Snapshot())
		}
	})
}
