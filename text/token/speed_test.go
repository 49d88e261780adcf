package token

import (
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// Hostile texts of 512 KiB take about as long as prose.
func TestNoQuadraticTime(t *testing.T) {
	const n = 1 << 19
	rng := rand.New(rand.NewPCG(3, 4))
	noise := make([]byte, n)
	for i := range noise {
		noise[i] = byte(rng.IntN(256))
	}
	powers := newDraft(space)
	for k := 1; k <= 1<<16; k *= 2 {
		powers.add(normal, strings.Repeat("a", k))
	}
	stairs := newDraft(space)
	for k := 1; k <= 1000; k++ {
		stairs.add(normal, strings.Repeat("a", k))
		stairs.scores[len(stairs.scores)-1] = float32(k)
	}
	user := newDraft(space, "a").add(userDefined, strings.Repeat("a", maxText-1)+"b", strings.Repeat("a", maxText/2)+"b")
	long := newBytes("qwen2")
	for k := 1; k < 1<<12; k *= 2 {
		long.merge(strings.Repeat("a", k) + " " + strings.Repeat("a", k))
	}
	steps := newBytes("llama-bpe")
	for k := 1; k <= 1000; k++ {
		steps.merge(strings.Repeat("a", k) + " a")
	}
	ship := shipped(t)
	for _, c := range []struct {
		name string
		v    *Vocab
		text string
	}{
		{"spaces", ship, strings.Repeat(" ", n)},
		{"one letter", ship, strings.Repeat("a", n)},
		{"two letters", ship, strings.Repeat("re", n/2)},
		{"newlines", ship, strings.Repeat("\n", n)},
		{"letters without a space", ship, strings.Repeat("thereturnoffuncstring", n/21)},
		{"noise", ship, string(noise)},
		{"powers", powers.vocab(t), strings.Repeat("a", n)},
		{"stairs", stairs.vocab(t), strings.Repeat("a", n)},
		{"byte-level powers", long.vocab(t), strings.Repeat("a", n)},
		{"byte-level stairs", steps.vocab(t), strings.Repeat("a", n)},
		{"byte-level noise", long.vocab(t), string(noise)},
		{"nearly user-defined", user.vocab(t), strings.Repeat("a", n)},
	} {
		start := time.Now()
		got := c.v.Encode(c.text, false)
		took := time.Since(start)
		t.Logf("%s: %d tokens in %v", c.name, len(got), took)
		if took > time.Minute { // quadratic time would be 2^38 steps
			t.Errorf("%s: %d bytes took %v", c.name, len(c.text), took)
		}
		if want := c.text; c.v.composes() && c.v.Decode(got) != compose(want) || !c.v.composes() && c.v.Decode(got) != want {
			t.Errorf("%s: the round trip changed the text", c.name)
		}
	}
}

// corpora are a book and source code that come with Go.
func corpora(b *testing.B) map[string]string {
	b.Helper()
	out, err := exec.Command("go", "env", "GOROOT").Output()
	if err != nil {
		b.Skipf("go env GOROOT: %v: nothing to encode", err)
	}
	root := strings.TrimSpace(string(out))
	book, err := os.ReadFile(filepath.Join(root, "src/testdata/Isaac.Newton-Opticks.txt"))
	files, _ := filepath.Glob(filepath.Join(root, "src/net/http/*.go"))
	if err != nil || len(files) == 0 {
		b.Skipf("Go's sources are absent (%v, %d files): nothing to encode", err, len(files))
	}
	var code strings.Builder
	for _, name := range files {
		text, err := os.ReadFile(name)
		if err != nil {
			b.Fatal(err)
		}
		code.Write(text)
	}
	return map[string]string{"prose": string(book), "code": code.String()}
}

// BenchmarkEncode encodes prose and code, each time with an empty cache; cpu-MB/s is by the process's own
// time, which others on the machine do not take from.
func BenchmarkEncode(b *testing.B) {
	texts := corpora(b)
	for _, name := range []string{"shipped", "llama-spm", "gpt-2", "starcoder", "falcon", "deepseek-coder"} {
		path := cutVocabs + name + ".gguf" // words that it lacks are cut further than with the whole vocabulary
		if name == "shipped" {
			path = shippedPath
		}
		v := load(b, path)
		for _, kind := range []string{"prose", "code"} {
			text := texts[kind]
			perSecond(b, name+"/"+kind, len(text), func() {
				v.cache = newCache()
				v.Encode(text, false)
			})
		}
		tokens := v.Encode(texts["code"], false)
		perSecond(b, name+"/decode", len(texts["code"]), func() {
			d := NewDecoder(v, false)
			for _, t := range tokens {
				d.Next(t)
			}
		})
	}
}

func perSecond(b *testing.B, name string, size int, do func()) {
	b.Run(name, func(b *testing.B) {
		b.SetBytes(int64(size))
		start := cpuTime(b)
		for b.Loop() {
			do()
		}
		b.ReportMetric(float64(size)*float64(b.N)/1e6/(cpuTime(b)-start).Seconds(), "cpu-MB/s")
	})
}

func cpuTime(b *testing.B) time.Duration {
	var r syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &r); err != nil {
		b.Fatal(err)
	}
	return time.Duration(r.Utime.Nano() + r.Stime.Nano())
}

// BenchmarkLoad reads a vocabulary of as many tokens and merges as Falcon's.
func BenchmarkLoad(b *testing.B) {
	const size = 65024
	rng := rand.New(rand.NewPCG(7, 8))
	d := newBytes("falcon")
	known, merges := map[string]bool{}, make([]string, 0, size)
	for len(d.pieces) < size {
		left, right := d.pieces[rng.IntN(len(d.pieces))], d.pieces[rng.IntN(len(d.pieces))]
		if len(left+right) <= 24 && !known[left+right] {
			known[left+right] = true
			d.add(normal, left+right)
			merges = append(merges, left+" "+right)
		}
	}
	file := d.set("merges", merges).file(b)
	for b.Loop() {
		if _, err := Parse(file); err != nil {
			b.Fatal(err)
		}
	}
}
