// Package hub finds, fetches, lists and removes model files by name. It keeps no store of its own where others have one: files of the
// Hugging Face hub lie in that hub's own cache, and models of Ollama's registry in Ollama's own store. So what another program has fetched
// is found here, and what is fetched here is found there. Only files from other addresses lie in tandem's folder.
//
// A Name is what the user has written. Choose says which of several files it means. Config says where models lie: Find looks there without
// asking a server, Plan asks the server which files there are, Fetch fetches them. A session is one server over HTTP, and a transfer is one
// file on its way.
//
// These hold whatever a server answers and whenever a process is killed:
//
//  1. A file has its name in a store when its bytes have the digest that the server names, are a GGUF file, and are on the disk. Before,
//     they are in a file that ends in .incomplete.
//  2. What of an unfinished file is right is known from checksums, not from its length.
//  3. Nothing is written outside of the store's folder, whatever names and links say.
//  4. The user's token goes to the configured endpoint alone. A redirect leads to no private address unless the endpoint is on one itself.
package hub

import (
	"net/url"
	"os"
	"path"
	"regexp"
	"strings"

	"github.com/tandem-llm/tandem"
)

const op = "hub"

// Source says where the models of a name come from.
type Source string

const (
	Hugging Source = "hf"     // a repository of the Hugging Face hub
	Ollama  Source = "ollama" // a model of Ollama's registry, or of another that speaks its protocol
	Web     Source = "url"    // one GGUF file at an address
	File    Source = "file"   // a file or a folder of this machine
)

// Name is a model's name, taken apart. Its parts can be used as names of files.
type Name struct {
	Source Source

	// Of Hugging.
	Org, Repo string
	Revision  string // "main" unless the name says another
	Quant     string // such as Q4_K_M; "": chosen (Choose)
	Path      string // of Hugging: a file in the repository, in place of Quant; of File: the path

	// Of Ollama.
	Scheme, Host          string // "" and "": the configured registry
	Namespace, Model, Tag string

	URL string // of Web
}

const (
	mainRevision = "main"
	library      = "library"
	latest       = "latest"
)

// Forms says which names there are, for messages.
const Forms = "hf:ORG/REPO[:QUANT], a name of Ollama's such as qwen3:0.6b, https://….gguf, or a file or folder"

var (
	plainPart  = regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9._-]{0,95}$`)
	hostPart   = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9.-]{0,252}(:[0-9]{1,5})?$`)
	commitPart = regexp.MustCompile(`^[0-9a-f]{40}$`)
)

// wrong returns the error of a name that cannot be used.
func wrong(text, why string) error {
	const most = 200
	if len(text) > most {
		text = text[:most] + "…"
	}
	return tandem.Errorf(op, tandem.Invalid, "the name %q: %s: want %s", text, why, Forms)
}

// IsPath reports whether text means a file or folder of this machine, there or not: it begins like a path, ends in .gguf without a scheme,
// or something of that name is there.
func IsPath(text string) bool {
	for _, begin := range []string{"/", "./", "../", "~/", "builtin:"} {
		if strings.HasPrefix(text, begin) {
			return true
		}
	}
	switch {
	case text == "" || text == "." || text == "..":
		return true
	case strings.Contains(text, "://") || strings.HasPrefix(text, "hf:") || strings.HasPrefix(text, "hf.co/") ||
		strings.HasPrefix(text, "huggingface.co/"):
		return false
	case strings.HasSuffix(strings.ToLower(text), ".gguf"):
		return true
	}
	_, err := os.Stat(text)
	return err == nil
}

// Parse takes a name apart. endpoint is the address of the hub (Config.Endpoint), whose files may be named by their addresses. Errors:
// Invalid, with what would be right.
func Parse(text, endpoint string) (Name, error) {
	if IsPath(text) {
		return Name{Source: File, Path: text}, nil
	}
	return parse(text, endpoint)
}

// ParseOf is Parse for a name that a client has sent: it looks for no file, and the name must be of the configured hub or registry. Errors:
// Invalid.
func (c Config) ParseOf(text string) (Name, error) {
	n, err := parse(text, c.Endpoint)
	if err == nil && (n.Source == Web || n.Source == Ollama && c.registry(n) != c.registry(Name{})) {
		err = tandem.Errorf(op, tandem.Invalid, "the name %q: clients may name models of %s and %s alone", n, c.Endpoint,
			c.registry(Name{}))
	}
	if n.Source == Ollama {
		n.Host, n.Scheme = "", "" // one model has one name
	}
	return n, err
}

// parse takes a name apart that is no path.
func parse(text, endpoint string) (Name, error) {
	for _, begin := range []string{"hf:", "hf.co/", "huggingface.co/"} {
		if rest, ok := strings.CutPrefix(text, begin); ok {
			return parseHugging(text, strings.TrimPrefix(rest, "//"))
		}
	}
	if strings.Contains(text, "://") {
		return parseURL(text, endpoint)
	}
	return parseOllama(text, "", text)
}

// parseHugging reads ORG/REPO[@REVISION][:QUANT or :FILE.gguf].
func parseHugging(text, rest string) (Name, error) {
	n := Name{Source: Hugging, Revision: mainRevision}
	id, quant, named := strings.Cut(rest, ":")
	id, revision, at := strings.Cut(id, "@")
	org, repo, ok := strings.Cut(id, "/")
	n.Org, n.Repo = org, repo
	switch {
	case !ok || !part(org) || !part(repo) || strings.Contains(id, "--"):
		return n, wrong(text, "a repository has the form ORG/REPO, of letters, digits, '-', '_' and '.'")
	case at && !part(revision):
		return n, wrong(text, "a revision is a branch, a tag or a commit, without slashes")
	case named && strings.HasSuffix(strings.ToLower(quant), ".gguf"):
		if !inside(quant) {
			return n, wrong(text, "the file must be one of the repository")
		}
		n.Path = quant
	case named && !part(quant):
		return n, wrong(text, "a quantisation has the form Q4_K_M")
	default:
		n.Quant = quant
	}
	if at {
		n.Revision = revision
	}
	return n, nil
}

// parseURL reads the address of a file, or of a model in a registry.
func parseURL(text, endpoint string) (Name, error) {
	u, err := url.Parse(text)
	switch {
	case err != nil || u.Host == "" || u.User != nil || !hostPart.MatchString(u.Host) && !strings.HasPrefix(u.Host, "["):
		return Name{}, wrong(text, "the address cannot be read")
	case u.Scheme != "https" && u.Scheme != "http":
		return Name{}, wrong(text, "the scheme is "+u.Scheme)
	}
	if !strings.HasSuffix(strings.ToLower(u.Path), ".gguf") {
		if u.RawQuery != "" || u.Fragment != "" || strings.Count(strings.Trim(u.Path, "/"), "/") > 1 {
			return Name{}, wrong(text, "the address is not that of a GGUF file")
		}
		return parseOllama(text, u.Scheme, u.Host+strings.TrimSuffix(u.Path, "/"))
	}
	if n, ok := inRepository(u, endpoint); ok {
		return n, nil
	}
	if base := path.Base(u.Path); !part(base) {
		return Name{}, wrong(text, "the file's name has other characters than letters, digits, '-', '_' and '.'")
	}
	u.Fragment = ""
	return Name{Source: Web, URL: u.String()}, nil
}

// inRepository returns the name of a hub's file by its address ENDPOINT/ORG/REPO/resolve/REVISION/FILE.gguf; ok is false for others.
func inRepository(u *url.URL, endpoint string) (n Name, ok bool) {
	hub, err := url.Parse(endpoint)
	parts := strings.SplitN(strings.TrimPrefix(u.Path, "/"), "/", 5)
	if err != nil || u.Host != hub.Host || u.Scheme != hub.Scheme || len(parts) < 5 || parts[2] != "resolve" && parts[2] != "blob" {
		return n, false
	}
	n = Name{Source: Hugging, Org: parts[0], Repo: parts[1], Revision: parts[3], Path: parts[4]}
	return n, part(n.Org) && part(n.Repo) && part(n.Revision) && inside(n.Path) && !strings.Contains(n.Org+n.Repo, "--")
}

// parseOllama reads [host/][namespace/]model[:tag].
func parseOllama(text, scheme, rest string) (Name, error) {
	n := Name{Source: Ollama, Scheme: scheme, Namespace: library, Tag: latest}
	parts := strings.Split(rest, "/")
	last := len(parts) - 1
	model, tag, tagged := strings.Cut(parts[last], ":")
	if n.Model = model; tagged {
		n.Tag = tag
	}
	switch {
	case last > 2:
		return n, wrong(text, "it has too many slashes")
	case last == 2 || last == 1 && scheme != "":
		n.Host = parts[0]
		if last == 2 {
			n.Namespace = parts[1]
		}
	case last == 1:
		n.Namespace = parts[0]
	}
	switch {
	case n.Host != "" && (!hostPart.MatchString(n.Host) || strings.Contains(n.Host, "..")):
		return n, wrong(text, "a host has the form registry.example or registry.example:5000")
	case !part(n.Namespace) || !part(n.Model):
		return n, wrong(text, "a model's name consists of letters, digits, '-', '_' and '.'")
	case !part(n.Tag):
		return n, wrong(text, "a tag consists of letters, digits, '-', '_' and '.'")
	}
	return n, nil
}

// part reports whether s can be one part of a name, and so a file's name.
func part(s string) bool { return plainPart.MatchString(s) && !strings.Contains(s, "..") }

// inside reports whether p is a path below a folder, each of its parts a file's name.
func inside(p string) bool {
	if p == "" || len(p) > 512 {
		return false
	}
	for _, name := range strings.Split(p, "/") {
		wrong := func(r rune) bool { return r < ' ' || r == 0x7f || r == '\\' }
		if name == "" || strings.HasPrefix(name, ".") || strings.ContainsFunc(name, wrong) {
			return false
		}
	}
	return true
}

// String returns the name as a user writes it, in its shortest form.
func (n Name) String() string {
	switch n.Source {
	case Hugging:
		s := "hf:" + n.Org + "/" + n.Repo
		if n.Revision != mainRevision {
			s += "@" + n.Revision
		}
		if n.Quant+n.Path != "" {
			s += ":" + n.Quant + n.Path
		}
		return s
	case Ollama:
		s := n.Model + ":" + n.Tag
		if n.Namespace != library || n.Host != "" {
			s = n.Namespace + "/" + s
		}
		if n.Host != "" {
			s = n.Host + "/" + s
		}
		if n.Scheme != "" {
			s = n.Scheme + "://" + s
		}
		return s
	case Web:
		return n.URL
	}
	return n.Path
}
