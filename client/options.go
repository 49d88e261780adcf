package client

import (
	"context"
	"crypto/tls"
	"strings"
	"time"

	"google.golang.org/grpc"
)

// Option changes how Dial connects.
type Option func(*options)

type options struct {
	token     *string
	cleartext bool
	tls       *tls.Config
	dial      []grpc.DialOption
	resume    time.Duration
}

// WithToken sends token as bearer token with every call. Dial refuses to send it to another machine in clear
// text, unless told WithCleartext.
func WithToken(token string) Option { return func(o *options) { o.token = &token } }

// WithTLS encrypts the connection to a TCP address. cfg.RootCAs verifies the gateway; cfg.Certificates holds this client's
// certificate, if the gateway asks for one.
func WithTLS(cfg *tls.Config) Option { return func(o *options) { o.tls = cfg } }

// WithCleartext allows a token to go to another machine without TLS, in a network that all its users trust.
func WithCleartext() Option { return func(o *options) { o.cleartext = true } }

// WithResume says for how long Generate tries to take up a stream that broke off, while no gateway answers: 30 s without this option, 0 for
// never.
func WithResume(d time.Duration) Option { return func(o *options) { o.resume = d } }

// WithDialOptions adds gRPC dial options after the client's own, which they may override.
func WithDialOptions(opts ...grpc.DialOption) Option {
	return func(o *options) { o.dial = append(o.dial, opts...) }
}

// checkToken refuses a token that cannot be sent, or must not be sent to that address. Its errors do not show the token.
func (o *options) checkToken(addr string, local bool) error {
	switch t := *o.token; {
	case t == "" || strings.ContainsFunc(t, func(r rune) bool { return r <= ' ' || r > '~' }):
		return &Error{Kind: Invalid, Message: "token: want visible ASCII characters, at least one"}
	case !local && o.tls == nil && !o.cleartext:
		return &Error{Kind: Invalid, Message: "token for " + addr + " would travel in clear text: want TLS, or WithCleartext"}
	}
	return nil
}

// bearer implements credentials.PerRPCCredentials.
type bearer string

// GetRequestMetadata returns the token.
func (b bearer) GetRequestMetadata(context.Context, ...string) (map[string]string, error) {
	return map[string]string{"authorization": "Bearer " + string(b)}, nil
}

// RequireTransportSecurity leaves that to Dial, which knows that unix sockets and loopback need none.
func (b bearer) RequireTransportSecurity() bool { return false }
