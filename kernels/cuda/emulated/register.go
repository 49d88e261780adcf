package emulated

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/tandem-llm/tandem/kernels/cuda"
)

// registered tells whether memory is a part of what was registered.
func (m *memory) registered(b []byte) bool {
	for _, host := range m.lent {
		if at := uintptr(unsafe.Pointer(&b[0])) - uintptr(unsafe.Pointer(&host[0])); at < uintptr(len(host)) {
			return true
		}
	}
	return false
}

// Register lets the child map the file behind the memory too, only for reading. It takes nothing of the GPU's memory.
func (d *Driver) Register(host []byte) (cuda.Memory, error) {
	if err := d.ready("Register"); err != nil {
		return cuda.Memory{}, err
	}
	if err := d.chip.Registrable(host); err != nil {
		return cuda.Memory{}, err
	}
	if d.memory.registered(host) {
		return cuda.Memory{}, d.chip.Unregistered(host, "it is registered already")
	}
	path, offset, err := fileBehind(host)
	if err != nil {
		return cuda.Memory{}, d.chip.Unregistered(host, err.Error())
	}
	if err := d.process.send(registered, len(path), append(words(uint64(offset), uint64(len(host))), path...)); err != nil {
		return cuda.Memory{}, err
	}
	at, err := d.process.answer(8)
	if err != nil {
		return cuda.Memory{}, err
	}
	if d.memory.lent == nil {
		d.memory.lent = map[cuda.Pointer][]byte{}
	}
	d.memory.lent[cuda.Pointer(at)] = host
	return cuda.Memory{At: cuda.Pointer(at), Size: len(host), Host: host}, nil
}

// fileBehind returns where another process finds the file of a shared mapping, and where in it memory begins. This process has it open.
func fileBehind(host []byte) (path string, offset int64, err error) {
	maps, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		return "", 0, err
	}
	at := uintptr(unsafe.Pointer(&host[0]))
	for line := range strings.Lines(string(maps)) {
		var from, to uintptr
		var access string
		var first int64
		var major, minor uint32
		var inode uint64
		if _, err := fmt.Sscanf(line, "%x-%x %s %x %x:%x %d", &from, &to, &access, &first, &major, &minor, &inode); err != nil {
			return "", 0, fmt.Errorf("line %q of /proc/self/maps: %w", line, err)
		}
		if at < from || at+uintptr(len(host)) > to || access[3] != 's' {
			continue
		}
		open, err := filepath.Glob("/proc/self/fd/*")
		for _, fd := range open {
			var s unix.Stat_t
			if unix.Stat(fd, &s) == nil && s.Ino == inode && unix.Major(s.Dev) == major && unix.Minor(s.Dev) == minor {
				return fmt.Sprintf("/proc/%d/fd/%s", os.Getpid(), filepath.Base(fd)), first + int64(at-from), nil
			}
		}
		return "", 0, fmt.Errorf("the emulation needs its file, inode %d, which is not open (%v)", inode, err)
	}
	return "", 0, fmt.Errorf("the emulation takes one shared mapping of a file")
}
