package public

import (
	"context"
	"errors"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"

	"github.com/tandem-llm/tandem"
	tandemv1 "github.com/tandem-llm/tandem/proto/tandem/v1"
	"github.com/tandem-llm/tandem/services/peers/rpc"
	"github.com/tandem-llm/tandem/services/public/access"
)

// TestKeysComeBeforeMessages: every method judges the key by the headers; a message that is not sent is not waited for.
func TestKeysComeBeforeMessages(t *testing.T) {
	keys, err := access.New([]string{"right"})
	if err != nil {
		t.Fatal(err)
	}
	s, err := rpc.NewServer(rpc.ServerConfig{Listen: "unix://" + filepath.Join(t.TempDir(), "g")})
	if err != nil {
		t.Fatal(err)
	}
	s.Admit(Admit(keys, nil))
	cfg := Service{Keys: keys, Describe: func(context.Context) Description { return Description{} }}
	Register(s.Registrar(), cfg)
	RegisterChat(s.Registrar(), ChatService{Service: cfg})
	s.SetServing(true)
	ctx, cancel := context.WithCancel(context.Background())
	var work sync.WaitGroup
	work.Go(func() { _ = s.Run(ctx) })
	t.Cleanup(func() { cancel(); work.Wait() })
	conn, err := rpc.Dial(s.Addr())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	d := tandemv1.GenerationService_ServiceDesc
	methods := []string{"/grpc.reflection.v1.ServerReflection/ServerReflectionInfo", tandemv1.ChatService_Chat_FullMethodName,
		tandemv1.EmbeddingService_Embed_FullMethodName}
	for _, m := range d.Methods {
		methods = append(methods, "/"+d.ServiceName+"/"+m.MethodName)
	}
	for _, m := range d.Streams {
		methods = append(methods, "/"+d.ServiceName+"/"+m.StreamName)
	}
	for _, m := range methods {
		for name, md := range map[string][]string{"no key": nil, "a wrong key": {"authorization", "Bearer wrong"},
			"two": {"authorization", "Bearer right", "authorization", "Bearer right"}, "a proof of the processes' secret": {"tandem-proof",
				"nonce.mac"}} {
			ctx, cancel := context.WithTimeout(metadata.AppendToOutgoingContext(t.Context(), md...), 30*time.Second)
			stream, err := conn.NewStream(ctx, &grpc.StreamDesc{ClientStreams: true, ServerStreams: true}, m)
			if err == nil {
				err = stream.RecvMsg(new(tandemv1.DescribeResponse))
			}
			cancel()
			if !errors.Is(rpc.FromStatus(err), tandem.Unauthenticated) {
				t.Errorf("%s with %s: %v", m, name, err)
			}
		}
	}
	if _, err := grpc_health_v1.NewHealthClient(conn).Check(t.Context(), &grpc_health_v1.HealthCheckRequest{}); err != nil {
		t.Errorf("health without a key: %v", err)
	}
	with := metadata.AppendToOutgoingContext(t.Context(), "authorization", "Bearer right")
	if _, err := tandemv1.NewGenerationServiceClient(conn).Describe(with, &tandemv1.DescribeRequest{}); err != nil {
		t.Errorf("the right key: %v", err)
	}
}

// TestCountersNeedTheMetricsKey: if there is one, Describe tells no other caller counters and numbers of processes, and it opens nothing
// else.
func TestCountersNeedTheMetricsKey(t *testing.T) {
	keys, _ := access.New([]string{"client"})
	metrics, _ := access.New([]string{"scraper"})
	s, err := rpc.NewServer(rpc.ServerConfig{Listen: "unix://" + filepath.Join(t.TempDir(), "g")})
	if err != nil {
		t.Fatal(err)
	}
	s.Admit(Admit(keys, metrics))
	Register(s.Registrar(), Service{Keys: keys, Metrics: metrics, Describe: func(context.Context) Description {
		return Description{Model: "m", Counters: map[string]int64{"a": 1}, Processes: []Process{{Role: "gateway",
			Description: tandem.Description{PID: 7, Counters: map[string]int64{"b": 1}}}}}
	}})
	ctx, cancel := context.WithCancel(context.Background())
	var work sync.WaitGroup
	work.Go(func() { _ = s.Run(ctx) })
	t.Cleanup(func() { cancel(); work.Wait() })
	conn, err := rpc.Dial(s.Addr())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	client := tandemv1.NewGenerationServiceClient(conn)
	with := func(key string) context.Context {
		return metadata.AppendToOutgoingContext(t.Context(), "authorization", "Bearer "+key)
	}
	for key, all := range map[string]bool{"client": false, "scraper": true} {
		d, err := client.Describe(with(key), &tandemv1.DescribeRequest{})
		if err != nil || d.GetModel() != "m" {
			t.Fatalf("%s: %v, %v", key, d, err)
		}
		if p := d.GetProcesses()[0]; (len(d.GetCounters()) > 0) != all || (p.GetPid() != 0) != all || (len(p.GetCounters()) > 0) != all {
			t.Errorf("%s is told %v: want counters %v", key, d, all)
		}
	}
	if _, err := client.Describe(with("other"), &tandemv1.DescribeRequest{}); !errors.Is(err, tandem.Unauthenticated) {
		t.Errorf("another key: %v", err)
	}
	if _, err := client.Tokenize(with("scraper"), &tandemv1.TokenizeRequest{}); !errors.Is(err, tandem.Unauthenticated) {
		t.Errorf("the metrics' key opens another method: %v", err)
	}
}
