package test

import (
	"fmt"
	"os"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/tandem-llm/tandem/kernels"
	"github.com/tandem-llm/tandem/test/testkit"
)

// TestLentOutput: a draft that multiplies by its target's output matrix has that once in memory with it, in processes that are killed and
// come back, and the ids are those of plain decoding.
func TestLentOutput(t *testing.T) {
	g := up(t, "--target", "../models/gopher-19m-q8_0.gguf", "--draft", "../models/gopher-dovetail-q8_0.gguf",
		"--set", "draft-anyway=true", "--ctx", "512", "--sessions", "2")
	jobs := g.workload(t, 2, 32)
	size := kernels.Groups16.Bytes(kernels.Q8_0, 4096, 512)
	check := func(when string) {
		t.Helper()
		testkit.Eventually(t, "trees of the draft "+when, func() bool {
			g.once(t, jobs)
			_, trees := g.drafted(t)
			return trees > 0
		})
		var once float64
		for _, role := range []string{"verifier", "drafter"} {
			rss, pss := lent(t, g.w.one(t, role))
			if rss != size {
				t.Errorf("%s: %s maps %d bytes of the output matrix: want its %d", when, role, rss, size)
			}
			once += pss
		}
		if once < 0.98*float64(size) || once > 1.02*float64(size) {
			t.Errorf("%s: the matrix of %d bytes takes %.0f bytes of memory: want it there once", when, size, once)
		}
	}
	check("at first")
	for _, role := range []string{"verifier", "drafter", "verifier"} {
		victim := g.w.one(t, role)
		_ = syscall.Kill(victim, syscall.SIGKILL)
		g.back(t, role, victim)
		check("after a kill of the " + role)
	}
}

// lent returns how many bytes of the memory for weights a process maps, and its part of their memory.
func lent(t *testing.T, pid int) (rss int, pss float64) {
	t.Helper()
	maps, err := os.ReadFile(fmt.Sprintf("/proc/%d/smaps", pid))
	if err != nil {
		t.Fatal(err)
	}
	is := regexp.MustCompile(`memfd:tandem-weights.*\n(?:.*\n)*?Rss: +(\d+) kB\nPss: +(\d+) kB`)
	for _, m := range is.FindAllStringSubmatch(string(maps), -1) {
		a, _ := strconv.Atoi(m[1])
		b, _ := strconv.Atoi(m[2])
		rss, pss = rss+a<<10, pss+float64(b<<10)
	}
	if strings.Count(string(maps), "memfd:tandem-weights") != 1 {
		t.Errorf("process %d has not mapped memory for weights once", pid)
	}
	return rss, pss
}
