package test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tandem-llm/tandem/test/testkit"
	"github.com/tandem-llm/tandem/test/testkit/family"
)

// packing is a command that packs the shipped target in little memory, in the process that is started.
func (w *world) packing() []string {
	return []string{"bench", "decode", "--width", "1", "--context", "16", "--memory-budget", w.leastOf("bench", "decode")}
}

// disk returns an empty folder on a disk: what lies in memory is not read as from a disk.
func disk(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		t.Fatal(err)
	}
	if st.Type == unix.TMPFS_MAGIC || st.Type == unix.RAMFS_MAGIC {
		t.Skipf("needs a temporary folder on a disk, and %s is in memory: set TMPDIR", dir)
	}
	return dir
}

// mount mounts something on a new folder until the test ends, or skips the test.
func mount(t *testing.T, source, kind string, flags uintptr, options string) string {
	t.Helper()
	dir := t.TempDir()
	if err := syscall.Mount(source, dir, kind, flags, options); err != nil {
		t.Skipf("needs the right to mount %s: %v", kind, err)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(dir, 0); err != nil {
			t.Error(err)
		}
	})
	return dir
}

// goldenStart is a generation whose text is the start of the golden one.
var goldenStart = []string{"generate", "--prompt", "func (r *Reader) Read(", "--max-tokens", "24"}

// streamed checks that goldenStart ran with a streamed target and wrote what it should, and that what it told contains says.
func streamed(t *testing.T, e ended, says ...string) {
	t.Helper()
	golden, err := os.ReadFile(readmeGolden)
	if err != nil {
		t.Fatal(err)
	}
	text := strings.TrimSuffix(e.stdout, "\n")
	if e.code != 0 || len(text) < 40 || !strings.HasPrefix(string(golden), text) {
		t.Errorf("exit code %d, %q, %q: want the start of the golden text", e.code, e.stdout, e.stderr)
	}
	for _, part := range append(says, "are read by each pass", "passes/s") {
		if !strings.Contains(e.stderr, part) {
			t.Errorf("stderr %q: want %q", e.stderr, part)
		}
	}
}

// TestKilledWhilePacking: of a process that is killed while it packs nothing is believed, and nothing is left after the next start.
func TestKilledWhilePacking(t *testing.T) {
	mayBeSlow(t)
	t.Parallel()
	w, dir := newWorld(t), disk(t)
	args := append(w.packing(), "--cache", dir)
	unfinished := func() []string {
		found, _ := filepath.Glob(filepath.Join(dir, "packed", "*", "part"))
		return found
	}
	for begun := time.Now(); len(unfinished()) == 0; {
		if time.Since(begun) > 20*time.Second {
			t.Fatal("no process was killed while it packed")
		}
		if err := os.RemoveAll(filepath.Join(dir, "packed")); err != nil {
			t.Fatal(err)
		}
		cmd := w.command(t.Context(), args...)
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		for end := time.Now().Add(5 * time.Second); len(unfinished()) == 0 && time.Now().Before(end); {
			time.Sleep(time.Millisecond)
		}
		time.Sleep(10 * time.Millisecond)
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}
	e := w.run(append(goldenStart, "--memory-budget", w.leastBudget(), "--cache", dir)...)
	streamed(t, e, "packed gopher-19m-q8_0 for streaming")
	left, err := os.ReadDir(filepath.Dir(packed(t, dir)))
	if err != nil || len(left) != 3 { // with the lock and the description
		t.Errorf("%v, %v beside the packed file", err, left)
	}
}

// TestNoPlaceForPacking: with a full disk, a folder that cannot be written, and one in memory, it is said that there is no packed file
// and why, nothing is left, and the text is right.
func TestNoPlaceForPacking(t *testing.T) {
	mayBeSlow(t)
	t.Parallel()
	for name, tc := range map[string]struct {
		place func(t *testing.T) string
		says  string
	}{
		"full": {func(t *testing.T) string {
			image := filepath.Join(t.TempDir(), "image")
			script := fmt.Sprintf("truncate -s 24M %[1]s && mkfs.ext4 -q -F %[1]s && losetup --find --show %[1]s", image)
			out, err := exec.Command("sh", "-c", script).Output()
			if err != nil {
				t.Skipf("needs mkfs.ext4 (apt-get install e2fsprogs) and a loop device for a small disk: %v", err)
			}
			device := strings.TrimSpace(string(out))
			t.Cleanup(func() { _ = exec.Command("losetup", "--detach", device).Run() })
			return mount(t, device, "ext4", 0, "")
		}, "must stay free), and the disk of"},
		"read-only": {func(t *testing.T) string {
			dir := t.TempDir()
			place := mount(t, dir, "", syscall.MS_BIND, "")
			if err := syscall.Mount("", place, "", syscall.MS_REMOUNT|syscall.MS_BIND|syscall.MS_RDONLY, ""); err != nil {
				t.Skipf("needs the right to mount a folder read-only: %v", err)
			}
			return place
		}, "cannot be written: read-only file system"},
		"memory": {func(t *testing.T) string { return mount(t, "tmpfs", "tmpfs", 0, "size=256m") },
			"is itself in memory, where the copy would take"},
	} {
		t.Run(name, func(t *testing.T) {
			w, place := newWorld(t), tc.place(t)
			e := w.run(append(goldenStart, "--memory-budget", w.leastBudget(), "--cache", place)...)
			streamed(t, e, "no packed copy of the target can be kept", tc.says, "packed anew by every pass")
			e = w.run(append(w.packing(), "--cache", place)...)
			if e.code != 1 || !strings.Contains(e.stderr, "there is no packed file to measure the disk with") {
				t.Errorf("bench decode: exit code %d, %q: want that there is no packed file", e.code, e.stderr)
			}
			if found, _ := filepath.Glob(filepath.Join(place, "packed", "*")); len(found) > 0 {
				t.Errorf("left behind: %v", found)
			}
		})
	}
}

// controlGroup makes a control group of version 1 under a controller, or skips the test, and returns its folder.
func controlGroup(t *testing.T, controller string) string {
	t.Helper()
	dir := filepath.Join("/sys/fs/cgroup", controller, fmt.Sprintf("tandem-test-%d-%d", os.Getpid(), time.Now().UnixNano()))
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Skipf("needs a control group (version 1) for %s: %v", controller, err)
	}
	t.Cleanup(func() {
		testkit.Eventually(t, "the control group to be empty", func() bool {
			return os.Remove(dir) == nil
		})
	})
	return dir
}

func put(t *testing.T, dir, file, value string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(dir, file), []byte(value), 0); err != nil {
		t.Skipf("%s cannot be set to %q: %v", filepath.Join(dir, file), value, err)
	}
}

// bytesRead is how much a process has read from disks.
func bytesRead(t *testing.T, pid int) (n int64) {
	t.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/io", pid))
	_, rest, found := strings.Cut(string(b), "\nread_bytes: ")
	if _, bad := fmt.Sscan(rest, &n); err != nil || !found || bad != nil {
		t.Skipf("%v, %q: this system does not tell what a process reads", err, b)
	}
	return n
}

// TestSlowDisk: a disk that becomes a thousand times as slow as it was measured slows passes and nothing else: the verifier lives, and
// the tokens are right. Then the verifier is killed: another goes on with the same file.
func TestSlowDisk(t *testing.T) {
	mayBeSlow(t)
	t.Parallel()
	group, dir := controlGroup(t, "blkio"), disk(t)
	var st unix.Stat_t
	if err := unix.Stat(dir, &st); err != nil {
		t.Fatal(err)
	}
	device := fmt.Sprintf("%d:%d", unix.Major(st.Dev), unix.Minor(st.Dev))
	limit := func(rate int) {
		put(t, group, "blkio.throttle.read_bps_device", fmt.Sprintf("%s %d", device, rate))
	}
	limit(1 << 20)
	g := up(t, "--sessions", "1", "--memory-budget", newWorld(t).leastBudget("--sessions", "1"), "--cache", dir)
	request, tokens := hangs(), 60
	request.MaxTokens = &tokens
	want := g.run(t, request).tokens
	before := g.w.one(t, "verifier")
	slow := func() {
		put(t, group, "cgroup.procs", strconv.Itoa(before))
		time.Sleep(500 * time.Millisecond) // for reads that had begun
		first := bytesRead(t, before)
		time.Sleep(7 * time.Second) // longer than a verifier may finish nothing
		if n := bytesRead(t, before) - first; n > 30<<20 {
			t.Skipf("%d MiB were read within 7 s: a control group does not slow the disk of %s", n>>20, dir)
		}
		limit(0)
	}
	got, err := g.during(t, request, slow)
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("%v, tokens\n%v, undisturbed\n%v", err, got, want)
	}
	if now := g.w.one(t, "verifier"); now != before {
		t.Fatalf("the verifier is process %d, was %d: a slow disk had it killed", now, before)
	}
	got, err = g.during(t, request, func() { g.w.signal(syscall.SIGKILL, "verifier") })
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("killed: %v, tokens\n%v, undisturbed\n%v", err, got, want)
	}
	g.back(t, "verifier", before)
}

// TestStreamedMixtureKilled: a verifier that streams the experts of a mixture is killed in mid-stream; another goes on with the packed
// file, and the text is that of a verifier with all experts in memory.
func TestStreamedMixtureKilled(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	target := family.Make("gpt-oss-mxfp4", family.Shape{Layers: 4, Dim: 128, Heads: 4, KV: 2, HeadDim: 32, RopeDim: 32, FFN: 512,
		Experts: 24, Used: 2, Width: 128, Window: 9, Words: 20}, 8).Write(t, dir)
	flags := []string{"--target", target, "--draft", "lookup", "--sessions", "1", "--ctx", "512", "--no-measure"}
	request := setting{0.8, 3}.request("", 300)
	request.Tokens, request.IgnoreEOS = []uint32{1, 40, 99, 7}, true
	resident := up(t, flags...)
	want := resident.run(t, request).tokens
	least := newWorld(t).leastOf(append([]string{"up", "--http", "off"}, flags...)...)
	cache := disk(t)
	g := up(t, append(flags, "--memory-budget", least, "--cache", cache)...)
	before := g.w.one(t, "verifier")
	got, err := g.during(t, request, func() { g.w.signal(syscall.SIGKILL, "verifier") })
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("killed: %v, tokens\n%v, in memory\n%v", err, got, want)
	}
	g.back(t, "verifier", before)
	if got := g.run(t, request).tokens; !slices.Equal(got, want) {
		t.Errorf("after the kill: tokens\n%v, in memory\n%v", got, want)
	}
	packed(t, cache) // there is one: experts were streamed
}

// TestModelLargerThanMemory: in a control group that allows less than the target's file takes, generate streams it without being told, says
// with what speed, and takes no more than the group allows, with the golden text.
func TestModelLargerThanMemory(t *testing.T) {
	mayBeSlow(t)
	t.Parallel()
	group, dir := controlGroup(t, "memory"), disk(t)
	w, model := newWorld(t), filepath.Join(dir, "large.gguf")
	const limit = 290 << 20
	w.ok("model", "expand", "--like", "12,1280,20,10,5120", "--type", "q8_0", "../models/gopher-19m-q8_0.gguf", model)
	if st, err := os.Stat(model); err != nil || st.Size() <= limit {
		t.Fatalf("%v, or the model is not larger than %d bytes", err, int64(limit))
	}
	put(t, group, "memory.limit_in_bytes", strconv.Itoa(limit))
	args := append(goldenStart, "--target", model, "--no-draft", "--sessions", "1", "--ctx", "512", "--cache", dir)
	cmd := w.command(t.Context(), args...)
	cmd.Args = append([]string{"sh", "-c", `echo $$ >` + filepath.Join(group, "cgroup.procs") + ` && exec "$0" "$@"`, program}, args...)
	cmd.Path = "/bin/sh"
	streamed(t, w.wait(cmd), "from the packed file")
	for file, want := range map[string]string{"memory.oom_control": "oom_kill 0", "memory.failcnt": "0"} {
		if b, err := os.ReadFile(filepath.Join(group, file)); err != nil || !strings.HasSuffix(strings.TrimSpace(string(b)), want) {
			t.Errorf("%s: %v, %q: want %q", file, err, b, want)
		}
	}
	if peak, err := os.ReadFile(filepath.Join(group, "memory.max_usage_in_bytes")); err == nil {
		t.Logf("at most %s bytes of %d", strings.TrimSpace(string(peak)), limit)
	}
}
