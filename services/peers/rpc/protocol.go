package rpc

import (
	"context"
	"strconv"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	"github.com/tandem-llm/tandem"
)

const (
	headerProtocol  = "tandem-protocol" // in both directions of every call between processes
	internalMethods = "/tandem.internal.v1."
	describe        = "Describe" // a process of another protocol may still be described
)

// ours is our protocol in the form of headers.
var (
	ours   = strconv.Itoa(tandem.Protocol)
	spoken = metadata.Pairs(headerProtocol, ours)
)

// serviceOf returns the service that a method between processes belongs to, such as "verifier"; "" if any release may call it.
func serviceOf(method string) string {
	rest, found := strings.CutPrefix(method, internalMethods)
	service, name, _ := strings.Cut(rest, "/")
	if !found || name == describe {
		return ""
	}
	return strings.ToLower(strings.TrimSuffix(service, "Service"))
}

// CheckProtocol returns nil if protocol is this program's; 0 stands for one older than 1. Else the error is Unavailable with
// tandem.OpProtocol, and names the other process as who and this one as us.
func CheckProtocol(protocol int, who, us string) error {
	if protocol == tandem.Protocol {
		return nil
	}
	said := "protocol " + strconv.Itoa(protocol)
	if protocol == 0 {
		said = "a protocol older than 1"
	}
	return tandem.Errorf(tandem.OpProtocol, tandem.Unavailable, "%s speaks %s, %s %d: run the same release of tandem", who, said, us,
		tandem.Protocol)
}

// protocolIn returns the protocol of the other end of a call, 0 if it does not tell.
func protocolIn(md metadata.MD) int {
	v := md.Get(headerProtocol)
	if len(v) != 1 {
		return 0
	}
	n, err := strconv.Atoi(v[0])
	if err != nil || n < 0 {
		return 0
	}
	return n
}

// speaks refuses a call of a process of another protocol.
func (s *Server) speaks(ctx context.Context, method string) error {
	service := serviceOf(method)
	if service == "" {
		return nil
	}
	md, _ := metadata.FromIncomingContext(ctx)
	err := CheckProtocol(protocolIn(md), "the caller", "this "+service)
	if err != nil {
		s.cfg.Counters.Add("refused.protocol", 1)
	}
	return err
}

// answered refuses the answer of a process of another protocol; err is how the call ended. A call without an answer has
// no header.
func answered(md metadata.MD, service string, cc *grpc.ClientConn, err error) error {
	if err != nil && len(md.Get(headerProtocol)) == 0 {
		return nil
	}
	return CheckProtocol(protocolIn(md), service+" at "+strings.TrimPrefix(cc.Target(), "passthrough:///"), "this process")
}
