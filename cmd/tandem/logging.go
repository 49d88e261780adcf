package main

import (
	"bytes"
	"encoding/json"
	"io"
	"log/slog"
	"strings"

	"github.com/tandem-llm/tandem/processes/settings"
)

// quietly is how processes log that one command starts for itself.
func quietly() settings.Logging { return settings.Logging{LogLevel: "warn", LogFormat: "text"} }

// jsonFormat is the --log-format of one object a line.
const jsonFormat = "json"

// childLine returns how lines of children are written among those of others: nil for text, where each has the child's name before it.
func childLine(f settings.Logging) func(name, line string) string {
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

// newLogger returns a logger of a process that writes to w.
func newLogger(f settings.Logging, w io.Writer, process string) *slog.Logger {
	level := slog.LevelWarn
	_ = level.UnmarshalText([]byte(or(f.LogLevel, quietly().LogLevel))) // kong has checked it
	options := &slog.HandlerOptions{Level: level}
	if f.LogFormat == jsonFormat {
		return slog.New(slog.NewJSONHandler(w, options)).With("process", process)
	}
	return slog.New(slog.NewTextHandler(w, options))
}
