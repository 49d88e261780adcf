package test

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"math"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tandem-llm/tandem/test/testkit"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/tandem-llm/tandem/client"
	tandemv1 "github.com/tandem-llm/tandem/proto/tandem/v1"
)

// raw returns the service as any client sees it, without the checks of package client.
func (g *group) raw(t testing.TB) tandemv1.GenerationServiceClient {
	t.Helper()
	addr := "unix://" + filepath.Join(g.w.tmp, "g.sock")
	if c, err := os.Stat(filepath.Join(g.w.tmp, "run", "gateway.sock")); err == nil && c.Mode()&os.ModeSocket != 0 {
		addr = "unix://" + filepath.Join(g.w.tmp, "run", "gateway.sock")
	}
	conn, err := grpc.NewClient(addr, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return tandemv1.NewGenerationServiceClient(conn)
}

// say runs a raw request to its end.
func say(ctx context.Context, c tandemv1.GenerationServiceClient, r *tandemv1.GenerateRequest) (tokens []uint32, last *tandemv1.Finished,
	err error) {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	stream, err := c.Generate(ctx, r)
	if err != nil {
		return nil, nil, err
	}
	for {
		m, err := stream.Recv()
		switch {
		case errors.Is(err, io.EOF) && last != nil:
			return tokens, last, nil
		case err != nil:
			return tokens, last, err
		}
		tokens = append(tokens, m.GetDelta().GetTokens().GetIds()...)
		if f := m.GetFinished(); f != nil {
			last = f
		}
	}
}

// TestBadSpeculation sends bounds that make no sense to a gateway: each is refused in words that name
// the value, and the gateway goes on.
func TestBadSpeculation(t *testing.T) {
	t.Parallel()
	g := up(t)
	c := g.raw(t)
	n, d := proto.Int32, proto.String
	for name, tc := range map[string]struct {
		s    *tandemv1.Speculation
		want string
	}{
		"no nodes":         {&tandemv1.Speculation{Nodes: n(0)}, "nodes is 0"},
		"one node":         {&tandemv1.Speculation{Nodes: n(1)}, "nodes is 1"},
		"negative nodes":   {&tandemv1.Speculation{Nodes: n(-1)}, "nodes is -1"},
		"many nodes":       {&tandemv1.Speculation{Nodes: n(math.MaxInt32)}, "nodes is 2147483647"},
		"no depth":         {&tandemv1.Speculation{Depth: n(0)}, "depth is 0"},
		"negative depth":   {&tandemv1.Speculation{Depth: n(math.MinInt32)}, "depth is -2147483648"},
		"deep":             {&tandemv1.Speculation{Depth: n(65)}, "depth is 65"},
		"no width":         {&tandemv1.Speculation{Width: n(0)}, "width is 0"},
		"wide":             {&tandemv1.Speculation{Width: n(1000)}, "width is 1000"},
		"all zero":         {&tandemv1.Speculation{Nodes: n(0), Depth: n(0), Width: n(0)}, "0/0/0"},
		"strategy":         {&tandemv1.Speculation{Strategy: d("fastest")}, "fastest"},
		"strategy's case":  {&tandemv1.Speculation{Strategy: d("Minions")}, "Minions"},
		"vote":             {&tandemv1.Speculation{Vote: d("unanimous")}, "unanimous"},
		"technique":        {&tandemv1.Speculation{Without: []string{"ahead", "luck"}}, "luck"},
		"drafter":          {&tandemv1.Speculation{Drafters: []string{"nobody"}}, "nobody"},
		"drafter unnamed":  {&tandemv1.Speculation{Drafters: []string{""}}, `""`},
		"drafter twice":    {&tandemv1.Speculation{Drafters: []string{"lookup", "lookup"}}, "lookup"},
		"a name too long":  {&tandemv1.Speculation{Drafters: []string{strings.Repeat("x", 100_000)}}, "xxx"},
		"10^4 drafters":    {&tandemv1.Speculation{Drafters: slices.Repeat([]string{"a"}, 10_000)}, "10000 drafters"},
		"vote without one": {&tandemv1.Speculation{Strategy: d("planner"), Vote: d("none "), Drafters: nil}, "none "},
	} {
		t.Run(name, func(t *testing.T) {
			_, _, err := say(t.Context(), c, &tandemv1.GenerateRequest{Prompt: &tandemv1.GenerateRequest_Text{Text: "x"}, MaxTokens: n(4),
				Speculation: tc.s})
			s := status.Convert(err)
			if s.Code() != codes.InvalidArgument || !strings.Contains(s.Message(), tc.want) || len(s.Message()) > 1000 {
				t.Errorf("answer %v, %.1000q: want InvalidArgument with %q", s.Code(), s.Message(), tc.want)
			}
		})
	}
	g.run(t, setting{}.request("package main", 4))
}

// TestStrangerAmongDrafters starts, beside a good drafter, one whose vocabulary differs in one piece: that is told, it is translated, and
// the text stays the same.
func TestStrangerAmongDrafters(t *testing.T) {
	t.Parallel()
	good, err := os.ReadFile(draftModel)
	if err != nil {
		t.Fatal(err)
	}
	stranger := filepath.Join(t.TempDir(), "stranger.gguf")
	if err := os.WriteFile(stranger, gguf(good).with("\xe2\x96\x81the", "\xe2\x96\x81teh"), 0o600); err != nil {
		t.Fatal(err)
	}
	w := newWorld(t)
	generate := []string{"generate", "--json", "--prompt", "package main", "--max-tokens", "16", "--strategy", "fixed"}
	want := w.decode(w.ok(append(generate, "--no-draft")...).stdout).Text
	for _, drafts := range [][]string{{stranger}, {draftModel, stranger}} {
		args := slices.Clone(generate)
		for _, d := range drafts {
			args = append(args, "--draft", d)
		}
		e := w.ok(args...)
		if got := w.decode(e.stdout); !strings.Contains(e.stderr, "▁teh") || got.Stats.Drafted == 0 || got.Text != want {
			t.Errorf("%q: stderr %q, output %s: want a word about ▁teh, drafts, and %q", drafts, e.stderr, e.stdout, want)
		}
	}

	c := newCluster(t, clusterConfig{})
	jobs := c.workload(t, 2, 32)
	p := c.tandem(t, "drafter", "--listen", "unix://"+filepath.Join(c.dir, "stranger.sock"), "--pool", c.natsURL, "--threads", "1",
		"--draft", stranger)
	c.drafters = append(c.drafters, p)
	p.start()
	ask := jobs[0].request
	ask.Drafters = []string{"stranger"}
	testkit.Eventually(t, "drafts of the stranger", func() bool {
		got, err := c.try(t.Context(), ask)
		if err != nil {
			return false
		}
		if !slices.Equal(got.tokens, jobs[0].want) {
			t.Fatalf("tokens %v with the stranger, %v without", got.tokens, jobs[0].want)
		}
		return got.finished.Statistics.Drafted > 0
	})
	c.once(t, jobs)
}

// TestCrowd sends a thousand requests at once to a gateway with room for eight: some run, some wait, the
// others are told at once when to come again, and nobody is left without an answer.
func TestCrowd(t *testing.T) {
	mayBeSlow(t)
	g := up(t, "--sessions", "8")
	jobs := g.workload(t, 8, 4)
	g.once(t, jobs)
	before := g.w.usages()
	const crowd = 1000
	type end struct {
		err  error
		took time.Duration
	}
	ends := make([]end, crowd)
	var wg sync.WaitGroup
	begun := time.Now()
	for i := range ends {
		wg.Go(func() {
			j := jobs[i%len(jobs)]
			got, err := g.try(t.Context(), j.request)
			ends[i] = end{err, time.Since(begun)}
			if err == nil && !slices.Equal(got.tokens, j.want) {
				t.Errorf("%s: tokens\n%v, alone\n%v", j.id, got.tokens, j.want)
			}
		})
	}
	wg.Wait()
	ran, refusals := 0, 0
	var slowest, least, most time.Duration
	for _, e := range ends {
		var refusal *client.Error
		switch {
		case e.err == nil:
			ran++
		case errors.As(e.err, &refusal) && refusal.Kind == client.Exhausted:
			refusals++
			slowest = max(slowest, e.took)
			if least == 0 || refusal.RetryAfter < least {
				least = refusal.RetryAfter
			}
			most = max(most, refusal.RetryAfter)
			if refusal.RetryAfter <= 0 {
				t.Errorf("refused without a time to try again: %v", e.err)
			}
		default:
			t.Errorf("request ended with %v", e.err)
		}
	}
	t.Logf("%d ran in %v, %d were refused within %v, told to try again in %v to %v", ran, time.Since(begun), refusals, slowest, least, most)
	if ran < 8 || refusals == 0 || ran+refusals != crowd {
		t.Errorf("%d ran and %d were refused of %d: want at least 8 and some", ran, refusals, crowd)
	}
	g.once(t, jobs)
	g.settled(t, before, 8*time.Second)
}

// slowClient is an HTTP/2 client that grants the gateway a window of one byte a second.
type slowClient struct {
	conn net.Conn
	read int // bytes of data
}

// h2frame encodes a frame of HTTP/2 (RFC 9113 §4.1).
func h2frame(kind, flags byte, stream uint32, payload []byte) []byte {
	out := append([]byte{byte(len(payload) >> 16), byte(len(payload) >> 8), byte(len(payload)), kind, flags}, 0, 0, 0, 0)
	binary.BigEndian.PutUint32(out[5:], stream)
	return append(out, payload...)
}

const (
	h2Data, h2Headers, h2Settings, h2Ping, h2Window = 0, 1, 4, 6, 8
	h2EndStream, h2Ack, h2EndHeaders                = 1, 1, 4
)

// dialSlow sends r to the gateway at that socket.
func dialSlow(t testing.TB, sock string, r *tandemv1.GenerateRequest) *slowClient {
	t.Helper()
	conn, err := net.Dial("unix", sock)
	if err != nil {
		t.Fatal(err)
	}
	message, err := proto.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	var headers []byte // HPACK: literals without indexing (RFC 7541 §6.2.2)
	for _, h := range [][2]string{{":method", "POST"}, {":scheme", "http"}, {":path", tandemv1.GenerationService_Generate_FullMethodName},
		{":authority", "localhost"}, {"content-type", "application/grpc"}, {"te", "trailers"}} {
		headers = append(headers, 0, byte(len(h[0])))
		headers = append(headers, h[0]...)
		headers = append(headers, byte(len(h[1])))
		headers = append(headers, h[1]...)
	}
	body := binary.BigEndian.AppendUint32([]byte{0}, uint32(len(message)))
	out := []byte("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
	out = append(out, h2frame(h2Settings, 0, 0, []byte{0, 4, 0, 0, 0, 1})...) // SETTINGS_INITIAL_WINDOW_SIZE = 1
	out = append(out, h2frame(h2Headers, h2EndHeaders, 1, headers)...)
	out = append(out, h2frame(h2Data, h2EndStream, 1, append(body, message...))...)
	if _, err := conn.Write(out); err != nil {
		t.Fatal(err)
	}
	return &slowClient{conn: conn}
}

// run reads until the connection ends, one byte of data a second.
func (c *slowClient) run() error {
	var head [9]byte
	for {
		if _, err := io.ReadFull(c.conn, head[:]); err != nil {
			return err
		}
		payload := make([]byte, int(head[0])<<16|int(head[1])<<8|int(head[2]))
		if _, err := io.ReadFull(c.conn, payload); err != nil {
			return err
		}
		var answer []byte
		switch kind, flags := head[3], head[4]; {
		case kind == h2Settings && flags&h2Ack == 0:
			answer = h2frame(h2Settings, h2Ack, 0, nil)
		case kind == h2Ping && flags&h2Ack == 0:
			answer = h2frame(h2Ping, h2Ack, 0, payload)
		case kind == h2Data && len(payload) > 0:
			c.read += len(payload)
			time.Sleep(time.Second)
			answer = h2frame(h2Window, 0, 1, []byte{0, 0, 0, 1})
		}
		if _, err := c.conn.Write(answer); err != nil {
			return err
		}
	}
}

// TestSlowClients lets as many clients as there are places read one byte a second: others are served as
// before, the gateway's memory stays bounded, and their places are free again.
func TestSlowClients(t *testing.T) {
	mayBeSlow(t)
	const places = 4
	c := newCluster(t, clusterConfig{sessions: places})
	tokens := 60
	jobs := c.workload(t, places, tokens)
	alone := time.Now()
	c.once(t, jobs)
	usual := time.Since(alone)
	before := c.w.usages()

	request := &tandemv1.GenerateRequest{Prompt: &tandemv1.GenerateRequest_Text{Text: "package main\n"}, IgnoreEos: proto.Bool(true),
		MaxTokens: proto.Int32(900), Speculation: &tandemv1.Speculation{Enabled: proto.Bool(false)}}
	var clients []*slowClient
	var wg sync.WaitGroup
	waves := 1
	if *long {
		waves = 20
	}
	var during, slowest time.Duration
	for range waves {
		for range places {
			s := dialSlow(t, filepath.Join(c.dir, "gateway.sock"), request)
			clients = append(clients, s)
			wg.Go(func() { _ = s.run() })
		}
		held := func() int64 { return c.allCounters(t)["verifier kv.pages"] }
		testkit.Eventually(t, "the slow clients' sessions to be open", func() bool { return held() > 0 })
		begun := time.Now()
		c.once(t, jobs) // waits for places: the slow ones hold theirs until 64 KiB of their output wait to be read
		during = time.Since(begun)
		slowest = max(slowest, during)
		testkit.Eventually(t, "the slow clients' sessions to be closed, though their output is not read",
			func() bool { return held() == 0 })
	}
	begun := time.Now()
	c.once(t, jobs)
	after := time.Since(begun)
	grown := c.w.usages()["gateway"].resident - before["gateway"].resident
	bytes := 0
	for _, s := range clients {
		_ = s.conn.Close()
	}
	wg.Wait()
	for _, s := range clients {
		bytes += s.read
	}
	t.Logf("%d requests took %v alone, at most %v when slow clients came first, %v beside %d slow clients that had read %d bytes; the "+
		"gateway grew by %d KiB",
		places, usual, slowest, after, len(clients), bytes, grown>>10)
	if most := 4*usual + time.Second; after > most {
		t.Errorf("requests beside slow clients took %v: want at most %v", after, most)
	}
	if most := int64(len(clients))*512<<10 + 16<<20; grown > most {
		t.Errorf("the gateway grew by %d bytes under %d slow clients: want at most %d", grown, len(clients), most)
	}
	if bytes == 0 {
		t.Error("the slow clients have read nothing: were they served at all?")
	}
	c.settled(t, before, 8*time.Second)
	if left := sessionsIn(c.gateway.goroutines()); len(left) > 0 {
		t.Errorf("%d goroutines of requests whose clients are gone are left in the gateway, such as\n%s", len(left), left[0])
	}
}

// TestBadRules gives rules and first weights that make no sense: each is refused before a process starts.
func TestBadRules(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	file := func(text string) string {
		path := filepath.Join(t.TempDir(), "weights.json")
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	for name, tc := range map[string]struct{ flag, want string }{
		"strategy":              {"--strategy=fastest", "fastest"},
		"strategy empty":        {"--strategy= ", `" "`},
		"vote":                  {"--vote=unanimous", "unanimous"},
		"technique":             {"--without=luck", "luck"},
		"drafter twice":         {"--drafters=a,a", `"a"`},
		"alpha below 0":         {"--alpha=-0.1", "-0.1"},
		"alpha above 1":         {"--alpha=1.5", "1.5"},
		"alpha NaN":             {"--alpha=NaN", "NaN"},
		"branch below 0":        {"--branch=-1", "-1"},
		"branch above 1":        {"--branch=2", "2"},
		"branch NaN":            {"--branch=NaN", "NaN"},
		"first length 0":        {"--length-start=0", "0"},
		"length above most":     {"--length-start=40", "40"},
		"most length -1":        {"--length-max=-1", "-1"},
		"length's punishment":   {"--length-punish=-1", "-1"},
		"length's reward":       {"--length-reward=-2", "-2"},
		"no decisions":          {"--decision-threshold=0", "0"},
		"no window":             {"--acceptance-window=0", "0"},
		"reward threshold":      {"--reward-threshold=NaN", "NaN"},
		"reward infinite":       {"--reward=Inf", "Inf"},
		"reward that punishes":  {"--reward=0.5", "0.5"},
		"punish threshold":      {"--punish-threshold=1.5", "1.5"},
		"punish negative":       {"--punish=-1", "-1"},
		"punish that rewards":   {"--punish=2", "2"},
		"least weight 0":        {"--weight-least=0", "0"},
		"least weight negative": {"--weight-least=-1", "-1"},
		"explore NaN":           {"--explore=NaN", "NaN"},
		"explore negative":      {"--explore=-1", "-1"},
		"weights missing":       {"--weights=/no/such.json", "/no/such.json"},
		"weights a directory":   {"--weights=/tmp", "/tmp"},
		"weight 0":              {"--weights=" + file(`{"lookup": 0}`), "lookup"},
		"weight negative":       {"--weights=" + file(`{"lookup": -1}`), "lookup"},
		"weight NaN":            {"--weights=" + file(`{"lookup": NaN}`), "weights.json"},
		"weight \"NaN\"":        {"--weights=" + file(`{"lookup": "NaN"}`), "weights.json"},
		"weight infinite":       {"--weights=" + file(`{"lookup": 1e999}`), "weights.json"},
		"weight null":           {"--weights=" + file(`{"lookup": null}`), "lookup"},
		"weight of nobody":      {"--weights=" + file(`{"": 1}`), `""`},
		"weights no object":     {"--weights=" + file(`[1, 2]`), "weights.json"},
		"weights empty":         {"--weights=" + file(``), "weights.json"},
		"weights cut":           {"--weights=" + file(`{"lookup": 1`), "weights.json"},
		"weights and more":      {"--weights=" + file(`{"lookup": 1} {"lookup": 2}`), "weights.json"},
		"weights twice":         {"--weights=" + file(`{"lookup": 1, "lookup": 0}`), "lookup"},
	} {
		t.Run(name, func(t *testing.T) {
			w.t = t
			refused(t, w.run("generate", "--prompt", "x", tc.flag), tc.want)
		})
	}
	w.t = t
}
