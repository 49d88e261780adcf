package settings

import (
	"bytes"
	"cmp"
	"encoding/json"
	"io"
	"log/slog"
	"strings"
)

// Quiet is the logging of processes that a command starts for itself alone.
var Quiet = Logging{LogLevel: "warn", LogFormat: "text"}

// JSONLines is the --log-format of one object a line.
const JSONLines = "json"

// ChildLine returns what writes a line of a child among those of other processes; nil for text, whose lines get the child's name in front.
func (f Logging) ChildLine() func(name, line string) string {
	if f.LogFormat != JSONLines {
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

// Logger returns a logger of a process that writes to w.
func (f Logging) Logger(w io.Writer, process string) *slog.Logger {
	level := slog.LevelWarn
	_ = level.UnmarshalText([]byte(cmp.Or(f.LogLevel, Quiet.LogLevel))) // kong has checked it
	options := &slog.HandlerOptions{Level: level}
	if f.LogFormat == JSONLines {
		return slog.New(slog.NewJSONHandler(w, options)).With("process", process)
	}
	return slog.New(slog.NewTextHandler(w, options))
}
