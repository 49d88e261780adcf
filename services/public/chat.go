package public

import (
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	"github.com/tandem-llm/tandem"
	tandemv1 "github.com/tandem-llm/tandem/proto/tandem/v1"
	"github.com/tandem-llm/tandem/services/public/answer"
	"github.com/tandem-llm/tandem/services/public/conversation"
)

// ChatMethod is the full name of the call that answers conversations, without a slash in front.
const ChatMethod = "tandem.v1.ChatService/Chat"

// requestID is the name of a request's id in metadata.
const requestID = "x-request-id"

// ChatService is what a gateway serves as ChatService.
type ChatService struct {
	Service                   // Describe, Vocab and Prompt are not used
	Room    conversation.Room // where conversations become prompts; an error of the field prompt becomes one of messages
	Context int               // positions of a session
}

// RegisterChat serves cfg on r as tandem.v1.ChatService.
func RegisterChat(r grpc.ServiceRegistrar, cfg ChatService) {
	if cfg.Stall == 0 {
		cfg.Stall = defaultStall
	}
	tandemv1.RegisterChatServiceServer(r, &chatServer{cfg: cfg})
}

type chatServer struct {
	tandemv1.UnimplementedChatServiceServer
	cfg ChatService
}

// Chat implements tandemv1.ChatServiceServer.
func (s *chatServer) Chat(r *tandemv1.ChatRequest, stream grpc.ServerStreamingServer[tandemv1.ChatResponse]) error {
	ctx, own := stream.Context(), ""
	if sent := metadata.ValueFromIncomingContext(ctx, requestID); len(sent) > 0 {
		own = sent[0]
	}
	sink := &chatSink{telling: newTelling(s.cfg.Model, r.GetResume()), stream: stream, id: RequestID(own),
		outputs: r.GetReport() || r.GetSampling().GetLogprobs()}
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
	if err := q.Constrain(output); err != nil {
		return withPath(err)
	}
	req := q.Request
	req.MaxTokens = max(q.Until(len(tokens), s.cfg.Context), 1) // the generator refuses a prompt that leaves nothing
	req.Tenant, req.Tokens, req.Written = tenant, tokens, output.Written
	if r.GetResume() != nil {
		req.Sampling.Seed = r.GetResume().GetSeed()
	}
	for _, l := range output.Loose {
		ignored = append(ignored, "tools."+l.Tool+".parameters: "+l.Why)
	}
	sink.ignored = ignored
	return ofMessages(sink.generate(ctx, s.cfg.Service, req, output, sink.event))
}

// chatSink tells an answer's events as those of a conversation.
type chatSink struct {
	*telling
	stream  grpc.ServerStreamingServer[tandemv1.ChatResponse]
	id      string // of the request
	ignored []string
	outputs bool // the client wants what the model wrote, too
	drawn   *tandemv1.Sampling
}

func (s *chatSink) send(r *tandemv1.ChatResponse) error {
	r.Sequence = s.number()
	return s.take(func() error { return s.stream.Send(r) })
}

// event tells an event.
func (s *chatSink) event(e *answer.Event) error {
	if e.Output != nil && s.outputs {
		if err := s.output(*e.Output); err != nil {
			return err
		}
	}
	switch e.Kind {
	case answer.Started:
		started, err := s.started(e)
		if err != nil {
			return err
		}
		s.drawn = started.GetSampling()
		return s.send(&tandemv1.ChatResponse{Event: &tandemv1.ChatResponse_Started{
			Started: &tandemv1.ChatStarted{Started: started, RequestId: s.id, Ignored: s.ignored}}})
	case answer.Progress:
		return s.send(&tandemv1.ChatResponse{Event: &tandemv1.ChatResponse_PromptProgress{PromptProgress: fromProgress(*e.Progress)}})
	case answer.Ended:
		return s.end(e)
	case answer.Call:
		if s.had.Skip(1) == 1 {
			return nil
		}
		return s.send(&tandemv1.ChatResponse{Event: &tandemv1.ChatResponse_Call{
			Call: &tandemv1.ChatToolCallBegin{Index: int32(e.Call), Id: e.ID, Name: e.Text}}})
	}
	r := new(tandemv1.ChatResponse)
	switch rest := s.had.Rest(e.Text); {
	case rest == "":
		return nil
	case e.Kind == answer.Text:
		r.Event = &tandemv1.ChatResponse_Text{Text: rest}
	case e.Kind == answer.Thought:
		r.Event = &tandemv1.ChatResponse_Thought{Thought: rest}
	default:
		r.Event = &tandemv1.ChatResponse_Arguments{Arguments: &tandemv1.ChatToolCallArguments{Index: int32(e.Call), Json: rest}}
	}
	return s.send(r)
}

// output tells what the model wrote.
func (s *chatSink) output(d tandem.Delta) error {
	out := s.had.Output(d)
	if len(out.Tokens) == 0 && len(d.Tokens) > 0 {
		return nil
	}
	if len(out.Tokens) < len(d.Tokens) {
		out.Text = ""
	}
	return s.send(&tandemv1.ChatResponse{Event: &tandemv1.ChatResponse_Output{Output: fromDelta(out)}})
}

// end tells the end of an answer.
func (s *chatSink) end(e *answer.Event) error {
	f := finished(*e.Result)
	if e.Called() {
		f.Reason = tandemv1.FinishReason_FINISH_REASON_TOOL_CALLS
	}
	f.Usage.ReasoningTokens = int32(e.Thoughts)
	return s.send(&tandemv1.ChatResponse{Event: &tandemv1.ChatResponse_Finished{Finished: &tandemv1.ChatFinished{Reason: f.GetReason(),
		Usage: f.GetUsage(), Statistics: f.GetStatistics(), Stopped: f.GetStopped(), Sampling: s.drawn, Identity: string(e.Result.Identity),
		RequestId: s.id, RepeatedPiece: f.GetRepeatedPiece()}}})
}
