package settings

import (
	"strings"
	"testing"
)

// TestURL: an address without a host is that of the loopback, and a socket stays as it is.
func TestURL(t *testing.T) {
	for flag, want := range map[string]string{"": "", "off": "", "127.0.0.1:1": "http://127.0.0.1:1", ":1": "http://127.0.0.1:1",
		"unix:///x": "unix:///x"} {
		if got := (Web{HTTP: flag}).URL(); got != want {
			t.Errorf("--http %q is %q, want %q", flag, got, want)
		}
	}
}

// TestHostAndPort: --host and --port change --http's address, and are refused where it has neither.
func TestHostAndPort(t *testing.T) {
	port := func(n int) *int { return &n }
	for _, tc := range []struct {
		http, host string
		port       *int
		want, says string
	}{
		{http: "127.0.0.1:8450", want: "127.0.0.1:8450"},
		{http: "127.0.0.1:8450", port: port(8080), want: "127.0.0.1:8080"},
		{http: "127.0.0.1:8450", port: port(0), want: "127.0.0.1:0"},
		{http: "127.0.0.1:8450", host: "0.0.0.0", want: "0.0.0.0:8450"},
		{http: "127.0.0.1:8450", host: "::1", port: port(1), want: "[::1]:1"},
		{http: "127.0.0.1:8450", host: "[::1]", want: "[::1]:8450"},
		{http: "off", want: "off"},
		{http: "off", port: port(1), says: "--http off"},
		{http: "unix:///x", host: "a", says: "--http unix:///x"},
		{http: "127.0.0.1:8450", port: port(70000), says: "--port is 70000"},
		{http: "127.0.0.1:8450", port: port(-1), says: "--port is -1"},
	} {
		f := Web{HTTP: tc.http, Host: tc.host, Port: tc.port}
		err := f.Settle()
		if (err == nil) != (tc.says == "") || err != nil && !strings.Contains(err.Error(), tc.says) || err == nil && f.HTTP != tc.want {
			t.Errorf("%+v: %q, %v", tc, f.HTTP, err)
		}
	}
}
