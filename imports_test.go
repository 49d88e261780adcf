package tandem_test

import (
	"bytes"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

const module = "github.com/tandem-llm/tandem"

// rooms lists what the code of each room may import besides the standard library: other rooms by
// their folder, modules by their path. "." is package tandem. A folder that is not here belongs to the room around it.
// An import that is not here, and a folder without a room, fails the test: whoever wants the edge must add it here and say
// why in the commit.
var rooms = map[string][]string{
	".":    {},
	"spec": {"."},
	// what a pass computes, the definitions, and devices; only cmd and tests choose one
	"kernels":            {},
	"kernels/ref":        {},
	"kernels/ref/device": {"kernels", "kernels/ref"},
	"kernels/cpu":        {"kernels"},
	"kernels/cuda":       {"kernels", "kernels/ref", "kernels/cpu"}, // ref: takes rows of a file apart; cpu: computes beside the GPU
	"kernels/split":      {"kernels"},
	"kernels/layers":     {"kernels"},
	"kernels/sum":        {},
	"kernels/stream":     {"kernels", "kernels/sum", "golang.org/x/sys"}, // x/sys: reads past the page cache
	"kernels/cuda/gpu":   {"kernels/cuda", "gorgonia.org/cu"},
	// the rest is for tests alone; emulated maps memory that it shares with the process that runs the kernels
	"kernels/cuda/emulated": {"kernels/cuda", "golang.org/x/sys"},
	"kernels/cpu/peers":     {},
	"kernels/cpu/emulated":  {}, // an instruction
	"kernels/kerneltest":    {"kernels", "kernels/ref", "kernels/ref/device"},
	"kernels/replay":        {"kernels"}, // wrong results of a GPU, found and computed again
	"kernels/testdevice":    {"kernels", "kernels/cpu", "kernels/cuda", "kernels/cuda/emulated", "kernels/cuda/gpu", "kernels/ref/device"},

	// what --device names, opened: for the programs, which hand devices to everybody else
	"app/start": {".", "app/device", "app/find", "app/modelinfo", "app/terminal", "client", "engine", "gateway", "kernels", "kernels/cpu",
		"kernels/cuda", "kernels/cuda/gpu", "kernels/stream", "modelfile", "processes/cache", "processes/cache/packed",
		"processes/cache/prefixes", "processes/placement", "processes/profile", "processes/roles", "processes/roles/chats",
		"processes/roles/drafter", "processes/roles/gateway", "processes/roles/group", "processes/roles/pair", "processes/settings",
		"processes/settings/config", "services/peers/rpc", "services/peers/supervise", "services/public", "spec/learn", "spec/worth",
		"text/token"},
	"app/device": {".", "engine", "engine/memory", "kernels", "kernels/cpu", "kernels/cuda", "kernels/cuda/gpu", "kernels/layers",
		"kernels/split", "processes/roles"},

	// files in, files out; no pass
	"modelfile": {".", "kernels/ref", "golang.org/x/sys"},
	// models by name: asks servers, and checks what they send with the parser
	"modelfile/hub":         {".", "modelfile", "golang.org/x/sys"},
	"modelfile/hub/hubtest": {},
	// which tokens a draft can say is found with a tokenizer
	"modelfile/trim": {".", "modelfile", "text"},
	// what text is without a model
	"text":      {".", "modelfile", "golang.org/x/text"},         // x/text: Unicode's normal form C
	"text/chat": {".", "modelfile", "text", "golang.org/x/text"}, // x/text: upper and lower case as Unicode has them
	// what models write, taken apart: bytes in, pieces out
	"text/calls": {"text/grammar"},
	// which bytes and tokens may come next in a text that a schema or an expression describes
	"text/grammar": {"."},

	"engine": {".", "engine/blocks", "engine/guess", "engine/header", "engine/inspect", "engine/open", "engine/pass", "engine/plan",
		"engine/sequence", "kernels", "kernels/ref", "modelfile", "text", "golang.org/x/sys"}, // x/sys: the limit of address space
	// the steps of a model: what its files say, the plan of its passes, its weights in memory; sequences, and passes over them
	"engine/header": {".", "engine/arch", "engine/blocks", "engine/guess", "engine/tensors", "kernels", "kernels/ref", "modelfile",
		"text"},
	"engine/inspect": {".", "engine/blocks", "engine/header", "engine/plan", "engine/tensors", "kernels", "modelfile"},
	"engine/plan":    {".", "engine/blocks", "engine/header", "engine/memory", "engine/tensors", "kernels"},
	"engine/open": {".", "engine/guess", "engine/header", "engine/kv", "engine/memory", "engine/plan", "engine/tensors", "kernels",
		"modelfile", "golang.org/x/sys"}, // x/sys: seals of a memory file
	"engine/sequence": {".", "engine/blocks", "engine/guess", "engine/kv", "engine/plan", "kernels"},
	"engine/pass":     {".", "engine/guess", "engine/header", "engine/plan", "engine/sequence", "kernels", "kernels/ref", "modelfile"},
	// a file a family of architectures, what they share, and how weights are found in a file
	"engine/arch":    {".", "engine/blocks", "engine/tensors", "kernels", "modelfile"},
	"engine/blocks":  {".", "engine/tensors", "kernels", "modelfile"},
	"engine/tensors": {".", "kernels", "kernels/ref", "modelfile"},
	// for tests alone: models by their formulas, and what tests of passes share
	"engine/naive": {".", "kernels", "kernels/ref", "modelfile"},
	"engine/enginetest": {".", "engine", "engine/arch", "engine/blocks", "engine/tensors", "kernels", "kernels/cpu",
		"kernels/cuda/emulated", "kernels/layers", "kernels/split", "kernels/stream", "kernels/testdevice", "modelfile",
		"test/testkit/family"},
	"engine/guess": {".", "engine/arch", "engine/blocks", "engine/tensors", "kernels", "kernels/ref", "modelfile"},

	"schedule": {".", "spec/worth", "engine"},

	// the service, and the kinds of drafts
	"drafter": {".", "drafter/grow", "spec", "engine", "schedule", "text"},
	// what all kinds share; it knows none of them
	"drafter/grow": {".", "spec", "engine", "schedule"},
	// the drafter without a model
	"drafter/lookup": {".", "drafter/grow", "spec", "schedule"},
	"drafter/draftertest": {".", "drafter", "drafter/grow", "engine", "kernels", "kernels/testdevice", "modelfile", "test/testkit",
		"test/testkit/family",
		"go.uber.org/goleak"},
	"verifier": {".", "spec", "engine", "schedule", "text", "text/grammar", "verifier/disk"}, // text: what a constraint allows
	// long prefixes are kept in files, as bytes; it knows no sessions
	"verifier/disk": {".", "engine", "schedule", "processes/cache/prefixes"},
	"gateway":       {".", "spec", "text", "gateway/round", "gateway/source"},
	// a round is a value, and knows neither what drafts nor what carries it out
	"gateway/round":  {".", "spec", "gateway/strategy"},
	"gateway/source": {".", "spec", "gateway/peer", "gateway/roster", "gateway/round", "gateway/strategy", "text/grammar"},
	"test/mempool":   {"."},

	"proto": {"google.golang.org/grpc", "google.golang.org/protobuf"},
	// between processes of tandem
	"services/peers": {".", "proto", "services/peers/rpc", "services/peers/shm", "services/peers/trees", traceparent,
		"google.golang.org/grpc", "google.golang.org/protobuf"},
	// for clients. text/calls: answers hold calls and thoughts, which that leaf finds in what a model writes
	"services/public": {".", "proto", "services/peers/logs", "services/peers/rpc", "services/peers/wire", traceparent, "text/calls",
		"text/grammar",
		"google.golang.org/grpc",
		"google.golang.org/protobuf"},
	// the one place that knows how errors travel in a status
	"services/peers/rpc": {".", "proto", traceparent, "google.golang.org/grpc", "google.golang.org/protobuf", statusDetails},
	// bytes between processes of one host, and the trees among them: no wire but its encoding of a tree
	"services/peers/shm":   {".", "golang.org/x/sys"},
	"services/peers/trees": {".", "services/peers/shm", "services/peers/wire"},
	"services/peers/pool": {".", "services/peers", "services/peers/rpc", "services/peers/shm", "services/peers/trees",
		"github.com/nats-io"},
	"services/peers/discovery": {".", "proto", "services/peers", "services/peers/pool", "services/peers/rpc", "services/peers/shm",
		"google.golang.org/grpc",
		"google.golang.org/protobuf", "github.com/nats-io"},
	// what is measured and how it is shown is telemetry's alone
	// services/public: the description of all processes, as clients get it, is what the metrics show
	"services/peers/telemetry": {".", "services/peers", "services/public", traceparent, "google.golang.org/grpc", "go.opentelemetry.io",
		"github.com/prometheus"},
	traceparent:                {"go.opentelemetry.io/otel"},
	"services/peers/awake":     {"."},
	"services/peers/supervise": {".", "golang.org/x/sys"}, // how long a pass may take is one rule for it and the gateway
	"client":                   {"proto", "google.golang.org/grpc", statusDetails},

	// what every process has; the packages below it say what each kind consists of
	"processes/roles": {".", "engine", "kernels", "modelfile", "processes/profile", "processes/settings", "schedule", "services/peers",
		"services/peers/rpc", "services/peers/pool", "services/peers/shm",
		"services/peers/supervise", "services/peers/telemetry"},
	"processes/roles/drafter": {".", "processes/measure", "processes/profile", "processes/roles", "processes/settings", "drafter",
		"drafter/lookup", "engine", "text", "services/peers", "services/peers/discovery", "services/peers/pool", "services/peers/rpc",
		"services/peers/shm", "services/peers/trees"}, // shm: the verifier's, with features
	"processes/roles/verifier": {".", "processes/measure", "processes/cache/prefixes", "processes/roles", "processes/roles/drafter",
		"processes/settings", "verifier", "verifier/disk", "engine", "modelfile", "kernels", "processes/profile", "services/peers",
		"services/peers/discovery", "services/peers/pool", "services/peers/rpc", "services/peers/shm"}, // kernels: how a pass is divided
	"processes/roles/gateway": {".", "processes/roles", "processes/roles/chats", "processes/settings", "drafter/lookup", "gateway",
		"engine", "text", "services/peers", "services/peers/awake",
		"services/peers/discovery", "services/peers/pool", "services/peers/rpc", "services/peers/shm", "services/peers/supervise",
		"services/peers/telemetry", "services/peers/trees", "services/public", "spec/worth", "google.golang.org/grpc"},
	"processes/roles/chats": {".", "processes/roles", "modelfile", "text", "text/calls", "text/chat", "text/grammar", "services/public"},
	"processes/roles/pair": {".", "processes/roles", "processes/settings", "drafter", "drafter/lookup", "engine", "kernels",
		"modelfile", "text"},
	"processes/roles/group": {"services/peers/pool", "services/peers/supervise", "client", "proto"},
	"processes/roles/rolestest": {".", "processes/roles", "processes/roles/gateway", "processes/roles/drafter",
		"processes/roles/verifier", "processes/settings", "engine", "modelfile", "kernels/cpu",
		"services/peers", "services/public", "client", "proto"},

	// what computes is handed to them: threads, a model, a way to start processes
	"app/bench":        {".", "processes/measure", "app/bench/figures", "kernels", "engine"},
	"app/bench/system": {".", "app/bench/figures", "app/bench/prompts", "engine"},
	"app/bench/pair":   {".", "app/bench/figures", "app/bench/prompts"},
	"lab/arrows":       {"golang.org/x/tools/go/packages"}, // which files of a room use each other
	// devices beside each other: models compared bit for bit, and whole tandems
	// passes by the experts that they use, and divided between two devices
	"lab/passes":        {".", "processes/measure", "app/bench", "app/bench/figures", "engine", "kernels", "kernels/split"},
	"lab/devices":       {".", "lab/passes", "processes/measure", "app/bench/figures", "app/bench/prompts", "engine", "kernels/replay"},
	"app/bench/figures": {},
	"app/bench/prompts": {".", "test/testdata"},
	// the ways and drafters alone, in this process: a drafter grows the trees, package spec says what becomes of them
	"lab/guesses": {".", "processes/measure", "app/bench/figures", "app/bench/prompts", "drafter", "drafter/lookup", "test/mempool",
		"engine",
		"spec", "text"},
	// what a target computes over texts, as files; it is handed the device and what renders chats
	"app/states": {".", "processes/cache", "engine", "text"},
	// a model's name becomes a file
	"app/pull": {".", "app/modelinfo", "app/terminal", "engine", "engine/memory", "modelfile/hub", "processes/roles",
		"processes/settings"},
	"app/talk": {".", "client", "services/peers", "services/public"},
	// client: one set of words for why there is no connection
	"app/talk/status": {".", "client", "proto", "processes/roles/gateway", "processes/roles/verifier", "services/peers",
		"services/peers/rpc",
		"services/peers/telemetry", "app/terminal",
		"google.golang.org/grpc"},
	"app/talk/console": {".", "app/bench/figures", "app/terminal/editor", "client", "services/peers",
		"processes/settings", "app/talk", "app/terminal"},

	// every setting, by role: what the command line, files and child processes have in common. The strategies are listed in their help
	"processes/settings": {".", "gateway/strategy"},
	// reads settings from flags, TANDEM_…, --set and the file
	"processes/settings/config": {".", "processes/settings", "github.com/alecthomas/kong", "go.yaml.in/yaml"},

	// many boxes on one machine, disturbed on purpose: it starts programs, and knows of tandem what clients and operators know.
	// certificates are made by services/peers/rpc's package for tests; the NATS cluster lets in who has a group's secret
	"lab/campaign": {"lab/campaign/history", "client", "proto", "services/peers/rpc", "google.golang.org/grpc", "github.com/nats-io",
		"golang.org/x/sys"},
	// judges what was recorded; pure
	"lab/campaign/history": {},

	// programs that work with a model, and how each is told of a server
	"app/agents": {".", "client", "modelfile", "processes/roles/gateway"}, // the names of the gateway's counters

	"processes/cache":        {"."},
	"processes/cache/packed": {".", "processes/cache", "engine", "kernels/stream", "modelfile", "processes/roles", "app/terminal"},
	// pages of keys and values as files; knows neither models nor devices
	"processes/cache/prefixes": {".", "processes/cache"},
	// its tables are those of spec/shape, its divisions those that a device takes
	"processes/profile": {".", "spec/shape", "spec/worth", "modelfile", "kernels"},
	// what model info prints
	"app/modelinfo": {".", "app/bench/figures", "app/device", "drafter", "engine", "kernels", "kernels/cpu", "kernels/stream", "modelfile",
		"processes/roles", "processes/settings", "app/terminal"},
	// measures what a profile holds; and where a target and its drafts compute, by one
	// times of passes, as planners decide by them, and how close they come to the limits
	"processes/measure": {".", "engine", "kernels", "modelfile", "spec/worth"},
	"processes/profiler": {".", "processes/measure", "app/device", "drafter/lookup", "engine", "kernels", "kernels/cuda", "modelfile",
		"processes/placement",
		"processes/profile", "processes/roles",
		"processes/roles/group", "spec/shape", "spec/worth", "text"},
	// kernels/stream: how fast the disk is; processes/roles/pair: what it weighs drafts with
	"processes/placement": {".", "processes/measure", "app/device", "engine", "kernels", "kernels/cuda", "kernels/cuda/gpu",
		"kernels/stream", "modelfile",
		"processes/profile", "processes/roles",
		"processes/roles/pair", "spec/worth"},
	"app/demo":          {"."},
	"app/demo/expanded": {".", "processes/cache", "engine", "modelfile", "processes/roles", "app/terminal"},
	"modelfile/files":   {},
	"kernels/half":      {},
	"models":            {}, // the shipped models as bytes: whoever imports it is 38 MB larger
	// for the programs: where named and shipped files are, and how results look on a terminal
	"app/find": {".", "go.yaml.in/yaml", "engine", "gateway/strategy", "modelfile", "modelfile/hub", "models",
		"processes/roles", "processes/roles/drafter", "text"},
	"app/terminal":        {"engine", "processes/roles"},
	"app/terminal/editor": {".", "app/terminal", "golang.org/x/sys", "golang.org/x/term", "golang.org/x/text"}, // x/text: wide characters

	"cmd/tandem":         {"*"},
	"lab/cmd/tandem-lab": {"*"}, // but not cmd/tandem, which is a program
	"test":               {"*"},
	"test/testkit":       {},
	// tiny models of every architecture, written as files
	"test/testkit/family": {"modelfile", "kernels/ref"},
}

// everywhere are rooms for all others, like the standard library: how files are opened, and f16.
var everywhere = []string{"modelfile/files", "kernels/half"}

const (
	traceparent   = "services/peers/telemetry/traceparent"
	statusDetails = "google.golang.org/genproto/googleapis/rpc/errdetails" // of gRPC's statuses
)

// testOnly lists what test files of any room may import on top.
var testOnly = []string{"test/testkit", "test/testkit/family", "kernels/testdevice",
	"pgregory.net/rapid", "go.uber.org/goleak"}

// testsOf lists what test files of one room may import on top: those of a domain room may run the others with it in one process, but
// never the wire.
var testsOf = map[string][]string{"drafter": testsOfDrafts, "drafter/grow": testsOfDrafts, "drafter/lookup": {"drafter/draftertest"},
	"verifier":     slices.Concat(domain, []string{"processes/measure", "processes/cache/prefixes"}),
	"test/mempool": domain,
	"gateway":      slices.Concat(domain, []string{"text/chat"}),      // a real model is recorded as it is chatted with
	"text/grammar": {"text", "github.com/santhosh-tekuri/jsonschema"}, // real vocabularies; an independent validator
	"modelfile":    {"engine", "text"}, "app/bench/system": {"text"},
	"lab/devices": {"kernels", "kernels/cuda", "kernels/cuda/emulated"}, "lab/passes": {"kernels/cuda/emulated"},
	"kernels/cpu": {"kernels/cpu/peers", "kernels/cpu/emulated", "kernels/kerneltest", "kernels/ref"},
	"engine": {"engine/enginetest", "engine/naive", "engine/tensors", "kernels/cpu", "kernels/cuda/emulated", "kernels/kerneltest",
		"kernels/layers", "kernels/split", "kernels/stream", "golang.org/x/sys"}, // x/sys: a process that limits itself
	"engine/arch": {"engine", "engine/enginetest", "engine/naive", "kernels/cuda/emulated", "kernels/layers",
		"kernels/ref/device"},
	"engine/blocks":         {"engine", "engine/arch", "engine/enginetest", "engine/naive", "kernels/cpu"},
	"engine/guess":          {"engine", "engine/enginetest"},
	"kernels/cuda":          {"kernels/cuda/emulated", "kernels/kerneltest", "kernels/replay", "kernels/split"},
	"kernels/cuda/emulated": {"kernels/ref"},
	"kernels/split":         {"kernels/kerneltest", "kernels/cpu", "kernels/cuda/emulated"},
	"kernels/layers":        {"kernels/kerneltest", "kernels/cpu", "kernels/cuda/emulated"},
	"app/start":             {"github.com/alecthomas/kong"}, // reads flags
	"services/peers":        {"services/peers/pool", "services/public"}, "services/peers/discovery": {"services/peers/trees"},
	"client":                   {"google.golang.org/protobuf"},
	"modelfile/hub":            {"modelfile/hub/hubtest"},
	"app/pull":                 {"modelfile", "modelfile/hub/hubtest"},
	"processes/roles/verifier": {"kernels/split"},
	"processes/measure":        {"kernels/cpu", "kernels/cuda/emulated", "kernels/split", "kernels/stream"},
	// a model that many runs share; a streamed one
	"app/states":  {"processes/measure", "kernels", "kernels/cpu", "kernels/stream"},
	"lab/guesses": {"kernels", "kernels/split"}, // a target on two groups of cores
	"processes/roles/rolestest": {"google.golang.org/grpc", // which services a gateway has
		"processes/roles/pair", "kernels/cuda", "kernels/cuda/emulated", "kernels/layers", "kernels/split",
		"services/peers/discovery", "services/peers/pool", "services/peers/rpc", // what a verifier announces, and the call that drains it
		"kernels", "kernels/stream", // a target whose weights are streamed
		"app/device", "processes/placement", "processes/profile", // a target that is placed by measurement
		"modelfile/trim"},
	"processes/roles/pair": {"processes/roles/rolestest", "modelfile", "kernels/cpu", "kernels/stream"}}

var testsOfDrafts = []string{"drafter", "drafter/draftertest", "drafter/grow", "drafter/lookup", "kernels/cuda/emulated", "modelfile",
	"test/mempool"}

var domain = []string{"drafter", "drafter/lookup", "verifier", "gateway", "test/mempool", "engine", "modelfile", "modelfile/trim", "text"}

func TestImports(t *testing.T) {
	seen := map[string]bool{}
	err := filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && path != "." && (strings.HasPrefix(d.Name(), ".") || d.Name() == "tools" || d.Name() == "testdata"):
			return filepath.SkipDir
		case d.IsDir() || filepath.Ext(path) != ".go":
			return nil
		}
		room := roomOf(filepath.ToSlash(filepath.Dir(path)))
		seen[room] = true
		allowed, known := rooms[room]
		if !known {
			t.Errorf("%s: folder %q is no room: add it to rooms with what it may import", path, room)
			return nil
		}
		if strings.HasSuffix(path, "_test.go") {
			allowed = slices.Concat(allowed, testOnly, testsOf[room])
		}
		f, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.ImportsOnly)
		if err != nil {
			return err
		}
		for _, spec := range f.Imports {
			imported, err := strconv.Unquote(spec.Path.Value)
			if err != nil {
				return err
			}
			if !mayImport(room, imported, allowed) {
				t.Errorf("%s: %s must not import %s", path, room, imported)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for room := range rooms {
		if !seen[room] {
			t.Errorf("room %q has no Go file: is the test looking at the right folder?", room)
		}
	}
}

// roomOf returns the room that a folder belongs to: the innermost around it that has a list, else its topmost folder.
func roomOf(dir string) string {
	for {
		if _, own := rooms[dir]; own {
			return dir
		}
		i := strings.LastIndex(dir, "/")
		if i < 0 {
			return dir
		}
		dir = dir[:i]
	}
}

func mayImport(room, imported string, allowed []string) bool {
	if slices.Contains(everywhere, strings.TrimPrefix(imported, module+"/")) {
		return true
	}
	if imported == module {
		return room == "." || slices.Contains(allowed, ".") || slices.Contains(allowed, "*")
	}
	if rest, ours := strings.CutPrefix(imported, module+"/"); ours {
		to := roomOf(rest)
		if strings.HasPrefix(to, "cmd/") && to != room {
			return false // a program
		}
		return to == room || slices.Contains(allowed, to) || slices.Contains(allowed, rest) || slices.Contains(allowed, "*")
	}
	first, _, _ := strings.Cut(imported, "/")
	if !strings.Contains(first, ".") {
		return true // the standard library, and C
	}
	return slices.ContainsFunc(allowed, func(a string) bool {
		return a == "*" || imported == a || strings.HasPrefix(imported, a+"/")
	})
}

func TestImportRules(t *testing.T) {
	for _, tc := range []struct {
		room, imported string
		want           bool
	}{
		{"spec", "fmt", true},
		{"spec", module, true},
		{"spec", module + "/engine", false},
		{"kernels/cpu", "C", true},
		{"kernels", module, false},
		{"kernels", module + "/kernels/cpu", false},
		{"kernels/cpu", module + "/kernels", true},
		{"kernels/cpu", module + "/kernels/ref", false},
		{"engine", module + "/kernels/ref", true},
		{"engine", module + "/kernels/cpu", false},
		{"engine", module + "/kernels/ref/device", false},
		{"engine", module + "/kernels/testdevice", false},
		{"cmd/tandem", module + "/kernels/cpu", true},
		{"engine", module + "/engine/kv", true},
		{"text/chat", "gopkg.in/yaml.v3", false},
		{"text/chat", module + "/text/token", true},
		{"text/chat", module + "/engine/kv", false},
		{"gateway", module + "/text/chat", false},
		{"gateway/round", module + "/gateway/source", false},
		{"gateway/round", module + "/text/token", false},
		{"gateway/source", module + "/gateway", false},
		{"drafter", module + "/verifier", false},
		{"verifier/disk", module + "/verifier", false},
		{"verifier", module + "/processes/cache/prefixes", false},
		{"gateway", module + "/services/peers/pool", false},
		{"gateway", "google.golang.org/grpc", false},
		{"gateway", module + "/text/token", true},
		{"gateway", module + "/engine", false},
		{"gateway", module + "/engine/kv", false},
		{"drafter", module + "/text/token", true},
		{"services/peers", module + "/gateway", false},
		{"services/peers", module + "/engine", false},
		{"services/peers", "google.golang.org/grpc/codes", true},
		{"services/peers", "go.opentelemetry.io/otel/trace", false},
		{"services/peers", module + "/services/peers/telemetry", false},
		{"services/peers", module + "/" + traceparent, true},
		{"services/peers", "github.com/nats-io/nats.go", false},
		{"services/peers/pool", "github.com/nats-io/nats.go", true},
		{"services/peers/pool", module + "/services/peers/wire", true},
		{"services/peers/rpc", module + "/services/peers/wire", false},
		{"services/peers/telemetry", "go.opentelemetry.io/otel/trace", true},
		{"client", module, false},
		{"client", module + "/services/peers/rpc", false},
		{"client", "google.golang.org/protobuf/proto", false},
		{"app/bench/system", module + "/client", false},
		{"app/bench", module + "/cmd/tandem", false},
		{"lab/cmd/tandem-lab", module + "/cmd/tandem", false},
		{"lab/cmd/tandem-lab", module + "/kernels/cuda/gpu", true},
		{"services/peers/supervise", "google.golang.org/grpc", false},
		{"cmd/tandem", "github.com/alecthomas/kong", true},
	} {
		if got := mayImport(tc.room, tc.imported, rooms[tc.room]); got != tc.want {
			t.Errorf("%s importing %s: allowed %v, want %v", tc.room, tc.imported, got, tc.want)
		}
	}
}

// packed are data that tests read: what the shipped models and real pairs guess, which would take minutes to compute in every test, and
// what Jinja2, a Python program, makes of templates.
var packed = []string{"gateway/strategy/testdata/rounds.gz", "gateway/strategy/testdata/pair.gz", "gateway/strategy/testdata/poor.gz",
	"text/chat/testdata/jinja2.jsonl.gz"}

// TestNoBinaries keeps programs and libraries out of the repository: everything is built from source, but for packed.
func TestNoBinaries(t *testing.T) {
	magics := [][]byte{[]byte("\x7fELF"), []byte("MZ"), []byte("\xcf\xfa\xed\xfe"), []byte("!<arch>\n"), []byte("PK\x03\x04"),
		[]byte("\x1f\x8b")}
	for _, name := range tracked(t) {
		f, err := os.Open(name)
		if err != nil {
			continue // deleted, not yet committed
		}
		head := make([]byte, 8)
		n, _ := f.Read(head)
		f.Close()
		for _, m := range magics {
			if bytes.HasPrefix(head[:n], m) && !slices.Contains(packed, name) {
				t.Errorf("%s is a binary or an archive: build it instead", name)
			}
		}
	}
}
