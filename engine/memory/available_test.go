package memory

import (
	"math"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/tandem-llm/tandem"
)

func TestAvailableMemory(t *testing.T) {
	const kib = 1 << 10
	for name, c := range map[string]struct {
		files map[string]string
		want  int64
		by    string
	}{
		"nothing known":  {nil, math.MaxInt64, "this machine"},
		"machine":        {map[string]string{"proc/meminfo": "MemTotal: 9 kB\nMemAvailable:    1000 kB\n"}, 1000 * kib, "MemAvailable"},
		"no such figure": {map[string]string{"proc/meminfo": "MemAvailable: many\n"}, math.MaxInt64, "this machine"},
		"own group": {map[string]string{"proc/meminfo": "MemAvailable: 1000 kB\n", "proc/self/cgroup": "0::/a/b\n",
			"sys/fs/cgroup/a/b/memory.max": "5000\n", "sys/fs/cgroup/a/b/memory.current": "2000\n"}, 3000, "control group /a/b"},
		"group above": {map[string]string{"proc/self/cgroup": "1:name=x:/y\n0::/a/b\n", "sys/fs/cgroup/a/b/memory.max": "max\n",
			"sys/fs/cgroup/a/b/memory.current": "1",
			"sys/fs/cgroup/a/memory.max":       "9000", "sys/fs/cgroup/a/memory.current": "1000"}, 8000, "control group /a "},
		"cached files give way": {map[string]string{"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/memory.max": "9000",
			"sys/fs/cgroup/memory.current": "8000",
			"sys/fs/cgroup/memory.stat":    "anon 1\nactive_file 2000\ninactive_file 3000\n"}, 6000, "control group /"},
		"version 1": {map[string]string{"proc/self/cgroup": "9:cpu,memory:/a\n1:name=systemd:/x\n0::/\n",
			"sys/fs/cgroup/memory/a/memory.limit_in_bytes": "9000",
			"sys/fs/cgroup/memory/a/memory.usage_in_bytes": "8000",
			"sys/fs/cgroup/memory/a/memory.stat":           "active_file 1\ntotal_active_file 500\ntotal_inactive_file 200\n",
			"sys/fs/cgroup/memory/memory.limit_in_bytes":   "9223372036854771712", "sys/fs/cgroup/memory/memory.usage_in_bytes": "1"}, 1700,
			"control group /a "},
		"version 1 in a container": {map[string]string{"proc/self/cgroup": "9:memory:/docker/abc\n",
			"sys/fs/cgroup/memory/memory.limit_in_bytes": "9000",
			"sys/fs/cgroup/memory/memory.usage_in_bytes": "1000"}, 8000, "control group / "},
		"more cached than used, without a limit": {map[string]string{"proc/self/cgroup": "9:memory:/\n",
			"proc/meminfo": "MemAvailable: 5 kB\n", "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712",
			"sys/fs/cgroup/memory/memory.usage_in_bytes": "1000000",
			"sys/fs/cgroup/memory/memory.stat":           "total_active_file 1000000\ntotal_inactive_file 8192\n"}, 5 << 10,
			"MemAvailable"},
		"beyond its bound": {map[string]string{"proc/self/cgroup": "0::/", "sys/fs/cgroup/memory.max": "10",
			"sys/fs/cgroup/memory.current": "30"}, -20, "control group /"},
	} {
		root := fstest.MapFS{}
		for path, text := range c.files {
			root[path] = &fstest.MapFile{Data: []byte(text)}
		}
		if got := availableIn(root); got.Bytes != c.want || !strings.Contains(got.By, c.by) {
			t.Errorf("%s: %+v: want %d by %q", name, got, c.want, c.by)
		}
	}
	if a := Free(); a.Bytes < 1<<20 || a.By == "" {
		t.Errorf("this machine: %+v", a)
	}
}

func TestFootprint(t *testing.T) {
	p := Footprint{Weights: 1 << 30, PageBytes: 1 << 20, Pages: 512, Scratch: 1 << 20}
	err := (Available{Bytes: 1 << 30, By: "the test"}).Fits("m.gguf", p)
	if tandem.KindOf(err) != tandem.Exhausted {
		t.Fatalf("error %v: want Exhausted", err)
	}
	for _, part := range []string{"m.gguf needs 1.6 GiB of memory", "weights 1.0 GiB", "KV cache 512.0 MiB", "buffers 1.0 MiB",
		"the test allows 1.0 GiB"} {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("error %q does not say %q", err, part)
		}
	}
	if err := (Available{Bytes: p.Total(), By: "the test"}).Fits("m.gguf", p); err != nil {
		t.Error(err)
	}
	if kv := (Footprint{PageBytes: 1 << 52, Pages: math.MaxInt}).KV(); kv <= maxKV {
		t.Errorf("a cache beyond all bounds has %d bytes", kv)
	}
}
