package main

import (
	"errors"
	"slices"
	"strings"

	"github.com/alecthomas/kong"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/processes/settings"
	"github.com/tandem-llm/tandem/processes/settings/config"
)

// elsewhere are the names of other programs for what tandem calls otherwise.
var elsewhere = map[string][]string{
	"download": {"pull"}, "get": {"pull"}, "models": {"list"}, "delete": {"rm"},
	"serve": {"up"}, "server": {"up"}, "start": {"up"}, "chat": {"run"}, "complete": {"generate"},
	"--ctx-size": {"--ctx"}, "-c": {"--ctx"}, "--max-model-len": {"--ctx"}, "--context-length": {"--ctx"},
	"--threads": {"--verifier-threads", "--threads"}, "-t": {"--verifier-threads", "--threads"},
	"--parallel":     {"--sessions"},
	"-np":            {"--sessions"},
	"--max-num-seqs": {"--sessions"},
	"--model-draft":  {"--draft"},
	"-md":            {"--draft"},
	"--n-predict":    {"--max-tokens"}, "-n": {"--max-tokens"}, "--predict": {"--max-tokens"}, "-p": {"--prompt"}, "-f": {"--prompt-file"},
	"--api-key-file": {"--api-keys"}, "--served-model-name": {"--alias"}, "--allowed-origins": {"--cors-origin"}, "--mlock": {"--lock"},
	"--cache-type-k": {"--kv-type"}, "--cache-type-v": {"--kv-type"}, "--chat-template-file": {"--chat-template"},
	"--n-gpu-layers": {"--gpu-memory"},
	"--gpu-layers":   {"--gpu-memory"},
	"--temp":         {"--temperature"},
	"--verbose":      {"--log-level"},
	"-v":             {"--log-level"},
	"--ssl-key-file": {"--tls-key"}, "--ssl-cert-file": {"--tls-cert"}, "--ssl-keyfile": {"--tls-key"}, "--ssl-certfile": {"--tls-cert"},
	"--gpu-memory-utilization": {"--gpu-memory"},
	"--draft-max":              {"--tree"},
	"--draft-n":                {"--tree"},
	"--num-speculative-tokens": {"--tree"},
}

const (
	noStore = "tandem keeps no store of its own: models are files in the hub's cache and in Ollama's store (`tandem list`)"
	byName  = "a model's name says that: -m hf:ORG/REPO:QUANT, as of `tandem pull`"
	inFile  = "tandem takes that from the model's file"
	always  = "tandem does that without a flag"
)

// peers are words of Ollama, llama.cpp's server and vLLM for what tandem has no word for, with a sentence each.
var peers = map[string]string{
	"cp":     noStore,
	"push":   noStore + ", and tandem uploads nothing",
	"create": noStore + ": there is no Modelfile, and `tandem config` prints settings to begin with",
	"stop":   "Ctrl-C or SIGTERM ends `tandem up` and all its processes; `tandem drain` lets one finish its sessions first",
	"load":   "`tandem up --target FILE` loads a model and serves it",
	"unload": "a model is in memory as long as its `tandem up` runs: end that",
	"status": "`tandem ps` lists the processes, `tandem health` asks whether they serve",
	"info":   "`tandem model info FILE` describes a model",
	"help":   "`tandem --help` lists the commands, `tandem COMMAND --help` their flags",
	"signin": "there are no accounts", "login": "there are no accounts", "signout": "there are no accounts",
	"embed":        "`tandem up` serves embeddings at /v1/embeddings (docs/guides/embed.md)",
	"quantize":     "`tandem model quantize` stores a model's weights as another type",
	"convert":      "`tandem model import` reads published heads and drafts; weights come as GGUF files (docs/guides/models.md)",
	"llama-server": "`tandem up` serves a model",
	"llama-cli":    "`tandem run` chats in the terminal",
	"llama-bench":  "`tandem bench` measures speed",
	"--hf-repo":    byName, "-hf": byName, "--hf-file": byName, "--model-url": byName,
	"--flash-attn":    always,
	"-fa":             always,
	"--cont-batching": always,
	"-cb":             always,
	"--jinja":         always,
	"--slots":         always,
	"--embedding":     always,
	"--embeddings":    always, "--enable-prefix-caching": always, "--enable-auto-tool-choice": always, "--enable-chunked-prefill": always,
	"--metrics": "`tandem up --http` has /metrics without a flag", "--dtype": inFile, "--quantization": inFile, "--rope-scaling": inFile,
	"--tool-call-parser": inFile, "--reasoning-parser": inFile,
	"--no-mmap": "--lock keeps weights in memory, --memory-budget streams what does not fit", "--mmproj": "tandem reads no pictures",
	"--tensor-parallel-size": "a model is on one device, and with --gpu-memory its other layers on the processor",
	"--lora":                 "tandem reads no adapters: merge it into the model's weights",
	"--enable-lora":          "tandem reads no adapters: merge it into the model's weights",
	"--keep-alive":           "a model is in memory as long as its `tandem up` runs",
	"--system-prompt":        "a client says it, as the first message",
}

// inLab are commands that were moved to tandem-lab.
var inLab = []string{"bench devices", "bench experts", "bench guesses", "bench kernels", "bench split", "trace"}

// movedToLab says which command of the lab does what one of tandem did.
func movedToLab(old, command string) error {
	return tandem.Errorf("", tandem.Invalid, "%s is for tandem's developers, and not in this program: in a checkout, "+
		"go build -C lab -o .. ./cmd/tandem-lab, then ./tandem-lab %s", old, command)
}

// plainly returns the error of a wrong command line. An unknown command or flag is answered with the nearest one.
func plainly(err error) error {
	var p *kong.ParseError
	if !errors.As(err, &p) || p.Context == nil {
		return err
	}
	node := p.Context.Model.Node
	if at := p.Context.Selected(); at != nil {
		node = at
	}
	if word, ok := wrongWord(err, "unknown flag "); ok {
		var known []string
		for _, f := range knownFlags(node) {
			known = append(known, "--"+f.Name)
		}
		return tandem.Errorf("", tandem.Invalid, "unknown flag %s%s", word, suggestion(word, known, "`"+strings.TrimSpace(node.FullPath())+
			" --help` lists the flags"))
	}
	if word, ok := wrongWord(err, "unexpected argument "); ok {
		if command := strings.TrimPrefix(node.FullPath()+" "+word, "tandem "); slices.Contains(inLab, command) {
			return movedToLab("tandem "+command, command)
		}
		var known []string
		for _, c := range node.Children {
			if !c.Hidden {
				known = append(known, c.Name)
			}
		}
		if len(known) == 0 {
			return tandem.Errorf("", tandem.Invalid, "unexpected argument %q: `%s` takes flags alone", word, node.FullPath())
		}
		return tandem.Errorf("", tandem.Invalid, "unknown command %q%s", word, suggestion(word, known, "`"+node.FullPath()+
			" --help` lists the commands"))
	}
	return err
}

// knownFlags returns the flags of a command, with those that its help leaves out as few need them.
func knownFlags(node *kong.Node) (known []*kong.Flag) {
	for _, group := range node.AllFlags(false) {
		for _, f := range group {
			if _, ok := settings.Find(f.Name); ok || !f.Hidden {
				known = append(known, f)
			}
		}
	}
	return known
}

// wrongWord returns the word that an error of kong blames.
func wrongWord(err error, prefix string) (string, bool) {
	rest, ok := strings.CutPrefix(err.Error(), prefix)
	word, _, _ := strings.Cut(rest, ", did you mean")
	return word, ok
}

// suggestion names the known word that is nearest to a wrong one, or says what lists them all.
func suggestion(word string, known []string, otherwise string) string {
	for _, name := range elsewhere[word] {
		if slices.Contains(known, name) {
			return ": did you mean " + name + "?"
		}
	}
	if says := peers[word]; says != "" {
		return ": " + says
	}
	if near := config.Nearest(word, known); near != "" {
		return ": did you mean " + near + "?"
	}
	return "; " + otherwise
}
