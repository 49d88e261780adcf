package main

import (
	"io"
	"log/slog"
)

// logFlags say what the processes write to stderr.
type logFlags struct {
	LogLevel  string `help:"What is logged on stderr: debug, info (one line a request, among others), warn or error." enum:"debug,info,warn,error" default:"info"`
	LogFormat string `help:"How: text, or json (one object a line)." enum:"text,json" default:"text"`
}

// quietly are the flags of processes that one command starts for itself.
func quietly() logFlags { return logFlags{LogLevel: "warn", LogFormat: "text"} }

// args are the flags that say the same to a child.
func (f logFlags) args() []string {
	quiet := quietly()
	return []string{"--log-level", or(f.LogLevel, quiet.LogLevel), "--log-format", or(f.LogFormat, quiet.LogFormat)}
}

// logger returns a logger that writes to w.
func (f logFlags) logger(w io.Writer) *slog.Logger {
	level := slog.LevelWarn
	_ = level.UnmarshalText([]byte(or(f.LogLevel, quietly().LogLevel))) // kong has checked it
	options := &slog.HandlerOptions{Level: level}
	if f.LogFormat == "json" {
		return slog.New(slog.NewJSONHandler(w, options))
	}
	return slog.New(slog.NewTextHandler(w, options))
}
