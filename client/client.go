// Package client is the Go client of a tandem gateway. It needs neither cgo nor any other part of
// tandem.
package client

import (
	"context"
	"errors"
	"io"
	"iter"
	"path/filepath"
	"strings"
	"time"
	"unicode/utf8"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"

	tandemv1 "github.com/tandem-llm/tandem/proto/tandem/v1"
)

// Client is a connection to one gateway. Safe for concurrent use.
type Client struct {
	conn *grpc.ClientConn
	rpc  tandemv1.GenerationServiceClient
}

// Dial returns a client of the gateway at "host:port" or "unix:///absolute/path". It does not wait
// for the gateway: calls answer Unavailable while it is away. Options are added to the client's own,
// which are made for loopback and unix sockets: no encryption. The caller must Close it.
func Dial(addr string, opts ...grpc.DialOption) (*Client, error) {
	target := "passthrough:///" + addr
	if path, ok := strings.CutPrefix(addr, "unix://"); ok {
		if target = addr; !filepath.IsAbs(path) {
			return nil, &Error{Reason: Invalid, Message: "address " + addr + ": want unix:///absolute/path or host:port"}
		}
	} else if i := strings.LastIndex(addr, ":"); i < 0 || i == len(addr)-1 || strings.Contains(addr, "/") {
		return nil, &Error{Reason: Invalid, Message: "address " + addr + ": want host:port or unix:///absolute/path"}
	}
	const limit = 4 << 20 // the gateway's own, bytes
	conn, err := grpc.NewClient(target, append([]grpc.DialOption{
		grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithNoProxy(),
		grpc.WithConnectParams(grpc.ConnectParams{MinConnectTimeout: time.Second,
			Backoff: backoff.Config{BaseDelay: 20 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: time.Second}}),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: 15 * time.Second, Timeout: 5 * time.Second}),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(limit), grpc.MaxCallSendMsgSize(limit)),
	}, opts...)...)
	if err != nil {
		return nil, &Error{Reason: Invalid, Message: "address " + addr + ": " + err.Error()}
	}
	return &Client{conn: conn, rpc: tandemv1.NewGenerationServiceClient(conn)}, nil
}

// Close ends the connection and the calls on it.
func (c *Client) Close() error { return c.conn.Close() }

// Request is one prompt and how to continue it; a nil field takes the gateway's default.
type Request struct {
	Prompt string   // tokenised by the gateway; unused if Tokens is set
	Tokens []uint32 // the prompt as token ids

	MaxTokens   *int     // largest number of output tokens
	Temperature *float64 // 0: always the likeliest token
	TopK        *int     // 0: all
	TopP        *float64
	Seed        *uint64
	IgnoreEOS   bool

	NoDraft   bool     // plain decoding: the same text, slower
	Tree      *Tree    // bounds of the drafts; without a Strategy, their shape
	Strategy  string   // "planner", "fixed", "llmcad" or "minions"; "": the gateway's, or "fixed" with a Tree
	Vote      string   // "auto", "none", "majority" or "tree"
	Drafters  []string // those that may draft, by name; none: the gateway's default, usually all that are alive
	Without   []string // what the strategy goes without: "branches", "adaptive", "ahead"
	FullTrace bool     // record every round in the trace
}

// Tree bounds the trees to draft.
type Tree struct{ Nodes, Depth, Width int }

// Event is one event of a generation: exactly one field is set.
type Event struct {
	Started  *Started
	Delta    *Delta
	Finished *Finished
}

// Started is the first event of a generation: the request was admitted with these options.
type Started struct {
	Session      string
	PromptTokens []uint32
	Model        string
	Drafter      string // "" for none
	MaxTokens    int
	Temperature  float64
	TopK         int
	TopP         float64
	Seed         uint64
	Tree         Tree // zero: plain decoding
	Strategy     string
	Vote         string
	Drafters     []string // those that may draft; none: all that are alive
	Without      []string
}

// Delta is a piece of output.
type Delta struct {
	Text    string // valid UTF-8; lags behind Tokens while a character is incomplete
	Tokens  []uint32
	Drafted []bool // per token: guessed by a drafter, and accepted
}

// Finished is the last event of a generation.
type Finished struct {
	Reason       string // "stop" or "length"
	PromptTokens int
	OutputTokens int
	Statistics   Statistics
}

// Statistics counts one generation's speculation: Accepted + Rounds = output tokens.
type Statistics struct {
	Rounds, Drafted, DraftedDepth, Accepted, PlainRounds, Reopened int
	Prefill, Decode, DraftBusy, VerifyBusy                         time.Duration
	Coordination                                                   []time.Duration // per round

	AheadHits   int            // rounds whose tree had been begun ahead, while the target verified
	AheadTries  int            // rounds after which a drafter went on ahead
	AheadBusy   time.Duration  // draft arithmetic ahead of the rounds
	AheadUseful time.Duration  // the part of it that went into trees
	Drafters    []Contribution // by name
	Choices     map[string]int // rounds by what the strategy chose, such as "plain"
	Planning    time.Duration  // spent on votes, weights, lengths and choices
}

// Contribution counts what one drafter contributed to a generation.
type Contribution struct {
	Name     string
	Rounds   int     // in which it drafted
	Drafted  int     // nodes of its own drafts, roots not counted
	Accepted int     // tokens of the output that its own draft held
	Weight   float64 // of its vote, at the end
}

// Generate runs one request. The sequence ends after Finished, or with an error after which nothing
// follows; events before an error were right. Leaving the loop, or the end of ctx, cancels the request.
func (c *Client) Generate(ctx context.Context, r Request) iter.Seq2[Event, error] {
	return func(yield func(Event, error) bool) {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		if !utf8.ValidString(r.Prompt) {
			yield(Event{}, &Error{Reason: Invalid, Message: "request: prompt is not valid UTF-8"})
			return
		}
		stream, err := c.rpc.Generate(ctx, r.encode())
		if err != nil {
			yield(Event{}, fromStatus(err))
			return
		}
		for next := uint64(0); ; next++ {
			m, err := stream.Recv()
			if errors.Is(err, io.EOF) {
				err = &Error{Reason: Unavailable, Message: "the gateway ended the stream before the generation"}
			}
			if err != nil {
				yield(Event{}, fromStatus(err))
				return
			}
			e, err := decode(m, next)
			if !yield(e, err) || err != nil || e.Finished != nil {
				return
			}
		}
	}
}

// Describe tells what the gateway is. The message is the caller's.
func (c *Client) Describe(ctx context.Context) (*tandemv1.DescribeResponse, error) {
	d, err := c.rpc.Describe(ctx, &tandemv1.DescribeRequest{})
	return d, fromStatus(err)
}
