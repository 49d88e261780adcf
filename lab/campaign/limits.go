package campaign

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// limits are control groups, one a box, with a memory limit that can be lowered. Both versions of control groups are known.
type limits struct {
	dir         string
	limit, used string // files
}

// newLimits makes a control group for the campaign. The error says why there can be none.
func newLimits() (*limits, error) {
	for _, version := range []limits{
		{dir: "/sys/fs/cgroup/memory", limit: "memory.limit_in_bytes", used: "memory.usage_in_bytes"},
		{dir: "/sys/fs/cgroup", limit: "memory.max", used: "memory.current"},
	} {
		l := version
		l.dir = filepath.Join(version.dir, fmt.Sprintf("tandem-campaign-%d", time.Now().UnixNano()))
		if err := os.Mkdir(l.dir, 0o755); err != nil {
			continue
		}
		if _, err := os.Stat(filepath.Join(l.dir, l.limit)); err == nil {
			return &l, nil
		}
		os.Remove(l.dir)
	}
	return nil, errors.New("no control group for memory can be made in /sys/fs/cgroup")
}

func (l *limits) box(n int) string { return filepath.Join(l.dir, fmt.Sprintf("box-%d", n)) }

// put puts a box's first process, and so all that it starts, into the box's group.
func (l *limits) put(n, pid int) error {
	if err := os.MkdirAll(l.box(n), 0o755); err != nil {
		return err
	}
	// a group's file wants the number that the reader of the file sees, which is the hub's
	return os.WriteFile(filepath.Join(l.box(n), "cgroup.procs"), []byte(strconv.Itoa(pid)), 0)
}

// lower sets a box's limit to what it uses and a margin.
func (l *limits) lower(n int, margin int64) error {
	text, err := os.ReadFile(filepath.Join(l.box(n), l.used))
	if err != nil {
		return err
	}
	used, err := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64)
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(l.box(n), l.limit), []byte(strconv.FormatInt(used+margin, 10)), 0)
}

// lift takes a box's limit away.
func (l *limits) lift(n int) error {
	err := os.WriteFile(filepath.Join(l.box(n), l.limit), []byte("-1"), 0)
	if err != nil {
		err = os.WriteFile(filepath.Join(l.box(n), l.limit), []byte("max"), 0)
	}
	return err
}

// remove removes the groups, once their processes are gone.
func (l *limits) remove() error {
	all, _ := filepath.Glob(filepath.Join(l.dir, "box-*"))
	var err error
	for range 50 {
		err = nil
		for _, g := range append(all, l.dir) {
			if e := os.Remove(g); e != nil && !errors.Is(e, os.ErrNotExist) {
				err = e
			}
		}
		if err == nil {
			break
		}
		time.Sleep(100 * time.Millisecond)
	}
	return err
}
