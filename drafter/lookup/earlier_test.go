package lookup

import (
	"context"
	"fmt"
	"go/scanner"
	"go/token"
	"os"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"

	"pgregory.net/rapid"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/drafter/draftertest"
)

// told opens a session of a tenant with a text and returns what lookup says of it.
func (r rig) told(t interface{ Fatal(...any) }, id tandem.SessionID, tenant string, text []tandem.Token) tandem.Proposed {
	o := opening(id, text)
	o.Tenant = tenant
	opened, err := r.Open(context.Background(), o)
	if err != nil {
		t.Fatal(err)
	}
	p := draftertest.Proposal(id, text, len(text))
	p.Return, p.Bounds = true, tandem.Bounds{Nodes: 12, Depth: 11, Width: 3}
	done, err := r.Propose(context.Background(), p)
	if err != nil {
		t.Fatal(err)
	}
	if done.Hindsight != opened.Hindsight {
		t.Fatal("hindsight differs between open and propose")
	}
	done.Busy = 0
	return done
}

// TestEarlierTexts: what a tenant's ended session said is proposed to its next one, as deep as asked for, and counts as foreseen.
func TestEarlierTexts(t *testing.T) {
	r := newRig(t, Config{Tenants: []string{"a", "b"}, Earlier: 1 << 12})
	text := tokensOf("the quick brown fox jumps over the lazy dog")
	r.Remember("a", text)
	got := r.told(t, 1, "a", tokensOf("QUOTE quick brown"))
	if !slices.Equal(got.Tree.Tokens, tokensOf("n fox jumps ")) || got.Depth != 11 {
		t.Errorf("proposed %v", got.Tree)
	}
	if h := got.Hindsight; h.Hits != 0b11111111 { // of " quick brown" all after its first four
		t.Errorf("hindsight %b", h.Hits)
	}
	r.Remember("nobody", text) // not a tenant: not kept
	if got := r.told(t, 2, "nobody", tokensOf("QUOTE quick brown")); got.Tree.Len() > 3 {
		t.Errorf("a tenant whose texts are not kept: %v", got.Tree)
	}
	for _, c := range []Config{{Tenants: []string{"a", "b"}, Earlier: 1}} {
		c.Pool, c.Counters, c.Vocab = r.pool, r.counters, 300
		if _, err := New(c); tandem.KindOf(err) != tandem.Invalid {
			t.Errorf("%+v: %v", c, err)
		}
	}
}

// TestEarlierTextsAreTheTenants: whatever other tenants have said, and however much, a tenant gets the drafts and the hindsight that it
// would get if it were alone, and keeps as much of its own texts.
func TestEarlierTextsAreTheTenants(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		c := Config{Tenants: []string{"a", "b", ""}, Earlier: 3 << 8}
		bare := func(c Config) rig {
			c.Vocab, c.Pool, c.Counters = 300, noPool{}, new(tandem.Counters)
			l, err := New(c)
			if err != nil {
				rt.Fatal(err)
			}
			return rig{Drafter: l}
		}
		alone, crowd, none := bare(c), bare(c), bare(Config{})
		defer func() {
			for _, l := range []rig{alone, crowd, none} {
				_ = l.Shutdown(context.Background())
			}
		}()
		text := func(name string) []tandem.Token {
			few := rapid.Map(rapid.IntRange(0, 3), func(n int) tandem.Token { return tandem.Token(n) })
			return rapid.SliceOfN(few, 1, 100).Draw(rt, name)
		}
		for i := range rapid.IntRange(0, 12).Draw(rt, "texts") {
			said := text(fmt.Sprint("text ", i))
			if tenant := rapid.SampledFrom([]string{"a", "a", "b", ""}).Draw(rt, "tenant"); tenant != "a" {
				crowd.Remember(tenant, said)
				crowd.told(t, 7, tenant, said)
				continue
			}
			alone.Remember("a", said)
			crowd.Remember("a", said)
		}
		now := text("now")
		if one, other := alone.told(t, 1, "a", now), crowd.told(t, 1, "a", now); !reflect.DeepEqual(one, other) {
			rt.Fatalf("alone %+v, among others %+v", one, other)
		}
		if one, other := none.told(t, 1, "c", now), crowd.told(t, 2, "c", now); !reflect.DeepEqual(one, other) {
			rt.Fatalf("without earlier texts %+v, where others have some %+v", one, other)
		}
		if got := crowd.earlier["a"].texts.Bytes(); got > 12<<8 {
			rt.Fatalf("%d bytes for a part of %d tokens", got, 1<<8)
		}
	})
}

// TestEarlierTextsAtOnce has sessions of a tenant end and draft at the same time.
func TestEarlierTextsAtOnce(t *testing.T) {
	r := newRig(t, Config{Tenants: []string{"a"}, Earlier: 1 << 10})
	var all sync.WaitGroup
	for i := range 8 {
		all.Go(func() {
			for n := range 50 {
				text := tokensOf(fmt.Sprintf("text %d of %d says what %d said before", n, i, n*i))
				id := tandem.SessionID(i + 1)
				r.told(t, id, "a", text)
				r.Remember("a", text)
				_ = r.Close(context.Background(), id)
			}
		})
	}
	all.Wait()
}

// goTokens returns source text as tokens: its words, and the spaces between them.
func goTokens(ids map[string]tandem.Token, src string) (out []tandem.Token) {
	add := func(s string) {
		if _, known := ids[s]; !known {
			ids[s] = tandem.Token(len(ids))
		}
		out = append(out, ids[s])
	}
	var s scanner.Scanner
	file := token.NewFileSet().AddFile("", -1, len(src))
	s.Init(file, []byte(src), func(token.Position, string) {}, scanner.ScanComments)
	last := 0
	for {
		at, kind, lit := s.Scan()
		if kind == token.EOF {
			return out
		}
		from := file.Offset(at)
		if from > last {
			add(src[last:from])
		}
		if lit == "" || lit == "\n" && kind == token.SEMICOLON {
			lit = kind.String()
		}
		for _, word := range strings.SplitAfter(lit, " ") { // comments
			add(word)
		}
		last = min(from+len(lit), len(src))
	}
}

// BenchmarkEdit is a tenant's second session, in which the target writes a file of the first one again, edited: a name is changed
// everywhere, a function is taken out, lines come in. It reports the tokens per round of greedy drafting, with and without earlier texts.
func BenchmarkEdit(b *testing.B) {
	source, err := os.ReadFile("drafter.go")
	if err != nil {
		b.Fatal(err)
	}
	before := string(source)
	after := strings.ReplaceAll(before, "cfg", "settings")
	cut := strings.Index(after, "// Close implements")
	after = after[:cut] + after[cut+strings.Index(after[cut:], "\n}\n")+3:]
	after = strings.ReplaceAll(after, "defer d.mu.Unlock()", "defer d.mu.Unlock()\n\tlog.Println(\"locked\", d)")
	ids := map[string]tandem.Token{}
	first, second := goTokens(ids, before), goTokens(ids, after)
	for _, earlier := range []int{0, 1 << 14} {
		for _, nodes := range []int{8, 16, 32} {
			shape := tandem.Bounds{Nodes: nodes, Depth: nodes - 1, Width: 2}
			b.Run(fmt.Sprintf("earlier=%d/nodes=%d", earlier, shape.Nodes), func(b *testing.B) {
				rounds := 0
				for b.Loop() {
					rounds = replay(b, first, second, len(ids), earlier, shape)
				}
				b.ReportMetric(float64(len(second)-1)/float64(rounds), "tokens/round")
			})
		}
	}
}

// replay has a target write second after first was said in an earlier session, and returns the number of rounds.
func replay(b *testing.B, first, second []tandem.Token, vocab, earlier int, shape tandem.Bounds) (rounds int) {
	c := Config{Vocab: vocab, Pool: noPool{}, Counters: new(tandem.Counters)}
	if earlier > 0 {
		c.Tenants, c.Earlier = []string{"a"}, earlier
	}
	l, err := New(c)
	if err != nil {
		b.Fatal(err)
	}
	defer l.Shutdown(context.Background())
	l.Remember("a", first)
	o := tandem.Opening{Session: 1, Epoch: 1, Tokens: second[:1], Limit: tandem.Position(len(second) + 1), MaxNodes: 64, Tenant: "a"}
	if _, err := l.Open(context.Background(), o); err != nil {
		b.Fatal(err)
	}
	for n, told := 1, 1; n < len(second); rounds++ {
		p := draftertest.Proposal(1, second[:n], told)
		p.Return, p.Bounds = true, shape
		done, err := l.Propose(context.Background(), p)
		if err != nil {
			b.Fatal(err)
		}
		told = n
		at := int32(0)
		for i := 1; i < done.Tree.Len() && n < len(second); i++ {
			if done.Tree.Parents[i] == at && done.Tree.Tokens[i] == second[n] {
				at, n = int32(i), n+1
			}
		}
		n++
	}
	return rounds
}

// noPool is not used, because all trees are returned.
type noPool struct{ tandem.Pool }
