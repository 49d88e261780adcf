package strategy

import (
	"bytes"
	"cmp"
	"compress/gzip"
	"encoding/binary"
	"io"
	"math"
	"os"
	"slices"
	"testing"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/spec"
)

// recorded is one text of a recording. A recording holds what drafters say about texts that a target wrote, so that rounds can be replayed
// with any choice of drafters, nodes and depth: for each text the tokens, and for each drafter and position a trie of guesses. What lookup
// guesses is computed in the replay.
type recorded struct {
	class       string
	temperature float64 // of the target
	prompt      []tandem.Token
	text        []tandem.Token
	of          []guessed // by drafter
}

// guessed is what one drafter says about a text.
type guessed struct {
	drafter string
	temper  float64          // of the guesses' probabilities: 1, as the model has them, or what they were tempered to
	said    tandem.Hindsight // on the prompt
	tries   []*trie          // tries[i]: after prompt and text[:i]
	places  map[*trie]int    // index in tries
}

// trie is what a drafter guesses after a place of a text: nodes on the text are shared by the trees of all places before them.
type trie struct {
	list []spec.Candidate // likeliest first
	next []*trie          // after each of list; nil if unknown
}

func (n *trie) child(c spec.Candidate) (at int) {
	if at = slices.IndexFunc(n.list, func(o spec.Candidate) bool { return o.Token == c.Token }); at < 0 {
		at, n.list, n.next = len(n.list), append(n.list, c), append(n.next, nil)
	}
	return at
}

// recordStep is the number of steps of log-probabilities in a nat.
const recordStep = 1024

// write appends a trie's guesses, their number, tokens and log-probabilities, each followed by what comes after it.
func (n *trie) write(to []byte) []byte {
	if n == nil {
		return append(to, 0)
	}
	order := make([]int, len(n.list))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(n.list[b].LogProb, n.list[a].LogProb) })
	to = append(to, byte(len(order)))
	for _, i := range order {
		c := n.list[i]
		to = binary.AppendUvarint(to, uint64(c.Token))
		to = binary.AppendUvarint(to, uint64(math.Round(float64(-c.LogProb*recordStep))))
		to = n.next[i].write(to)
	}
	return to
}

func readTrie(from *bytes.Reader) *trie {
	count := must(from.ReadByte())
	if count == 0 {
		return nil
	}
	n := &trie{}
	for range count {
		token := tandem.Token(must(binary.ReadUvarint(from)))
		n.list = append(n.list, spec.Candidate{Token: token, LogProb: -float32(must(binary.ReadUvarint(from))) / recordStep})
		n.next = append(n.next, readTrie(from))
	}
	return n
}

func writeTokens(to []byte, tokens []tandem.Token) []byte {
	to = binary.AppendUvarint(to, uint64(len(tokens)))
	for _, t := range tokens {
		to = binary.AppendUvarint(to, uint64(t))
	}
	return to
}

func readTokens(from *bytes.Reader) []tandem.Token {
	list := make([]tandem.Token, must(binary.ReadUvarint(from)))
	for i := range list {
		list[i] = tandem.Token(must(binary.ReadUvarint(from)))
	}
	return list
}

func writeName(to []byte, name string) []byte { return append(append(to, byte(len(name))), name...) }

func readName(from *bytes.Reader) string {
	name := make([]byte, must(from.ReadByte()))
	must(io.ReadFull(from, name))
	return string(name)
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err) // of a file of ours, or of a buffer
	}
	return v
}

// write appends class, temperature, prompt and text, and for each drafter its name, temper, hindsight and tries. Temperatures are in
// hundredths.
func (r *recorded) write(to []byte) []byte {
	to = append(writeName(to, r.class), byte(math.Round(100*r.temperature)))
	to = append(writeTokens(writeTokens(to, r.prompt), r.text), byte(len(r.of)))
	for _, g := range r.of {
		to = append(writeName(to, g.drafter), byte(math.Round(100*g.temper)), byte(g.said.Tokens))
		to = binary.LittleEndian.AppendUint64(to, g.said.Hits)
		for _, n := range g.tries {
			to = n.write(to)
		}
	}
	return to
}

func readRecorded(from *bytes.Reader) *recorded {
	r := &recorded{class: readName(from), temperature: float64(must(from.ReadByte())) / 100}
	r.prompt, r.text = readTokens(from), readTokens(from)
	r.of = make([]guessed, must(from.ReadByte()))
	for d := range r.of {
		g := &r.of[d]
		g.drafter, g.temper = readName(from), float64(must(from.ReadByte()))/100
		g.said.Tokens = int(must(from.ReadByte()))
		var raw [8]byte
		must(io.ReadFull(from, raw[:]))
		g.said.Hits = binary.LittleEndian.Uint64(raw[:])
		g.places = map[*trie]int{}
		for i := range r.text {
			n := readTrie(from)
			if n == nil {
				n = &trie{} // nothing likely
			}
			g.tries = append(g.tries, n)
			g.places[n] = i
		}
	}
	return r
}

// readRecording reads all texts of a file.
func readRecording(t testing.TB, path string) (texts []*recorded) {
	t.Helper()
	if testing.Short() {
		t.Skip("-short leaves replays out: they take long under the race detector, and have one goroutine")
	}
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	packed, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	from := bytes.NewReader(must(io.ReadAll(packed)))
	for from.Len() > 0 {
		texts = append(texts, readRecorded(from))
	}
	return texts
}

// writeRecording writes texts to a file, packed.
func writeRecording(t testing.TB, path string, texts []*recorded) {
	t.Helper()
	var out []byte
	for _, r := range texts {
		out = r.write(out)
	}
	var packed bytes.Buffer
	zip := must(gzip.NewWriterLevel(&packed, gzip.BestCompression))
	must(zip.Write(out))
	if err := zip.Close(); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, packed.Bytes(), 0o644); err != nil {
		t.Fatal(err)
	}
	t.Logf("%d texts, %d bytes, packed %d", len(texts), len(out), packed.Len())
}
