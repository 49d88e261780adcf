// Package public serves a tandem.Generator to clients as tandem.v1.GenerationService and, with a chat template, as tandem.v1.ChatService.
package public

import (
	"context"
	"slices"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	"github.com/tandem-llm/tandem"
	tandemv1 "github.com/tandem-llm/tandem/proto/tandem/v1"
	"github.com/tandem-llm/tandem/services/public/access"
	"github.com/tandem-llm/tandem/services/public/answer"
	"github.com/tandem-llm/tandem/services/public/ask"
	"github.com/tandem-llm/tandem/services/public/conversation"
)

// Method is the full name of the call that generates, without a slash in front.
const Method = "tandem.v1.GenerationService/Generate"

const op = "request"

// Process is one process behind the gateway, or the gateway itself.
type Process struct {
	Role string // "gateway", "drafter" or "verifier"
	Up   bool
	tandem.Description
}

// Description describes a gateway.
type Description struct {
	Version   string
	Model     string
	Vocab     int
	Context   int
	Processes []Process
	Counters  map[string]int64
	Fleet     []Member // verifiers and gateways, as they announce themselves
}

// Member is a verifier or a gateway of a fleet.
type Member struct {
	Role             string
	Addr             string
	State            string // "up", "down", "draining" or "lapsed"
	Model            string
	Version          string
	Identity         tandem.Identity
	Running, Waiting int            // sessions and tickets of a verifier; requests of a gateway
	Pages, FreePages int            // KV memory, in pages
	Lease            *time.Duration // for which what it last said holds; nil: it never announced itself
	HTTP, Host       string         // a gateway's address for browsers, and its machine
}

// Service is what a gateway serves as GenerationService and EmbeddingService.
type Service struct {
	Generator tandem.Generator
	Model     string // the target's name, told in Started
	Defaults  ask.Defaults
	Chat      bool            // conversations are answered; told by Describe
	HTTP      tandem.Sampling // what requests over HTTP take for what they leave out; told by Describe
	Describe  func(ctx context.Context) Description
	Vocab     Vocab                   // for Tokenize and Detokenize; may be nil
	Embedder  tandem.Embedder         // nil: there are no vectors
	Width     int                     // numbers in a vector; 0: the model makes none
	Keys      *access.Keys            // clients' keys; nil lets everybody in
	Metrics   *access.Keys            // the only keys with which Describe tells counters; nil: it tells all callers
	Prompt    func(text string) error // refuses a prompt that cannot be served, before it is tokenised; may be nil
	Stall     time.Duration           // a client that takes fewer than stallEvents waiting events in it is given up; 0 = 30 s
}

// Register serves cfg on r.
func Register(r grpc.ServiceRegistrar, cfg Service) {
	if cfg.Stall == 0 {
		cfg.Stall = defaultStall
	}
	s := &server{cfg: cfg}
	tandemv1.RegisterGenerationServiceServer(r, s)
	tandemv1.RegisterEmbeddingServiceServer(r, embedder{s: s})
}

type server struct {
	tandemv1.UnimplementedGenerationServiceServer
	cfg Service
}

// Generate decodes the request, runs it, and ends the stream with Finished.
func (s *server) Generate(r *tandemv1.GenerateRequest, stream grpc.ServerStreamingServer[tandemv1.GenerateResponse]) error {
	tenant, err := s.tenant(stream.Context())
	if err != nil {
		return err
	}
	req, err := request(s.cfg.Defaults, r)
	if err != nil {
		return withPath(err)
	}
	if s.cfg.Prompt != nil && req.Tokens == nil {
		if err := s.cfg.Prompt(req.Prompt); err != nil {
			return withPath(err)
		}
	}
	req.Tenant = tenant
	if r.GetResume() != nil {
		req.Sampling.Seed = r.GetResume().GetSeed()
	}
	sink := &sink{telling: newTelling(s.cfg.Model, r.GetResume()), stream: stream}
	return sink.generate(stream.Context(), s.cfg, req, conversation.Output{}, sink.event)
}

// Bare returns d without what tells of other tenants' requests and of the machines: counters, numbers of processes, and the fleet. d stays
// as it is.
func (d Description) Bare() Description {
	d.Counters, d.Processes, d.Fleet = nil, slices.Clone(d.Processes), nil
	for i := range d.Processes {
		d.Processes[i].Counters, d.Processes[i].PID = nil, 0
	}
	return d
}

// Describe serves the description, without counters to a caller who may not see the metrics.
func (s *server) Describe(ctx context.Context, _ *tandemv1.DescribeRequest) (*tandemv1.DescribeResponse, error) {
	header := metadata.ValueFromIncomingContext(ctx, "authorization")
	all := s.cfg.Metrics == nil || s.cfg.Metrics.Opens(header)
	if _, err := tenant(s.cfg.Keys, header); err != nil && (s.cfg.Metrics == nil || !all) {
		return nil, err
	}
	d := s.cfg.Describe(ctx)
	if !all {
		d = d.Bare()
	}
	out := &tandemv1.DescribeResponse{Version: d.Version, Model: d.Model, Vocabulary: int32(d.Vocab), Context: int32(d.Context),
		Sampling: fromSampling(s.cfg.Defaults.Sampling), Speculation: speculation(s.cfg.Defaults),
		MaxTokens: int32(s.cfg.Defaults.MaxTokens), Counters: d.Counters, Chat: s.cfg.Chat, HttpSampling: fromSampling(s.cfg.HTTP)}
	out.Sampling.Seed, out.HttpSampling.Seed = nil, nil
	for _, m := range d.Fleet {
		out.Fleet = append(out.Fleet, fromMember(m))
	}
	for _, p := range d.Processes {
		out.Processes = append(out.Processes, &tandemv1.Process{Role: p.Role, Up: p.Up, Model: p.Model, Version: p.Version,
			Device: p.Device, Isa: p.ISA, Threads: int32(p.Threads), Pid: int32(p.PID), Counters: p.Counters,
			Identity: string(p.Identity), Lineage: p.Lineage, Protocol: uint32(p.Protocol), Ways: p.SelfDraftNames()})
	}
	return out, nil
}

func fromMember(m Member) *tandemv1.Member {
	out := &tandemv1.Member{Role: m.Role, Address: m.Addr, State: m.State, Model: m.Model, Version: m.Version, Identity: string(m.Identity),
		Running: int32(m.Running), Waiting: int32(m.Waiting), Pages: int32(m.Pages), FreePages: int32(m.FreePages),
		Http: m.HTTP, Host: m.Host}
	if m.Lease != nil {
		ms := m.Lease.Milliseconds()
		out.LeaseMs = &ms
	}
	return out
}

// sink tells an answer's events as those of a generation.
type sink struct {
	*telling
	stream grpc.ServerStreamingServer[tandemv1.GenerateResponse]
}

func (s *sink) send(r *tandemv1.GenerateResponse) error {
	r.Sequence = s.number()
	return s.take(func() error { return s.stream.Send(r) })
}

// event tells an event.
func (s *sink) event(e *answer.Event) error {
	switch e.Kind {
	case answer.Started:
		started, err := s.started(e)
		if err != nil {
			return err
		}
		return s.send(&tandemv1.GenerateResponse{Event: &tandemv1.GenerateResponse_Started{Started: started}})
	case answer.Progress:
		p := fromProgress(*e.Progress)
		return s.send(&tandemv1.GenerateResponse{Event: &tandemv1.GenerateResponse_PromptProgress{PromptProgress: p}})
	case answer.Ended:
		return s.send(&tandemv1.GenerateResponse{Event: &tandemv1.GenerateResponse_Finished{Finished: finished(*e.Result)}})
	}
	d := s.had.Output(*e.Output)
	if d.Text = s.had.Rest(e.Text); d.Text == "" && len(d.Tokens) == 0 && len(e.Output.Tokens) > 0 {
		return nil
	}
	return s.send(&tandemv1.GenerateResponse{Event: &tandemv1.GenerateResponse_Delta{Delta: fromDelta(d)}})
}
