package httpapi

import (
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/services/public/httpapi/oai"
)

// reach says which Host headers a server accepts. A page can make its own name point at this machine (DNS rebinding), so
// that the browser sees one origin; but it cannot change the name that the browser sends.
type reach int

const (
	anyHost   reach = iota // callers have keys, which no page has, or come through a unix socket, which no page reaches
	namedHost              // without keys: loopback names, all addresses, and Config.Hosts
	localHost              // without keys, on a loopback address: the same, but only loopback addresses
)

// reachOf returns what the server at l must check.
func reachOf(l net.Listener, keyed bool) reach {
	tcp, isTCP := l.Addr().(*net.TCPAddr)
	switch {
	case keyed || !isTCP:
		return anyHost
	case tcp.IP.IsLoopback():
		return localHost
	}
	return namedHost
}

// checkHost refuses a request with a Host header by which this server must not be called.
func (d *door) checkHost(host string) error {
	if d.reach == anyHost {
		return nil
	}
	name, ok := hostName(host)
	if ok && (name == "localhost" || slices.Contains(d.hosts, name)) {
		return nil
	}
	ip, err := netip.ParseAddr(name)
	if ok && err == nil && (d.reach == namedHost || ip.Unmap().IsLoopback()) {
		return nil
	}
	want := "localhost, 127.0.0.1, [::1]"
	if d.reach == namedHost {
		want = "localhost, an address"
	}
	return oai.Refusal(http.StatusForbidden, "host_not_allowed",
		"host %.100q is not one of this server's: want %s, or a name that was given with --allow-host", host, want)
}

// hostName returns the name or address in a Host header, in lower case, without port, brackets and final dot;
// ok is false if the header is malformed.
func hostName(host string) (name string, ok bool) {
	name, port := host, ""
	switch end := strings.LastIndexByte(host, ']'); {
	case strings.HasPrefix(host, "["):
		if end < 0 || end+1 < len(host) && host[end+1] != ':' {
			return "", false
		}
		name, port = host[1:end], strings.TrimPrefix(host[end+1:], ":")
		if !strings.Contains(name, ":") {
			return "", false // brackets are of IPv6
		}
	case strings.Count(host, ":") == 1:
		name, port, _ = strings.Cut(host, ":")
	case strings.Contains(host, ":"):
		return "", false
	}
	if strings.Trim(port, "0123456789") != "" || len(port) > 5 {
		return "", false
	}
	name = strings.ToLower(strings.TrimSuffix(name, "."))
	return name, name != ""
}

// allowedHosts returns the names of Config.Hosts in the form of hostName. Errors: Invalid.
func allowedHosts(names []string) ([]string, error) {
	out := make([]string, 0, len(names))
	for _, given := range names {
		name, ok := hostName(given)
		plain := strings.Trim(name, "abcdefghijklmnopqrstuvwxyz0123456789.-_") == ""
		if !ok || !plain || name != strings.TrimSuffix(strings.ToLower(given), ".") || len(name) > 253 {
			return nil, tandem.Errorf("", tandem.Invalid,
				"--allow-host %.100q: want a host name of ASCII letters, digits, \"-\" and \".\", without a port, "+
					"as browsers send it: xn--… for one in other letters", given)
		}
		out = append(out, name)
	}
	return out, nil
}
