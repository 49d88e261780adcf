package hub

import (
	"context"
	"errors"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/tandem-llm/tandem/modelfile/hub/hubtest"
)

// pullerFolder is set in a process that is only there to pull, and to be killed.
const (
	pullerFolder = "TANDEM_TEST_PULLER"
	pullerName   = "TANDEM_TEST_PULLER_NAME"
)

// pullerStores are the stores of such a process, whose hub and registry are at endpoint.
func pullerStores(dir, endpoint string) Config {
	return Config{HubCache: filepath.Join(dir, "hub"), Stores: []string{filepath.Join(dir, "ollama")}, Endpoint: endpoint,
		Registry: endpoint, Own: dir}
}

// puller returns a process that pulls a model, not started.
func puller(ctx context.Context, dir, endpoint, name string, env ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, os.Args[0], "-test.run=^$")
	cmd.Env = append(os.Environ(), append(env, pullerFolder+"="+dir, "HF_ENDPOINT="+endpoint, pullerName+"="+name)...)
	return cmd
}

func TestMain(m *testing.M) {
	dir := os.Getenv(pullerFolder)
	if dir == "" {
		os.Exit(m.Run())
	}
	if _, err := pull(context.Background(), pullerStores(dir, os.Getenv("HF_ENDPOINT")), os.Getenv(pullerName)); err != nil {
		os.Stderr.WriteString(err.Error() + "\n")
		os.Exit(1)
	}
	os.Exit(0)
}

// TestKilled: whenever a puller is killed, there is a whole file or none, and the next one goes on. It is killed with SIGKILL after random
// times; when one ends its work, the file is compared and removed, and it begins anew.
func TestKilled(t *testing.T) {
	for _, name := range []string{repoFile, "tiny:1b"} {
		t.Run(name, func(t *testing.T) { killed(t, name) })
	}
}

func killed(t *testing.T, name string) {
	kills, size := 50, 24<<20
	if testing.Short() {
		kills = 5
	}
	s, m := served(t, size)
	s.Tag("library/tiny:1b", hubtest.Layer{Kind: "model", B: m}, hubtest.Layer{Kind: "params", B: []byte(`{"top_k":7}`)})
	s.Set(hubtest.Faults{Rate: 150 << 20})
	dir := t.TempDir()
	c := pullerStores(dir, s.URL)
	n, _ := Parse(name, "")
	whole, most := 0, int64(0)
	for killed := 0; killed < kills; {
		before := s.Sent()
		ctx, cancel := context.WithTimeout(t.Context(), time.Duration(rand.IntN(300))*time.Millisecond)
		out, err := puller(ctx, dir, s.URL, name).CombinedOutput()
		over := ctx.Err() != nil
		cancel()
		if err != nil && !over {
			t.Fatalf("%v: %s", err, out)
		}
		most = max(most, s.Sent()-before)
		f, ok := find(t, c, name)
		if ok {
			whole++
			same(t, f.Path, m)
			if _, err := c.Remove(n, false); err != nil {
				t.Fatal(err)
			}
			for _, path := range append(filesBelow(t, c.HubCache), filesBelow(t, c.Stores[0])...) {
				if !strings.HasSuffix(path, ".lock") && !strings.HasPrefix(path, filepath.Join(receiptFolder, "locks")) {
					t.Errorf("left behind the removal: %s", path)
				}
			}
		} else if err == nil {
			t.Fatal("the puller ended without an error, and there is no file")
		}
		if over {
			killed++
		}
	}
	got, err := pull(t.Context(), c, name)
	if err != nil {
		t.Fatal(err)
	}
	same(t, got.Path, m)
	t.Logf("%d kills, %d whole files on the way, %d MiB sent for files of %d MiB", kills, whole, s.Sent()>>20, size>>20)
	if again := s.Sent() - int64(whole+1)*int64(len(m)); again > int64(kills)*int64(connections+2)*pieceBytes {
		t.Errorf("%d bytes were fetched again: want at most a piece a connection, and a header, for each of %d kills", again, kills)
	}
}

// TestLostPower: pieces whose bytes have not reached the disk, and records that are torn, are fetched again, whatever the files' lengths.
func TestLostPower(t *testing.T) {
	s, m := served(t, 12<<20)
	c := storesFor(t, s)
	s.Set(hubtest.Faults{Status: []int{}, Rate: 24 << 20})
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	_, err := pull(ctx, c, repoFile)
	if cancel(); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatal(err)
	}
	at := filepath.Join(c.HubCache, "models--org--repo", "blobs", hubtest.Sum(m))
	part, err := os.OpenFile(partPath(at), os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := part.WriteAt(make([]byte, 3<<19), 1<<19); err != nil { // a piece and a half are zeros
		t.Fatal(err)
	}
	part.Close()
	records, err := os.OpenFile(recordsPath(at), os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := records.Write([]byte("torn")); err != nil {
		t.Fatal(err)
	}
	records.Close()
	s.Set(hubtest.Faults{})
	got, err := pull(t.Context(), c, repoFile)
	if err != nil {
		t.Fatal(err)
	}
	same(t, got.Path, m)
}
