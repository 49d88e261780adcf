// Package memory says how much memory a model takes, how much this process may take, and what sets that bound.
package memory

import (
	"fmt"
	"io/fs"
	"math"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/kernels"
	"golang.org/x/sys/unix"
)

// Footprint is the memory that a model takes, in bytes. All of it is allocated at the start; of the KV cache a processor's system
// provides a page when it is first used. What passes take besides is small and part of ProcessBytes: see there.
type Footprint struct {
	Weights   int64 // repacked, with those of side files
	Beside    int64 // of Weights: those of side files, which stay in memory where the model's are streamed
	PageBytes int64 // of one page of the KV cache: kernels.PageRows positions, all layers
	Pages     int
	Scratch   int64         // buffers of the widest pass
	States    int64         // of recurrent layers: slots and records
	Own       kernels.Space // what is not the processor's memory but the device's own
	StatePlaces
}

// StatePlaces says what Footprint.States consists of: places for the states of recurrent layers, and for records of what a row puts into
// them. The zero value: the model has no recurrent layers.
type StatePlaces struct {
	Slots, Records         int   // how many of each
	SlotBytes, RecordBytes int64 // the size of one
}

// How many places a sequence gets.
const (
	SlotsEach   = 2  // its own, and one for a prefix
	RecordsEach = 32 // beside those of the rows of one pass
)

// placesOf returns the places in a cache of that shape.
func placesOf(s kernels.KVShape) StatePlaces {
	if len(s.States) == 0 {
		return StatePlaces{}
	}
	return StatePlaces{s.Slots, s.Records, s.SlotBytes(), s.RecordBytes()}
}

func (p StatePlaces) bytes() int64 {
	return int64(p.Slots)*p.SlotBytes + int64(p.Records)*p.RecordBytes
}

// Of returns the footprint of the model of that name, whose device needs that much for its passes, with so many pages of a cache of that
// shape. Errors: Exhausted for a cache that no machine has.
func Of(name string, need kernels.Footprint, kv kernels.KVShape, pages int) (Footprint, error) {
	for _, page := range []int64{need.Page, need.Own.Page} {
		if q := (Footprint{PageBytes: page, Pages: pages}); pages < 1 || pages > kernels.MaxPages || q.KV() > maxKV {
			return Footprint{}, tandem.Errorf("engine", tandem.Exhausted,
				"%s: KV cache of %d pages of %d bytes: want 1 to %d pages of less than 2^46 bytes in all",
				name, pages, page, kernels.MaxPages)
		}
	}
	return Footprint{Weights: need.Weights, PageBytes: need.Page, Pages: pages, Scratch: need.Buffers, Own: need.Own,
		States: need.States, StatePlaces: placesOf(kv)}, nil
}

// With returns p with what a side file takes beside the model.
func (p Footprint) With(side kernels.Footprint) Footprint {
	p.Weights += side.Weights
	p.Beside += side.Weights
	p.Scratch += side.Buffers
	p.Own.Weights += side.Own.Weights
	p.Own.Buffers += side.Own.Buffers
	return p
}

// For returns p with states for so many sequences.
func (p Footprint) For(sequences int) Footprint {
	had := p.StatePlaces.bytes()
	if had == 0 {
		return p
	}
	p.Records += RecordsEach * (sequences - p.Slots/SlotsEach)
	p.Slots = SlotsEach * sequences
	scale := float64(p.StatePlaces.bytes()) / float64(had)
	p.States, p.Own.States = int64(float64(p.States)*scale), int64(float64(p.Own.States)*scale)
	return p
}

// ProcessBytes is an estimate of what a process takes beside the model: its code and heap, the vocabulary, stacks, and the
// results of attention for each row and block of keys, which grow to the largest pass so far. It is no bound: wide passes over very
// long contexts take more.
const ProcessBytes = 64 << 20

// A larger KV cache is a mistake: no machine addresses as much.
const maxKV = 1 << 46

// KV returns the size of the KV cache, or a number beyond maxKV on overflow.
func (p Footprint) KV() int64 {
	if p.PageBytes > 0 && int64(p.Pages) > 2*maxKV/p.PageBytes {
		return 2 * maxKV
	}
	return int64(p.Pages) * p.PageBytes
}

// Total returns the bytes that the whole process takes, but for the device's own memory.
func (p Footprint) Total() int64 { return p.Model() + ProcessBytes }

// Model returns what the model takes of Total, in bytes.
func (p Footprint) Model() int64 { return p.Weights + p.KV() + p.States + p.Scratch }

// String returns the total and its parts in words.
func (p Footprint) String() string {
	return fmt.Sprintf("%s of memory (weights %s, KV cache %s%s, buffers %s, the process %s)", Bytes(p.Total()),
		Bytes(p.Weights), Bytes(p.KV()), statesString(p.States), Bytes(p.Scratch), Bytes(ProcessBytes))
}

func statesString(n int64) string {
	if n == 0 {
		return ""
	}
	return ", recurrent states " + Bytes(n)
}

// Bytes formats a size: "1.5 GiB".
func Bytes(n int64) string { return kernels.Bytes(n) }

// OwnString returns in words what p takes of the device's own memory.
func (p Footprint) OwnString() string {
	return fmt.Sprintf("%s (weights %s, KV cache %s%s, buffers %s)", Bytes(p.Own.Total(p.Pages)), Bytes(p.Own.Weights),
		Bytes(int64(p.Pages)*p.Own.Page), statesString(p.Own.States), Bytes(p.Own.Buffers))
}

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
