package settings

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
)

// TestLogFormat: with json every line on stderr is an object, whatever a child writes.
func TestLogFormat(t *testing.T) {
	var out bytes.Buffer
	f := Logging{LogLevel: "info", LogFormat: "json"}
	f.Logger(&out, "gateway").Info("request", "status", 200)
	f.Logger(&out, "gateway").Debug("nothing")
	line := f.ChildLine()
	all := line("gateway", strings.TrimSpace(out.String())) + "\n" + line("verifier", "panic: {") + "\n" + line("tandem", "{not json}")
	want := []string{"INFO gateway request", "WARN verifier panic: {", "WARN tandem {not json}"}
	for i, text := range strings.Split(all, "\n") {
		var m map[string]any
		if err := json.Unmarshal([]byte(text), &m); err != nil || fmt.Sprint(m["level"], " ", m["process"], " ", m["msg"]) != want[i] {
			t.Errorf("line %q, %v: want %s", text, err, want[i])
		}
	}
	if (Logging{LogFormat: "text"}).ChildLine() != nil {
		t.Error("lines of text are changed")
	}
}
