package memory

import (
	"io/fs"
	"math"
	"os"
	"path"
	"slices"
	"strconv"
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

// lineAfter returns the rest of the line that begins with prefix.
func lineAfter(text, prefix string) (string, bool) {
	for line := range strings.Lines(text) {
		if rest, ok := strings.CutPrefix(line, prefix); ok {
			return strings.TrimSpace(rest), true
		}
	}
	return "", false
}

// field returns the number after prefix.
func field(text, prefix string) (int64, bool) {
	rest, ok := lineAfter(text, prefix)
	if !ok {
		return 0, false
	}
	return first(rest)
}

// number returns the first number in a file; none for "max".
func number(root fs.FS, name string) (int64, bool) {
	b, err := fs.ReadFile(root, name)
	if err != nil {
		return 0, false
	}
	return first(string(b))
}

func first(s string) (int64, bool) {
	words := strings.Fields(s)
	if len(words) == 0 {
		return 0, false
	}
	n, err := strconv.ParseInt(words[0], 10, 64)
	return n, err == nil && n >= 0
}
