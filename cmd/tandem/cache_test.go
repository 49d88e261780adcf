package main

import (
	"bytes"
	"encoding/json"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/processes/cache/prefixes"
	"github.com/tandem-llm/tandem/processes/settings"
	"github.com/tandem-llm/tandem/services/public/access"
)

// TestCacheOfTenants: the cache commands list what tenants have on disk, by names that tell nothing of keys, and remove one tenant's files
// by such a name, by its key or by a file of keys; or all.
func TestCacheOfTenants(t *testing.T) {
	const mine, theirs, others = "my-key-0123456789", "their-key-0123456789", "the-others-key-0123456789"
	folder := settings.CacheFolder{CacheDir: settings.CacheDir{Cache: t.TempDir()}, CacheLimit: 1 << 30}
	files, err := prefixes.Open(prefixes.Config{Dir: filepath.Join(folder.Cache, "prefixes"), Limit: 1 << 30, Model: "m", Page: 64,
		Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	tenant := func(key string) string {
		if key == "" {
			return ""
		}
		k, err := access.New([]string{key})
		if err != nil {
			t.Fatal(err)
		}
		return k.Tenants()[0]
	}
	name := map[string]string{}
	for _, key := range []string{"", mine, theirs, others} {
		of := files.Tenant(tenant(key))
		folders, err := prefixes.Folders(filepath.Join(folder.Cache, "prefixes"), []string{tenant(key)})
		if err != nil {
			t.Fatal(err)
		}
		name[key] = folders[0]
		if err := of.Write(of.Names(make([]tandem.Token, 64))[0], prefixes.Page, make([]byte, 100), 0, time.Now()); err != nil {
			t.Fatal(err)
		}
	}
	run := func(command func(*app) error) string {
		var out bytes.Buffer
		if err := command(&app{stdout: &out, stderr: &out, ctx: t.Context()}); err != nil {
			t.Error(err)
		}
		return out.String()
	}
	left := func(keys ...string) {
		t.Helper()
		out := run((&cacheListCmd{CacheFolder: folder}).Run)
		for key, folder := range name {
			want := false
			for _, k := range keys {
				want = want || k == key
			}
			if strings.Contains(out, folder) != want || key != "" && strings.Contains(out, key) {
				t.Errorf("left are those of %q; listed: %s", keys, out)
			}
		}
	}
	clearing := cacheClearCmd{CacheFolder: folder}
	left("", mine, theirs, others)
	byKey := clearing
	byKey.Tenant = []string{mine}
	if out := run(byKey.Run); !strings.HasPrefix(out, "removed 1, ") {
		t.Errorf("by key: %s", out)
	}
	left("", theirs, others)
	byName := clearing
	byName.Tenant, byName.JSON = []string{name[theirs]}, true
	var result cacheResult
	if err := json.Unmarshal([]byte(run(byName.Run)), &result); err != nil || len(result.RemovedPrefixes) != 1 ||
		result.RemovedPrefixes[0].Tenant != name[theirs] {
		t.Errorf("by name: %+v, %v", result, err)
	}
	left("", others)
	byFile := clearing
	byFile.APIKeys = filepath.Join(t.TempDir(), "keys")
	if err := os.WriteFile(byFile.APIKeys, []byte(others+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	run(byFile.Run)
	left("")
	run(clearing.Run)
	left()
}
