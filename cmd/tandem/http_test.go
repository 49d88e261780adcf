package main

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/processes/settings"
	"github.com/tandem-llm/tandem/processes/settings/config"
)

func TestKeyFile(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "keys")
	if err := os.WriteFile(file, []byte("# ours\n a \n\nb\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	f := httpFlags{settings.Web{APIKey: []string{"c"}, APIKeys: file}}
	if got, err := f.tokens(); err != nil || !slices.Equal(got, []string{"c", "a", "b"}) {
		t.Errorf("keys %q, %v", got, err)
	}
	for flag, want := range map[string]string{"": "", "off": "", "127.0.0.1:1": "http://127.0.0.1:1", ":1": "http://127.0.0.1:1",
		"unix:///x": "unix:///x"} {
		if got := (httpFlags{settings.Web{HTTP: flag}}).url(); got != want {
			t.Errorf("--http %q is %q, want %q", flag, got, want)
		}
	}
}

// TestMetricsKey refuses a file of the metrics' key that holds none.
func TestMetricsKey(t *testing.T) {
	f := httpFlags{settings.Web{MetricsKey: filepath.Join(t.TempDir(), "m")}}
	for text, says := range map[string]string{"": "holds no key", "# none\n": "holds no key", "a b\n": "visible ASCII", "scraper\n": ""} {
		if err := os.WriteFile(f.MetricsKey, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := f.check(); (says == "") != (err == nil) || err != nil && !strings.Contains(err.Error(), says) {
			t.Errorf("a file with %q: %v, want %q", text, err, says)
		}
	}
	os.Remove(f.MetricsKey)
	if err := f.check(); err == nil || !strings.Contains(err.Error(), "--metrics-key") {
		t.Errorf("without the file: %v", err)
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
		f := httpFlags{settings.Web{HTTP: tc.http, Host: tc.host, Port: tc.port}}
		err := f.settle()
		if (err == nil) != (tc.says == "") || err != nil && !strings.Contains(err.Error(), tc.says) || err == nil && f.HTTP != tc.want {
			t.Errorf("%+v: %q, %v", tc, f.HTTP, err)
		}
	}
}

// TestOneAddress: a command line that names two hosts or two ports for HTTP is refused; --host and --port override a file's --http.
func TestOneAddress(t *testing.T) {
	file := filepath.Join(t.TempDir(), "t.yaml")
	if err := os.WriteFile(file, []byte("http: 127.0.0.1:8450\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for line, says := range map[string]string{
		"up --http 127.0.0.1:8450 --port 0": "--port 0 with --http 127.0.0.1:8450: want one of them, as in --http 127.0.0.1:0",
		"up --port=1 --http [::1]:2":        "--port 1 with --http [::1]:2: want one of them, as in --http [::1]:1",
		"up --http [::1]:2 --host 0.0.0.0":  "--host 0.0.0.0 with --http [::1]:2: want one of them, as in --http 0.0.0.0:2",
		"up --set http=a:2 --port 3":        "--port 3 with --http a:2: want one of them, as in --http a:3",
		"launch x --http a:2 --port 3":      "--port 3 with --http a:2: want one of them, as in --http a:3",
		"gateway --http a:2 --port 3":       "--port 3 with --http a:2: want one of them, as in --http a:3",
		"up --http 127.0.0.1:8450":          "",
		"up --http [::1]:2 --host [::1]":    "",
		"up --http [::1]:2 --host ::1":      "",
		"up --http a:2 --port 2 --host a":   "",
		"up --http :2 --host a":             "",
		"up --http off --port 2":            "", // settle refuses it
		"up --port 0":                       "",
		"up --port 0 --config " + file:      "",
	} {
		from := config.NewResolver(func(string) (string, bool) { return "", false })
		args := strings.Fields(line)
		parser, err := newParser(from, args...)
		if err != nil {
			t.Fatal(err)
		}
		_, err = readLine(parser, from, args)
		if said := fmt.Sprint(err); (err == nil) != (says == "") || err != nil && (said != says || tandem.KindOf(err) != tandem.Invalid) {
			t.Errorf("tandem %s: %v, want %q", line, err, says)
		}
	}
}
