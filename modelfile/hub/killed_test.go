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
const pullerFolder = "TANDEM_TEST_PULLER"

func TestMain(m *testing.M) {
	dir := os.Getenv(pullerFolder)
	if dir == "" {
		os.Exit(m.Run())
	}
	c := Config{HubCache: filepath.Join(dir, "hub"), Endpoint: os.Getenv("HF_ENDPOINT"), Own: dir}
	if _, err := pull(context.Background(), c, repoFile); err != nil {
		os.Stderr.WriteString(err.Error() + "\n")
		os.Exit(1)
	}
	os.Exit(0)
}

// TestKilled: whenever a puller is killed, there is a whole file or none, and the next one goes on. It is killed with SIGKILL after random
// times; when one ends its work, the file is compared and removed, and it begins anew.
func TestKilled(t *testing.T) {
	kills, size := 50, 24<<20
	if testing.Short() {
		kills = 5
	}
	s, m := served(t, size)
	s.Set(hubtest.Faults{Rate: 150 << 20})
	dir := t.TempDir()
	c := Config{HubCache: filepath.Join(dir, "hub"), Endpoint: s.URL, Own: dir}
	n, _ := Parse(repoFile, "")
	whole, most := 0, int64(0)
	for killed := 0; killed < kills; {
		before := s.Sent()
		ctx, cancel := context.WithTimeout(t.Context(), time.Duration(rand.IntN(300))*time.Millisecond)
		cmd := exec.CommandContext(ctx, os.Args[0], "-test.run=^$")
		cmd.Env = append(os.Environ(), pullerFolder+"="+dir, "HF_ENDPOINT="+s.URL)
		out, err := cmd.CombinedOutput()
		over := ctx.Err() != nil
		cancel()
		if err != nil && !over {
			t.Fatalf("%v: %s", err, out)
		}
		most = max(most, s.Sent()-before)
		f, ok := find(t, c, repoFile)
		if ok {
			whole++
			same(t, f.Path, m)
			if _, err := c.Remove(n); err != nil {
				t.Fatal(err)
			}
			for _, path := range filesBelow(t, c.HubCache) {
				if !strings.HasSuffix(path, ".lock") {
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
	got, err := pull(t.Context(), c, repoFile)
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
