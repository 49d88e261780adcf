package memory

import (
	"io/fs"
	"math"
	"os"
	"path"
	"slices"
	"strings"
)

// GroupLimit returns the lowest memory limit, in bytes, of this process's control groups and their ancestors; false if
// there is none.
func GroupLimit() (bytes int64, ok bool) { return groupLimitIn(os.DirFS("/")) }

// groupLimitIn is GroupLimit with the file system's root at root.
func groupLimitIn(root fs.FS) (bytes int64, ok bool) {
	b, err := fs.ReadFile(root, "proc/self/cgroup")
	if err != nil {
		return 0, false
	}
	least := int64(math.MaxInt64)
	for line := range strings.Lines(string(b)) { // number:controllers:group
		parts := strings.SplitN(strings.TrimSpace(line), ":", 3)
		file := ""
		switch {
		case len(parts) != 3:
			continue
		case parts[0] == "0":
			file = "sys/fs/cgroup%/memory.max"
		case slices.Contains(strings.Split(parts[1], ","), "memory"):
			file = "sys/fs/cgroup/memory%/memory.limit_in_bytes"
		default:
			continue
		}
		for group := path.Clean("/" + parts[2]); ; group = path.Dir(group) {
			name := strings.Replace(file, "%", strings.TrimSuffix(group, "/"), 1)
			if n, bounded := number(root, name); bounded {
				least = min(least, n)
			}
			if group == "/" {
				break
			}
		}
	}
	return least, least < 1<<62 // version 1 says "none" with a number
}
