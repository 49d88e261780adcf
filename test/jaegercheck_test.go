package test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/services/peers/telemetry/timeline"
)

// tags fails the test where a span does not have these tags.
func (s *jaegerSpan) tags(t *testing.T, want map[string]any) {
	t.Helper()
	for key, v := range want {
		if got := s.tag(key); fmt.Sprint(got) != fmt.Sprint(v) {
			t.Errorf("span %q of %s has %s = %v: want %v", s.Name, s.service(), key, got, v)
		}
	}
}

// check compares a trace with what every trace shows: server span → chat → admit, prefills beside one another, rounds.
func (r *tracedRequest) check(t *testing.T) {
	x := r.trace
	root := x.root()
	if len(x.Spans) > 1000 {
		t.Errorf("%d spans: want at most 1000", len(x.Spans))
	}
	if root.Name != r.root {
		t.Errorf("the root is %q: want %q", root.Name, r.root)
	}
	root.tags(t, map[string]any{"span.kind": "server"})
	if r.root[:4] == "POST" {
		root.tags(t, map[string]any{"http.request.method": "POST", "http.route": "/v1/completions", "http.response.status_code": 200})
	} else {
		root.tags(t, map[string]any{"rpc.system.name": "grpc", "rpc.method": r.root, "rpc.response.status_code": "OK"})
	}
	chats := root.below("chat " + tracedModel)
	if len(chats) != 1 {
		t.Fatalf("%d spans chat %s below the root: want 1", len(chats), tracedModel)
	}
	chat := chats[0]
	chat.tags(t, map[string]any{"gen_ai.operation.name": "chat", "gen_ai.provider.name": "tandem", "gen_ai.request.model": tracedModel,
		"gen_ai.request.max_tokens": *r.MaxTokens, "gen_ai.usage.output_tokens": len(r.tokens),
		"gen_ai.response.finish_reasons": `["length"]`})
	if n := number(chat.tag("gen_ai.usage.input_tokens")); n < 20 {
		t.Errorf("chat has %d input tokens: want those of the prompt", n)
	}
	if n := len(chat.below("admit")); n != 1 {
		t.Errorf("%d spans admit: want 1", n)
	}
	r.checkPrefills(t, chat.below("prefill"))
	sum, full := 0, 0
	for _, group := range chat.below("rounds") {
		sum += number(group.tag("tandem.accepted")) + number(group.tag("tandem.rounds"))
		for _, round := range group.below("round") {
			full++
			r.checkRound(t, round)
		}
	}
	if sum != len(r.tokens) || full == 0 {
		t.Errorf("rounds add up to %d tokens, %d are told in full: want %d and some", sum, full, len(r.tokens))
	}
}

// checkPrefills wants one prefill of the verifier and one of each drafter, the open of the process below each.
func (r *tracedRequest) checkPrefills(t *testing.T, prefills []*jaegerSpan) {
	var target *jaegerSpan
	drafters := 0
	for _, p := range prefills {
		service := "tandem-drafter"
		if p.tag("tandem.process") == "verifier" {
			target, service = p, "tandem-verifier"
		} else {
			drafters++
		}
		if open := p.below("open"); len(open) != 1 || open[0].service() != service {
			t.Errorf("prefill of %v has %d spans open below: want one of %s", p.tag("tandem.process"), len(open), service)
		}
	}
	if target == nil || drafters < r.drafters {
		t.Fatalf("%d prefills of drafters and verifier's %v: want %d and one", drafters, target != nil, r.drafters)
	}
	for _, p := range prefills {
		if p == target {
			continue
		}
		at := fmt.Sprintf("%v's %d to %d µs, verifier's %d to %d; ", p.tag("tandem.drafter"), p.Start, p.Start+p.Duration,
			target.Start, target.Start+target.Duration)
		if p.Start > target.Start+target.Duration || p.Start+p.Duration < target.Start {
			r.apart += at
		} else {
			r.beside += at
		}
	}
}

// checkRound wants draft → send → process → verify → commit, with their kinds, links and attributes.
func (r *tracedRequest) checkRound(t *testing.T, round *jaegerSpan) {
	x := r.trace
	for _, key := range []string{"tandem.round", "tandem.base", "tandem.nodes", "tandem.accepted"} {
		if round.tag(key) == nil {
			t.Errorf("a round has no %s", key)
		}
	}
	round.tags(t, map[string]any{"tandem.epoch": 0})
	if len(round.below("commit")) != 1 {
		t.Errorf("%d spans commit below a round: want 1", len(round.below("commit")))
	}
	drafts, sends, finished := round.below("draft"), round.below("send"), 0
	for _, d := range drafts {
		d.tags(t, map[string]any{"tandem.base": round.tag("tandem.base")})
		if kind := d.tag("error.type"); kind != nil { // on a busy box a draft comes too late, and is given up
			if kind != tandem.Deadline.String() && kind != tandem.Canceled.String() {
				t.Errorf("a draft of %v failed: %v", d.tag("tandem.drafter"), kind)
			}
			continue
		}
		finished++
		sends = append(sends, d.below("send")...)
		ms, _ := d.tag("tandem.device_ms").(float64)
		if d.service() != "tandem-drafter" || d.tag("tandem.drafter") == nil || number(d.tag("tandem.nodes")) < 1 || ms < 0 ||
			ms > float64(d.Duration)/1000+1 {
			t.Errorf("draft of %s has drafter %v, %v nodes, %v ms: want some of each", d.service(), d.tag("tandem.drafter"),
				d.tag("tandem.nodes"), ms)
		}
	}
	drafted := round.tag("tandem.outcome") != nil
	if drafted && len(drafts) == 0 || r.drafters == 0 && len(drafts) > 0 {
		t.Errorf("%d drafts in a round: want %d", len(drafts), r.drafters)
	}
	if drafted && finished >= r.drafters {
		r.whole++
	}
	if outcome, ok := round.tag("tandem.outcome").(string); ok &&
		!slices.Contains([]string{"accepted", "partial", "rejected", "stale", "expired"}, outcome) {
		t.Errorf("outcome %q", outcome)
	}
	if len(sends) == 0 {
		t.Error("a round has no send")
	}
	for _, send := range sends {
		send.tags(t, map[string]any{"span.kind": "producer"})
		for _, process := range send.below("process") {
			process.tags(t, map[string]any{"span.kind": "consumer", "tandem.base": round.tag("tandem.base")})
			if process.service() != "tandem-verifier" {
				t.Errorf("process is of %s", process.service())
			}
			if !slices.Contains(process.References, jaegerReference{"FOLLOWS_FROM", x.ID, send.ID}) {
				t.Errorf("process has references %+v: want a link to its send %s", process.References, send.ID)
			}
			for _, verify := range process.below("verify") {
				ms, _ := verify.tag("tandem.device_ms").(float64)
				if ms <= 0 || number(verify.tag("tandem.width")) < 1 || number(verify.tag("tandem.rows")) < 1 ||
					verify.tag("tandem.depth") == nil {
					t.Errorf("verify has %v ms, width %v, depth %v, %v rows: want some of each", ms, verify.tag("tandem.width"),
						verify.tag("tandem.depth"), verify.tag("tandem.rows"))
				}
			}
		}
	}
}

// timeline lays a trace out as Jaeger does, a line for each span in the order of the tree, with the rounds up to one.
func (x *jaegerTrace) timeline(rounds int) timeline.Timeline {
	root := x.root()
	out := timeline.Timeline{Title: fmt.Sprintf("%s, trace %s: the first %d rounds", root.Name, x.ID, rounds)}
	at := func(us int64) time.Duration { return time.Duration(us-root.Start) * time.Microsecond }
	end := int64(0) // of the last round shown
	var visit func(s *jaegerSpan, depth int)
	visit = func(s *jaegerSpan, depth int) {
		if s.Name == "round" {
			if number(s.tag("tandem.round")) > rounds {
				return
			}
			end = max(end, s.Start+s.Duration)
		}
		name := s.Name
		for _, key := range []string{"tandem.process", "tandem.round", "tandem.drafter"} {
			if v := s.tag(key); v != nil && (key != "tandem.drafter" || s.Name == "draft" || s.Name == "prefill") {
				name += " " + strings.TrimPrefix(fmt.Sprint(v), "gopher-draft-")
			}
		}
		if s.parent == nil || s.parent.service() != s.service() {
			name += " · " + strings.TrimPrefix(s.service(), "tandem-")
		}
		out.Lanes = append(out.Lanes, timeline.Lane{Name: name, Indent: depth})
		out.Stretches = append(out.Stretches, timeline.Stretch{Lane: len(out.Lanes) - 1, Name: name, Kind: strings.Fields(s.Name)[0],
			From: at(s.Start), To: at(s.Start + s.Duration)})
		for _, c := range s.children {
			visit(c, depth+1)
		}
	}
	visit(root, 0)
	return out.Between(0, at(end)+at(end)/50)
}
