package rpc

import (
	"google.golang.org/grpc/encoding"
	_ "google.golang.org/grpc/encoding/proto" // registers the codec that undecodable wraps
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/tandem-llm/tandem"
)

// undecodable is a server's codec. gRPC answers a request that cannot be decoded with Internal before any
// interceptor sees it, although it is the client's fault. With this codec it becomes an empty message with
// the reason in an unknown field, which decoded turns into Invalid.
type undecodable struct{ encoding.CodecV2 }

// reasonField is the highest field number there is: no message of ours uses it.
const reasonField = protowire.MaxValidNumber

func newCodec() encoding.CodecV2 { return undecodable{encoding.GetCodecV2("proto")} }

func (c undecodable) Unmarshal(data mem.BufferSlice, v any) error {
	m, ok := v.(proto.Message)
	if !ok {
		return c.CodecV2.Unmarshal(data, v)
	}
	var err error
	if data.Len() > smallMessage {
		raw := data.Materialize()
		data = mem.BufferSlice{mem.SliceBuffer(raw)}
		err = new(held).count(raw, m.ProtoReflect().Descriptor())
	}
	if err == nil {
		err = c.CodecV2.Unmarshal(data, v)
	}
	if err == nil {
		return nil
	}
	proto.Reset(m)
	reason := protowire.AppendTag(nil, reasonField, protowire.BytesType)
	m.ProtoReflect().SetUnknown(protowire.AppendString(reason, err.Error()))
	return nil
}

// What a message may hold in all. An empty message in a list is two bytes, and takes a hundred times as many when it is decoded.
const (
	smallMessage = 64 << 10 // bytes of a message that is decoded without being counted
	maxMessages  = 64 << 10 // messages in a message, at any depth
	maxStrings   = 256 << 10
)

// held counts what a message holds.
type held struct{ messages, strings int }

// count counts the messages and texts in a message as it was sent. Errors say what is too many; those of the form are the decoder's.
func (h *held) count(raw []byte, of protoreflect.MessageDescriptor) error {
	for len(raw) > 0 {
		number, kind, n := protowire.ConsumeTag(raw)
		if n < 0 {
			return nil
		}
		raw = raw[n:]
		n = protowire.ConsumeFieldValue(number, kind, raw)
		if n < 0 {
			return nil
		}
		f := of.Fields().ByNumber(number)
		switch {
		case f == nil || kind != protowire.BytesType:
		case f.Message() != nil:
			if h.messages++; h.messages > maxMessages {
				return tandem.Errorf("", tandem.Invalid, "it holds more than %d messages: %s is one too many", maxMessages, f.FullName())
			}
			inner, _ := protowire.ConsumeBytes(raw)
			if err := h.count(inner, f.Message()); err != nil {
				return err
			}
		case f.IsList() && (f.Kind() == protoreflect.StringKind || f.Kind() == protoreflect.BytesKind):
			if h.strings++; h.strings > maxStrings {
				return tandem.Errorf("", tandem.Invalid, "it holds more than %d texts: %s is one too many", maxStrings, f.FullName())
			}
		}
		raw = raw[n:]
	}
	return nil
}

// decoded returns Invalid for a request that undecodable could not decode.
func decoded(req any) error {
	m, ok := req.(proto.Message)
	if !ok {
		return nil
	}
	unknown := m.ProtoReflect().GetUnknown()
	number, kind, n := protowire.ConsumeTag(unknown)
	if n < 0 || number != reasonField || kind != protowire.BytesType {
		return nil
	}
	reason, _ := protowire.ConsumeString(unknown[n:])
	return tandem.Errorf("rpc", tandem.Invalid, "request cannot be decoded: %s", reason)
}
