package campaign

import (
	"bytes"
	"cmp"
	"debug/elf"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Linux has no namespace for the wall clock, so it is faked within a process. Programs read the time by a function of the vDSO, which the
// kernel maps into each of them, and /proc lets root write to that: the process then has a copy of its own. The function's begin is made a
// jump to code that takes the place of the image's section headers, which nobody needs at run time. That code asks the kernel and, for
// the wall clock alone, adds a number of seconds.

// wallClock is the code, for x86-64. The eight bytes at wallClockStep are the seconds.
var wallClock = []byte{
	0xb8, 0xe4, 0x00, 0x00, 0x00, // mov eax, 228: clock_gettime(edi clock, rsi result)
	0x0f, 0x05, // syscall
	0x85, 0xc0, // test eax, eax
	0x75, 0x11, // jnz ret
	0x85, 0xff, // test edi, edi: the wall clock is number 0
	0x75, 0x0d, // jnz ret
	0x48, 0xb9, 0, 0, 0, 0, 0, 0, 0, 0, // mov rcx, seconds
	0x48, 0x01, 0x0e, // add [rsi], rcx
	0xc3, // ret
}

const wallClockStep = 17

// vdso says where in the image of the vDSO that is done.
type vdso struct{ entry, spare int64 }

// findVDSO looks at the image of this process: the kernel gives all processes the same one.
var findVDSO = sync.OnceValues(func() (vdso, error) {
	if runtime.GOARCH != "amd64" {
		return vdso{}, errors.New("the code that fakes a wall clock is there for x86-64 alone")
	}
	from, to, err := vdsoOf(os.Getpid())
	if err != nil {
		return vdso{}, err
	}
	mem, err := os.OpenFile("/proc/self/mem", os.O_RDWR, 0)
	if err != nil {
		return vdso{}, err
	}
	defer mem.Close()
	image := make([]byte, to-from)
	if _, err := mem.ReadAt(image, from); err != nil {
		return vdso{}, err
	}
	file, err := elf.NewFile(bytes.NewReader(image))
	if err != nil {
		return vdso{}, err
	}
	symbols, err := file.DynamicSymbols()
	if err != nil {
		return vdso{}, err
	}
	const sectionHeaders = 0x28 // in the header of an ELF file: where they are
	at := vdso{spare: int64(binary.LittleEndian.Uint64(image[sectionHeaders:]))}
	for _, s := range symbols {
		if s.Name == "__vdso_clock_gettime" {
			at.entry = int64(s.Value)
		}
	}
	if at.entry <= 0 || at.spare <= at.entry || at.spare+int64(len(wallClock)) > to-from {
		return vdso{}, fmt.Errorf("the vDSO of %d bytes has clock_gettime at %d and section headers at %d", to-from, at.entry, at.spare)
	}
	if _, err := mem.WriteAt(image[at.spare:at.spare+1], from+at.spare); err != nil { // what is there already
		return vdso{}, fmt.Errorf("the kernel does not let this process write to its vDSO: %w", err)
	}
	return at, nil
})

// vdsoOf returns where in a process the vDSO begins and ends.
func vdsoOf(pid int) (from, to int64, err error) {
	maps, err := os.ReadFile(fmt.Sprintf("/proc/%d/maps", pid))
	if err != nil {
		return 0, 0, err
	}
	for line := range strings.Lines(string(maps)) {
		if strings.HasSuffix(strings.TrimSpace(line), "[vdso]") {
			_, err := fmt.Sscanf(line, "%x-%x", &from, &to)
			return from, to, err
		}
	}
	return 0, 0, fmt.Errorf("process %d has no vDSO", pid)
}

// stepClock makes a process's wall clock differ from the system's by that much, rounded to seconds.
func stepClock(pid int, by time.Duration) error {
	at, err := findVDSO()
	if err != nil {
		return err
	}
	from, _, err := vdsoOf(pid)
	if err != nil {
		return err
	}
	code := bytes.Clone(wallClock)
	binary.LittleEndian.PutUint64(code[wallClockStep:], uint64(int64(by.Round(time.Second)/time.Second)))
	const jumpLength = 5
	jump := binary.LittleEndian.AppendUint32([]byte{0xe9}, uint32(at.spare-at.entry-jumpLength)) // jmp, relative to what follows it
	// The old code behind the jump stays, for whoever is in it.
	resume, err := stopOutside(pid, from+at.entry+1, from+at.entry+jumpLength)
	if err != nil {
		return err
	}
	defer resume()
	mem, err := os.OpenFile(fmt.Sprintf("/proc/%d/mem", pid), os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	defer mem.Close()
	if _, err := mem.WriteAt(code, from+at.spare); err != nil {
		return err
	}
	_, err = mem.WriteAt(jump, from+at.entry)
	return err
}

// stopOutside stops a process at a moment when none of its threads runs code at these addresses.
func stopOutside(pid int, from, to int64) (resume func(), err error) {
	resume = func() { _ = unix.Kill(pid, syscall.SIGCONT) }
	for range 100 {
		if err := unix.Kill(pid, syscall.SIGSTOP); err != nil {
			return nil, err
		}
		inside, err := awaitStop(pid, from, to)
		if err == nil && !inside {
			return resume, nil
		}
		resume()
		if err != nil {
			return nil, err
		}
	}
	return nil, fmt.Errorf("process %d runs what is to be changed whenever it is stopped", pid)
}

// awaitStop waits until all threads of a process have stopped, and reports whether one did so at these addresses.
func awaitStop(pid int, from, to int64) (inside bool, err error) {
	for end := time.Now().Add(5 * time.Second); time.Now().Before(end); time.Sleep(time.Millisecond) {
		threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/syscall", pid))
		if err != nil || len(threads) == 0 {
			return false, cmp.Or(err, error(unix.ESRCH))
		}
		running := false
		inside = false
		for _, t := range threads {
			at, stopped := counter(t)
			running = running || !stopped
			inside = inside || stopped && at >= from && at < to
		}
		if !running {
			return inside, nil
		}
	}
	return false, fmt.Errorf("process %d does not stop", pid)
}

// counter returns a thread's program counter, which /proc/PID/task/TID/syscall has last while the thread is stopped or waits.
func counter(path string) (at int64, stopped bool) {
	text, err := os.ReadFile(path)
	words := strings.Fields(string(text))
	if err != nil || len(words) < 3 {
		return 0, errors.Is(err, os.ErrNotExist) // it has ended
	}
	n, err := strconv.ParseUint(words[len(words)-1], 0, 64)
	return int64(n), err == nil
}

// wrongClock steps a process's wall clock, and back.
func (h *hub) wrongClock(f fault) (heal func() error, err error) {
	pid := h.pid(f.name)
	if pid == 0 {
		return nil, nil
	}
	r := rand.New(rand.NewPCG(f.seed, 2))
	most := 50 * time.Minute // certificates are valid for longer
	if r.IntN(2) == 0 {
		most = 400 * 24 * time.Hour
	}
	by := time.Duration(r.Int64N(2*int64(most))) - most
	back := func() error {
		if h.pid(f.name) != pid {
			return nil // it has ended, and whoever took its place has the right time
		}
		return forgive(pid, stepClock(pid, 0))
	}
	return back, forgive(pid, stepClock(pid, by))
}

// forgive returns nil in place of an error about a process that has ended meanwhile.
func forgive(pid int, err error) error {
	if maps, _ := os.ReadFile(fmt.Sprintf("/proc/%d/maps", pid)); len(maps) == 0 {
		return nil
	}
	return err
}
