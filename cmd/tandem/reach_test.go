package main

import (
	"bytes"
	"context"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tandem-llm/tandem/app/talk/console"
)

// TestNothingListens: every command that asks a process says so in the same words when nothing listens.
func TestNothingListens(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := l.Addr().String()
	l.Close()
	agent := filepath.Join(t.TempDir(), "claude")
	if err := os.WriteFile(agent, []byte("#!/bin/sh\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", filepath.Dir(agent))
	for _, line := range []string{"run --addr ADDR", "generate --prompt x --addr ADDR", "ps --addr ADDR", "top --addr ADDR", "drain ADDR",
		"health --addr ADDR", "health --addr http://ADDR", "launch claude --url http://ADDR"} {
		words := strings.Fields(strings.ReplaceAll(line, "ADDR", addr))
		at := words[len(words)-1]
		parsed, _ := parsed(t, nil, words...)
		ctx, cancel := context.WithCancel(t.Context())
		err := parsed.Run(&app{stdin: os.Stdin, stdout: new(bytes.Buffer), stderr: io.Discard, ctx: ctx, force: ctx,
			interrupts: new(console.Interrupts), kong: parsed})
		cancel()
		if err == nil || !strings.HasSuffix(err.Error(), "nothing listens at "+at+": start `tandem up`") {
			t.Errorf("tandem %s: %v", line, err)
		}
	}
}
