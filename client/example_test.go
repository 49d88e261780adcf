package client_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/tandem-llm/tandem/client"
	tandemv1 "github.com/tandem-llm/tandem/proto/tandem/v1"
)

// parrot is a gateway for the examples: its model repeats the prompt, a word at a time.
type parrot struct {
	tandemv1.UnimplementedGenerationServiceServer
}

func (parrot) Generate(r *tandemv1.GenerateRequest, st grpc.ServerStreamingServer[tandemv1.GenerateResponse]) error {
	if p := r.GetSampling(); p.GetTopP() > 1 {
		s, err := status.New(codes.InvalidArgument, "request: top_p is 2: want more than 0 and at most 1").WithDetails(
			&errdetails.ErrorInfo{Domain: "tandem.dev", Reason: "INVALID"},
			&errdetails.BadRequest{FieldViolations: []*errdetails.BadRequest_FieldViolation{{Field: "sampling.top_p"}}})
		if err != nil {
			return err
		}
		return s.Err()
	}
	events := []*tandemv1.GenerateResponse{{Event: &tandemv1.GenerateResponse_Started{Started: &tandemv1.Started{Model: "parrot"}}}}
	for i, word := range strings.SplitAfter(r.GetText(), " ") {
		d := &tandemv1.Delta{Text: word, Tokens: &tandemv1.TokenList{Ids: []uint32{uint32(i)}},
			Origins: []tandemv1.Origin{tandemv1.Origin_ORIGIN_DRAFT}}
		if r.GetSampling().GetLogprobs() {
			d.Logprobs = []*tandemv1.Logprob{{LogProb: -0.5}}
		}
		events = append(events, &tandemv1.GenerateResponse{Event: &tandemv1.GenerateResponse_Delta{Delta: d}})
	}
	events = append(events, &tandemv1.GenerateResponse{Event: &tandemv1.GenerateResponse_Finished{Finished: &tandemv1.Finished{
		Reason: tandemv1.FinishReason_FINISH_REASON_STOP, Usage: &tandemv1.Usage{OutputTokens: int32(len(events) - 1)},
		Statistics: &tandemv1.Statistics{Rounds: 2}}}})
	for i, e := range events {
		e.Sequence = uint64(i)
		if err := st.Send(e); err != nil {
			return err
		}
	}
	return nil
}

func (parrot) Tokenize(_ context.Context, r *tandemv1.TokenizeRequest) (*tandemv1.TokenizeResponse, error) {
	out := &tandemv1.TokenizeResponse{Tokens: &tandemv1.TokenList{}}
	for i, word := range strings.SplitAfter(r.GetText(), " ") {
		out.Tokens.Ids, out.Pieces = append(out.Tokens.Ids, uint32(i)), append(out.Pieces, []byte(word))
	}
	return out, nil
}

// gatewayAddress starts the examples' gateway, where yours would be at 127.0.0.1:8451, say.
func gatewayAddress() (addr string, stop func()) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		panic(err)
	}
	s := grpc.NewServer(grpc.WaitForHandlers(true))
	tandemv1.RegisterGenerationServiceServer(s, parrot{})
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = s.Serve(l)
	}()
	return l.Addr().String(), func() { s.Stop(); <-done }
}

func ExampleClient_Generate() {
	addr, stop := gatewayAddress()
	defer stop()

	c, err := client.Dial(addr, client.WithToken("my-key"))
	if err != nil {
		fmt.Println(err)
		return
	}
	defer c.Close()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	for e, err := range c.Generate(ctx, client.Request{Prompt: "again and again", MaxTokens: new(64), Temperature: new(0.0),
		Stop: []string{"\n\n"}}) {
		switch {
		case errors.Is(err, client.Unavailable):
			fmt.Println("is the gateway running?")
		case err != nil:
			fmt.Println(err)
		case e.Delta != nil:
			fmt.Print(e.Delta.Text)
		case e.Finished != nil:
			fmt.Printf("\n%d tokens in %d rounds\n", e.Finished.OutputTokens, e.Finished.Statistics.Rounds)
		}
	}
	// Output:
	// again and again
	// 3 tokens in 2 rounds
}

func ExampleClient_Generate_logprobs() {
	addr, stop := gatewayAddress()
	defer stop()

	c, err := client.Dial(addr)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer c.Close()
	for e, err := range c.Generate(context.Background(), client.Request{Prompt: "so it goes", Logprobs: true}) {
		if err != nil {
			fmt.Println(err)
			return
		}
		if d := e.Delta; d != nil {
			for i, l := range d.Logprobs {
				fmt.Printf("%q token %d: %v, drafted %v\n", d.Text, d.Tokens[i], l.LogProb, d.Drafted[i])
			}
		}
	}
	// Output:
	// "so " token 0: -0.5, drafted true
	// "it " token 1: -0.5, drafted true
	// "goes" token 2: -0.5, drafted true
}

// An error says what was wrong, and where.
func ExampleError() {
	addr, stop := gatewayAddress()
	defer stop()

	c, err := client.Dial(addr)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer c.Close()
	for _, err := range c.Generate(context.Background(), client.Request{Prompt: "x", TopP: new(2.0)}) {
		var e *client.Error
		switch {
		case errors.Is(err, client.Exhausted) && errors.As(err, &e):
			fmt.Println("full; again in", e.RetryAfter)
		case errors.As(err, &e):
			fmt.Println(e.Kind, "in", e.Field)
			fmt.Println(e)
		}
	}
	// Output:
	// INVALID in sampling.top_p
	// request: top_p is 2: want more than 0 and at most 1
}

func ExampleClient_Tokenize() {
	addr, stop := gatewayAddress()
	defer stop()

	c, err := client.Dial(addr)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer c.Close()
	tokens, pieces, err := c.Tokenize(context.Background(), "one two")
	fmt.Printf("%v %q %v\n", tokens, pieces, err)
	// Output:
	// [0 1] ["one " "two"] <nil>
}
