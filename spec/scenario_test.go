package spec

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/tandem-llm/tandem/test/testkit"

	"github.com/tandem-llm/tandem"
)

// TestScenarios replays testdata/*.txt: blocks of a command line, "----" and its output, separated by
// empty lines.
func TestScenarios(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatalf("no scenarios: %v", err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) {
			want, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			got := replay(t, string(want))
			if *testkit.Rewrite {
				if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
					t.Fatal(err)
				}
			} else if got != string(want) {
				t.Errorf("%s differs (go test ./spec -rewrite accepts it):\n%s", file, got)
			}
		})
	}
}

func replay(t *testing.T, script string) string {
	var out bytes.Buffer
	s := &scenario{t: t, out: &out}
	for i, block := range strings.Split(strings.TrimSpace(script), "\n\n") {
		if i > 0 {
			fmt.Fprintln(&out)
		}
		for _, line := range strings.Split(block, "\n") {
			if line == "----" {
				break
			}
			fmt.Fprintln(&out, line)
			if !strings.HasPrefix(line, "#") {
				fmt.Fprintln(&out, "----")
				s.run(strings.Fields(line))
			}
		}
	}
	return out.String()
}

type scenario struct {
	t     *testing.T
	out   *bytes.Buffer
	b     Grower
	draft Draft
}

func (s *scenario) run(args []string) {
	switch args[0] {
	case "levels", "best-first", "pacer":
		p, err := tandem.ParseBounds(args[1])
		if err != nil {
			s.t.Fatal(err)
		}
		s.b = newBuilder(tandem.GrowLevels, 100, p)
		switch args[0] {
		case "best-first":
			s.b = newBuilder(tandem.GrowBest, 100, p)
		case "pacer": // bounds, branch threshold, stop threshold
			var at [2]float64
			for i, a := range args[2:] {
				at[i], _ = strconv.ParseFloat(a, 64)
			}
			s.b = NewPacer(100, p, at[0], at[1])
		}
	case "pending":
		room := 1000
		if len(args) > 1 {
			room, _ = strconv.Atoi(args[1])
		}
		rows := s.b.Pending(room)
		for _, r := range rows {
			fmt.Fprintf(s.out, "token %d parent row %d depth %d\n", r.Token, r.Parent, r.Depth)
		}
		if len(rows) == 0 {
			fmt.Fprintln(s.out, "done")
		}
	case "absorb":
		lists := [][]Candidate{nil}
		for _, a := range args[1:] {
			if a == "|" {
				lists = append(lists, nil)
				continue
			}
			tok, lp, _ := strings.Cut(a, ":")
			id, _ := strconv.Atoi(tok)
			v, err := strconv.ParseFloat(lp, 32)
			if err != nil {
				s.t.Fatalf("%s: %v", a, err)
			}
			last := &lists[len(lists)-1]
			*last = append(*last, Candidate{tandem.Token(id), float32(v)})
		}
		s.b.Absorb(lists)
	case "draft":
		s.draft = s.b.Draft()
		for i, tok := range s.draft.Tree.Tokens {
			fmt.Fprintf(s.out, "%d: token %d parent %d row %d %.2f\n", i, tok, s.draft.Tree.Parents[i], s.draft.Rows[i],
				s.draft.Tree.LogProbs[i])
		}
	case "accept":
		depths, _ := s.draft.Tree.Depths()
		path, tokens := Accept(s.draft.Tree, func(n int32) tandem.Token { return number(args[min(1+int(depths[n]), len(args)-1)]) })
		fmt.Fprintln(s.out, "path", path, "tokens", tokens)
	default:
		s.t.Fatalf("unknown command %q", args[0])
	}
}

func number(s string) tandem.Token {
	n, _ := strconv.Atoi(s)
	return tandem.Token(n)
}
