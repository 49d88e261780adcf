package round

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/gateway/strategy"
	"github.com/tandem-llm/tandem/spec/learn"
	"github.com/tandem-llm/tandem/test/testkit"
)

// TestRounds plays testdata/*.txt: an event a line, and behind the arrow what the round wants done. The tokens [1, 2, 3, 4] are committed.
//
//	round [ask NAME]… [vote V] [in-pool] [prompts N] [pace D]    a new round; the session's losses go on
//	draft NAME [nodes N] [depth N] [tokens A,B…]                 a source has drafted; with tokens it returns that chain
//	nothing                                                      a source has drafted nothing
//	late                                                         the others are waited for no longer
//	merged [answered]                                            no more drafts come; the verdict is there already
//	sent [KIND]                                                  the ticket is in the pool, or the pool has refused it
//	verdict [KIND] [nodes N] [path A,B…] [tokens A,B…]
//	tick, up, stopped                                            the time is over, the verifier came up, the request has ended
//	after D                                                      time passes
//	commit                                                       the session has committed
//	next [finished] [unread] [claimed]                           what follows the committed round
//	reopen KIND                                                  the session is to be opened again
func TestRounds(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatalf("no scripts in testdata: %v", err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) {
			data, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			var got strings.Builder
			s := &story{now: time.Unix(0, 0), rules: Rules{Wait: 50 * time.Millisecond, VerifierWait: time.Second, Nodes: 8, Vocab: 100}}
			s.text = Text{Session: 7, Tokens: []tandem.Token{1, 2, 3, 4}, Limit: 20}
			for line := range strings.Lines(string(data)) {
				line, _, _ = strings.Cut(strings.TrimSpace(line), " →")
				line = strings.TrimSpace(line)
				if got.WriteString(line); line != "" && line[0] != '#' {
					if what := s.play(t, strings.Fields(line)); what != "" {
						fmt.Fprintf(&got, "%*s → %s", max(40-len(line), 0), "", what)
					}
				}
				got.WriteString("\n")
			}
			if *testkit.Rewrite {
				if err := os.WriteFile(file, []byte(got.String()), 0o644); err != nil {
					t.Fatal(err)
				}
			} else if got.String() != string(data) {
				t.Errorf("got:\n%s\nwant:\n%s", &got, data)
			}
		})
	}
}

// TestPure: nothing in this package starts a goroutine, waits, or asks for the time.
func TestPure(t *testing.T) {
	files, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		f, err := parser.ParseFile(token.NewFileSet(), file, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		for _, x := range f.Imports {
			if slices.Contains([]string{`"context"`, `"os"`, `"sync"`, `"sync/atomic"`}, x.Path.Value) {
				t.Errorf("%s imports %s", file, x.Path.Value)
			}
		}
		ast.Inspect(f, func(n ast.Node) bool {
			switch x := n.(type) {
			case *ast.GoStmt, *ast.ChanType, *ast.SelectStmt:
				t.Errorf("%s has a %T", file, n)
			case *ast.SelectorExpr:
				if of, ok := x.X.(*ast.Ident); ok && of.Name == "time" &&
					slices.Contains([]string{"Now", "Since", "Until", "Sleep", "After", "AfterFunc", "NewTimer", "NewTicker"}, x.Sel.Name) {
					t.Errorf("%s calls time.%s", file, x.Sel.Name)
				}
			}
			return true
		})
	}
}

type story struct {
	now    time.Time
	rules  Rules
	losses Losses
	text   Text
	round  Round
}

// play lets one event happen and says what the round wants.
func (s *story) play(t *testing.T, f []string) string {
	args := map[string]string{}
	var names []string
	kind := tandem.OK
	for i := 1; i < len(f); i++ {
		switch f[i] {
		case "ask":
			names = append(names, f[i+1])
			i++
		case "in-pool", "answered", "finished", "unread", "claimed":
			args[f[i]] = "yes"
		case "vote", "prompts", "pace", "nodes", "depth", "tokens", "path":
			args[f[i]] = f[i+1]
			i++
		default:
			args["first"] = f[i]
			for k := tandem.OK; k <= tandem.Unauthenticated; k++ {
				if k.String() == f[i] {
					kind = k
				}
			}
		}
	}
	r := &s.round
	switch f[0] {
	case "round":
		p := Plan{Question: s.text.Question(), Session: s.text.Session, Root: s.text.Root(), InPool: args["in-pool"] != "",
			Pace: span(t, args["pace"]), Weights: weights(t)}
		p.Vote = tandem.VoteNone
		if v := args["vote"]; v != "" {
			p.Vote = tandem.Vote(v)
		}
		p.Decision.Nodes = s.rules.Nodes
		for _, n := range names {
			p.Asks = append(p.Asks, strategy.Ask{Drafter: n})
		}
		if p.Reserve = whole(t, args["prompts"]); p.Reserve > 0 {
			p.Guesses, p.Prompt = []string{tandem.PPD}, func(x tandem.Tree) tandem.Tree {
				x.Prompts = p.Reserve
				return x
			}
		}
		*r = New(p, &s.rules, &s.losses)
		return s.say(r.Begin())
	case "draft":
		d := Draft{Drafter: args["first"], Got: tandem.Proposed{Nodes: whole(t, args["nodes"]), Depth: whole(t, args["depth"])}}
		if list := numbers(t, args["tokens"]); list != nil {
			d.Got.Tree = chain(s.text.Root(), list)
			d.Got.Nodes, d.Got.Depth = d.Got.Tree.Len(), len(list)
		}
		return s.say(r.Answer(&d))
	case "nothing":
		return s.say(r.Answer(nil))
	case "late":
		return s.say(r.Late())
	case "merged":
		return s.say(r.Merged(0, args["answered"] != ""))
	case "sent":
		var err error
		if kind != tandem.OK {
			err = tandem.Errorf("put", kind, "refused")
		}
		ticket := r.Ticket("")
		return fmt.Sprintf("ticket of %q: %d nodes, %d of them prompts; ", ticket.Drafter, ticket.Tree.Len()+ticket.Tree.Prompts,
			ticket.Tree.Prompts) + s.say(r.Sent(s.now, err))
	case "verdict":
		v := tandem.Verdict{Kind: kind, Nodes: whole(t, args["nodes"]), Message: "no"}
		for _, x := range numbers(t, args["path"]) {
			v.Path = append(v.Path, int32(x))
		}
		v.Tokens = numbers(t, args["tokens"])
		return s.say(r.Answered(v))
	case "tick":
		return s.say(r.Tick(s.now))
	case "up":
		return s.say(r.VerifierUp(s.now))
	case "stopped":
		return s.say(r.Stopped())
	case "after":
		s.now = s.now.Add(span(t, f[1]))
		return ""
	case "commit":
		s.text.Append(r.Verdict.Tokens...)
		s.losses = Losses{}
		return fmt.Sprintf("%d tokens; held %d by %s", s.text.Len(), len(r.Verdict.Path), r.By)
	case "next":
		return s.say(Action{Do: Next(args["finished"] != "", args["unread"] != "", args["claimed"] != "")})
	case "reopen":
		pause, err := s.losses.Reopen(s.now, s.rules.VerifierWait, &s.text, tandem.Errorf("x", kind, "because"))
		return fmt.Sprintf("pause %v, %v", pause, err)
	}
	t.Fatalf("%q unknown", f[0])
	return ""
}

// say describes an action and the state after it.
func (s *story) say(a Action) string {
	out := [...]string{Wait: "wait", Propose: "propose", Merge: "merge", Put: "put", Commit: "commit", Reopen: "reopen",
		MakeRoom: "make room", Park: "park", GiveWay: "give way", End: "end"}[a.Do]
	if a.Wait > 0 {
		out += " " + a.Wait.String()
	}
	if a.Count != "" {
		out += ", count " + a.Count
	}
	if a.Judge != Fine {
		out += ", sources: " + [...]string{Arrived: "arrived", Missed: "missed", Suspicious: "suspicious", Garbage: "garbage"}[a.Judge]
	}
	if a.Prompts {
		out += ", prompts refused"
	}
	if a.Err != nil {
		out += ", " + tandem.KindOf(a.Err).String() + ": " + a.Err.Error()
	}
	if fate := s.round.Fate(); a.Do > Put && fate != "" {
		out += " (" + fate + ")"
	}
	return out
}

func chain(root tandem.Token, tokens []tandem.Token) tandem.Tree {
	t := tandem.Root(root)
	t.LogProbs = []float32{0}
	for i, x := range tokens {
		t.Tokens, t.Parents, t.LogProbs = append(t.Tokens, x), append(t.Parents, int32(i)), append(t.LogProbs, float32(-i-1))
	}
	return t
}

func weights(t *testing.T) *learn.Weights {
	t.Helper()
	r, err := strategy.Rules{}.WithDefaults()
	if err != nil {
		t.Fatal(err)
	}
	_, w := strategy.New(tandem.Request{Vote: tandem.VoteTree}, 0, strategy.NewShared(r))
	return w
}

func whole(t *testing.T, s string) int {
	if s == "" {
		return 0
	}
	n, err := strconv.Atoi(s)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func numbers(t *testing.T, s string) (out []tandem.Token) {
	if s == "" {
		return nil
	}
	for x := range strings.SplitSeq(s, ",") {
		out = append(out, tandem.Token(whole(t, x)))
	}
	return out
}

func span(t *testing.T, s string) time.Duration {
	if s == "" {
		return 0
	}
	d, err := time.ParseDuration(s)
	if err != nil {
		t.Fatal(err)
	}
	return d
}
