package gateway

import (
	"time"

	"github.com/tandem-llm/tandem/processes/roles"
	"github.com/tandem-llm/tandem/services/public"
	"github.com/tandem-llm/tandem/services/public/budget"
	"github.com/tandem-llm/tandem/services/public/conversation"
)

// textsWait is how long a conversation waits for memory in which it becomes tokens.
const textsWait = 30 * time.Second

// serveRPC registers what clients call over gRPC: generations, vectors, and conversations by chat, which may be nil. context is the number
// of positions of a session.
func serveRPC(r *roles.Process, cfg public.Service, chat conversation.Chat, texts *budget.Texts, context int) {
	generator := cfg.Generator
	cfg.Chat = chat != nil
	cfg.Generator = r.Traces.RPC(public.Method, generator)
	public.Register(r.Server.Registrar(), cfg)
	cfg.Generator = r.Traces.RPC(public.ChatMethod, generator)
	public.RegisterChat(r.Server.Registrar(), public.ChatService{Service: cfg, Context: context, Room: conversation.Room{Chat: chat,
		Model: cfg.Model, Instead: "GenerationService's Generate", Texts: texts, Wait: textsWait, Refuse: cfg.Prompt}})
}
