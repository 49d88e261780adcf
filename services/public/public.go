// Package public serves a tandem.Generator to clients as tandem.v1.GenerationService.
package public

import (
	"context"
	crand "crypto/rand"
	"encoding/binary"

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
}

// Register serves cfg on r.
func Register(r grpc.ServiceRegistrar, cfg Config) {
	tandemv1.RegisterGenerationServiceServer(r, &server{cfg: cfg})
}

type server struct {
	tandemv1.UnimplementedGenerationServiceServer
	cfg Config
}

// Generate decodes the request, runs it, and ends the stream with Finished.
func (s *server) Generate(r *tandemv1.GenerateRequest, stream grpc.ServerStreamingServer[tandemv1.GenerateResponse]) error {
	req, err := s.cfg.Defaults.request(r)
	if err != nil {
		return err
	}
	sink := &sink{model: s.cfg.Model, stream: stream}
	result, err := s.cfg.Generator.Generate(stream.Context(), req, sink)
	if err != nil {
		return err
	}
	return sink.send(&tandemv1.GenerateResponse{Event: &tandemv1.GenerateResponse_Finished{Finished: finished(result)}})
}

// Describe serves the description.
func (s *server) Describe(ctx context.Context, _ *tandemv1.DescribeRequest) (*tandemv1.DescribeResponse, error) {
	d := s.cfg.Describe(ctx)
	out := &tandemv1.DescribeResponse{Version: d.Version, Model: d.Model, Vocabulary: int32(d.Vocab), Context: int32(d.Context),
		Sampling: fromSampling(s.cfg.Defaults.Sampling), Speculation: fromPolicy(s.cfg.Defaults.Policy),
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
	var err error
	req.Policy, err = d.policy(r.GetSpeculation())
	return req, err
}

// policy decodes s; zeros that were asked for are no way to say "none".
func (d Defaults) policy(s *tandemv1.Speculation) (tandem.Policy, error) {
	if s == nil {
		return d.Policy, nil
	}
	if s.Enabled != nil && !s.GetEnabled() {
		return tandem.Policy{}, nil
	}
	p := d.Policy
	asked := false
	for _, f := range []struct {
		from *int32
		to   *int
	}{{s.Nodes, &p.Nodes}, {s.Depth, &p.Depth}, {s.Width, &p.Width}} {
		if f.from != nil {
			*f.to, asked = int(*f.from), true
		}
	}
	if asked && p == (tandem.Policy{}) {
		return p, tandem.Errorf(op, tandem.Invalid, "tree 0/0/0: want at least 2/1/1, or speculation not enabled")
	}
	return p, nil
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
}

func (s *sink) send(r *tandemv1.GenerateResponse) error {
	r.Sequence = s.next
	s.next++
	return s.stream.Send(r)
}

// Started implements tandem.Sink.
func (s *sink) Started(e tandem.Started) error {
	r := e.Request
	return s.send(&tandemv1.GenerateResponse{Event: &tandemv1.GenerateResponse_Started{Started: &tandemv1.Started{
		Session: e.Session.String(), Prompt: &tandemv1.TokenList{Ids: wire.FromTokens(e.PromptTokens)}, Model: s.model, Drafter: e.Drafter,
		MaxTokens: int32(r.MaxTokens), Sampling: fromSampling(r.Sampling), Speculation: fromPolicy(r.Policy)}}})
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
	s := r.Stats
	coordination := make([]int64, len(s.Coordination))
	for i, d := range s.Coordination {
		coordination[i] = int64(d)
	}
	return &tandemv1.Finished{Reason: reason,
		Usage: &tandemv1.Usage{PromptTokens: int32(r.PromptTokens), OutputTokens: int32(r.OutputTokens)},
		Statistics: &tandemv1.Statistics{Rounds: int32(s.Rounds), Drafted: int32(s.Drafted), DraftedDepth: int32(s.DraftedDepth),
			Accepted: int32(s.Accepted), PlainRounds: int32(s.PlainRounds), Reopened: int32(s.Reopened), PrefillNs: int64(s.Prefill),
			DecodeNs: int64(s.Decode), DraftBusyNs: int64(s.DraftBusy), VerifyBusyNs: int64(s.VerifyBusy), CoordinationNs: coordination}}
}

func fromSampling(s tandem.Sampling) *tandemv1.Sampling {
	k := int32(s.TopK)
	return &tandemv1.Sampling{Temperature: &s.Temperature, TopK: &k, TopP: &s.TopP, Seed: &s.Seed}
}

func fromPolicy(p tandem.Policy) *tandemv1.Speculation {
	enabled, n, d, w := !p.Plain(), int32(p.Nodes), int32(p.Depth), int32(p.Width)
	return &tandemv1.Speculation{Enabled: &enabled, Nodes: &n, Depth: &d, Width: &w}
}
