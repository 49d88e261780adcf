package test

import (
	"fmt"
	"io"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tandem-llm/tandem/client"
)

// peak returns the most memory that a process has had so far, and what it has now, in bytes.
func peak(t testing.TB, pid int) (most, now int64) {
	t.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(b)) {
		if f := strings.Fields(line); len(f) == 3 && (f[0] == "VmHWM:" || f[0] == "VmRSS:") {
			n, _ := strconv.ParseInt(f[1], 10, 64)
			if f[0] == "VmRSS:" {
				now = n << 10
			} else {
				most = n << 10
			}
		}
	}
	return most, now
}

// TestBodiesInMemory sends 16 chats of 8 MiB at once, 8 bodies of each kind that is dear to read, and 16 prompts of 4 MB over gRPC:
// the gateway stays below 256 MiB, and goes on.
func TestBodiesInMemory(t *testing.T) {
	mayBeSlow(t)
	const clients, size, most = 16, 8 << 20, 256 << 20
	g := upWeb(t, template, "--no-draft")
	pid := g.w.role("gateway")[0]
	fill := func(before, each, after string) string {
		return before + strings.Repeat(each, (size-len(before)-len(after))/len(each)) + after
	}
	for _, kind := range []struct{ name, path, body string }{
		{"one text", "/v1/chat/completions", fill(`{"messages":[{"role":"user","content":"`, "word ", `"}]}`)},
		{"a text that may be read", "/v1/chat/completions", `{"messages":[{"role":"user","content":"` + strings.Repeat("word ", 800_000) +
			`"}]}`},
		{"escapes", "/v1/chat/completions", fill(`{"messages":[{"role":"user","content":"`, `\u0041`, `"}]}`)},
		{"small messages", "/v1/chat/completions", fill(`{"messages":[`, `{"role":"user","content":"a"},`,
			`{"role":"user","content":"a"}]}`)},
		{"nested", "/v1/chat/completions", fill(`{"messages":[{"role":"assistant","tool_calls":[`,
			strings.Repeat("[", 50)+strings.Repeat("]", 50)+",", `1]}]}`)},
		{"prompts", "/v1/completions", fill(`{"prompt":[`, `"`+strings.Repeat("x", 550_000)+`",`, `"a"]}`)},
		{"token ids", "/v1/completions", fill(`{"prompt":[`, `[`+strings.Repeat("1,", 300_000)+`1],`, `[1]]}`)},
	} {
		begun := time.Now()
		var wg sync.WaitGroup
		var mu sync.Mutex
		answers := map[int]int{}
		n := clients / 2
		if strings.Contains(kind.name, "text") {
			n = clients
		}
		for range n {
			wg.Go(func() {
				r, err := http.Post(g.url+kind.path, "application/json", strings.NewReader(kind.body))
				if err != nil {
					t.Error(err)
					return
				}
				_, _ = io.Copy(io.Discard, r.Body)
				r.Body.Close()
				mu.Lock()
				answers[r.StatusCode]++
				mu.Unlock()
			})
		}
		wg.Wait()
		high, now := peak(t, pid)
		t.Logf("%s: answers %v after %v; %d MiB at most so far, %d now", kind.name, answers, time.Since(begun).Round(time.Millisecond),
			high>>20, now>>20)
		if high > most {
			t.Errorf("%s: the gateway took %d MiB: want at most %d", kind.name, high>>20, most>>20)
		}
		if answers[http.StatusInternalServerError] > 0 {
			t.Errorf("%s: answers %v", kind.name, answers)
		}
	}
	var wg sync.WaitGroup
	for range clients {
		wg.Go(func() {
			for _, err := range g.client.Generate(t.Context(), client.Request{Prompt: strings.Repeat("word ", 800_000)}) {
				if err == nil || !strings.Contains(err.Error(), "at least") {
					t.Errorf("a prompt of 4 MB over gRPC: %v", err)
				}
			}
		})
	}
	wg.Wait()
	high, now := peak(t, pid)
	t.Logf("gRPC: %d MiB at most, %d now", high>>20, now>>20)
	if high > most {
		t.Errorf("after prompts over gRPC the gateway took %d MiB: want at most %d", high>>20, most>>20)
	}
	g.complete(t, map[string]any{"prompt": story, "max_tokens": 4})
}
