package strategy

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"io/fs"
	"math"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/drafter"
	"github.com/tandem-llm/tandem/engine"
	"github.com/tandem-llm/tandem/engine/sample"
	"github.com/tandem-llm/tandem/kernels/half"
	"github.com/tandem-llm/tandem/kernels/testdevice"
	"github.com/tandem-llm/tandem/modelfile/gguf"
	"github.com/tandem-llm/tandem/spec"
	"github.com/tandem-llm/tandem/test/mempool"
	"github.com/tandem-llm/tandem/test/testkit"
	"github.com/tandem-llm/tandem/text/chat"
	"github.com/tandem-llm/tandem/text/token"
)

const (
	pairRecording = "testdata/pair.gz"
	pairDraft     = "0.5B"
	trimmedDraft  = "trimmed"
	poorRecording = "testdata/poor.gz"
	poorDraft     = "poor"

	pairPrompts  = "testdata/pair-prompts.jsonl"
	agentPrompts = "testdata/agent-prompts.jsonl"

	pairTokens = 160 // of an answer, at most
	pairBatch  = 15  // answers that are written in the same passes
	pairRows   = 256 // of a pass

	pairWidth  = 8   // guesses after a place of the text
	pairLeast  = -7  // less likely guesses are left out, in nats
	besideOnce = 0.1 // so likely is a guess beside the text whose successors are recorded
	besideDeep = 6   // levels below a wrong first guess, 3 below others
	besideWide = 3   // guesses there
)

// pairing is what one recording is made of.
type pairing struct {
	path, target string
	prompts      []string // files
	texts        int      // along which all guess, some of each kind
	more         bool     // what was recorded of others stays
	drafts       []draftFile
}

type draftFile struct{ name, file string }

// pairings are the recordings of real pairs: what Qwen2.5-Coder-Instruct 0.5B, as received and trimmed, guesses along answers of its 1.5B
// sister, all Q4_K_M; and what a draft that was trained for four minutes guesses along answers of SmolLM2-135M.
var pairings = map[string]pairing{
	"pair": {pairRecording, testkit.Qwen15, []string{pairPrompts, agentPrompts}, 24, true,
		[]draftFile{{pairDraft, testkit.Qwen05}, {trimmedDraft, "trimmed-0.5b.gguf"}}},
	"poor": {poorRecording, testkit.SmolLM2, []string{pairPrompts}, 22, false, []draftFile{{poorDraft, "poor-draft.gguf"}}},
}

var (
	pairOf      = flag.String("pair-of", "pair", "which real pair to record")
	pairTime    = flag.Duration("pair-time", time.Hour, "how long to record a real pair, about; a later run goes on")
	pairThreads = flag.Int("pair-threads", 0, "threads that record; 0: one a core")
)

// TestRecordPair writes the recording of a real pair, only with -rewrite: what it has of the same prompts stays. So it can be made in
// several runs.
func TestRecordPair(t *testing.T) {
	if !*testkit.Rewrite {
		t.Skip("without -rewrite the recordings stay")
	}
	p, known := pairings[*pairOf]
	if !known {
		t.Fatalf("-pair-of %s: not known", *pairOf)
	}
	target := testkit.RealModel(t, p.target)
	var had []*recorded
	if _, err := os.Stat(p.path); !errors.Is(err, fs.ErrNotExist) {
		had = readRecording(t, p.path)
	}
	var texts []*recorded
	for _, file := range p.prompts {
		texts = append(texts, readPairPrompts(t, target, file)...)
	}
	for i, r := range texts {
		if at := slices.IndexFunc(had, func(h *recorded) bool {
			return h.class == r.class && h.temperature == r.temperature && slices.Equal(h.prompt, r.prompt)
		}); at >= 0 {
			texts[i] = had[at]
		}
	}
	begun, lack := time.Now(), 0
	enough := func() bool { return time.Since(begun) > *pairTime }
	first := inTurn(texts)[:p.texts]
	if !p.more {
		texts = first
	}
	// each runs f with a model and those texts that lack something, as long as there is time
	each := func(file string, of []*recorded, sessions, nodes, batch int, lacks func(*recorded) bool, f func(*engine.Model, []*recorded)) {
		of = slices.DeleteFunc(slices.Clone(of), func(r *recorded) bool { return !lacks(r) })
		if len(of) == 0 || enough() {
			lack += len(of)
			return
		}
		m := openPair(t, file, sessions, nodes)
		defer m.Close()
		for batch := range slices.Chunk(of, batch) {
			if enough() {
				lack += len(batch)
			} else {
				f(m, batch)
			}
		}
	}
	each(target, first, pairBatch, 0, pairBatch, func(r *recorded) bool { return len(r.text) == 0 },
		func(m *engine.Model, batch []*recorded) { answer(t, m, batch) })
	texts = slices.DeleteFunc(texts, func(r *recorded) bool { return len(r.text) == 0 })
	first = slices.DeleteFunc(first, func(r *recorded) bool { return len(r.text) == 0 })
	for _, d := range p.drafts {
		file, lacks := testkit.RealModel(t, d.file), func(r *recorded) bool { return r.by(d.name) == nil }
		if states, err := engine.SideOf(file); err == nil && len(states.Taps) > 0 {
			each(target, first, 1, 0, len(first), lacks, func(_ *engine.Model, all []*recorded) {
				guessByStates(t, target, file, d.name, states.Taps, all)
			})
			continue
		}
		each(file, first, 1, 2048, 1, lacks, func(m *engine.Model, batch []*recorded) {
			for _, r := range batch {
				g := guessAlong(t, m, r)
				g.drafter = d.name
				r.of = append(r.of, g)
				t.Logf("%s: %s, %d tokens behind %d, after %v", d.name, r.class, len(r.text), len(r.prompt), time.Since(begun))
			}
		})
	}
	each(target, first, 1, 2048, 1, func(r *recorded) bool { return r.target() == nil }, func(m *engine.Model, batch []*recorded) {
		for _, r := range batch {
			r.of = append(r.of, r.likeliest(t, m))
			t.Logf("target: %s, %d tokens behind %d, after %v", r.class, len(r.text), len(r.prompt), time.Since(begun))
		}
	})
	writeRecording(t, p.path, texts)
	t.Logf("recorded for %v, %d still lack", time.Since(begun), lack)
}

// known is a FeatureSource of texts that are known to their end.
type known struct {
	m     *engine.Model // the target, which hands out those states
	taps  []int
	texts map[tandem.SessionID][]uint16 // their rows
}

func (k *known) tell(t *testing.T, id tandem.SessionID, text []tandem.Token) {
	t.Helper()
	seq, err := k.m.NewSequence(len(text), 0)
	if err != nil {
		t.Fatal(err)
	}
	defer seq.Close()
	row, all := make([]float32, k.m.FeatureWidth()), []uint16(nil)
	for piece := range slices.Chunk(text, pairRows) {
		out := forward(t, k.m, 1, engine.Part{Seq: seq, Extend: piece})
		for i := range piece {
			out.Features(0, i, row)
			packed := make([]uint16, len(row))
			half.Pack(packed, row)
			all = append(all, packed...)
		}
	}
	k.texts[id] = all
}

// Features implements tandem.FeatureSource.
func (k *known) Features(_ context.Context, q tandem.FeatureQuery) (tandem.Features, error) {
	w := tandem.Position(k.m.FeatureWidth())
	return tandem.Features{From: q.From, Taps: k.taps, Width: int(w), Rows: slices.Clone(k.texts[q.Session][q.From*w : q.Until*w])}, nil
}

// guessByStates adds what a draft that reads the target's states guesses along the texts.
func guessByStates(t *testing.T, target, file, name string, taps []int, texts []*recorded) {
	t.Helper()
	options := engine.Options{Device: testdevice.CPU(t, *pairThreads), MaxRows: pairRows, Context: 2048,
		KVPages: engine.PagesFor(2, 1024, drafter.DefaultTreeRows)}
	m, err := engine.OpenDraft(file, target, options)
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	options.Taps = taps
	of, err := engine.Open(target, options)
	if err != nil {
		t.Fatal(err)
	}
	defer of.Close()
	source := &known{of, taps, map[tandem.SessionID][]uint16{}}
	d, err := drafter.New(drafter.Config{Model: m, Name: name, Pool: mempool.Pool{}, Counters: &tandem.Counters{}, Taps: taps,
		Features: source})
	if err != nil {
		t.Fatal(err)
	}
	for i, r := range texts {
		id := tandem.SessionID(i + 1)
		source.tell(t, id, slices.Concat(r.prompt, r.text))
		said, tries := r.guesses(t, d, id)
		r.of = append(r.of, guessed{drafter: name, temper: recordTemper, said: said, tries: tries})
		delete(source.texts, id)
	}
	if err := d.Shutdown(context.Background()); err != nil {
		t.Fatal(err)
	}
}

func openPair(t *testing.T, path string, sessions, nodes int) *engine.Model {
	t.Helper()
	m, err := engine.Open(path, engine.Options{Device: testdevice.CPU(t, *pairThreads), MaxRows: pairRows, Context: 2048,
		KVPages: engine.PagesFor(sessions, 1024, nodes)})
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// readPairPrompts returns the prompts as the target's own template renders them.
func readPairPrompts(t *testing.T, model, path string) (texts []*recorded) {
	t.Helper()
	f, err := gguf.Open(model)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	vocab, err := token.Open(model)
	if err != nil {
		t.Fatal(err)
	}
	template, err := chat.FromGGUF(f, vocab)
	if err != nil {
		t.Fatal(err)
	}
	ends, err := template.AfterTurn(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	vocab = vocab.WithTemplate(template.Source(), ends...)
	lines, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer lines.Close()
	for lines := bufio.NewScanner(lines); lines.Scan(); {
		var p struct {
			Class, Prompt string
			Temperature   float64
			Tools         json.RawMessage
			Messages      []struct {
				Role, Content string
				ToolCalls     json.RawMessage `json:"tool_calls"`
			}
		}
		if err := json.Unmarshal(lines.Bytes(), &p); err != nil {
			t.Fatal(err)
		}
		messages := []chat.Message{{Role: "user", Content: p.Prompt}}
		for i, m := range p.Messages {
			messages = append(messages[:i], chat.Message{Role: m.Role, Content: m.Content, ToolCalls: m.ToolCalls})
		}
		out, err := template.Render(context.Background(), messages, chat.Options{AddGenerationPrompt: true, Tools: p.Tools})
		if err != nil {
			t.Fatal(err)
		}
		var user []token.Span
		for _, s := range out.User {
			user = append(user, token.Span(s))
		}
		texts = append(texts, &recorded{class: p.Class, temperature: p.Temperature, prompt: vocab.EncodeGuarded(out.Text, user)})
	}
	return texts
}

// answer lets the target write the texts, all in the same passes.
func answer(t *testing.T, m *engine.Model, texts []*recorded) {
	t.Helper()
	var sampler sample.Sampler
	seqs := make([]*engine.Sequence, len(texts))
	next := func(i int, out *engine.Output, row int) {
		r := texts[i]
		how := tandem.Sampling{Temperature: r.temperature, Seed: uint64(i)}
		pos := tandem.Position(len(r.prompt) + len(r.text))
		r.text = append(r.text, sampler.Draw(out.Logits(row), how, pos))
	}
	for i, r := range texts {
		seq, err := m.NewSequence(len(r.prompt)+pairTokens, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer seq.Close()
		seqs[i] = seq
		for piece := range slices.Chunk(r.prompt, pairRows) {
			if out := forward(t, m, 0, engine.Part{Seq: seq, Extend: piece, Want: engine.WantTail}); seq.Len() == len(r.prompt) {
				next(i, out, 0)
			}
		}
	}
	for {
		var parts []engine.Part
		var of []int
		for i, r := range texts {
			if last := r.text[len(r.text)-1]; len(r.text) < pairTokens && !m.Vocab().IsEnd(last) {
				parts = append(parts, engine.Part{Seq: seqs[i], Extend: []tandem.Token{last}, Want: engine.WantTail})
				of = append(of, i)
			}
		}
		if len(parts) == 0 {
			return
		}
		out := forward(t, m, 0, parts...)
		for k, i := range of {
			next(i, out, out.First(k))
		}
	}
}

func forward(t *testing.T, m *engine.Model, top int, parts ...engine.Part) *engine.Output {
	t.Helper()
	out, err := m.Forward(parts, top)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// guessAlong returns what the draft model guesses at each position of the text, and beside it. The text and all that is beside it are one
// tree below the prompt, so that a level takes few passes.
func guessAlong(t *testing.T, m *engine.Model, r *recorded) guessed {
	t.Helper()
	g := guessed{temper: 1}
	seq, err := m.NewSequence(len(r.prompt)+len(r.text)+besideDeep+1, 2048)
	if err != nil {
		t.Fatal(err)
	}
	defer seq.Close()
	var recall spec.Recall
	root := &trie{}
	for piece := range slices.Chunk(r.prompt, pairRows) {
		begin := seq.Len()
		out := forward(t, m, pairWidth, engine.Part{Seq: seq, Extend: piece, Want: engine.WantAll})
		for i := range piece {
			if at := begin + i + 1; at < len(r.prompt) {
				recall.Saw(at, tandem.Token(out.Top(i).IDs[0]) == r.prompt[at])
			} else {
				root.take(out.Top(i), pairWidth)
			}
		}
	}
	g.said, g.tries = recall.Of(len(r.prompt)), []*trie{root}
	var level []growing
	for i, token := range r.text[:len(r.text)-1] { // on the text
		g.tries = append(g.tries, &trie{})
		level = append(level, growing{token, int32(i - 1), g.tries[i+1], 0})
	}
	r.grow(t, m, seq, level, pairWidth)
	level = nil
	for i, n := range g.tries {
		for rank, c := range n.list {
			if wrong := c.Token != r.text[i]; wrong && rank < besideWide && (rank == 0 || chanceOf(c) >= besideOnce) {
				deep := besideDeep
				if rank > 0 {
					deep /= 2
				}
				n.next[rank] = &trie{}
				level = append(level, growing{c.Token, int32(i - 1), n.next[rank], deep})
			}
		}
	}
	for len(level) > 0 {
		level = r.grow(t, m, seq, level, besideWide)
	}
	return g
}

// growing is a node to run: its token, the tree row of its parent, where its successors go, and how many levels below it are recorded.
type growing struct {
	token  tandem.Token
	parent int32
	to     *trie
	deep   int
}

// grow runs a level and returns the next one: the likeliest successor of each node that has levels left.
func (r *recorded) grow(t *testing.T, m *engine.Model, seq *engine.Sequence, level []growing, width int) (below []growing) {
	t.Helper()
	for piece := range slices.Chunk(level, pairRows) {
		first := int32(seq.Nodes())
		part := engine.Part{Seq: seq, Want: engine.WantAll}
		for _, n := range piece {
			part.Nodes, part.Parents = append(part.Nodes, n.token), append(part.Parents, n.parent)
		}
		out := forward(t, m, pairWidth, part)
		for i, n := range piece {
			n.to.take(out.Top(i), width)
			if n.deep > 1 {
				n.to.next[0] = &trie{}
				below = append(below, growing{n.to.list[0].Token, first + int32(i), n.to.next[0], n.deep - 1})
			}
		}
	}
	return below
}

// take sets what follows: the best tokens of a row, as the drafter takes them.
func (n *trie) take(top engine.Top, width int) {
	norm := top.Max + float32(math.Log(float64(top.Sum)))
	for i, id := range top.IDs[:min(width, len(top.IDs))] {
		if lp := top.Logits[i] - norm; i == 0 || lp >= pairLeast {
			n.child(spec.Candidate{Token: tandem.Token(id), LogProb: lp})
		}
	}
}

func chanceOf(c spec.Candidate) float64 { return math.Exp(float64(c.LogProb)) }
