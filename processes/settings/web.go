package settings

import (
	"cmp"
	"math"
	"net"
	"strconv"
	"strings"

	"github.com/tandem-llm/tandem"
)

// NoHTTP is the value of --http that switches HTTP off.
const NoHTTP = "off"

// Settle puts --host and --port into --http.
func (f *Web) Settle() error {
	if f.Host == "" && f.Port == nil {
		return nil
	}
	host, port, err := net.SplitHostPort(f.HTTP)
	if err != nil || strings.HasPrefix(f.HTTP, "unix:") {
		return tandem.Errorf("", tandem.Invalid, "--host or --port with --http %s: want them with a host and a port there",
			cmp.Or(f.HTTP, NoHTTP))
	}
	if f.Host != "" {
		host = strings.TrimSuffix(strings.TrimPrefix(f.Host, "["), "]")
	}
	if f.Port != nil {
		if *f.Port < 0 || *f.Port > math.MaxUint16 {
			return tandem.Errorf("", tandem.Invalid, "--port is %d: want 0 to %d", *f.Port, math.MaxUint16)
		}
		port = strconv.Itoa(*f.Port)
	}
	f.HTTP, f.Host, f.Port = net.JoinHostPort(host, port), "", nil
	return nil
}

// URL returns the HTTP server's URL; the flag itself for a socket, "" if HTTP is off.
func (f Web) URL() string {
	switch {
	case f.HTTP == "" || f.HTTP == NoHTTP:
		return ""
	case strings.HasPrefix(f.HTTP, "unix://"):
		return f.HTTP
	case strings.HasPrefix(f.HTTP, ":"):
		return "http://127.0.0.1" + f.HTTP
	}
	return "http://" + f.HTTP
}
