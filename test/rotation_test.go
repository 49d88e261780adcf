package test

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/tandem-llm/tandem/client"
	"github.com/tandem-llm/tandem/modelfile/files"
	"github.com/tandem-llm/tandem/services/peers/rpc/certtest"
	"github.com/tandem-llm/tandem/test/testkit"
)

// put replaces a file of the boxes' by another's contents.
func (b *boxes) put(t *testing.T, name string, from ...string) {
	t.Helper()
	var all []byte
	for _, path := range from {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, text...)
	}
	if err := files.Replace(filepath.Join(b.dir, name), all); err != nil {
		t.Fatal(err)
	}
}

// asking runs requests one after the other, in two clients, until stop is called, and checks that each gets the text of one box.
func (b *boxes) asking(t *testing.T, r client.Request, want []int32) (answers *atomic.Int64, stop func()) {
	t.Helper()
	answers = new(atomic.Int64)
	ctx, cancel := context.WithCancel(t.Context())
	var work sync.WaitGroup
	for range 2 {
		work.Go(func() {
			for ctx.Err() == nil {
				got, err := b.try(t.Context(), r)
				if err != nil {
					t.Errorf("request %d: %v", answers.Load(), err)
				} else if !slices.EqualFunc(got.tokens, want, func(a uint32, b int32) bool { return a == uint32(b) }) {
					t.Errorf("request %d: tokens\n%v, want\n%v", answers.Load(), got.tokens, want)
				}
				answers.Add(1)
			}
		})
	}
	return answers, func() {
		cancel()
		work.Wait()
	}
}

// TestRotation moves two boxes from one authority to another while requests run, and none of them fails: the new authority beside the old
// one, a damaged certificate, new certificates on one box and on the other, the old authority away. After each step the verifier and the
// drafter are killed and start again, so that all connections are made anew; the gateway runs all the time.
func TestRotation(t *testing.T) {
	t.Parallel()
	mayBeSlow(t)
	b := newBoxes(t)
	const text = "func (r *Reader) Read("
	want := b.w.generate("--target", targetModel, "--no-draft", "--prompt", text, "--max-tokens", "48").Tokens
	for _, p := range []*process{b.gateway, b.verifying, b.drafts} {
		p.start()
	}
	r := withTree(setting{}.request(text, 48), trees[0])
	testkit.Eventually(t, "a first answer with drafts", func() bool {
		got, err := b.try(t.Context(), r)
		return err == nil && got.finished.Statistics.Accepted > 0
	})
	answers, stop := b.asking(t, r, want)
	defer stop()
	anew := func(step string) {
		t.Helper()
		for _, p := range []*process{b.verifying, b.drafts} {
			p.kill()
			p.start()
			next := answers.Load() + 3
			testkit.Eventually(t, "answers after "+step, func() bool { return answers.Load() >= next || t.Failed() })
		}
		if t.Failed() {
			t.Fatalf("failed after %s; the gateway's log:\n%s", step, b.gateway.stderr)
		}
	}
	host, _, _ := net.SplitHostPort(b.verifier)
	old := t.TempDir()
	for _, name := range []string{"ca.pem", "b.pem", "b.key"} {
		kept, err := os.ReadFile(filepath.Join(b.dir, name))
		if err == nil {
			err = os.WriteFile(filepath.Join(old, name), kept, 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	next, err := certtest.NewCA(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	renew := func(box string, roles ...string) {
		t.Helper()
		cert, key, err := next.Issue(t.TempDir(), certtest.Options{Names: []string{host}, Roles: roles})
		if err != nil {
			t.Fatal(err)
		}
		b.put(t, box+".pem", cert) // for a moment the two do not belong together
		b.put(t, box+".key", key)
	}

	b.put(t, "ca.pem", filepath.Join(old, "ca.pem"), next.File)
	anew("the overlap")
	b.put(t, "a.pem", "../LICENSE")
	anew("a damaged certificate")
	if n := strings.Count(b.gateway.stderr.String(), "certificates of this process stay as they were"); n != 1 {
		t.Errorf("the gateway tells %d times that its certificate cannot be used, want once:\n%s", n, b.gateway.stderr)
	}
	renew("b", "verifier", "drafter")
	anew("box b's new certificate")
	renew("a", "gateway")
	anew("box a's new certificate")
	b.put(t, "ca.pem", next.File)
	anew("the end of the old authority")

	asks := func(dir, ca string) ended {
		return b.w.run("health", "--addr", b.verifier, "--tls-ca", ca, "--tls-cert", filepath.Join(dir, "b.pem"), "--tls-key",
			filepath.Join(dir, "b.key"))
	}
	if e := asks(b.dir, filepath.Join(b.dir, "ca.pem")); e.code != 0 {
		t.Errorf("the verifier does not answer a new certificate: %s", e.stderr)
	}
	b.put(t, "both.pem", filepath.Join(old, "ca.pem"), next.File)
	if e := asks(old, filepath.Join(b.dir, "both.pem")); e.code != 1 || !strings.Contains(e.stderr, "certificate") {
		t.Errorf("a certificate of the old authority: exit code %d, %s: want that the verifier refuses it", e.code, e.stderr)
	}
}
