package main

import (
	"bytes"
	"encoding/json"
	"io"
	"log/slog"
	"strings"
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

// jsonFormat is the --log-format of one object a line.
const jsonFormat = "json"

// line returns how lines of children are written among those of others: nil for text, where each has the child's name before it.
func (f logFlags) line() func(name, line string) string {
	if f.LogFormat != jsonFormat {
		return nil
	}
	return func(name, line string) string {
		if strings.HasPrefix(line, "{") && json.Valid([]byte(line)) {
			return line // it holds the child's name
		}
		var b bytes.Buffer
		slog.New(slog.NewJSONHandler(&b, nil)).Warn(line, "process", name)
		return strings.TrimSuffix(b.String(), "\n")
	}
}

// logger returns a logger of a process that writes to w.
func (f logFlags) logger(w io.Writer, process string) *slog.Logger {
	level := slog.LevelWarn
	_ = level.UnmarshalText([]byte(or(f.LogLevel, quietly().LogLevel))) // kong has checked it
	options := &slog.HandlerOptions{Level: level}
	if f.LogFormat == jsonFormat {
		return slog.New(slog.NewJSONHandler(w, options)).With("process", process)
	}
	return slog.New(slog.NewTextHandler(w, options))
}
