package client

import "strings"

// Unreachable says in plain words why there is no connection to addr, from the message of an error: of gRPC, of a dialer or of
// package http. "" if the message says nothing about a connection.
func Unreachable(addr, message string) string {
	has := func(parts ...string) bool {
		for _, part := range parts {
			if strings.Contains(message, part) {
				return true
			}
		}
		return false
	}
	const files = "--tls-cert, --tls-key and --tls-ca"
	switch {
	case has("connection refused", "connect: no such file or directory"):
		return "nothing listens at " + addr + ": start `tandem up`"
	case has("connect: permission denied"):
		return "this user may not use the socket " + addr
	case has("no such host", "server misbehaving", "produced zero addresses"):
		return "address " + addr + ": there is no host of that name"
	case has("first record does not look like a TLS handshake", "server gave HTTP response to HTTPS client"):
		return addr + " does not speak TLS: want no " + files
	case has("looked like an HTTP/1.1 header", "malformed HTTP response",
		"unexpected HTTP status code received", "no application protocol"):
		return addr + " speaks another protocol: want the gateway's address of gRPC, not of HTTP"
	case has("remote error: tls: "):
		return addr + " refuses the certificate: " + behind(message, "remote error: tls: ")
	case has("failed to verify certificate: "):
		return "the certificate of " + addr + " is not trusted: " + behind(message, "failed to verify certificate: ")
	case has("error reading server preface", "error reading from server", "connection reset by peer", "broken pipe"):
		return addr + " ends connections: want the address of a gateway, and " + files + " if it uses TLS"
	case has("i/o timeout", "deadline exceeded while waiting for connections", "deadline exceeded"):
		return addr + " does not answer"
	case has("connection error: desc = "):
		return addr + " cannot be reached: " + behind(message, "connection error: desc = ")
	}
	return ""
}

// behind returns the rest of a message, without gRPC's words.
func behind(message, at string) string {
	_, rest, _ := strings.Cut(message, at)
	return strings.TrimPrefix(strings.Trim(rest, `"`), "transport: ")
}

// told returns an error of a call as an *Error; one without a connection says so, and what helps.
func (c *Client) told(err error) error {
	err = fromStatus(err)
	e, ok := err.(*Error)
	if !ok || e.answered || e.Kind == Canceled {
		return err
	}
	if why := Unreachable(c.addr, e.Message); why != "" {
		return &Error{Kind: e.Kind, Message: why}
	}
	return err
}
