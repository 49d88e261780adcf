package public

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	tandemv1 "github.com/tandem-llm/tandem/proto/tandem/v1"
	"github.com/tandem-llm/tandem/services/peers/rpc"
)

// others returns the folder of the programs of others with which the API is tried.
func others(t *testing.T) string {
	t.Helper()
	out, err := exec.Command("../../test/scripts/grpc-clients", "--have").Output()
	if err != nil {
		t.Skip("no Python with grpcio-tools and no grpcurl: test/scripts/grpc-clients brings them")
	}
	return filepath.Join(strings.TrimSpace(string(out)), "bin")
}

// serveOthers serves a scripted model on loopback until the test ends, and returns its address.
func serveOthers(t *testing.T) string {
	t.Helper()
	s, err := rpc.NewServer(rpc.ServerConfig{Listen: "127.0.0.1:0"})
	if err != nil {
		t.Fatal(err)
	}
	cfg := Service{Generator: scripted(5, weather), Defaults: defaults, Model: "gopher"}
	Register(s.Registrar(), cfg)
	RegisterChat(s.Registrar(), ChatService{Service: cfg, Context: chatContext, Room: room()})
	s.SetServing(true)
	ctx, cancel := context.WithCancel(context.Background())
	var work sync.WaitGroup
	work.Go(func() { _ = s.Run(ctx) })
	t.Cleanup(func() { cancel(); work.Wait() })
	return s.Addr()
}

// TestPython: Python's grpcio-tools make a client of the published contract, and it holds a conversation. What the guide shows works too.
func TestPython(t *testing.T) {
	python, addr, code := filepath.Join(others(t), "python"), serveOthers(t), t.TempDir()
	run := func(args ...string) string {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
		defer cancel()
		c := exec.CommandContext(ctx, python, args...)
		c.Env = append(os.Environ(), "PYTHONPATH="+code)
		out, err := c.CombinedOutput()
		if err != nil {
			t.Errorf("python %q: %v", args, err)
		}
		return string(out)
	}
	said := run("-m", "grpc_tools.protoc", "-I", "../../proto", "--python_out", code, "--grpc_python_out", code,
		"tandem/v1/generation.proto", "tandem/v1/chat.proto")
	const want = "2 turns: It is 21 in Rome and 3 in Oslo.\n" +
		"INVALID_ARGUMENT messages[0].role is \"robot\": want system, developer, user, assistant or tool\nCANCELLED\n" +
		"<think>Now I know.</think>It is 21 in Rome and 3 in Oslo.\n"
	if got := run("testdata/chat.py", addr); got != want {
		t.Errorf("printed\n%s%s\nwant\n%s", said, got, want)
	}

	guide, err := os.ReadFile("../../docs/guides/embed.md")
	if err != nil {
		t.Fatal(err)
	}
	_, example, _ := strings.Cut(string(guide), "\n```python\n")
	example, _, _ = strings.Cut(example, "\n```\n")
	got := run("-c", strings.ReplaceAll(example, "127.0.0.1:8451", addr))
	if !strings.HasPrefix(got, "I look.calls weather\n{\"place\": \"Rome\"}calls weather\n") ||
		!strings.Contains(got, "\n 3 prompt_tokens: ") {
		t.Errorf("the guide's example printed\n%s", got)
	}
}

// TestGrpcurl: grpcurl finds the services by reflection, or in the published contract, and asks.
func TestGrpcurl(t *testing.T) {
	grpcurl, addr := filepath.Join(others(t), "grpcurl"), serveOthers(t)
	run := func(args ...string) string {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		out, err := exec.CommandContext(ctx, grpcurl, append([]string{"-plaintext"}, args...)...).CombinedOutput()
		if err != nil {
			t.Errorf("grpcurl %q: %v\n%s", args, err, out)
		}
		return string(out)
	}
	if list := run(addr, "list"); !strings.Contains(list, tandemv1.ChatService_ServiceDesc.ServiceName+"\n") {
		t.Errorf("the services are\n%s", list)
	}
	if got := run("-d", `{"service":"tandem.v1.ChatService"}`, addr, "grpc.health.v1.Health/Check"); !strings.Contains(got, "SERVING") {
		t.Errorf("the health of a service is %s", got)
	}
	const ask = `{"messages":[{"role":"user","content":"Rome and Oslo?"}],"tools":[{"name":"weather"}],"sampling":{"seed":3}}`
	for _, contract := range [][]string{nil, {"-import-path", "../../proto", "-proto", "tandem/v1/chat.proto"}} {
		names, reason := "", ""
		for d := json.NewDecoder(strings.NewReader(run(append(contract, "-d", ask, addr, ChatMethod)...))); ; {
			var event struct {
				Call     struct{ Name string }
				Finished struct{ Reason string }
			}
			err := d.Decode(&event)
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				t.Fatal(err)
			}
			names += event.Call.Name + " "
			reason = event.Finished.Reason
		}
		if strings.Join(strings.Fields(names), " ") != "weather weather" || reason != "FINISH_REASON_TOOL_CALLS" {
			t.Errorf("calls %q, finished %q", names, reason)
		}
	}
}
