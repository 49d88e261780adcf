package emulated

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"time"
)

// Commands of child/main.cpp.
const (
	find = iota
	run
	await
	allocated
	released
	moved
	registered
	mapped
)

// process is the child. Its commands are not answered, but for find and await; whatever goes wrong in it ends it.
type process struct {
	cmd     *exec.Cmd
	in      io.WriteCloser
	out     io.ReadCloser
	stderr  first
	pending bool  // something was sent that await has not answered
	lost    error // why it ended; nil as long as it is not known to have
}

// first keeps the beginning of what is written to it.
type first struct{ bytes.Buffer }

func (f *first) Write(b []byte) (int, error) {
	if room := 16<<10 - f.Len(); room > 0 {
		f.Buffer.Write(b[:min(room, len(b))])
	}
	return len(b), nil
}

// start runs the program with the file of its memory.
func (p *process) start(program string, memory *os.File, o Options) error {
	seconds := int(o.Limit / time.Second)
	p.cmd = exec.Command(program, strconv.FormatInt(o.Memory, 10), strconv.FormatUint(o.Seed, 10), strconv.Itoa(seconds), o.Drop.File,
		strconv.Itoa(o.Drop.Line), caches(o.Gauge), strconv.Itoa(o.Resident))
	p.cmd.Env = append(os.Environ(), "ASAN_OPTIONS=detect_leaks=0", "UBSAN_OPTIONS=print_stacktrace=1",
		fmt.Sprint("TANDEM_EMULATED_DELAY=", o.Delay.Microseconds()))
	p.cmd.ExtraFiles = []*os.File{memory}
	p.cmd.Stderr = &p.stderr
	var err error
	if p.in, err = p.cmd.StdinPipe(); err != nil {
		return err
	}
	if p.out, err = p.cmd.StdoutPipe(); err != nil {
		return err
	}
	return p.cmd.Start()
}

// stop ends the process and waits for it.
func (p *process) stop() {
	if p.cmd == nil || p.cmd.Process == nil || p.cmd.ProcessState != nil {
		return
	}
	_ = p.cmd.Process.Kill()
	_ = p.cmd.Wait()
}

// die says why the process has ended.
func (p *process) die(seen error) error {
	p.stop()
	why, _, _ := strings.Cut(p.stderr.String(), "\nShadow bytes") // the rest of a sanitizer's report is of no use
	why = strings.TrimSpace(why)
	if why == "" {
		why = fmt.Sprintf("the process has ended: %v (%v)", p.cmd.ProcessState, seen)
	}
	p.lost = fmt.Errorf("emulated GPU: the device is lost: %s", why)
	return p.lost
}

// send sends a command: count, and a payload of that many parts.
func (p *process) send(command uint32, count int, payload []byte) error {
	if p.lost != nil {
		return p.lost
	}
	p.pending = true
	b := binary.NativeEndian.AppendUint32(make([]byte, 0, 8+len(payload)), command)
	b = binary.NativeEndian.AppendUint32(b, uint32(count))
	if _, err := p.in.Write(append(b, payload...)); err != nil {
		return p.die(err)
	}
	return nil
}

// answer returns an answer of 4 or 8 bytes.
func (p *process) answer(size int) (uint64, error) {
	b := make([]byte, size)
	if _, err := io.ReadFull(p.out, b); err != nil {
		return 0, p.die(err)
	}
	if size == 4 {
		return uint64(binary.NativeEndian.Uint32(b)), nil
	}
	return binary.NativeEndian.Uint64(b), nil
}

// wait returns when everything sent has been done.
func (p *process) wait() error {
	if !p.pending || p.lost != nil {
		return p.lost
	}
	if err := p.send(await, 0, nil); err != nil {
		return err
	}
	if _, err := p.answer(4); err != nil {
		return err
	}
	p.pending = false
	return nil
}
