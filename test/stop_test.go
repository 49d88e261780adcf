package test

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/tandem-llm/tandem/test/testkit"
)

// TestTermUnderLoad stops `up` while requests run and wait: all of them end as if nothing had happened, nobody new
// is let in, and the exit code is 0.
func TestTermUnderLoad(t *testing.T) {
	const sessions = 4
	web := freePort(t)
	g := up(t, "--sessions", strconv.Itoa(sessions), "--grace", "25s", "--http", web)
	jobs := g.workload(t, 2*sessions, 128)
	asked := make(chan struct{}) // by HTTP, and the answer has begun
	var wg sync.WaitGroup
	var mu sync.Mutex
	running := 0
	wg.Go(func() {
		r, err := http.Post("http://"+web+"/v1/completions", "application/json",
			strings.NewReader(`{"prompt": "package main", "max_tokens": 512, "temperature": 0, "ignore_eos": true, "stream": true}`))
		if err != nil {
			t.Errorf("by HTTP: %v", err)
			close(asked)
			return
		}
		defer r.Body.Close()
		close(asked)
		body, err := io.ReadAll(r.Body)
		if err != nil || !bytes.HasSuffix(bytes.TrimSpace(body), []byte("data: [DONE]")) || bytes.Contains(body, []byte("event: error")) {
			t.Errorf("by HTTP: %v, %s: want a stream that comes to its end", err, body)
		}
	})
	<-asked
	for _, j := range jobs {
		wg.Go(func() {
			ctx, cancel := context.WithTimeout(t.Context(), 25*time.Second)
			defer cancel()
			var tokens []uint32
			for event, err := range g.client.Generate(ctx, j.request) {
				if err != nil {
					t.Errorf("%s ended after %d tokens: %v", j.id, len(tokens), err)
					return
				}
				if event.Delta != nil {
					if len(tokens) == 0 {
						mu.Lock()
						running++
						mu.Unlock()
					}
					tokens = append(tokens, event.Delta.Tokens...)
				}
			}
			if !slices.Equal(tokens, j.want) {
				t.Errorf("%s: tokens\n%v, undisturbed\n%v", j.id, tokens, j.want)
			}
		})
	}
	testkit.Eventually(t, "output of every session that there is room for", func() bool {
		mu.Lock()
		defer mu.Unlock()
		return running >= sessions-1 // one is the HTTP client's
	})
	at := time.Now()
	if err := g.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	gateway := g.w.one(t, "gateway")
	testkit.Eventually(t, "no new request to be let in", func() bool {
		_, err := net.Dial("unix", filepath.Join(g.w.tmp, "g.sock"))
		return err != nil
	})
	if pids := g.w.role("gateway"); !slices.Contains(pids, gateway) {
		t.Error("the gateway was gone before it could finish a request: is the load too small?")
	}
	wg.Wait()
	t.Logf("%d requests ended within %v of SIGTERM", len(jobs), time.Since(at))
}

// TestTermExitCodes stops each process by itself, idle and while it loads: exit code 0, and nothing is left.
func TestTermExitCodes(t *testing.T) {
	w := newWorld(t)
	dir := filepath.Join(w.tmp, "run")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	pool := "file:" + filepath.Join(dir, "pool")
	for _, args := range [][]string{
		{"gateway", "--http", "off", "--verifier", "unix://" + filepath.Join(dir, "v"), "--target", targetModel},
		{"verifier", "--pool", pool, "--target", targetModel},
		{"drafter", "--pool", pool, "--draft", draftModel},
		{"up", "--http", "off", "--target", targetModel, "--draft", draftModel},
	} {
		for _, wait := range []time.Duration{100 * time.Millisecond, 4 * time.Second} {
			t.Run(fmt.Sprintf("%s after %v", args[0], wait), func(t *testing.T) {
				t.Parallel()
				sock := fmt.Sprintf("unix://%s/%s-%v", dir, args[0], wait)
				cmd := w.command(t.Context(), append([]string{args[0], "--listen", sock}, args[1:]...)...)
				begun := time.Now() // before the timer: another test may run in between
				timer := time.AfterFunc(wait, func() { _ = cmd.Process.Signal(syscall.SIGTERM) })
				defer timer.Stop()
				early := wait < time.Second // a process that cannot handle signals yet has nothing to finish
				if e := w.wait(cmd); e.code != 0 && (!early || e.code != 128+int(syscall.SIGTERM)) {
					t.Errorf("exit code %d: %s", e.code, e.stderr)
				}
				if took := time.Since(begun) - wait; took > 10*time.Second || took < 0 {
					t.Errorf("ended %v after SIGTERM: want at most 10 s", took)
				}
			})
		}
	}
}

// TestPorts compares the ports on which the processes of `up` listen with those that it printed, of which the system has chosen one. A base
// model's user is told to take a chat model, and what the gateway keeps is in the folder that up was given.
func TestPorts(t *testing.T) {
	w := newWorld(t)
	given, kept := freePort(t), filepath.Join(t.TempDir(), "kept")
	cmd := w.command(t.Context(), "up", "--listen", given, "--port", "0", "--target", targetModel, "--draft", draftModel, "--cache", kept)
	stderr := new(lockedBuffer)
	cmd.Stderr = stderr
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		_ = cmd.Wait()
	}()
	var printed []string
	said := map[string]string{}
	for lines := bufio.NewScanner(stdout); lines.Scan(); {
		printed = append(printed, regexp.MustCompile(`[\w.:\[\]]+:\d+`).FindAllString(lines.Text(), -1)...)
		if strings.HasPrefix(lines.Text(), "stop with") {
			break
		}
		name, value, _ := strings.Cut(lines.Text(), " ")
		said[name] = strings.TrimSpace(value)
	}
	web := said["http"]
	if !slices.Contains(printed, given) || !strings.HasPrefix(web, "http://127.0.0.1:") {
		t.Fatalf("up printed %v, with the addresses %v, not %s and a URL of 127.0.0.1: %s", said, printed, given, stderr)
	}
	if answer, err := http.Get(web + "/api/tags"); err != nil {
		t.Errorf("the URL that up printed: %v", err)
	} else if answer.Body.Close(); answer.StatusCode != http.StatusOK {
		t.Errorf("%s/api/tags: %s", web, answer.Status)
	}
	if chat := said["chat"]; !strings.HasPrefix(chat, "no, it continues texts: ") ||
		!strings.Contains(chat, "--target FILE of a chat model, such as ") {
		t.Errorf("up says of a base model: %q: want the name of a chat model", chat)
	}
	testkit.Eventually(t, "the digest of the target's file is kept", func() bool {
		_, err := os.Stat(filepath.Join(kept, "digests.json"))
		return err == nil
	})
	open := w.listening(t)
	slices.Sort(printed)
	if !slices.Equal(open, slices.Compact(printed)) {
		t.Errorf("ports %v are open, and %v were printed", open, printed)
	}
	for _, addr := range open {
		if host, _, _ := net.SplitHostPort(addr); !net.ParseIP(host).IsLoopback() {
			t.Errorf("%s can be reached from other machines", addr)
		}
	}
}

// listening returns the TCP addresses on which the world's processes listen, sorted.
func (w *world) listening(t testing.TB) []string {
	t.Helper()
	sockets := map[string]bool{}
	for _, pid := range w.processes() {
		fds, _ := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", pid))
		for _, fd := range fds {
			if to, err := os.Readlink(fd); err == nil && strings.HasPrefix(to, "socket:[") {
				sockets[strings.Trim(to, "socket:[]")] = true
			}
		}
	}
	var open []string
	for _, table := range []string{"/proc/net/tcp", "/proc/net/tcp6"} {
		b, err := os.ReadFile(table)
		if err != nil {
			continue // no IPv6
		}
		for _, line := range strings.Split(string(b), "\n")[1:] {
			const localAddress, state, inode, listen = 1, 3, 9, "0A"
			if f := strings.Fields(line); len(f) > inode && f[state] == listen && sockets[f[inode]] {
				open = append(open, procAddress(t, f[localAddress]))
			}
		}
	}
	slices.Sort(open)
	return slices.Compact(open)
}

// procAddress reads an address of /proc/net/tcp: words of 4 bytes in the machine's order, a colon, the port.
func procAddress(t testing.TB, s string) string {
	t.Helper()
	words, port, ok := strings.Cut(s, ":")
	n, err := strconv.ParseUint(port, 16, 16)
	var ip net.IP
	for ; len(words) >= 8 && err == nil; words = words[8:] {
		var word uint64
		word, err = strconv.ParseUint(words[:8], 16, 32)
		ip = append(ip, byte(word), byte(word>>8), byte(word>>16), byte(word>>24)) // every machine that tandem runs on is little-endian
	}
	if !ok || err != nil || words != "" {
		t.Fatalf("/proc/net/tcp has the address %q: %v", s, err)
	}
	return net.JoinHostPort(ip.String(), strconv.FormatUint(n, 10))
}

// TestHealth asks processes in all states.
func TestHealth(t *testing.T) {
	w := newWorld(t)
	sock := "unix://" + filepath.Join(w.tmp, "g.sock")
	if e := w.run("health", "--addr", sock); e.code != 1 || !strings.HasPrefix(e.stderr, "tandem: health: nothing listens at "+sock) ||
		strings.Count(e.stderr, "\n") != 1 {
		t.Errorf("nobody there: exit code %d, %q: want 1 and one line that names the address", e.code, e.stderr)
	}
	if e := w.run("health", "--addr", "nonsense"); e.code != 2 {
		t.Errorf("no address: exit code %d, %q: want 2", e.code, e.stderr)
	}
	silent, err := net.Listen("unix", filepath.Join(w.tmp, "silent"))
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	begun := time.Now()
	if e := w.run("health", "--timeout", "300ms", "--addr", "unix://"+silent.Addr().String()); e.code != 1 ||
		time.Since(begun) > 10*time.Second {
		t.Errorf("a process that says nothing: exit code %d after %v, %q: want 1 after 300 ms", e.code, time.Since(begun), e.stderr)
	}
	g := up(t)
	own := "unix://" + filepath.Join(g.w.tmp, "g.sock")
	if e := w.ok("health", "--addr", own); e.stdout != "serving: "+own+"\n" {
		t.Errorf("a gateway that serves: %q", e.stdout)
	}
	cmd := w.command(t.Context(), "health", "--json")
	cmd.Env = append(cmd.Env, "TANDEM_LISTEN="+own)
	if e := w.wait(cmd); e.code != 0 || !strings.Contains(strings.ReplaceAll(e.stdout, " ", ""), `"serving":true`) {
		t.Errorf("the address of TANDEM_LISTEN: exit code %d, %q, %q", e.code, e.stdout, e.stderr)
	}
	if e := w.run("health", "--addr", own, "--addr", sock); e.code != 1 || !strings.Contains(e.stderr, sock) {
		t.Errorf("one serves, the other does not: exit code %d, %q", e.code, e.stderr)
	}
}
