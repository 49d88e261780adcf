package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/processes/settings/config"
)

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
