package test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/tandem-llm/tandem/test/testkit"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/client"
	"github.com/tandem-llm/tandem/kernels/ref"
)

// TestLastCommit runs processes of the last commit's program beside those of this one: where both speak one protocol, any mixture says the
// text of plain decoding by its verifier, whose version of the arithmetic may be another one; where they do not, each is refused by name.
func TestLastCommit(t *testing.T) {
	t.Parallel()
	mayBeSlow(t)
	old, protocol := lastCommit(t)
	if protocol != tandem.Protocol {
		for _, role := range []string{"gateway", "verifier"} {
			wantRefusedByName(t, map[string]string{role: old}, protocol)
		}
		wantNoDrafts(t, map[string]string{"drafter": old}, protocol)
		return
	}
	wantTogether(t, old)
}

// TestOtherReleases: processes of a release with another protocol are refused by name, or its drafters are not asked; those of one with
// other arithmetic serve together with this one's. What becomes of sessions whose verifier is replaced by such a one is a case of
// TestAnotherVerifier.
func TestOtherReleases(t *testing.T) {
	t.Parallel()
	mayBeSlow(t)
	t.Run("protocol", func(t *testing.T) {
		other := tandem.Protocol + 1
		program := otherRelease(t, [3]string{"peers.go", fmt.Sprintf("const Protocol = %d", tandem.Protocol),
			fmt.Sprintf("const Protocol = %d", other)})
		for _, role := range []string{"gateway", "verifier"} {
			wantRefusedByName(t, map[string]string{role: program}, other)
		}
		wantNoDrafts(t, map[string]string{"drafter": program}, other)
	})
	t.Run("arithmetic", func(t *testing.T) { wantTogether(t, otherArithmetic(t)) })
}

// otherArithmetic builds a release that draws other tokens, and says so.
func otherArithmetic(t *testing.T) (program string) {
	t.Helper()
	return otherRelease(t, [3]string{"kernels/ref/version.go", fmt.Sprintf("const Version = %d", ref.Version),
		fmt.Sprintf("const Version = %d", ref.Version+1)}, [3]string{"engine/sample/noise.go", "0x9E3779B97F4A7C15", "0x9E3779B97F4A7C17"})
}

// otherRelease builds this program as another release would be: each change names a file, a text that is in it once, and what takes its
// place.
func otherRelease(t *testing.T, changes ...[3]string) (program string) {
	t.Helper()
	if *tags != "" {
		t.Skip("builds with tags are wrong on purpose")
	}
	dir := t.TempDir()
	overlay := struct{ Replace map[string]string }{map[string]string{}}
	for i, c := range changes {
		path, err := filepath.Abs(filepath.Join("..", c[0]))
		if err != nil {
			t.Fatal(err)
		}
		source, err := os.ReadFile(path)
		if err != nil || bytes.Count(source, []byte(c[1])) != 1 {
			t.Fatalf("%s: %v: want %q in it, once", c[0], err, c[1])
		}
		changed := filepath.Join(dir, fmt.Sprintf("%d.go", i))
		if err := os.WriteFile(changed, bytes.Replace(source, []byte(c[1]), []byte(c[2]), 1), 0o600); err != nil {
			t.Fatal(err)
		}
		overlay.Replace[path] = changed
	}
	list, err := json.Marshal(overlay)
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, "overlay.json"), list, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	program = filepath.Join(dir, "tandem")
	cmd := exec.Command("go", "build", "-buildvcs=false", "-overlay", filepath.Join(dir, "overlay.json"), "-o", program, "../cmd/tandem")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("building another release: %v\n%s", err, out)
	}
	return program
}

// wantTogether runs processes of another release beside those of this one: any mixture says the text of plain decoding by its verifier.
func wantTogether(t *testing.T, other string) {
	t.Helper()
	var requests []client.Request
	for _, p := range sample(t, 1)[:2] {
		for _, s := range []setting{{0, 0}, {0.8, 3}} {
			requests = append(requests, withTree(s.request(p.Prompt, 40), client.Tree{Nodes: 8, Depth: 4, Width: 2}))
		}
	}
	large := client.Tree{Nodes: 256, Depth: 16, Width: 32} // goes by handle
	requests = append(requests, withTree(setting{0, 0}.request(sample(t, 1)[0].Prompt, 40), large))
	want := map[string][]result{"": mixed(t, nil, requests, true), other: mixed(t, map[string]string{"verifier": other}, requests, true)}
	for _, programs := range []map[string]string{{"gateway": other}, {"verifier": other}, {"drafter": other},
		{"verifier": other, "drafter": other}} {
		for i, got := range mixed(t, programs, requests, false) {
			if want := want[programs["verifier"]][i]; !slices.Equal(got.tokens, want.tokens) || got.text != want.text {
				t.Errorf("the other release's %v: tokens\n%v, want\n%v", programs, got.tokens, want.tokens)
			}
		}
	}
}

// mixed runs requests in a cluster in which some roles have another program, without speculation if plainly.
func mixed(t *testing.T, programs map[string]string, requests []client.Request, plainly bool) (out []result) {
	t.Helper()
	c := newCluster(t, clusterConfig{programs: programs})
	defer c.end(t)
	drafted := 0
	for _, r := range requests {
		if plainly {
			r = plain(r)
		}
		out = append(out, c.run(t, r))
		drafted += out[len(out)-1].finished.Statistics.Accepted
	}
	if !plainly && drafted == 0 {
		t.Errorf("nothing that the other release's %v drafted or verified was accepted", programs)
	}
	return out
}

// wantRefusedByName wants no generation where one role's program speaks another protocol, and an error that says so.
func wantRefusedByName(t *testing.T, programs map[string]string, protocol int) {
	t.Helper()
	c := newCluster(t, clusterConfig{programs: programs})
	defer c.end(t)
	n := 4
	_, err := c.try(t.Context(), client.Request{Prompt: "x", MaxTokens: &n})
	if !errors.Is(err, client.Unavailable) || programs["gateway"] == "" && !strings.Contains(err.Error(), "run the same release") {
		t.Errorf("%v of protocol %d: error %v: want unavailable, by name", programs, protocol, err)
	}
}

// wantNoDrafts wants no drafts of a drafter of another protocol, and a line in the gateway's log that names it.
func wantNoDrafts(t *testing.T, programs map[string]string, protocol int) {
	t.Helper()
	c := newCluster(t, clusterConfig{programs: programs})
	defer c.end(t)
	got := c.run(t, withTree(setting{0, 0}.request("func (r *Reader) Read(", 40), client.Tree{Nodes: 8, Depth: 4, Width: 2}))
	for _, d := range got.finished.Statistics.Drafters {
		if d.Name != "lookup" && d.Name != tandem.Recycling {
			t.Errorf("drafter %s of protocol %d has drafted %d tokens", d.Name, protocol, d.Drafted)
		}
	}
	testkit.Eventually(t, "a word about the drafter in the gateway's log", func() bool {
		return strings.Contains(c.gateway.stderr.String(), "run the same release")
	})
}

// lastCommit builds the program of the last commit, that before this one if nothing has been changed since, and returns its path and the
// protocol that it speaks. It skips the test where there is none.
func lastCommit(t *testing.T) (program string, protocol int) {
	t.Helper()
	if *tags != "" {
		t.Skip("builds with tags are wrong on purpose")
	}
	git := func(args ...string) (string, error) {
		cmd := exec.Command("git", append([]string{"-C", ".."}, args...)...)
		out, err := cmd.Output()
		return strings.TrimSpace(string(out)), err
	}
	changed, err := git("status", "--porcelain", "--untracked-files=no")
	if err != nil {
		t.Skip("not a git checkout: ", err)
	}
	commit := "HEAD~1"
	if changed != "" {
		commit = "HEAD"
	}
	if _, err := git("rev-parse", "--verify", "--quiet", commit+"^{commit}"); err != nil {
		t.Skipf("no commit %s here: a shallow clone?", commit)
	}
	source, _ := git("grep", "-h", "^const Protocol = ", commit, "--", ":(glob)*.go") // whichever file of package tandem says it
	found := regexp.MustCompile(`^const Protocol = ([0-9]+)$`).FindStringSubmatch(source)
	if found == nil {
		t.Skipf("commit %s is older than protocol 1", commit)
	}
	if protocol, err = strconv.Atoi(found[1]); err != nil {
		t.Fatal(err)
	}
	return build(t, commit), protocol
}

// build builds the program of a commit and returns its path.
func build(t *testing.T, commit string) string {
	t.Helper()
	begun, dir := time.Now(), t.TempDir()
	archive := exec.Command("git", "-C", "..", "archive", commit, "--", ".", ":(exclude)docs", ":(exclude)test")
	unpack := exec.Command("tar", "-x", "-C", dir)
	var err error
	var stderr bytes.Buffer
	archive.Stderr, unpack.Stderr = &stderr, &stderr
	if unpack.Stdin, err = archive.StdoutPipe(); err != nil {
		t.Fatal(err)
	}
	if err = errors.Join(archive.Start(), unpack.Run(), archive.Wait()); err != nil {
		t.Fatalf("source of %s: %v: %s", commit, err, &stderr)
	}
	program := filepath.Join(dir, "tandem")
	// trimmed, so that the next run finds it in the cache
	cmd := exec.Command("go", "build", "-trimpath", "-buildvcs=false", "-o", program, "./cmd/tandem")
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "PWD="+dir)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("building %s: %v\n%s", commit, err, out)
	}
	t.Logf("built %s in %v", commit, time.Since(begun).Round(time.Millisecond))
	return program
}
