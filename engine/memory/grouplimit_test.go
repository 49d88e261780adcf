package memory

import (
	"testing"
	"testing/fstest"
)

func TestGroupLimit(t *testing.T) {
	for name, c := range map[string]struct {
		files map[string]string
		want  int64 // 0 for none
	}{
		"nothing known": {nil, 0},
		"unbounded":     {map[string]string{"proc/self/cgroup": "0::/a\n", "sys/fs/cgroup/a/memory.max": "max\n"}, 0},
		"own group":     {map[string]string{"proc/self/cgroup": "0::/a/b\n", "sys/fs/cgroup/a/b/memory.max": "5000\n"}, 5000},
		"a group above": {map[string]string{"proc/self/cgroup": "1:name=x:/y\n0::/a/b/c\n",
			"sys/fs/cgroup/a/b/c/memory.max": "9000", "sys/fs/cgroup/a/b/memory.max": "max", "sys/fs/cgroup/a/memory.max": "7000"}, 7000},
		"a container": {map[string]string{"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/memory.max": "536870912\n"}, 536870912},
		"version 1": {map[string]string{"proc/self/cgroup": "9:cpu,memory:/a\n1:name=systemd:/x\n",
			"sys/fs/cgroup/memory/a/memory.limit_in_bytes": "9000", "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712"},
			9000},
		"version 1, none": {map[string]string{"proc/self/cgroup": "9:memory:/\n",
			"sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712"}, 0},
		"version 1 in a container": {map[string]string{"proc/self/cgroup": "9:memory:/docker/abc\n0::/\n",
			"sys/fs/cgroup/memory/memory.limit_in_bytes": "8000"}, 8000},
		"above its own name space": {map[string]string{"proc/self/cgroup": "0::/../b\n", "sys/fs/cgroup/memory.max": "10",
			"sys/fs/cgroup/b/memory.max": "20"}, 10},
		"nonsense": {map[string]string{"proc/self/cgroup": "0::\nx\n", "sys/fs/cgroup/memory.max": "-1"}, 0},
	} {
		root := fstest.MapFS{}
		for path, text := range c.files {
			root[path] = &fstest.MapFile{Data: []byte(text)}
		}
		if got, ok := groupLimitIn(root); ok != (c.want > 0) || ok && got != c.want {
			t.Errorf("%s: %d, %v: want %d", name, got, ok, c.want)
		}
	}
}
