package memory

import (
	"io/fs"
	"math"
	"os"
	"path"
	"slices"
	"strings"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/kernels"
	"golang.org/x/sys/unix"
)

// Available is how much more memory this process may take, and what sets that bound.
type Available struct {
	Bytes   int64
	By      string
	Machine bool // it is the whole machine's, which other programs use too
	Each    bool // bounds every process by itself, not all together
	Own     *Own // nil: the device has no memory of its own
}

// Own is how much of a device's own memory is free.
type Own struct {
	Bytes int64
	Of    string // the device's name
}

// On returns a with what is free of d's own memory. Errors: Unavailable, the device is lost.
func (a Available) On(d kernels.Device) (Available, error) {
	apart, ok := d.(kernels.MemoryOwner)
	if !ok {
		return a, nil
	}
	free, of, err := apart.Free()
	if err != nil {
		return a, tandem.Errorf("engine", tandem.Unavailable, "%w", err)
	}
	a.Own = &Own{free, of}
	return a, nil
}

// Fits returns Exhausted, with the figures, if p is more than is available.
func (a Available) Fits(name string, p Footprint) error {
	if p.Total() > a.Bytes {
		return tandem.Errorf("engine", tandem.Exhausted, "%s needs %s; %s allows %s", name, p, a.By, Bytes(max(0, a.Bytes)))
	}
	return a.FitsOwn(name+" needs "+p.OwnString(), p.Own.Total(p.Pages))
}

// FitsOwn returns Exhausted, which wraps *kernels.OutOfMemory, if more of the device's own memory is needed than is free. needs says who
// needs how much.
func (a Available) FitsOwn(needs string, bytes int64) error {
	if a.Own == nil || bytes <= a.Own.Bytes {
		return nil
	}
	return tandem.Errorf("engine", tandem.Exhausted, "%s of the GPU's memory: %w", needs,
		&kernels.OutOfMemory{Device: a.Own.Of, Wanted: bytes, Free: a.Own.Bytes})
}

// Free asks the system for the least of three: the machine's free memory (MemAvailable), what the
// process's control groups leave it, and its limit of address space.
func Free() Available {
	root := os.DirFS("/")
	a := availableIn(root)
	var limit unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_AS, &limit) == nil && limit.Cur != unix.RLIM_INFINITY {
		used, ok := number(root, "proc/self/statm")
		if left := int64(min(limit.Cur, math.MaxInt64)) - used*int64(os.Getpagesize()); ok && left < a.Bytes {
			a = Available{Bytes: left, By: "the limit of address space (ulimit -v)", Each: true}
		}
	}
	return a
}

// Total returns all memory of the machine, or the limit of the process's control groups if that is less.
func Total() Available {
	root := os.DirFS("/")
	a := Available{Bytes: math.MaxInt64, By: "this machine"}
	if b, err := fs.ReadFile(root, "proc/meminfo"); err == nil {
		if kib, ok := field(string(b), "MemTotal:"); ok && kib < math.MaxInt64>>10 {
			a.least(kib<<10, "this machine's memory")
		}
	}
	if n, ok := groupLimitIn(root); ok {
		a.least(n, "the limit of the control group")
	}
	return a
}

// availableIn reads Linux's proc and cgroup file systems under root.
func availableIn(root fs.FS) Available {
	a := Available{Bytes: math.MaxInt64, By: "this machine"}
	if b, err := fs.ReadFile(root, "proc/meminfo"); err == nil {
		if kib, ok := field(string(b), "MemAvailable:"); ok && kib < math.MaxInt64>>10 {
			a.least(kib<<10, "this machine's free memory (MemAvailable)")
		}
	}
	a.Machine = true
	b, err := fs.ReadFile(root, "proc/self/cgroup")
	if err != nil {
		return a
	}
	for line := range strings.Lines(string(b)) { // number:controllers:group
		parts := strings.SplitN(strings.TrimSpace(line), ":", 3)
		switch {
		case len(parts) != 3:
		case parts[0] == "0":
			a.bound(root, parts[2], groupFiles{"sys/fs/cgroup", "memory.max", "memory.current", ""})
		case slices.Contains(strings.Split(parts[1], ","), "memory"):
			a.bound(root, parts[2], groupFiles{"sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_"})
		}
	}
	return a
}

// groupFiles names the files of a cgroup version that describe memory.
type groupFiles struct {
	root         string
	most, now    string
	statsOfBelow string // prefix of the statistics that include the groups below
}

// bound lowers a to what a control group and its ancestors leave.
func (a *Available) bound(root fs.FS, group string, files groupFiles) {
	for ; ; group = path.Dir(group) {
		dir := path.Join(files.root, group)
		most, bounded := number(root, path.Join(dir, files.most))
		if now, known := number(root, path.Join(dir, files.now)); bounded && known {
			// The files are read one after the other: what can be dropped may seem to be more than what is used.
			used := now - min(now, reclaimable(root, dir, files.statsOfBelow))
			if left := most - used; left < a.Bytes {
				a.Bytes, a.By, a.Machine = left, "the control group "+group+" ("+files.most+")", false
			}
		}
		if group == "/" || group == "." || group == "" {
			return
		}
	}
}

// reclaimable returns the file pages that count as the group's memory but are dropped when memory is short. If they
// counted as used, every second start of a large model would be refused.
func reclaimable(root fs.FS, dir, prefix string) int64 {
	b, err := fs.ReadFile(root, dir+"/memory.stat")
	if err != nil {
		return 0
	}
	active, _ := field(string(b), prefix+"active_file ")
	inactive, _ := field(string(b), prefix+"inactive_file ")
	return active + inactive
}

func (a *Available) least(n int64, by string) {
	if n < a.Bytes {
		a.Bytes, a.By = n, by
	}
}
