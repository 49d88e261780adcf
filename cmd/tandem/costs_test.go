package main

import (
	"os"
	"path/filepath"
	"reflect"
	"testing"
	"time"

	"github.com/tandem-llm/tandem"
)

// TestCostsAreKept: what a verifier measured is there for the next on its socket, and for no other model, machine or
// setting.
func TestCostsAreKept(t *testing.T) {
	file := costsFile("unix://" + filepath.Join(t.TempDir(), "verifier.sock"))
	same := measured{Model: "m.gguf", Bytes: 5, Modified: time.Now().UTC(), Threads: 2, ISA: "avx2", KVType: "f16"}
	kept := same
	kept.Costs = []tandem.Cost{{Rows: 1, Context: 100, Time: time.Millisecond}, {Rows: 8, Context: 100, Time: 2 * time.Millisecond}}
	if got := same.read(file); got != nil {
		t.Errorf("read before there was any: %v", got)
	}
	if err := kept.write(file); err != nil {
		t.Fatal(err)
	}
	if got := same.read(file); !reflect.DeepEqual(got, kept.Costs) {
		t.Errorf("read %v, want %v", got, kept.Costs)
	}
	for name, change := range map[string]func(*measured){
		"model":    func(m *measured) { m.Model = "n.gguf" },
		"bytes":    func(m *measured) { m.Bytes++ },
		"modified": func(m *measured) { m.Modified = m.Modified.Add(time.Second) },
		"threads":  func(m *measured) { m.Threads = 1 },
		"isa":      func(m *measured) { m.ISA = "generic" },
		"kv type":  func(m *measured) { m.KVType = "q8_0" },
	} {
		other := same
		change(&other)
		if got := other.read(file); got != nil {
			t.Errorf("another %s: read %v", name, got)
		}
	}
	for name, text := range map[string]string{
		"garbage":    "{",
		"no time":    `{"Costs":[{"Rows":1,"Context":1,"Time":0}]}`,
		"rows of -1": `{"Costs":[{"Rows":-1,"Context":1,"Time":5}]}`,
	} {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if got := (measured{}).read(file); got != nil {
			t.Errorf("%s: read %v", name, got)
		}
	}
	if costsFile("127.0.0.1:8453") != "" || (measured{}).write("") != nil || (measured{}).read("") != nil {
		t.Error("a process without a socket keeps costs")
	}
}
