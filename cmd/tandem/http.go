package main

import (
	"bufio"
	"fmt"
	"io"
	"math"
	"net"
	"os"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"github.com/alecthomas/kong"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/modelfile/files"
	"github.com/tandem-llm/tandem/processes/roles"
	"github.com/tandem-llm/tandem/processes/roles/chats"
	"github.com/tandem-llm/tandem/processes/roles/gateway"
	"github.com/tandem-llm/tandem/processes/settings"
	"github.com/tandem-llm/tandem/processes/settings/config"
	"github.com/tandem-llm/tandem/services/public/access"
	"github.com/tandem-llm/tandem/services/public/httpapi"
)

// httpFlags say where and for whom a gateway serves HTTP.
type httpFlags struct{ settings.Web }

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
	return access.Follow(f.MetricsKey, func() ([]string, error) { return readKeys("--metrics-key", f.MetricsKey) })
}

// keys returns the clients' keys, ready to be compared; nil for none. A file of them may be replaced.
func (f httpFlags) keys() (*access.Keys, error) {
	if f.APIKeys != "" {
		return access.Follow(f.APIKeys, f.tokens)
	}
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

// oneAddress refuses --host and --port beside an --http of the same command line that names another host or port. They override that of
// the environment or the file, as all flags do. Errors: Invalid.
func oneAddress(ctx *kong.Context, from *config.Resolver) error {
	said := map[string]string{}
	for _, f := range ctx.Flags() {
		if o := from.Origin(ctx, f); slices.Contains([]string{"http", "host", "port"}, f.Name) && (o == "flag" || o == "--set") {
			said[f.Name] = fmt.Sprint(reflect.Indirect(reflect.ValueOf(ctx.FlagValue(f))))
		}
	}
	host, port, err := net.SplitHostPort(said["http"])
	if err != nil {
		return nil // not there, or settle and the listener say what is wrong with it
	}
	at := map[string]string{"host": host, "port": port}
	for _, name := range []string{"host", "port"} {
		if other, ok := said[name]; ok && at[name] != "" && strings.Trim(other, "[]") != at[name] {
			at[name] = strings.Trim(other, "[]")
			return tandem.Errorf("", tandem.Invalid, "--%s %s with --http %s: want one of them, as in --http %s", name, other, said["http"],
				net.JoinHostPort(at["host"], at["port"]))
		}
	}
	return nil
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
