package rolestest

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/reflection/grpc_reflection_v1"

	"github.com/tandem-llm/tandem/client"
	"github.com/tandem-llm/tandem/processes/roles/gateway"
	tandemv1 "github.com/tandem-llm/tandem/proto/tandem/v1"
)

// TestChat: a whole gateway answers a conversation with the text with which it continues the prompt that the template makes of it, and
// tells what anybody needs to repeat it. Its services are known to the health service and to reflection by their full names.
func TestChat(t *testing.T) {
	template := filepath.Join(t.TempDir(), "t.jinja")
	const source = "{% for m in messages %}{{ m.content }}{% endfor %}{% if enable_thinking %} // {% endif %}"
	if err := os.WriteFile(template, []byte(source), 0o600); err != nil {
		t.Fatal(err)
	}
	s := Start(t, target, func(c *gateway.Setup) { c.ChatTemplate = template })
	const prompt = "func (r *Reader) Read("
	for _, thinks := range []bool{false, true} {
		text := prompt
		if thinks {
			text += " // "
		}
		tokens, want, _, err := s.Generate(client.Request{Prompt: text, MaxTokens: new(24), Temperature: new(0.8), Seed: new(uint64(5)),
			NoDraft: true})
		if err != nil {
			t.Fatal(err)
		}
		got, end := "", (*tandemv1.ChatFinished)(nil)
		for e, err := range s.Client.Chat(t.Context(), &tandemv1.ChatRequest{EnableThinking: &thinks, MaxTokens: new(int32(24)),
			Messages: []*tandemv1.ChatMessage{{Role: "system", Content: prompt[:6]}, {Role: "user", Content: prompt[6:]}},
			Sampling: &tandemv1.Sampling{Temperature: new(0.8), Seed: new(uint64(5))}}) {
			if err != nil {
				t.Fatal(err)
			}
			got, end = got+e.GetText(), e.GetFinished()
		}
		if got != want || got == "" || int(end.GetUsage().GetOutputTokens()) != len(tokens) || end.GetSampling().GetSeed() != 5 ||
			end.GetStatistics().GetRounds() == 0 || end.GetIdentity() == "" || end.GetRequestId() == "" {
			t.Errorf("the answer is %q, want %q; its end is %v", got, want, end)
		}
	}

	conn, err := grpc.NewClient(s.addr("gateway"), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	stream, err := grpc_reflection_v1.NewServerReflectionClient(conn).ServerReflectionInfo(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := stream.Send(&grpc_reflection_v1.ServerReflectionRequest{
		MessageRequest: &grpc_reflection_v1.ServerReflectionRequest_ListServices{}}); err != nil {
		t.Fatal(err)
	}
	list, err := stream.Recv()
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, service := range list.GetListServicesResponse().GetService() {
		names = append(names, service.GetName())
	}
	for _, name := range []string{"tandem.v1.GenerationService", "tandem.v1.ChatService", "tandem.v1.EmbeddingService"} {
		if !slices.Contains(names, name) {
			t.Errorf("reflection knows %s: want %s among them", strings.Join(names, ", "), name)
		}
		health, err := grpc_health_v1.NewHealthClient(conn).Check(t.Context(), &grpc_health_v1.HealthCheckRequest{Service: name})
		if err != nil || health.GetStatus() != grpc_health_v1.HealthCheckResponse_SERVING {
			t.Errorf("%s is %v, %v", name, health, err)
		}
	}
}
