package public

import (
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	"github.com/tandem-llm/tandem"
	tandemv1 "github.com/tandem-llm/tandem/proto/tandem/v1"
	"github.com/tandem-llm/tandem/services/public/conversation"
	"github.com/tandem-llm/tandem/text/calls"
)

// ChatMethod is the full name of the call that answers conversations, without a slash in front.
const ChatMethod = "tandem.v1.ChatService/Chat"

// requestID is the name of a request's id in metadata.
const requestID = "x-request-id"

// ChatConfig is what a gateway serves as ChatService.
type ChatConfig struct {
	Config                    // Describe, Vocab and Prompt are not used
	Room    conversation.Room // where conversations become prompts; an error of the field prompt becomes one of messages
	Context int               // positions of a session
}

// RegisterChat serves cfg on r.
func RegisterChat(r grpc.ServiceRegistrar, cfg ChatConfig) {
	if cfg.Stall == 0 {
		cfg.Stall = defaultStall
	}
	tandemv1.RegisterChatServiceServer(r, &chatServer{cfg: cfg})
}

type chatServer struct {
	tandemv1.UnimplementedChatServiceServer
	cfg ChatConfig
}

// Chat implements tandemv1.ChatServiceServer.
func (s *chatServer) Chat(r *tandemv1.ChatRequest, stream grpc.ServerStreamingServer[tandemv1.ChatResponse]) error {
	ctx, own := stream.Context(), ""
	if sent := metadata.ValueFromIncomingContext(ctx, requestID); len(sent) > 0 {
		own = sent[0]
	}
	sink := &chatSink{model: s.cfg.Model, stream: stream, id: RequestID(own), outputs: r.GetReport() || r.GetSampling().GetLogprobs(),
		resume: r.GetResume(), had: had(r.GetResume())}
	stream.SetTrailer(metadata.Pairs(requestID, sink.id))
	if err := stream.SetHeader(metadata.Pairs(requestID, sink.id)); err != nil {
		return err
	}
	tenant, err := tenant(s.cfg.Keys, metadata.ValueFromIncomingContext(ctx, "authorization"))
	if err != nil {
		return err
	}
	q, ignored, err := readChat(r, s.cfg.Defaults, s.cfg.Room.Chat)
	if err != nil {
		return withPath(err)
	}
	tokens, output, err := s.cfg.Room.Tokens(ctx, q.Conversation())
	if err != nil {
		return withPath(ofMessages(err))
	}
	req := q.Request
	req.MaxTokens = max(q.Until(len(tokens), s.cfg.Context), 1) // the generator refuses a prompt that leaves nothing
	req.Tenant, req.Tokens, req.Written = tenant, tokens, output.Written
	if r.GetResume() != nil {
		req.Sampling.Seed = r.GetResume().GetSeed()
	}
	sink.turn, sink.ignored = output.Turn(), ignored
	return withPath(ofMessages(paced(s.cfg.Stall, func(p *pace) error {
		sink.pace = p
		result, err := s.cfg.Generator.Generate(ctx, req, sink)
		if err != nil {
			return err
		}
		return sink.end(result)
	})))
}

// chatSink implements tandem.Sink by sending events of a conversation.
type chatSink struct {
	*pace
	model   string
	stream  grpc.ServerStreamingServer[tandemv1.ChatResponse]
	next    uint64
	id      string // of the request
	turn    *conversation.Turn
	ignored []string
	outputs bool // the client wants what the model wrote, too
	drawn   *tandemv1.Sampling
	resume  *tandemv1.Resume // nil: from the beginning
	had     Had
}

func (s *chatSink) send(r *tandemv1.ChatResponse) error {
	r.Sequence = s.next
	s.next++
	return s.take(func() error { return s.stream.Send(r) })
}

// Started implements tandem.Sink.
func (s *chatSink) Started(e tandem.Started) error {
	started, err := started(e, s.model, s.resume)
	if err != nil {
		return err
	}
	s.drawn = started.GetSampling()
	return s.send(&tandemv1.ChatResponse{Event: &tandemv1.ChatResponse_Started{
		Started: &tandemv1.ChatStarted{Started: started, RequestId: s.id, Ignored: s.ignored}}})
}

// Delta implements tandem.Sink.
func (s *chatSink) Delta(d tandem.Delta) error {
	if out := s.had.RestOfTokens(d); s.outputs && (len(out.Tokens) > 0 || len(d.Tokens) == 0) {
		if len(out.Tokens) < len(d.Tokens) {
			out.Text = ""
		}
		if err := s.send(&tandemv1.ChatResponse{Event: &tandemv1.ChatResponse_Output{Output: fromDelta(out)}}); err != nil {
			return err
		}
	}
	return s.add(s.turn.Read(d.Text, len(d.Tokens)))
}

// add sends pieces of the answer.
func (s *chatSink) add(pieces []calls.Piece) error {
	pieces, _ = s.had.Pieces(pieces)
	for _, p := range pieces {
		r := new(tandemv1.ChatResponse)
		switch p.Kind {
		case calls.Text:
			r.Event = &tandemv1.ChatResponse_Text{Text: p.Text}
		case calls.Thought:
			r.Event = &tandemv1.ChatResponse_Thought{Thought: p.Text}
		case calls.Begin:
			r.Event = &tandemv1.ChatResponse_Call{Call: &tandemv1.ChatToolCallBegin{Index: int32(p.Call), Id: s.turn.ID(), Name: p.Text}}
		case calls.Arguments:
			r.Event = &tandemv1.ChatResponse_Arguments{Arguments: &tandemv1.ChatToolCallArguments{Index: int32(p.Call), Json: p.Text}}
		}
		if err := s.send(r); err != nil {
			return err
		}
	}
	return nil
}

// end sends what is left of the answer, and its end.
func (s *chatSink) end(result tandem.Result) error {
	if err := s.add(s.turn.End(result)); err != nil {
		return err
	}
	f := finished(result)
	if s.turn.Called(result.Finish) {
		f.Reason = tandemv1.FinishReason_FINISH_REASON_TOOL_CALLS
	}
	f.Usage.ReasoningTokens = int32(s.turn.Thoughts())
	return s.send(&tandemv1.ChatResponse{Event: &tandemv1.ChatResponse_Finished{Finished: &tandemv1.ChatFinished{Reason: f.GetReason(),
		Usage: f.GetUsage(), Statistics: f.GetStatistics(), Stopped: f.GetStopped(), Sampling: s.drawn, Identity: string(result.Identity),
		RequestId: s.id, RepeatedPiece: f.GetRepeatedPiece()}}})
}
