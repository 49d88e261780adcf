package main

import (
	"bufio"
	"io"
	"math"
	"net"
	"os"
	"strconv"
	"strings"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/files"
	"github.com/tandem-llm/tandem/roles"
	"github.com/tandem-llm/tandem/roles/chats"
	"github.com/tandem-llm/tandem/roles/gateway"
	"github.com/tandem-llm/tandem/services/access"
	"github.com/tandem-llm/tandem/services/httpapi"
)

// httpFlags say where and for whom a gateway serves HTTP.
type httpFlags struct {
	HTTP         string   `name:"http" help:"Address of the HTTP server, with OpenAI's API and the playground: host:port, unix:///path, or off." default:"127.0.0.1:8450" placeholder:"ADDR"`
	Host         string   `help:"Host of --http, in place of the one there." placeholder:"HOST" setting:"-"`
	Port         *int     `help:"Port of --http, in place of the one there." placeholder:"PORT" setting:"-"`
	APIKey       []string `name:"api-key" help:"Key of a client, sent as \"Authorization: Bearer KEY\" or \"X-Api-Key: KEY\"; may be repeated. Clients with different keys share no memory. Without any, everybody who can connect is let in. Others on this machine can read flags, but not TANDEM_API_KEY or --api-keys." placeholder:"KEY" sep:"none" secret:"x"`
	APIKeys      string   `name:"api-keys" help:"File with one key a line; empty lines and lines that begin with # are ignored." placeholder:"FILE"`
	MetricsKey   string   `help:"File with the only key that opens /metrics, for the collector; clients' keys, or no key, then do not." placeholder:"FILE"`
	AllowHost    []string `help:"Host name by which the HTTP server may be called, besides localhost and addresses; may be repeated. Checked only where a page of another host could get in: without keys." placeholder:"NAME" sep:"none"`
	CORSOrigin   []string `name:"cors-origin" help:"Origin of web pages that may use the HTTP server, such as https://chat.example.org; may be repeated. * lets all pages, and needs keys." placeholder:"ORIGIN" sep:"none"`
	Alias        []string `help:"Further name of the model in /v1/models; may be repeated. Requests may use any name; answers say the model's own." placeholder:"NAME" sep:"none"`
	StrictFields bool     `help:"Refuse fields of requests that have no effect, and names of models that are not listed, instead of ignoring them."`
	ChatTemplate string   `help:"File with the Jinja template of chats, for a model that has none or a wrong one." placeholder:"FILE"`

	ChatTemplateKwargs string `help:"Variables of the chat template where a request has none, as {\"enable_thinking\": false}." placeholder:"JSON"`
}

const (
	maxKeyFile = 1 << 20 // bytes of a file of keys
	leastKey   = 16      // characters of a key: shorter ones are used, with a warning
)

// tokens returns the keys of the clients. Errors: Invalid.
func (f httpFlags) tokens() ([]string, error) {
	all := append([]string{}, f.APIKey...)
	if f.APIKeys == "" {
		return all, nil
	}
	more, err := readKeys("--api-keys", f.APIKeys)
	return append(all, more...), err
}

// warn says which keys can be guessed, without showing them, and which files of keys other users can read. A secret of Docker or Kubernetes
// is such a file, and keys of a few characters are used on many loopback addresses, so neither is refused.
func (f httpFlags) warn(say func(format string, args ...any)) {
	if keys, err := f.tokens(); err == nil {
		for i, k := range keys {
			if len(k) < leastKey {
				say("key %d of %d has %d characters and can be guessed: better %d or more, as of 'openssl rand -hex 16'", i+1, len(keys),
					len(k), leastKey)
			}
		}
	}
	for _, file := range [][2]string{{"--api-keys", f.APIKeys}, {"--metrics-key", f.MetricsKey}} {
		if st, err := os.Stat(file[1]); file[1] != "" && err == nil && st.Mode().Perm()&0o044 != 0 {
			say("%s %q has mode %04o: other users of this machine can read the keys (chmod 600)", file[0], file[1], st.Mode().Perm())
		}
	}
}

// readKeys returns the keys in the file that a flag names, at least one.
func readKeys(flag, path string) ([]string, error) {
	file, err := files.Open(path)
	if err != nil {
		return nil, tandem.Errorf("", tandem.Invalid, "%s %s: %w", flag, path, roles.Reason(err))
	}
	defer file.Close()
	if st, err := file.Stat(); err == nil && st.Mode().Perm()&0o022 != 0 {
		return nil, tandem.Errorf("", tandem.Invalid,
			"%s %s has mode %04o: others can write their own keys into it: want 0600 (chmod 600)", flag, path,
			st.Mode().Perm())
	}
	var all []string
	lines := bufio.NewScanner(io.LimitReader(file, maxKeyFile))
	for lines.Scan() {
		if line := strings.TrimSpace(lines.Text()); line != "" && !strings.HasPrefix(line, "#") {
			all = append(all, line)
		}
	}
	if err := lines.Err(); err != nil {
		return nil, tandem.Errorf("", tandem.Invalid, "%s %s: %w", flag, path, roles.Reason(err))
	}
	if len(all) == 0 {
		return nil, tandem.Errorf("", tandem.Invalid, "%s %s: holds no key", flag, path)
	}
	return all, nil
}

// metricsKeys returns the only keys that open the metrics; nil: those of the clients do.
func (f httpFlags) metricsKeys() (*access.Keys, error) {
	if f.MetricsKey == "" {
		return nil, nil
	}
	tokens, err := readKeys("--metrics-key", f.MetricsKey)
	if err != nil {
		return nil, err
	}
	return access.New(tokens)
}

// keys returns the same, ready to be compared; nil for none.
func (f httpFlags) keys() (*access.Keys, error) {
	tokens, err := f.tokens()
	if err != nil {
		return nil, err
	}
	return access.New(tokens)
}

// check refuses now what the gateway, a child process, would refuse later.
func (f httpFlags) check() error {
	keys, err := f.keys()
	if err != nil {
		return err
	}
	if err := httpapi.CheckNames(f.CORSOrigin, f.Alias, keys != nil); err != nil {
		return err
	}
	if _, err := f.metricsKeys(); err != nil {
		return err
	}
	return chats.Check(f.ChatTemplate, f.ChatTemplateKwargs)
}

// settle puts --host and --port into --http.
func (f *httpFlags) settle() error {
	if f.Host == "" && f.Port == nil {
		return nil
	}
	host, port, err := net.SplitHostPort(f.HTTP)
	if err != nil || strings.HasPrefix(f.HTTP, "unix:") {
		return tandem.Errorf("", tandem.Invalid, "--host or --port with --http %s: want them with a host and a port there",
			or(f.HTTP, gateway.NoHTTP))
	}
	if f.Host != "" {
		host = strings.TrimSuffix(strings.TrimPrefix(f.Host, "["), "]")
	}
	if f.Port != nil {
		if *f.Port < 0 || *f.Port > math.MaxUint16 {
			return tandem.Errorf("", tandem.Invalid, "--port is %d: want 0 to %d", *f.Port, math.MaxUint16)
		}
		port = strconv.Itoa(*f.Port)
	}
	f.HTTP, f.Host, f.Port = net.JoinHostPort(host, port), "", nil
	return nil
}

// args returns these flags for a child process; its keys are in keyFile, because anybody can read flags.
func (f httpFlags) args(keyFile string) []string {
	args := []string{"--http", or(f.HTTP, gateway.NoHTTP)}
	if keyFile != "" {
		args = append(args, "--api-keys", keyFile)
	}
	if f.MetricsKey != "" {
		args = append(args, "--metrics-key", f.MetricsKey)
	}
	for _, list := range []struct {
		flag   string
		values []string
	}{{"--allow-host", f.AllowHost}, {"--cors-origin", f.CORSOrigin}, {"--alias", f.Alias}} {
		for _, value := range list.values {
			args = append(args, list.flag+"="+value)
		}
	}
	if f.StrictFields {
		args = append(args, "--strict-fields")
	}
	if f.ChatTemplate != "" {
		args = append(args, "--chat-template", f.ChatTemplate)
	}
	if f.ChatTemplateKwargs != "" {
		args = append(args, "--chat-template-kwargs", f.ChatTemplateKwargs)
	}
	return args
}

// writeKeys writes the keys to path for a child; "" if there are none.
func (f httpFlags) writeKeys(path string) (string, error) {
	tokens, err := f.tokens()
	if err != nil || len(tokens) == 0 {
		return "", err
	}
	return path, os.WriteFile(path, []byte(strings.Join(tokens, "\n")+"\n"), 0o600)
}

// url returns the HTTP server's URL; the flag itself for a socket, "" if HTTP is off.
func (f httpFlags) url() string {
	switch {
	case f.HTTP == "" || f.HTTP == gateway.NoHTTP:
		return ""
	case strings.HasPrefix(f.HTTP, "unix://"):
		return f.HTTP
	case strings.HasPrefix(f.HTTP, ":"):
		return "http://127.0.0.1" + f.HTTP
	}
	return "http://" + f.HTTP
}
