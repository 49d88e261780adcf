package client

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"log"
	"net"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestUnreachable: what is wrong with an address is said in plain words, whichever call meets it.
func TestUnreachable(t *testing.T) {
	closed, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := closed.Addr().String()
	closed.Close()
	web, secure := httptest.NewServer(nil), httptest.NewUnstartedServer(nil)
	defer web.Close()
	secure.EnableHTTP2, secure.Config.ErrorLog = true, log.New(io.Discard, "", 0)
	secure.StartTLS()
	defer secure.Close()
	plain, err := net.Listen("tcp", "127.0.0.1:0") // ends every connection
	if err != nil {
		t.Fatal(err)
	}
	defer plain.Close()
	go func() {
		for c, err := plain.Accept(); err == nil; c, err = plain.Accept() {
			c.Close()
		}
	}()
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	of := func(s *httptest.Server) string { return s.Listener.Addr().String() }
	trusting := WithTLS(&tls.Config{RootCAs: x509.NewCertPool()})
	for _, tc := range []struct {
		addr, want string
		option     []Option
	}{
		{addr, "nothing listens at " + addr + ": start `tandem up`", nil},
		{"unix://" + file + "-not", "nothing listens at unix://" + file + "-not: start `tandem up`", nil},
		{"unix://" + file, "nothing listens at unix://" + file + ": start `tandem up`", nil},
		{"no-host.invalid:1", "address no-host.invalid:1: there is no host of that name", nil},
		{of(web), of(web) + " speaks another protocol: want the gateway's address of gRPC, not of HTTP", nil},
		{of(web), of(web) + " does not speak TLS: want no --tls-cert, --tls-key and --tls-ca", []Option{trusting}},
		{of(secure), "the certificate of " + of(secure) + " is not trusted: x509: ", []Option{trusting}},
		{of(secure), of(secure) + " ", nil},
		{plain.Addr().String(), plain.Addr().String() + " ends connections: want the address of a gateway", nil},
	} {
		c, err := Dial(tc.addr, tc.option...)
		if err != nil {
			t.Fatal(err)
		}
		_, describe := c.Describe(t.Context())
		_, embed := c.Embed(t.Context(), "x")
		all := []error{describe, embed}
		for _, err := range c.Generate(t.Context(), Request{Prompt: "x"}) {
			all = append(all, err)
		}
		for _, err := range c.Converse(t.Context(), []Message{{Role: "user", Content: "x"}}, "", Request{}) {
			all = append(all, err)
		}
		c.Close()
		for _, err := range all {
			if err == nil || !strings.HasPrefix(err.Error(), tc.want) || strings.Contains(err.Error(), "desc = ") {
				t.Errorf("%s: %v: want %q", tc.addr, err, tc.want)
			}
		}
		if len(all) != 4 {
			t.Errorf("%s: %d errors of 4 calls", tc.addr, len(all))
		}
		if tc.addr == addr && !errors.Is(all[0], Unavailable) {
			t.Errorf("%s: %v: want Unavailable", tc.addr, all[0])
		}
	}
}

// TestGatewaysOwnWords: what a gateway says of processes behind it stays as it is.
func TestGatewaysOwnWords(t *testing.T) {
	c := &Client{addr: "box:1"}
	own := &Error{Kind: Unavailable, Message: "verifier unix:///v: connection refused", answered: true}
	if err := c.told(own); err.Error() != own.Message {
		t.Errorf("%v: want %v", err, own)
	}
}
