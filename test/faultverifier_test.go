package test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/tandem-llm/tandem/test/testkit"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	peerv1 "github.com/tandem-llm/tandem/proto/peer/v1"
)

// frames is a codec that leaves messages as they are.
type frames struct{}

func (frames) Marshal(v any) ([]byte, error)      { return *v.(*[]byte), nil }
func (frames) Unmarshal(data []byte, v any) error { *v.(*[]byte) = bytes.Clone(data); return nil }
func (frames) Name() string                       { return "proto" }

// forger is what a forgingProxy changes of the messages that pass it. Functions that are nil change nothing.
type forger struct {
	name     string
	asks     func(*peerv1.FeaturesRequest)
	features func(*peerv1.FeaturesResponse)
	guesses  func([]*peerv1.Guess) []*peerv1.Guess
	describe func(*peerv1.Description)
	fails    error  // in place of features
	counted  string // a counter that must grow; "": what is forged cannot be told from the truth
}

// forgingProxy passes all calls to a verifier and forges states, guesses and descriptions on their way.
type forgingProxy struct {
	verifier *grpc.ClientConn

	mu  sync.Mutex
	now forger
}

// newForgingProxy serves a proxy before the verifier at to, until the end of the test, and returns it and its address.
func newForgingProxy(t testing.TB, to string) (*forgingProxy, string) {
	t.Helper()
	conn, err := grpc.NewClient(to, grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithDefaultCallOptions(
		grpc.ForceCodec(frames{}), grpc.MaxCallRecvMsgSize(64<<20)))
	if err != nil {
		t.Fatal(err)
	}
	p := &forgingProxy{verifier: conn}
	sock := filepath.Join(t.TempDir(), "v")
	l, err := net.Listen("unix", sock)
	if err != nil {
		t.Fatal(err)
	}
	s := grpc.NewServer(grpc.ForceServerCodec(frames{}), grpc.UnknownServiceHandler(p.pass))
	var work sync.WaitGroup
	work.Go(func() { _ = s.Serve(l) })
	t.Cleanup(func() { s.Stop(); work.Wait(); conn.Close() })
	return p, "unix://" + sock
}

// tell changes what is forged.
func (p *forgingProxy) tell(f forger) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.now = f
}

// pass passes one call, which has one request, to the verifier.
func (p *forgingProxy) pass(_ any, in grpc.ServerStream) error {
	method, _ := grpc.MethodFromServerStream(in)
	headers, _ := metadata.FromIncomingContext(in.Context())
	ctx, cancel := context.WithCancel(metadata.NewOutgoingContext(in.Context(), headers))
	defer cancel()
	p.mu.Lock()
	now := p.now
	p.mu.Unlock()
	if method = method[strings.LastIndex(method, "/")+1:]; method == "Features" && now.fails != nil {
		return now.fails
	}
	full, _ := grpc.MethodFromServerStream(in)
	out, err := p.verifier.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true}, full)
	if err != nil {
		return err
	}
	var request []byte
	if err := in.RecvMsg(&request); err != nil {
		return err
	}
	request = now.request(method, request)
	if err := errors.Join(out.SendMsg(&request), out.CloseSend()); err != nil {
		return err
	}
	if headers, err = out.Header(); err != nil {
		return err
	}
	if err := in.SendHeader(headers); err != nil {
		return err
	}
	for {
		var answer []byte
		switch err := out.RecvMsg(&answer); {
		case errors.Is(err, io.EOF):
			in.SetTrailer(out.Trailer())
			return nil
		case err != nil:
			in.SetTrailer(out.Trailer())
			return err
		}
		p.mu.Lock()
		now = p.now
		p.mu.Unlock()
		answer = now.answer(method, answer)
		if err := in.SendMsg(&answer); err != nil {
			return err
		}
	}
}

// request returns a request as it leaves the proxy.
func (f *forger) request(method string, m []byte) []byte {
	if method != "Features" || f.asks == nil && f.features == nil {
		return m
	}
	return changed(m, new(peerv1.FeaturesRequest), func(r *peerv1.FeaturesRequest) {
		if r.Mapped = 0; f.asks != nil { // rows come inside the answer, where they can be forged
			f.asks(r)
		}
	})
}

// answer returns an answer as it leaves the proxy.
func (f *forger) answer(method string, m []byte) []byte {
	switch {
	case method == "Features" && f.features != nil:
		return changed(m, new(peerv1.FeaturesResponse), f.features)
	case method == "Describe" && f.describe != nil:
		return changed(m, new(peerv1.VerifierServiceDescribeResponse), func(r *peerv1.VerifierServiceDescribeResponse) {
			f.describe(r.GetDescription())
		})
	case method == "Hold" && f.guesses != nil:
		return changed(m, new(peerv1.VerifierServiceHoldResponse), func(r *peerv1.VerifierServiceHoldResponse) {
			if opened := r.GetOpened(); opened != nil {
				opened.Guesses = f.guesses(opened.GetGuesses())
			}
		})
	case method == "Verdicts" && f.guesses != nil:
		return changed(m, new(peerv1.VerdictsResponse), func(r *peerv1.VerdictsResponse) {
			for _, v := range r.GetVerdicts() {
				v.Guesses = f.guesses(v.GetGuesses())
			}
		})
	}
	return m
}

// changed returns an encoded message after a change.
func changed[M proto.Message](b []byte, m M, change func(M)) []byte {
	if err := proto.Unmarshal(b, m); err != nil {
		panic(err) // the verifier's own
	}
	change(m)
	b, err := proto.Marshal(m)
	if err != nil {
		panic(err)
	}
	return b
}

// eachLevel changes all levels of all guesses.
func eachLevel(change func(*peerv1.GuessLevel)) func([]*peerv1.Guess) []*peerv1.Guess {
	return func(all []*peerv1.Guess) []*peerv1.Guess {
		for _, g := range all {
			for _, l := range g.GetLevels() {
				change(l)
			}
		}
		return all
	}
}

// eachRow changes all values of states, which are in the answer.
func eachRow(change func(value []byte)) func(*peerv1.FeaturesResponse) {
	return func(r *peerv1.FeaturesResponse) {
		for i := 0; i+1 < len(r.GetRows()); i += 2 {
			change(r.Rows[i : i+2])
		}
	}
}

// forgers are all the ways to be between a verifier and those who ask it.
var forgers = []forger{
	{name: "states one value wider", features: func(r *peerv1.FeaturesResponse) { r.Width++ }, counted: "drafter features.corrupt"},
	{name: "states half as wide", features: func(r *peerv1.FeaturesResponse) { r.Width /= 2 }, counted: "drafter features.corrupt"},
	{name: "states without width", features: func(r *peerv1.FeaturesResponse) { r.Width = 0 }, counted: "drafter features.corrupt"},
	{name: "states of other layers", features: func(r *peerv1.FeaturesResponse) { r.Taps = []int32{9, 8, 7, 6} },
		counted: "drafter features.corrupt"},
	{name: "half a state", features: func(r *peerv1.FeaturesResponse) { r.Rows = append(r.Rows, 0, 0) },
		counted: "drafter features.corrupt"},
	{name: "states twice", features: func(r *peerv1.FeaturesResponse) { r.Rows = append(r.Rows, r.Rows...) },
		counted: "drafter features.corrupt"},
	{name: "states of a position before", features: func(r *peerv1.FeaturesResponse) { r.From-- }, counted: "drafter features.corrupt"},
	{name: "states of positions far away", features: func(r *peerv1.FeaturesResponse) { r.From = math.MaxInt32 },
		counted: "drafter features.corrupt"},
	{name: "states in memory that nobody has", features: func(r *peerv1.FeaturesResponse) {
		r.Rows, r.Handle = nil, &peerv1.Handle{Segment: 7, Slot: 1, Length: 256, Generation: 4}
	}, counted: "drafter features.corrupt"},
	{name: "NaN", features: eachRow(func(v []byte) { v[0], v[1] = 1, 0x7e }), counted: "drafter features.missing"},
	{name: "infinite", features: eachRow(func(v []byte) { v[0], v[1] = 0, 0xfc }), counted: "drafter features.missing"},
	{name: "the largest numbers", features: eachRow(func(v []byte) { v[0], v[1] = 0xff, 0x7b })},
	{name: "states of another text", features: eachRow(func(v []byte) { v[0] ^= 0x55; v[1] ^= 0x80 })},
	{name: "no states", features: func(r *peerv1.FeaturesResponse) { r.Rows = nil }, counted: "drafter features.missing"},
	{name: "states of another epoch", asks: func(r *peerv1.FeaturesRequest) { r.Epoch += 3 }, counted: "drafter features.stale"},
	{name: "an error for states", fails: status.Error(codes.Internal, "no states today"), counted: "drafter features.missing"},
	{name: "guesses outside the vocabulary", guesses: eachLevel(func(l *peerv1.GuessLevel) { l.Tokens[0] = 260 }),
		counted: "gateway guesses.garbage"},
	{name: "guesses of negative tokens", guesses: eachLevel(func(l *peerv1.GuessLevel) { l.Tokens[0] = math.MaxUint32 }),
		counted: "gateway guesses.garbage"},
	{name: "guesses of likelihood NaN", guesses: eachLevel(func(l *peerv1.GuessLevel) { l.LogProbs[0] = float32(math.NaN()) }),
		counted: "gateway guesses.garbage"},
	{name: "guesses likelier than certain", guesses: eachLevel(func(l *peerv1.GuessLevel) { l.LogProbs[0] = 7 }),
		counted: "gateway guesses.garbage"},
	{name: "guesses without likelihoods", guesses: eachLevel(func(l *peerv1.GuessLevel) { l.LogProbs = nil }),
		counted: "gateway guesses.garbage"},
	{name: "one token twice", guesses: eachLevel(func(l *peerv1.GuessLevel) { l.Tokens[1] = l.Tokens[0] }),
		counted: "gateway guesses.garbage"},
	{name: "1,000 candidates", guesses: eachLevel(func(l *peerv1.GuessLevel) {
		l.Tokens, l.LogProbs = make([]uint32, 1000), make([]float32, 1000)
	}), counted: "gateway guesses.garbage"},
	{name: "100 levels", guesses: func(all []*peerv1.Guess) []*peerv1.Guess {
		for _, g := range all {
			g.Levels = slices.Repeat(g.GetLevels()[:1], 100)
		}
		return all
	}, counted: "gateway guesses.garbage"},
	{name: "guesses of a way that nobody knows", guesses: func(all []*peerv1.Guess) []*peerv1.Guess {
		for _, g := range all {
			g.Way = "palm reading"
		}
		return all
	}, counted: "gateway guesses.unasked"},
	{name: "100 guesses", guesses: func(all []*peerv1.Guess) []*peerv1.Guess { return slices.Repeat(all, 100) },
		counted: "gateway guesses.garbage"},
	{name: "wrong guesses", guesses: eachLevel(func(l *peerv1.GuessLevel) {
		for i := range l.Tokens {
			l.Tokens[i] = (l.Tokens[i] + 1) % 260
		}
	})},
	{name: "ways of no size", describe: func(d *peerv1.Description) {
		for _, w := range d.GetWays() {
			w.Levels, w.Members = 0, -1
		}
	}},
	{name: "ways of all sizes", describe: func(d *peerv1.Description) {
		for _, w := range d.GetWays() {
			w.Levels, w.Members = math.MaxInt32, math.MaxInt32
		}
		d.Ways = slices.Repeat(d.Ways, 100)
	}},
	{name: "more levels and members than there are", describe: func(d *peerv1.Description) {
		for _, w := range d.GetWays() {
			w.Levels, w.Members = 10, w.GetMembers()*5
		}
	}},
	{name: "ways of other names", describe: func(d *peerv1.Description) {
		for i, w := range d.GetWays() {
			w.Name = []string{"dovetail", "lookup"}[i%2]
		}
	}},
}

// TestForgedStatesAndGuesses has something between a verifier and those who ask it that forges states, guesses and the description of
// ways: the text of four requests at a time is right, what can be told from the truth is counted, and afterwards all is well again.
func TestForgedStatesAndGuesses(t *testing.T) {
	t.Parallel()
	mayBeSlow(t)
	var p *forgingProxy
	c := newCluster(t, clusterConfig{target: sideTarget, draft: sides + "dovetail.gguf", drafterFlags: []string{"--draft",
		sides + "eagle3.gguf", "--target", sideTarget}, verifierFlags: append(slices.Clone(sideHeads), "--taps=-1,1,2,3"),
		before: func(verifier string) (addr string) {
			p, addr = newForgingProxy(t, verifier)
			return addr
		}})
	jobs := c.sideJobs(t)[:4]
	merged := speculation{strategy: "minions", vote: "tree"}
	well := func() {
		t.Helper()
		testkit.Eventually(t, "states and guesses that are not forged", func() bool {
			before := c.allCounters(t)
			c.speculated(t, jobs, merged)
			n := c.allCounters(t)
			return n["drafter features.came"] > before["drafter features.came"] &&
				n["gateway guesses.taken"] > before["gateway guesses.taken"]
		})
	}
	well()
	for _, f := range forgers {
		t.Run(f.name, func(t *testing.T) {
			before := c.allCounters(t)
			if p.tell(f); f.describe != nil { // only a gateway that starts asks for it
				c.gateway.kill()
				c.gateway.start()
				testkit.Eventually(t, "the gateway to know the drafter", func() bool { return c.up(t, "drafter", 0) })
				c.speculated(t, jobs, speculation{strategy: "planner"})
			}
			testkit.Eventually(t, f.name+" to be counted as "+f.counted, func() bool {
				c.speculated(t, jobs, merged)
				return f.counted == "" || t.Failed() || c.allCounters(t)[f.counted] > before[f.counted]
			})
		})
	}
	p.tell(forger{})
	c.gateway.kill()
	c.gateway.start()
	well()
}

// sideCounters returns the counters of states and guesses.
func sideCounters(n map[string]int64) string {
	var out []string
	for name, v := range n {
		if strings.Contains(name, " features.") || strings.Contains(name, " guesses.") {
			out = append(out, fmt.Sprintf("%s %d", name, v))
		}
	}
	slices.Sort(out)
	return strings.Join(out, ", ")
}
