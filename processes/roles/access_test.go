package roles

import (
	"os"
	"testing"
)

func TestReachable(t *testing.T) {
	name, err := os.Hostname()
	if err != nil {
		t.Skip(err)
	}
	for addr, want := range map[string]string{"127.0.0.1:5": "127.0.0.1:5", "unix:///a": "unix:///a", "host:9": "host:9",
		"0.0.0.0:7": name + ":7", "[::]:7": name + ":7"} {
		if got := Reachable(addr, nil); got != want {
			t.Errorf("%s is announced as %s: want %s", addr, got, want)
		}
	}
}
