package pool

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/services/peers/rpc"
)

// TestPrefixKeys: the processes of a fleet have one key, however each was told of the pool; those of another have another; and without a
// secret there is none.
func TestPrefixKeys(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	secret := func(text string) *rpc.Secret {
		s, err := rpc.OpenSecret(write(text, text), nil)
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	one, two := secret("a-secret-of-a-fleet"), secret("secret-of-another-fleet")
	file := Access{File: write("pool", "nats://tok@127.0.0.1:4222")}
	none := tandem.PrefixKey{}
	of := Access{URL: "nats://127.0.0.1:4222", Token: "tok"}.PrefixKey(nil)
	for name, c := range map[string]struct {
		access Access
		fleet  *rpc.Secret
		want   tandem.PrefixKey
	}{
		"the server's own process":           {Access{URL: "nats://127.0.0.1:4222", Token: "tok"}, nil, of},
		"one with the server's file":         {file, nil, of},
		"one with the token in the URL":      {Access{URL: "nats://tok@box:4222"}, nil, of},
		"one with it in the second URL":      {Access{URL: "nats://box,nats://tok@box2:4222"}, nil, of},
		"the token before the user's secret": {Access{URL: "nats://tok@127.0.0.1:4222", Secret: two}, nil, of},
		"a secret file":                      {file, one, one.PrefixKey()},
		"the same elsewhere":                 {Access{URL: "nats://box:4222"}, one, one.PrefixKey()},
		"the server of a user's secret":      {Access{URL: "nats://127.0.0.1:4222", Token: "x", Secret: one}, nil, one.PrefixKey()},
		"a process of that user":             {Access{URL: "nats://127.0.0.1:4222", Secret: one}, nil, one.PrefixKey()},
		"nothing secret":                     {Access{URL: "nats://box:4222"}, nil, none},
		"a file that is not there":           {Access{File: filepath.Join(dir, "gone")}, nil, none},
	} {
		if got := c.access.PrefixKey(c.fleet); got != c.want {
			t.Errorf("%s: key %x, want %x", name, got, c.want)
		}
	}
	user := Access{URL: "nats://u:p@box"}.PrefixKey(nil)
	for name, other := range map[string]tandem.PrefixKey{"another secret": two.PrefixKey(), "a token": of, "a user": user, "none": none} {
		if other == one.PrefixKey() || name != "none" && other == none {
			t.Errorf("%s: key %x", name, other)
		}
	}
	if s, err := (ServerConfig{Secret: one}).Start(); err != nil {
		t.Fatal(err)
	} else {
		defer s.Close()
		if got := s.Access().PrefixKey(nil); got != one.PrefixKey() {
			t.Errorf("the server of a secret has key %x", got)
		}
	}
}
