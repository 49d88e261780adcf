package wire

import (
	"bytes"
	"errors"
	"math"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/tandem-llm/tandem"
	peerv1 "github.com/tandem-llm/tandem/proto/peer/v1"
	"github.com/tandem-llm/tandem/services/peers/shm"
)

// over encodes m to bytes and back, as the wire does.
func over[M proto.Message](t *testing.T, m M) M {
	t.Helper()
	b, err := proto.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	out := m.ProtoReflect().New().Interface()
	if err := proto.Unmarshal(b, out); err != nil {
		t.Fatal(err)
	}
	return out.(M)
}

func same[T any](t *testing.T, got, want T) {
	t.Helper()
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
}

var prompted = tandem.Tree{Tokens: []tandem.Token{7, 8, 0, 1}, Parents: []int32{-1, 0, 1, 2}, LogProbs: []float32{0, -1, 0, 0}, Prompts: 2}

var guesses = []tandem.Guess{{SelfDraft: tandem.Medusa, Levels: [][]tandem.TopLogprob{{{Token: 3, LogProb: -0.1}, {Token: 4, LogProb: -2}},
	{{Token: 3, LogProb: -1}}}}, {SelfDraft: "of a later release"}}

var tree = tandem.Tree{Tokens: []tandem.Token{7, 8, 9, 8}, Parents: []int32{-1, 0, 0, 1}, LogProbs: []float32{0, -1, -2, -3.5}}

func TestValuesSurvive(t *testing.T) {
	o := tandem.Opening{Session: 1<<64 - 1, Epoch: 3, Tokens: []tandem.Token{1, 31999}, Limit: 4096, MaxNodes: 64, Vocab: 32064,
		Sampling: tandem.Sampling{Temperature: 0.8, TopK: 40, TopP: 0.95, Seed: 1<<64 - 1}}
	gotO, err := ToOpening(over(t, FromOpening(o)))
	if err != nil {
		t.Fatal(err)
	}
	same(t, gotO, o)
	zero := o
	zero.Sampling = tandem.Sampling{TopP: 1}
	gotO, err = ToOpening(over(t, FromOpening(zero)))
	if err != nil {
		t.Fatalf("temperature 0 was taken as unset: %v", err)
	}
	same(t, gotO, zero)
	full := o
	full.Prompt, full.Tenant = 1, "t"
	full.SelfDrafts, full.Features = []string{tandem.Medusa, "of a later release"}, true
	full.Sampling = tandem.Sampling{Temperature: 0.8, TopK: 40, TopP: 0.95, MinP: 0.05, Seed: 7, RepeatPenalty: 1.1, RepeatLast: 99,
		FrequencyPenalty: -0.5,
		PresencePenalty:  2, Bias: []tandem.Bias{{Token: 0, Add: -100}, {Token: 31999, Add: 0.5}}, Logprobs: true, TopLogprobs: 20,
		Accept: tandem.AcceptTypical, Epsilon: 0.2, Delta: 0.4,
		Constraint: &tandem.Constraint{Spec: `{"object":true}`, Digest: strings.Repeat("0a", 32), Ends: []tandem.Token{2, 7}}}
	gotO, err = ToOpening(over(t, FromOpening(full)))
	if err != nil {
		t.Fatal(err)
	}
	same(t, gotO, full)

	for _, p := range []tandem.Proposal{
		{Session: 5, Epoch: 1, Base: 9, Hash: 1 << 63, From: 7, Suffix: []tandem.Token{4, 5},
			Bounds: tandem.Bounds{Nodes: 16, Depth: 7, Width: 10}},
		{Session: 5, Suffix: []tandem.Token{}, Growth: tandem.GrowBest, Return: true, SelfDrafts: []string{tandem.PPD}},
		{Session: 5, Suffix: []tandem.Token{}, Growth: tandem.GrowPacer, Branch: 0.3, Stop: 0.01, Ahead: true,
			Plan: tandem.Plan{Verify: []time.Duration{3, 4, 9}, Round: 7, Others: 1.5,
				Accept: make([]float32, tandem.AcceptBins())}},
	} {
		got, err := ToProposal(over(t, FromProposal(p, "go")))
		if err != nil {
			t.Fatal(err)
		}
		same(t, got, p)
		same(t, over(t, FromProposal(p, "go")).GetDrafter(), "go")
	}
	for _, p := range []tandem.Proposed{{Nodes: 1}, {Nodes: 4, Depth: 2, Busy: 5, Passes: 3, Reused: 2, Ahead: 9, Tree: tree,
		Hindsight: tandem.Hindsight{Tokens: 64, Hits: 1<<63 | 5}}} {
		want := shm.Handle{Segment: 3, Slot: 1}
		if _, h, err := ToProposed(over(t, FromProposed(p, want))); err != nil || h != want {
			t.Errorf("handle %+v, %v", h, err)
		}
		got, h, err := ToProposed(over(t, FromProposed(p, shm.Handle{})))
		if h != (shm.Handle{}) {
			t.Errorf("handle %+v: want none", h)
		}
		if err != nil {
			t.Fatal(err)
		}
		same(t, got, p)
	}
	if _, _, err := ToProposed(&peerv1.ProposeResponse{Tree: &peerv1.Tree{Tokens: []uint32{1, 2}}}); !errors.Is(err, tandem.Corrupt) {
		t.Errorf("proposed a tree without parents: %v", err)
	}

	v := tandem.Verdict{Session: 5, Epoch: 1, Base: 9, Hash: 77, Path: []int32{1, 3}, Tokens: []tandem.Token{8, 8, 2}, Nodes: 4, Batch: 2,
		Rows: 132, Busy: time.Millisecond}
	same(t, ToVerdict(over(t, FromVerdict(v))), v)
	v.Experts = tandem.Experts{6, 9, 12, 12, 13, 14, 15, 16, 17}
	same(t, ToVerdict(over(t, FromVerdict(v))), v)
	for _, bad := range []tandem.Experts{{6, 13, 14, 14, 14, 14, 14, 14, 14}, {6, 5, 6, 6, 6, 6, 6, 6, 6}, {6},
		{0, 0, 0, 0, 0, 0, 0, 0, 0}} {
		b := v
		b.Experts = bad
		if got := ToVerdict(over(t, FromVerdict(b))); got.Kind != tandem.Corrupt {
			t.Errorf("a verdict on 132 rows with experts %v: %+v", bad, got)
		}
	}
	v.Logprobs = []tandem.Logprob{{LogProb: -0.5},
		{LogProb: -2, Top: []tandem.TopLogprob{{Token: 3, LogProb: -0.1}, {Token: 4, LogProb: -9999}}}, {}}
	same(t, ToVerdict(over(t, FromVerdict(v))), v)
	v.Guesses, v.Guessing = guesses, 3*time.Millisecond
	same(t, ToVerdict(over(t, FromVerdict(v))), v)
	torn := FromVerdict(v)
	torn.Logprobs[1].TopTokens = torn.Logprobs[1].TopTokens[1:]
	if got := ToVerdict(torn); got.Kind != tandem.Corrupt || got.Logprobs != nil {
		t.Errorf("log-probabilities without tokens: %+v", got)
	}
	for k := tandem.OK; k <= tandem.Unauthenticated; k++ {
		refused := tandem.Verdict{Session: 5, Tokens: []tandem.Token{}, Kind: k, Message: "why"}
		same(t, ToVerdict(over(t, FromVerdict(refused))), refused)
		if _, named := peerv1.Kind_name[int32(k)]; !named {
			t.Errorf("kind %v has no number on the wire", k)
		}
	}
	if got := ToVerdict(&peerv1.Verdict{Kind: 99}); got.Kind != tandem.Internal {
		t.Errorf("unknown kind became %v", got.Kind)
	}

	d := tandem.Description{Name: "d", Version: "1", Model: "m", File: "f", Vocab: 4096, Fingerprint: "abc", Context: 2048,
		KVCapacity: 1 << 40, Threads: 2, Device: "cpu", ISA: "avx2", PID: 17, SegmentSocket: "/s", Counters: map[string]int64{"a": 1},
		Costs: []tandem.Cost{{Rows: 1, Time: 5}, {Rows: 8, Context: 9, Time: 7, Experts: 300, Expert: 4}}, Window: 831,
		Drafters: []string{"d", "lookup"}, PageTokens: 32, Protocol: tandem.Protocol, Identity: "a-b-c-f16-a1", Lineage: "l",
		SelfDrafts: []tandem.SelfDraft{{Name: tandem.Medusa, Levels: 5, Time: time.Millisecond,
			Greedy: [tandem.MostLevels]tandem.Line{{Slope: 1, Bias: -2}, {Slope: 2}}, Sampled: [tandem.MostLevels]tandem.Line{{Slope: 8}}},
			{Name: tandem.PPD, Levels: 3, Members: 20}},
		Taps: []int{3, -1}, Instance: 9, Draining: true}
	for i, v := 0, reflect.ValueOf(d); i < v.NumField(); i++ {
		if v.Field(i).IsZero() {
			t.Errorf("field %s of the description is not tried", v.Type().Field(i).Name)
		}
	}
	same(t, ToDescription(over(t, FromDescription(d))), d)

	b, err := MarshalTree(tree)
	if err != nil {
		t.Fatal(err)
	}
	gotT, err := UnmarshalTree(b)
	if err != nil {
		t.Fatal(err)
	}
	same(t, gotT, tree)
	if _, err := MarshalTree(tandem.Tree{}); !errors.Is(err, tandem.Invalid) {
		t.Errorf("tree without nodes: %v", err)
	}
}

func TestGuessesThatContradictThemselvesAreSeenToBeWrong(t *testing.T) {
	for name, change := range map[string]func(*peerv1.Guess){
		"a token too few":    func(g *peerv1.Guess) { g.Levels[0].Tokens = g.Levels[0].Tokens[1:] },
		"a probability less": func(g *peerv1.Guess) { g.Levels[0].LogProbs = nil },
		"too many levels":    func(g *peerv1.Guess) { g.Levels = slices.Repeat(g.Levels, tandem.MostLevels) },
		"too many candidates": func(g *peerv1.Guess) {
			g.Levels[0].Tokens = make([]uint32, 1000)
			g.Levels[0].LogProbs = make([]float32, 1000)
		},
		"a token beyond int32": func(g *peerv1.Guess) { g.Levels[0].Tokens[0] = math.MaxUint32 },
		"not a number":         func(g *peerv1.Guess) { g.Levels[1].LogProbs[0] = float32(math.NaN()) },
	} {
		m := FromVerdict(tandem.Verdict{Session: 5, Tokens: []tandem.Token{1}, Guesses: guesses})
		change(m.Guesses[0])
		v := ToVerdict(over(t, m))
		if v.Kind != tandem.OK || len(v.Guesses) != 2 {
			t.Errorf("%s: %+v: want a verdict with two guesses", name, v)
		} else if err := v.Guesses[0].Validate(4096); !errors.Is(err, tandem.Corrupt) {
			t.Errorf("%s: %v: want corrupt", name, err)
		}
	}
	d := FromDescription(tandem.Description{SelfDrafts: []tandem.SelfDraft{{Name: "lookup", Levels: 1}, {Name: tandem.PPD},
		{Name: tandem.Medusa, Levels: 1, Greedy: [tandem.MostLevels]tandem.Line{{Slope: -1}}},
		{Name: tandem.Medusa, Levels: 1, Sampled: [tandem.MostLevels]tandem.Line{{Slope: 1, Bias: math.NaN()}}},
		{Name: tandem.Medusa, Levels: 1, Time: -1}, {Name: tandem.Medusa, Levels: math.MaxInt32},
		{Name: tandem.PPD, Levels: 2, Members: math.MaxInt32},
		{Name: tandem.PPD, Levels: 3, Members: 1000}, {Name: tandem.Assistant, Levels: 1}}})
	same(t, ToDescription(d).SelfDrafts, []tandem.SelfDraft{{Name: tandem.Assistant, Levels: 1}})
}

func TestEnvelopeSurvives(t *testing.T) {
	k := tandem.Ticket{Session: 5, Epoch: 2, Base: 12, Hash: 99, Drafter: "go", Tree: prompted, SelfDrafts: tandem.SelfDrafts()}
	h := shm.Handle{Segment: 1, Slot: 2, Length: 3, Generation: 4}
	for _, e := range []Envelope{{Ticket: k}, {Ticket: tandem.Ticket{Session: 5, Base: 1}, Handle: h, Lease: 2 * time.Second}} {
		b, err := e.Marshal()
		if err != nil {
			t.Fatal(err)
		}
		got, err := UnmarshalEnvelope(b)
		if err != nil {
			t.Fatal(err)
		}
		same(t, got, e)
	}
	many := k
	many.SelfDrafts = slices.Repeat([]string{"w"}, mostWays+1)
	b, err := Envelope{Ticket: many}.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := UnmarshalEnvelope(b); !errors.Is(err, tandem.Corrupt) {
		t.Errorf("ticket that asks %d ways: %v", len(many.SelfDrafts), err)
	}
	k.Drafter = strings.Repeat("x", MaxEnvelope)
	if _, err := (Envelope{Ticket: k}).Marshal(); !errors.Is(err, tandem.Exhausted) {
		t.Errorf("oversize envelope: %v: want exhausted", err)
	}
}

func TestOpeningsThatAreRefused(t *testing.T) {
	good := FromOpening(tandem.Opening{Session: 1, Tokens: []tandem.Token{1}})
	for name, change := range map[string]func(*peerv1.Opening){
		"session":     func(o *peerv1.Opening) { o.Session = 0 },
		"tokens":      func(o *peerv1.Opening) { o.Tokens = nil },
		"sampling":    func(o *peerv1.Opening) { o.Sampling = nil },
		"temperature": func(o *peerv1.Opening) { o.Sampling.Temperature = nil },
		"identity":    func(o *peerv1.Opening) { o.Identity = strings.Repeat("x", 200) },
		"fingerprint": func(o *peerv1.Opening) { o.Fingerprint = "a\nb" },
		"bias":        func(o *peerv1.Opening) { o.Sampling.BiasTokens = []uint32{1} },
		"ways":        func(o *peerv1.Opening) { o.Ways = []string{strings.Repeat("x", mostWayName+1)} },
	} {
		bad := proto.Clone(good).(*peerv1.Opening)
		change(bad)
		if _, err := ToOpening(bad); !errors.Is(err, tandem.Invalid) {
			t.Errorf("without %s: %v: want invalid", name, err)
		}
	}
	if _, err := ToOpening(nil); !errors.Is(err, tandem.Invalid) {
		t.Errorf("nothing at all: %v", err)
	}
}

func TestProposalsThatAreRefused(t *testing.T) {
	nan := math.NaN()
	for name, p := range map[string]*peerv1.ProposeRequest{
		"growth":       {Growth: 9},
		"branch":       {Branch: nan},
		"branch above": {Branch: 1.5},
		"stop":         {Stop: -0.1},
		"chances":      {Plan: &peerv1.Plan{Chances: make([]float32, 3)}},
		"chance":       {Plan: &peerv1.Plan{Chances: slices.Repeat([]float32{2}, tandem.AcceptBins())}},
		"widths":       {Plan: &peerv1.Plan{VerifyNs: make([]int64, maxCosts+1)}},
		"cost":         {Plan: &peerv1.Plan{VerifyNs: []int64{1, -1}}},
		"round":        {Plan: &peerv1.Plan{RoundNs: -1}},
		"others":       {Plan: &peerv1.Plan{Others: nan}},
		"ways":         {Ways: make([]string, mostWays+1)},
	} {
		if got, err := ToProposal(p); !errors.Is(err, tandem.Invalid) {
			t.Errorf("%s: %+v, %v: want invalid", name, got, err)
		}
	}
}

// TestPlanOfAnOldGateway: a gateway of before the chances after a parent sends a table of cumulative ones, which is not taken for them.
func TestPlanOfAnOldGateway(t *testing.T) {
	//lint:ignore SA1019 an old gateway sends it
	old := &peerv1.Plan{VerifyNs: []int64{5}, Accept: slices.Repeat([]float32{0.5}, 24)}
	got, err := ToProposal(&peerv1.ProposeRequest{Plan: old})
	if err != nil || got.Plan.Accept != nil || len(got.Plan.Verify) != 1 {
		t.Errorf("%+v, %v: want a plan without chances", got.Plan, err)
	}
}

var announcement = Announcement{Instance: 7, Sequence: 3, Addr: "unix:///d", Draining: true, Segment: 9,
	Drafters: []AnnouncedDrafter{{"go", "m", 4096, "ab", "i-1", "l2", true,
		[]tandem.Cost{{Rows: 1, Context: 1, Time: 5}, {Rows: 64, Time: 90}}, 831},
		{Name: "lookup"}}, Protocol: tandem.Protocol}

func TestAnnouncements(t *testing.T) {
	b, err := announcement.Marshal(nil)
	if err != nil {
		t.Fatal(err)
	}
	got, err := UnmarshalAnnouncement(b)
	if err != nil {
		t.Fatal(err)
	}
	signed := got.Signed
	got.Signed = nil
	same(t, got, announcement)
	b, err = announcement.Marshal(func(message []byte) string {
		if !bytes.Equal(message, signed) {
			t.Error("the sender signs other bytes than the receiver checks")
		}
		return "p"
	})
	if err != nil {
		t.Fatal(err)
	}
	if got, err = UnmarshalAnnouncement(b); err != nil || got.Proof != "p" || !bytes.Equal(got.Signed, signed) {
		t.Errorf("with a proof: %+v, %v", got, err)
	}
	long := announcement
	long.Addr = strings.Repeat("x", maxAnnouncement)
	if _, err := long.Marshal(nil); !errors.Is(err, tandem.Invalid) {
		t.Errorf("oversize announcement: %v", err)
	}
	for name, change := range map[string]func(*peerv1.Announcement){
		"version":  func(a *peerv1.Announcement) { a.Version = 2 },
		"instance": func(a *peerv1.Announcement) { a.Instance = 0 },
		"address":  func(a *peerv1.Announcement) { a.Address = "" },
		"state":    func(a *peerv1.Announcement) { a.State = 9 },
		"none":     func(a *peerv1.Announcement) { a.Drafters = nil },
		"twice":    func(a *peerv1.Announcement) { a.Drafters[1].Name = "go" },
		"nameless": func(a *peerv1.Announcement) { a.Drafters[1].Name = "" },
		"long":     func(a *peerv1.Announcement) { a.Drafters[1].Name = strings.Repeat("x", maxName+1) },
		"negative": func(a *peerv1.Announcement) { a.Drafters[1].Vocabulary = -1 },
	} {
		var m peerv1.Announcement
		if err := proto.Unmarshal(b, &m); err != nil {
			t.Fatal(err)
		}
		change(&m)
		bad, _ := proto.Marshal(&m)
		if got, err := UnmarshalAnnouncement(bad); err == nil {
			t.Errorf("%s: accepted %+v", name, got)
		}
	}
}

func FuzzUnmarshalAnnouncement(f *testing.F) {
	b, err := announcement.Marshal(nil)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(b)
	f.Fuzz(func(t *testing.T, b []byte) {
		a, err := UnmarshalAnnouncement(b)
		if err != nil {
			if k := tandem.KindOf(err); k != tandem.Corrupt && k != tandem.Unsupported {
				t.Errorf("error of kind %v", k)
			}
			return
		}
		if a.Instance == 0 || a.Addr == "" || len(a.Drafters) == 0 {
			t.Errorf("accepted %+v", a)
		}
	})
}

func FuzzToProposal(f *testing.F) {
	b, err := proto.Marshal(FromProposal(tandem.Proposal{Session: 1, Suffix: []tandem.Token{1}, Growth: tandem.GrowPacer, Branch: 0.3,
		Plan: tandem.Plan{Verify: []time.Duration{1}, Accept: make([]float32, tandem.AcceptBins())}}, "go"))
	if err != nil {
		f.Fatal(err)
	}
	f.Add(b)
	f.Fuzz(func(t *testing.T, b []byte) {
		var m peerv1.ProposeRequest
		if proto.Unmarshal(b, &m) != nil {
			return
		}
		p, err := ToProposal(&m)
		if err != nil {
			return
		}
		if !(p.Stop >= 0 && p.Branch <= 1) || p.Growth > tandem.GrowPacer || len(p.Plan.Accept) != 0 &&
			len(p.Plan.Accept) != tandem.AcceptBins() {
			t.Errorf("accepted %+v", p)
		}
	})
}

func FuzzUnmarshalEnvelope(f *testing.F) {
	ticket := tandem.Ticket{Session: 5, Epoch: 2, Base: 12, Hash: 99, Drafter: "go", Tree: prompted, SelfDrafts: tandem.SelfDrafts()}
	for _, e := range []Envelope{{Ticket: ticket},
		{Ticket: tandem.Ticket{Session: 5, Base: 1}, Handle: shm.Handle{Segment: 1, Slot: 2, Length: 3, Generation: 4},
			Lease: 2 * time.Second}} {
		b, err := e.Marshal()
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		e, err := UnmarshalEnvelope(b)
		if err != nil {
			if k := tandem.KindOf(err); k != tandem.Corrupt && k != tandem.Unsupported {
				t.Errorf("error of kind %v", k)
			}
			return
		}
		if e.Ticket.Session == 0 || e.Ticket.Base < 1 {
			t.Errorf("accepted %+v", e.Ticket)
		}
		if e.Handle == (shm.Handle{}) && e.Ticket.Tree.Validate(256, 1<<20) == nil {
			e.Ticket.Tree.Depths() // must not go out of bounds
			again, err := e.Marshal()
			if err != nil {
				return // an unknown field can make the input shorter than its own encoding
			}
			if same, err := UnmarshalEnvelope(again); err != nil || same.Ticket.Tree.Len() != e.Ticket.Tree.Len() {
				t.Errorf("encoded again: %v", err)
			}
		}
	})
}

func FuzzUnmarshalTree(f *testing.F) {
	b, err := MarshalTree(tree)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(b)
	f.Fuzz(func(t *testing.T, b []byte) {
		got, err := UnmarshalTree(b)
		if err != nil {
			if !errors.Is(err, tandem.Corrupt) {
				t.Errorf("error %v: want corrupt", err)
			}
			return
		}
		if got.Validate(1<<20, 1<<30) == nil {
			got.Depths()
		}
	})
}

func FuzzToOpening(f *testing.F) {
	b, err := proto.Marshal(FromOpening(tandem.Opening{Session: 1, Tokens: []tandem.Token{1}, Sampling: tandem.Sampling{TopP: 1,
		Bias: []tandem.Bias{{Token: 1, Add: 2}}}}))
	if err != nil {
		f.Fatal(err)
	}
	f.Add(b)
	f.Fuzz(func(t *testing.T, b []byte) {
		var m peerv1.Opening
		if proto.Unmarshal(b, &m) != nil {
			return
		}
		o, err := ToOpening(&m)
		if err != nil {
			return
		}
		if tandem.ValidatePromptTokens(o.Tokens, tandem.Limits{}) != nil || o.Sampling.Validate(tandem.Limits{}) != nil {
			return
		}
		again, err := ToOpening(over(t, FromOpening(o)))
		if err != nil || !reflect.DeepEqual(again, o) {
			t.Errorf("encoded again: %+v, %v, was %+v", again, err, o)
		}
	})
}

func FuzzToVerdict(f *testing.F) {
	b, err := proto.Marshal(FromVerdict(tandem.Verdict{Session: 1, Path: []int32{1}, Tokens: []tandem.Token{1, 2},
		Logprobs: []tandem.Logprob{{LogProb: -1, Top: []tandem.TopLogprob{{Token: 1, LogProb: -1}}}, {}},
		Guesses:  guesses, Guessing: 5}))
	if err != nil {
		f.Fatal(err)
	}
	f.Add(b)
	f.Fuzz(func(t *testing.T, b []byte) {
		var m peerv1.Verdict
		if proto.Unmarshal(b, &m) != nil {
			return
		}
		v := ToVerdict(&m)
		if v.Kind > tandem.Unauthenticated || v.Kind == tandem.OK && len(v.Logprobs) != len(m.GetLogprobs()) {
			t.Errorf("%+v of %v", v, &m)
		}
		for i, g := range v.Guesses {
			if n := len(m.GetGuesses()[i].GetLevels()); g.Validate(1<<20) == nil && len(g.Levels) != n {
				t.Errorf("%d levels of %d", len(g.Levels), n)
			}
		}
	})
}
