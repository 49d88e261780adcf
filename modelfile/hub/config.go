package hub

import (
	"cmp"
	"os"
	"path/filepath"
	"strings"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/modelfile/files"
)

// Config says where models come from and where they lie.
type Config struct {
	HubCache string // the hub's cache, of all its clients
	Endpoint string // the hub's address, without a slash at its end
	Token    string // for the endpoint alone; "": none
	Offline  bool   // nothing is asked of any server

	Stores   []string // Ollama's stores, the first one is written to
	Registry string   // the address that Ollama's names without a host mean

	Own string // tandem's folder, for files from other addresses and for links to Ollama's files

	tune func(*session) // nil in the program: tests have less patience
}

const (
	defaultEndpoint = "https://huggingface.co"
	defaultRegistry = "https://registry.ollama.ai"
	systemStore     = "/usr/share/ollama/.ollama/models" // of Ollama's service on Linux
	maxToken        = 4 << 10                            // bytes of a token's file
)

// FromEnv returns what the variables of both programs say: HF_HUB_CACHE, HF_HOME, HF_ENDPOINT, HF_TOKEN (or the file that `hf auth login`
// writes), HF_HUB_OFFLINE, OLLAMA_MODELS, XDG_CACHE_HOME. own is tandem's folder. Errors: Invalid without a home folder.
func FromEnv(getenv func(string) string, own string) (Config, error) {
	home, err := os.UserHomeDir()
	if err != nil {
		return Config{}, tandem.Errorf(op, tandem.Invalid, "no home folder, in which models are kept: %w", err)
	}
	expand := func(path string) string {
		path = os.Expand(path, getenv)
		if rest, ok := strings.CutPrefix(path, "~/"); ok {
			path = filepath.Join(home, rest)
		}
		return path
	}
	hf := expand(cmp.Or(getenv("HF_HOME"), filepath.Join(cmp.Or(getenv("XDG_CACHE_HOME"), filepath.Join(home, ".cache")), "huggingface")))
	c := Config{
		HubCache: expand(cmp.Or(getenv("HF_HUB_CACHE"), getenv("HUGGINGFACE_HUB_CACHE"), filepath.Join(hf, "hub"))),
		Endpoint: strings.TrimRight(cmp.Or(getenv("HF_ENDPOINT"), defaultEndpoint), "/"),
		Token:    strings.TrimSpace(cmp.Or(getenv("HF_TOKEN"), getenv("HUGGING_FACE_HUB_TOKEN"))),
		Registry: defaultRegistry,
		Own:      own,
	}
	switch strings.ToLower(getenv("HF_HUB_OFFLINE")) {
	case "1", "true", "yes", "on":
		c.Offline = true
	}
	if c.Token == "" {
		b, err := files.ReadFile(expand(cmp.Or(getenv("HF_TOKEN_PATH"), filepath.Join(hf, "token"))), maxToken)
		if err == nil {
			c.Token = strings.TrimSpace(string(b))
		}
	}
	if strings.ContainsFunc(c.Token, func(r rune) bool { return r <= ' ' || r > '~' }) {
		return c, tandem.Errorf(op, tandem.Invalid, "the hub's token (HF_TOKEN or its file) has characters that no token has")
	}
	if store := getenv("OLLAMA_MODELS"); store != "" {
		c.Stores = append(c.Stores, expand(store))
	}
	c.Stores = append(c.Stores, filepath.Join(home, ".ollama", "models"), systemStore)
	return c, nil
}
