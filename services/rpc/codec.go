package rpc

import (
	"google.golang.org/grpc/encoding"
	_ "google.golang.org/grpc/encoding/proto" // registers the codec that undecodable wraps
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

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
	err := c.CodecV2.Unmarshal(data, v)
	m, ok := v.(proto.Message)
	if err == nil || !ok {
		return err
	}
	proto.Reset(m)
	reason := protowire.AppendTag(nil, reasonField, protowire.BytesType)
	m.ProtoReflect().SetUnknown(protowire.AppendString(reason, err.Error()))
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
