package test

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	tandemv1 "github.com/tandem-llm/tandem/proto/tandem/v1"
	"github.com/tandem-llm/tandem/services/peers/rpc"
)

// hugeMessage is a gRPC message, as it is sent, that holds much of one field.
type hugeMessage struct {
	method, name string
	make         func(size int) []byte
}

// hugeMessages returns a message for each text and each repeated field of the public requests, also of the messages in them.
func hugeMessages() (all []hugeMessage) {
	one := int32(1)
	for method, m := range map[string]proto.Message{
		"/tandem.v1.ChatService/Chat": &tandemv1.ChatRequest{
			Messages: []*tandemv1.ChatMessage{{Role: "user", Content: "a"}}, MaxTokens: &one},
		"/tandem.v1.GenerationService/Generate": &tandemv1.GenerateRequest{Prompt: &tandemv1.GenerateRequest_Text{Text: "a"},
			MaxTokens: &one},
		"/tandem.v1.GenerationService/Tokenize":   &tandemv1.TokenizeRequest{},
		"/tandem.v1.GenerationService/Detokenize": &tandemv1.DetokenizeRequest{},
		"/tandem.v1.EmbeddingService/Embed": &tandemv1.EmbedRequest{Inputs: []*tandemv1.EmbedInput{
			{Input: &tandemv1.EmbedInput_Text{Text: "a"}}}},
	} {
		right, _ := proto.Marshal(m)
		var walk func(d protoreflect.MessageDescriptor, at string, wrap func([]byte) []byte)
		walk = func(d protoreflect.MessageDescriptor, at string, wrap func([]byte) []byte) {
			for i := range d.Fields().Len() {
				f := d.Fields().Get(i)
				add := func(how string, fill func(size int) []byte) {
					all = append(all, hugeMessage{method, fmt.Sprintf("%s%s: %s", at, f.Name(), how), func(size int) []byte {
						return wrap(fill(size - 128))
					}})
				}
				field := func(b []byte) []byte {
					return protowire.AppendBytes(protowire.AppendTag(nil, f.Number(), protowire.BytesType), b)
				}
				many := func(b []byte) func(int) []byte {
					return func(size int) []byte { return bytes.Repeat(b, size/len(b)) }
				}
				switch {
				case f.Kind() == protoreflect.MessageKind:
					if f.IsList() {
						add("empty messages", many(field(nil)))
					}
					add("again and again", many(field(least(f.Message()))))
					walk(f.Message(), at+string(f.Name())+".", func(b []byte) []byte {
						return wrap(field(append(least(f.Message()), b...)))
					})
				case f.Kind() == protoreflect.StringKind:
					for _, piece := range []string{"a", "word ", "é", "{", `{"a":1,`, "[", `{"a":"`} {
						add("a text of "+piece, func(size int) []byte { return field(bytes.Repeat([]byte(piece), size/len(piece))) })
					}
					add("an object of many fields", func(size int) []byte { return field(object(size)) })
					if f.IsList() {
						add("empty texts", many(field(nil)))
						add("short texts", many(field([]byte("a"))))
					}
				case f.IsList():
					add("numbers", func(size int) []byte { return field(make([]byte, size/4*4)) })
				}
			}
		}
		walk(m.ProtoReflect().Descriptor(), "", func(b []byte) []byte { return append(right[:len(right):len(right)], b...) })
	}
	slices.SortFunc(all, func(a, b hugeMessage) int { return strings.Compare(a.method+a.name, b.method+b.name) })
	return all
}

// least is a small message that is taken.
func least(d protoreflect.MessageDescriptor) (b []byte) {
	for i := range d.Fields().Len() {
		text := map[string]string{"role": "user", "arguments": "{}", "parameters": "{}"}
		if f := d.Fields().Get(i); f.Kind() == protoreflect.StringKind && f.Name() != "tool_call_id" && f.Name() != "thought" {
			b = protowire.AppendString(protowire.AppendTag(b, f.Number(), protowire.BytesType), cmp.Or(text[string(f.Name())], "a"))
		}
	}
	return b
}

// object is a JSON object with so many bytes.
func object(size int) []byte {
	b := []byte("{")
	for i := 0; len(b) < size-16; i++ {
		b = fmt.Appendf(b, `"%d":0,`, i)
	}
	return append(b, `"x":0}`...)
}

// asSent is a codec of messages that are bytes already.
type asSent struct{}

func (asSent) Name() string                  { return "proto" }
func (asSent) Marshal(v any) ([]byte, error) { return *v.(*[]byte), nil }
func (asSent) Unmarshal(b []byte, v any) error {
	*v.(*[]byte) = slices.Clone(b)
	return nil
}

// TestHugeMessages sends messages of 4 MiB over gRPC, the most that are read, each full of one thing: none takes the gateway 256 MiB or two
// seconds of processor time.
func TestHugeMessages(t *testing.T) {
	mayBeSlow(t)
	h := newHuge(t)
	conn, err := grpc.NewClient(h.socket(), grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.ForceCodec(asSent{})))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	ctx := metadata.AppendToOutgoingContext(t.Context(), "authorization", "Bearer "+h.key)
	n := 0
	for _, m := range hugeMessages() {
		for _, size := range []int{rpc.MaxMessage, 8_000_000} {
			if n++; size > rpc.MaxMessage && n%20 != 0 {
				continue // refused before it is read
			}
			body := m.make(size)
			h.measure(t, fmt.Sprintf("%s %s (%d bytes)", m.method, m.name, len(body)), func() (int, string) {
				ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
				defer cancel()
				stream, err := conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true}, m.method)
				if err == nil {
					_ = stream.SendMsg(&body)
					_ = stream.CloseSend()
					for answer := []byte(nil); err == nil; {
						err = stream.RecvMsg(&answer)
					}
				}
				return 0, err.Error()
			})
		}
	}
	t.Logf("%d messages; the most memory %d MiB, the most time %v", n, h.most.Load()>>20, time.Duration(h.longest.Load()))
}
