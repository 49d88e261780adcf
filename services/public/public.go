// Package public serves a tandem.Generator to clients as tandem.v1.GenerationService.
package public

import (
	"cmp"
	"context"
	crand "crypto/rand"
	"encoding/binary"
	"runtime/debug"
	"sync"
	"time"

	"google.golang.org/grpc"

	"github.com/tandem-llm/tandem"
	tandemv1 "github.com/tandem-llm/tandem/proto/tandem/v1"
	"github.com/tandem-llm/tandem/services/wire"
)

const op = "request"

// Defaults fill in what a request leaves out. A seed that is left out is random, and told in Started.
type Defaults struct {
	MaxTokens int
	Sampling  tandem.Sampling // Seed is not used
	Policy    tandem.Policy   // plain: no speculation unless a request describes a tree
	Strategy  tandem.Strategy
	Vote      tandem.Vote
	Drafters  []string // that may draft; nil: all that are alive
	Off       tandem.Technique
}

// Process is one process behind the gateway, or the gateway itself.
type Process struct {
	Role string // "gateway", "drafter" or "verifier"
	Up   bool
	wire.Description
}

// Description tells what a gateway is.
type Description struct {
	Version   string
	Model     string
	Vocab     int
	Context   int
	Processes []Process
	Counters  map[string]int64
}

// Config is what a gateway serves.
type Config struct {
	Generator tandem.Generator
	Model     string // the target's name, told in Started
	Defaults  Defaults
	Describe  func(ctx context.Context) Description
	Stall     time.Duration // a client that keeps its output waiting so long for stallEvents of it is given up; 0 = 30 s
}

const (
	defaultStall = 30 * time.Second
	stallEvents  = 32 // about a kilobyte
)

// Register serves cfg on r.
func Register(r grpc.ServiceRegistrar, cfg Config) {
	if cfg.Stall == 0 {
		cfg.Stall = defaultStall
	}
	tandemv1.RegisterGenerationServiceServer(r, &server{cfg: cfg})
}

type server struct {
	tandemv1.UnimplementedGenerationServiceServer
	cfg Config
}

// Generate decodes the request, runs it, and ends the stream with Finished. What a client has not read
// yet waits in the transport, which holds 64 KiB of a stream. Beyond that the generation waits, with its
// place and its memory, so a client that reads next to nothing must not keep it: the generation runs
// beside the call, whose return cuts the stream and with it the send and the generation that wait.
func (s *server) Generate(r *tandemv1.GenerateRequest, stream grpc.ServerStreamingServer[tandemv1.GenerateResponse]) error {
	req, err := s.cfg.Defaults.request(r)
	if err != nil {
		return err
	}
	stalled := make(chan struct{})
	sink := &sink{model: s.cfg.Model, stream: stream, stall: s.cfg.Stall,
		watch: time.AfterFunc(s.cfg.Stall, sync.OnceFunc(func() { close(stalled) }))}
	sink.watch.Stop()
	done := make(chan error, 1)
	go func() { done <- s.generate(stream.Context(), req, sink) }()
	select {
	case err := <-done:
		return err
	case <-stalled:
		return tandem.Errorf(op, tandem.Deadline, "the client kept its output waiting for %v: want %d events taken in that time", s.cfg.Stall, stallEvents)
	}
}

// generate runs a request and returns a panic as an error: no server recovers here.
func (s *server) generate(ctx context.Context, req tandem.Request, sink *sink) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = tandem.Errorf(op, tandem.Internal, "panic: %v\n%s", p, debug.Stack())
		}
	}()
	result, err := s.cfg.Generator.Generate(ctx, req, sink)
	if err != nil {
		return err
	}
	return sink.send(&tandemv1.GenerateResponse{Event: &tandemv1.GenerateResponse_Finished{Finished: finished(result)}})
}

// Describe serves the description.
func (s *server) Describe(ctx context.Context, _ *tandemv1.DescribeRequest) (*tandemv1.DescribeResponse, error) {
	d := s.cfg.Describe(ctx)
	out := &tandemv1.DescribeResponse{Version: d.Version, Model: d.Model, Vocabulary: int32(d.Vocab), Context: int32(d.Context),
		Sampling: fromSampling(s.cfg.Defaults.Sampling), Speculation: s.cfg.Defaults.speculation(),
		MaxTokens: int32(s.cfg.Defaults.MaxTokens), Counters: d.Counters}
	out.Sampling.Seed = nil
	for _, p := range d.Processes {
		out.Processes = append(out.Processes, &tandemv1.Process{Role: p.Role, Up: p.Up, Model: p.Model, Version: p.Version,
			Isa: p.ISA, Threads: int32(p.Threads), Pid: int32(p.PID), Counters: p.Counters})
	}
	return out, nil
}

// request decodes r with d for what it leaves out; the values are the generator's to validate.
func (d Defaults) request(r *tandemv1.GenerateRequest) (tandem.Request, error) {
	req := tandem.Request{MaxTokens: d.MaxTokens, Sampling: d.Sampling, IgnoreEOS: r.GetIgnoreEos(), FullTrace: r.GetFullTrace()}
	switch p := r.GetPrompt().(type) {
	case *tandemv1.GenerateRequest_Text:
		req.Prompt = p.Text
	case *tandemv1.GenerateRequest_Tokens:
		req.Tokens = wire.ToTokens(p.Tokens.GetIds())
	}
	if r.MaxTokens != nil {
		req.MaxTokens = int(r.GetMaxTokens())
	}
	s := r.GetSampling()
	if s == nil {
		s = &tandemv1.Sampling{}
	}
	if s.Temperature != nil {
		req.Sampling.Temperature = s.GetTemperature()
	}
	if s.TopK != nil {
		req.Sampling.TopK = int(s.GetTopK())
	}
	if s.TopP != nil {
		req.Sampling.TopP = s.GetTopP()
	}
	if req.Sampling.Seed = s.GetSeed(); s.Seed == nil {
		req.Sampling.Seed = randomSeed()
	}
	speculation := r.GetSpeculation()
	if speculation == nil {
		speculation = &tandemv1.Speculation{}
	}
	return req, d.speculate(&req, speculation)
}

// speculate decodes s into req; zeros that were asked for are no way to say "none". A tree that was asked
// for without a strategy is meant as it is.
func (d Defaults) speculate(req *tandem.Request, s *tandemv1.Speculation) (err error) {
	req.Strategy, req.Vote, req.Drafters, req.Off = d.Strategy, d.Vote, d.Drafters, d.Off
	if s.Enabled != nil && !s.GetEnabled() {
		return nil
	}
	req.Policy = d.Policy
	p := &req.Policy
	asked := false
	for _, f := range []struct {
		from *int32
		to   *int
	}{{s.Nodes, &p.Nodes}, {s.Depth, &p.Depth}, {s.Width, &p.Width}} {
		if f.from != nil {
			*f.to, asked = int(*f.from), true
		}
	}
	if asked && *p == (tandem.Policy{}) {
		return tandem.Errorf(op, tandem.Invalid, "tree 0/0/0: want at least 2/1/1, or speculation not enabled")
	}
	if asked {
		req.Strategy = tandem.StrategyFixed
	}
	if s.Strategy != nil {
		req.Strategy = tandem.Strategy(s.GetStrategy())
	}
	if s.Vote != nil {
		req.Vote = tandem.Vote(s.GetVote())
	}
	if len(s.GetDrafters()) > 0 {
		req.Drafters = s.GetDrafters()
	}
	if len(s.GetWithout()) > 0 {
		req.Off, err = tandem.ParseTechniques(s.GetWithout())
	}
	return err
}

func randomSeed() uint64 {
	var b [8]byte
	_, _ = crand.Read(b[:])
	return binary.LittleEndian.Uint64(b[:])
}

// sink implements tandem.Sink by sending events.
type sink struct {
	model  string
	stream grpc.ServerStreamingServer[tandemv1.GenerateResponse]
	next   uint64
	stall  time.Duration
	watch  *time.Timer   // runs while a send does
	waited time.Duration // for the latest sends
	sends  int           // that took so long, fewer than stallEvents
}

func (s *sink) send(r *tandemv1.GenerateResponse) error {
	r.Sequence = s.next
	s.next++
	if s.sends++; s.sends == stallEvents {
		s.sends, s.waited = 0, 0
	}
	begun := time.Now()
	s.watch.Reset(s.stall - s.waited)
	err := s.stream.Send(r)
	s.watch.Stop()
	s.waited += time.Since(begun)
	return err
}

// Started implements tandem.Sink.
func (s *sink) Started(e tandem.Started) error {
	r := e.Request
	return s.send(&tandemv1.GenerateResponse{Event: &tandemv1.GenerateResponse_Started{Started: &tandemv1.Started{
		Session: e.Session.String(), Prompt: &tandemv1.TokenList{Ids: wire.FromTokens(e.PromptTokens)}, Model: s.model, Drafter: e.Drafter,
		MaxTokens: int32(r.MaxTokens), Sampling: fromSampling(r.Sampling), Speculation: fromSpeculation(r)}}})
}

// Delta implements tandem.Sink.
func (s *sink) Delta(d tandem.Delta) error {
	origins := make([]tandemv1.Origin, len(d.Origins))
	for i, o := range d.Origins {
		origins[i] = tandemv1.Origin_ORIGIN_TARGET
		if o == tandem.OriginDraft {
			origins[i] = tandemv1.Origin_ORIGIN_DRAFT
		}
	}
	return s.send(&tandemv1.GenerateResponse{Event: &tandemv1.GenerateResponse_Delta{Delta: &tandemv1.Delta{
		Text: d.Text, Tokens: &tandemv1.TokenList{Ids: wire.FromTokens(d.Tokens)}, Origins: origins}}})
}

func finished(r tandem.Result) *tandemv1.Finished {
	reason := tandemv1.FinishReason_FINISH_REASON_UNSPECIFIED
	switch r.Finish {
	case tandem.FinishStop:
		reason = tandemv1.FinishReason_FINISH_REASON_STOP
	case tandem.FinishLength:
		reason = tandemv1.FinishReason_FINISH_REASON_LENGTH
	}
	return &tandemv1.Finished{Reason: reason, Statistics: fromStats(r.Stats),
		Usage: &tandemv1.Usage{PromptTokens: int32(r.PromptTokens), OutputTokens: int32(r.OutputTokens)}}
}

func fromStats(s tandem.Stats) *tandemv1.Statistics {
	out := &tandemv1.Statistics{Rounds: int32(s.Rounds), Drafted: int32(s.Drafted), DraftedDepth: int32(s.DraftedDepth),
		Accepted: int32(s.Accepted), PlainRounds: int32(s.PlainRounds), Reopened: int32(s.Reopened), PrefillNs: int64(s.Prefill),
		DecodeNs: int64(s.Decode), DraftBusyNs: int64(s.DraftBusy), VerifyBusyNs: int64(s.VerifyBusy),
		CoordinationNs: make([]int64, len(s.Coordination)), AheadHits: int32(s.AheadHits), AheadTries: int32(s.AheadTries),
		AheadBusyNs: int64(s.AheadBusy), AheadUsefulNs: int64(s.AheadUseful), PlanningNs: int64(s.Planning), Choices: map[string]int32{}}
	for i, d := range s.Coordination {
		out.CoordinationNs[i] = int64(d)
	}
	for _, d := range s.Drafters {
		out.Drafters = append(out.Drafters, &tandemv1.DrafterStatistics{Name: d.Name, Rounds: int32(d.Rounds), Drafted: int32(d.Drafted),
			Accepted: int32(d.Accepted), Weight: d.Weight})
	}
	for name, n := range s.Choices {
		out.Choices[name] = int32(n)
	}
	return out
}

func fromSampling(s tandem.Sampling) *tandemv1.Sampling {
	k := int32(s.TopK)
	return &tandemv1.Sampling{Temperature: &s.Temperature, TopK: &k, TopP: &s.TopP, Seed: &s.Seed}
}

// speculation encodes d, every field set.
func (d Defaults) speculation() *tandemv1.Speculation {
	return fromSpeculation(tandem.Request{Policy: d.Policy, Strategy: d.Strategy, Vote: d.Vote, Drafters: d.Drafters, Off: d.Off})
}

// fromSpeculation encodes what r says of speculation, every field set.
func fromSpeculation(r tandem.Request) *tandemv1.Speculation {
	p, strategy, vote := r.Policy, string(cmp.Or(r.Strategy, tandem.StrategyFixed)), string(cmp.Or(r.Vote, tandem.VoteAuto))
	enabled, n, d, w := !p.Plain(), int32(p.Nodes), int32(p.Depth), int32(p.Width)
	return &tandemv1.Speculation{Enabled: &enabled, Nodes: &n, Depth: &d, Width: &w, Strategy: &strategy, Vote: &vote,
		Drafters: r.Drafters, Without: r.Off.Names()}
}
