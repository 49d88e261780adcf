package start

import (
	"bufio"
	"cmp"
	"io"
	"net"
	"os"
	"strings"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/client"
	"github.com/tandem-llm/tandem/modelfile/files"
	"github.com/tandem-llm/tandem/processes/roles"
	"github.com/tandem-llm/tandem/processes/roles/chats"
	"github.com/tandem-llm/tandem/processes/settings"
	"github.com/tandem-llm/tandem/services/peers/rpc"
	"github.com/tandem-llm/tandem/services/public/access"
	"github.com/tandem-llm/tandem/services/public/httpapi"
)

const (
	maxKeyFile = 1 << 20 // bytes of a file of keys
	leastKey   = 16      // characters of a key: shorter ones are used, with a warning
)

// Tokens returns the keys of the clients: those of the flag, then those of the file. Errors: as ReadKeys.
func Tokens(f settings.Web) ([]string, error) {
	all := append([]string{}, f.APIKey...)
	if f.APIKeys == "" {
		return all, nil
	}
	more, err := ReadKeys("--api-keys", f.APIKeys)
	return append(all, more...), err
}

// WarnOfKeys says which keys can be guessed, without showing them, and which files of keys other users can read. A secret of Docker or
// Kubernetes is such a file, and keys of a few characters are used on many loopback addresses, so neither is refused.
func WarnOfKeys(f settings.Web, say Say) {
	if keys, err := Tokens(f); err == nil {
		for i, k := range keys {
			if len(k) < leastKey {
				say("key %d of %d has %d characters and can be guessed: better %d or more, as of 'openssl rand -hex 16'", i+1, len(keys),
					len(k), leastKey)
			}
		}
	}
	for _, file := range [][2]string{{"--api-keys", f.APIKeys}, {"--metrics-key", f.MetricsKey}, {"--pull-key", f.PullKey}} {
		if st, err := os.Stat(file[1]); file[1] != "" && err == nil && st.Mode().Perm()&0o044 != 0 {
			say("%s %q has mode %04o: other users of this machine can read the keys (chmod 600)", file[0], file[1], st.Mode().Perm())
		}
	}
}

// ReadKeys returns the keys in the file at path, at least one; flag is for messages. Errors: Invalid, also if others can write the file.
func ReadKeys(flag, path string) ([]string, error) {
	file, err := files.Open(path)
	if err != nil {
		return nil, tandem.Errorf("", tandem.Invalid, "%s %s: %w", flag, path, files.Reason(err))
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
		return nil, tandem.Errorf("", tandem.Invalid, "%s %s: %w", flag, path, files.Reason(err))
	}
	if len(all) == 0 {
		return nil, tandem.Errorf("", tandem.Invalid, "%s %s: holds no key", flag, path)
	}
	return all, nil
}

// MetricsKeys returns the only keys that open the metrics, from a file that may be replaced; nil: the clients' keys do.
func MetricsKeys(f settings.Web) (*access.Keys, error) { return only("--metrics-key", f.MetricsKey) }

// PullKeys returns the only keys with which clients may fetch and remove models; nil: everybody may who can connect. Errors: Invalid, also
// for clients with keys none of which was given this right.
func PullKeys(f settings.Web) (*access.Keys, error) {
	switch {
	case f.AllowPull == nil && f.PullKey != "":
		return nil, tandem.Errorf("", tandem.Invalid,
			"--pull-key without --allow-pull: want how much may be pulled, as in --allow-pull 20GiB")
	case f.AllowPull != nil && f.PullKey == "" && (len(f.APIKey) > 0 || f.APIKeys != ""):
		return nil, tandem.Errorf("", tandem.Invalid, "--allow-pull for clients with keys: want --pull-key FILE, with the keys that may")
	}
	return only("--pull-key", f.PullKey)
}

// only returns the keys in the file of a flag, nil without a file.
func only(flag, path string) (*access.Keys, error) {
	if path == "" {
		return nil, nil
	}
	return access.Follow(path, func() ([]string, error) { return ReadKeys(flag, path) })
}

// Keys returns the clients' keys, ready to be compared; nil: there are none. Their file may be replaced while the gateway runs.
func Keys(f settings.Web) (*access.Keys, error) {
	if f.APIKeys != "" {
		return access.Follow(f.APIKeys, func() ([]string, error) { return Tokens(f) })
	}
	tokens, err := Tokens(f)
	if err != nil {
		return nil, err
	}
	return access.New(tokens)
}

// CheckWeb returns now the error that the gateway, a child process, would have later: for keys, names or chat templates.
func CheckWeb(f settings.Web) error {
	keys, err := Keys(f)
	if err != nil {
		return err
	}
	if err := httpapi.CheckNames(f.CORSOrigin, f.Alias, keys != nil); err != nil {
		return err
	}
	if _, err := MetricsKeys(f); err != nil {
		return err
	}
	if _, err := PullKeys(f); err != nil {
		return err
	}
	return chats.Check(f.ChatTemplate, f.ChatTemplateKwargs)
}

// Dialing returns the options with which a client reaches a gateway at addr by that certificate; none if addr is a loopback address or
// there is no certificate. Errors: those of loading it.
func Dialing(c settings.Certificate, addr string) ([]client.Option, error) {
	certificate, err := roles.TLSFiles(c).Load()
	if err != nil || certificate == nil || rpc.Loopback(addr) {
		return nil, err
	}
	return []client.Option{client.WithTLS(certificate.Client())}, nil
}

// FixedPort returns addr with a port that is free now in place of port 0, so that a restarted gateway listens where the one before
// did. Other faults of addr are left to the listener to report.
func FixedPort(addr string) (string, error) {
	host, port, err := net.SplitHostPort(addr)
	if err != nil || port != "0" || strings.HasPrefix(addr, "unix:") {
		return addr, nil
	}
	l, err := net.Listen("tcp", net.JoinHostPort(cmp.Or(host, "127.0.0.1"), port))
	if err != nil {
		return addr, nil
	}
	defer l.Close()
	_, port, err = net.SplitHostPort(l.Addr().String())
	return net.JoinHostPort(host, port), err
}

// FreePort returns addr, or addr with port 0, for a port that the system chooses, if its own cannot be listened on.
func FreePort(addr string) string {
	l, err := net.Listen("tcp", addr)
	if err == nil {
		l.Close()
		return addr
	}
	if host, _, wrong := net.SplitHostPort(addr); wrong == nil {
		return net.JoinHostPort(host, "0")
	}
	return addr // refused later
}
