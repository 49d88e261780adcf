package supervise

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"time"
)

// ReadyFD is the file descriptor on which a child talks to its supervisor: any line shows that it is
// alive, "ready" that it serves, "settled" that it has done what it had left for then.
const ReadyFD = 3

// WeightsFD is the file descriptor of memory that children share: see Spec.Weights.
const WeightsFD = 5

// TryAgain is the exit status of a child that could not start but has removed what was in its way (EX_TEMPFAIL of sysexits.h).
const TryAgain = 75

// maxLine bounds what is kept of one line from a child, in bytes.
const maxLine = 16 << 10

// child is one started process.
type child struct {
	cmd     *exec.Cmd
	started time.Time
	words   chan string   // lines on ReadyFD; closed at its end
	settled chan struct{} // closed when it has said so, or says nothing any more
	ended   chan struct{} // closed when the process has been waited for and its stderr read to the end
	pulse   page          // its keeper's, until released

	mu      sync.Mutex
	isReady bool
	held    string // the last line "tandem: …" of a child that is not ready: why it will die
	exit    error  // set before ended is closed
	again   bool   // it died by a signal or said TryAgain; set before ended is closed
}

// startChild starts spec's program; restarts counts its earlier restarts, kills those because it hung. It must be called
// on a thread that outlives the child.
func startChild(g *Group, spec Spec, restarts, kills int) (*child, error) {
	pulse, memory, err := newPage(restarts, kills)
	if err != nil {
		return nil, fmt.Errorf("starting %s: %w", spec.Name, err)
	}
	defer memory.Close()
	c, err := spawn(g, spec, memory)
	if err != nil {
		pulse.release()
		return nil, fmt.Errorf("starting %s: %w", spec.Name, err)
	}
	c.pulse = pulse
	return c, nil
}

// spawn starts the process with its descriptors.
func spawn(g *Group, spec Spec, memory *os.File) (*child, error) {
	wordsR, wordsW, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	errR, errW, err := os.Pipe()
	if err != nil {
		_, _ = wordsR.Close(), wordsW.Close()
		return nil, err
	}
	cmd := exec.Command(g.cfg.Program, spec.Args...)
	cmd.Env = g.cfg.Env
	cmd.Stderr = errW
	cmd.ExtraFiles = []*os.File{wordsW, memory} // ReadyFD, PulseFD
	if spec.Weights != nil {
		cmd.ExtraFiles = append(cmd.ExtraFiles, spec.Weights) // WeightsFD
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	err = cmd.Start()
	_, _ = wordsW.Close(), errW.Close()
	if err != nil {
		_, _ = wordsR.Close(), errR.Close()
		return nil, err
	}
	c := &child{cmd: cmd, started: time.Now(), words: make(chan string), settled: make(chan struct{}),
		ended: make(chan struct{})}
	g.hearing.Add(1)
	go c.readWords(g, spec.Name, wordsR)
	go c.wait(g, spec.Name, wordsR, errR)
	return c, nil
}

// readWords sends the lines of ReadyFD on, those after "ready", but for "settled", to GroupConfig.Heard. A line of stderr that could have
// been the reason why the child never becomes ready was none then, and is passed on.
func (c *child) readWords(g *Group, name string, r *os.File) {
	defer g.hearing.Done()
	defer r.Close()
	lines := bufio.NewScanner(r)
	c.awaitWord(g, name, lines)
	close(c.words)
	settle := sync.OnceFunc(func() { close(c.settled) })
	defer settle()
	for lines.Scan() {
		switch line := lines.Text(); {
		case line == "settled":
			settle()
		case g.cfg.Heard != nil:
			g.cfg.Heard(name, line)
		}
	}
	_, _ = io.Copy(io.Discard, r) // behind a line that is too long
}

// awaitWord sends the lines on to the first that is "ready".
func (c *child) awaitWord(g *Group, name string, lines *bufio.Scanner) {
	for ready := false; !ready && lines.Scan(); {
		if ready = lines.Text() == "ready"; ready {
			c.mu.Lock()
			c.isReady = true
			held := c.held
			c.held = ""
			c.mu.Unlock()
			if held != "" {
				g.say(name, held)
			}
		}
		select {
		case c.words <- lines.Text():
		case <-c.ended:
			return
		}
	}
}

// wait passes stderr on line by line and waits for the process.
func (c *child) wait(g *Group, name string, words, stderr *os.File) {
	defer close(c.ended)
	passed := make(chan struct{})
	go func() {
		defer close(passed)
		c.passOn(g, name, stderr)
	}()
	err := c.cmd.Wait()
	// A grandchild that holds a pipe open must not keep us; the child's own lines are in it by now.
	_, _ = words.SetReadDeadline(time.Now().Add(time.Second)), stderr.SetReadDeadline(time.Now().Add(time.Second))
	<-passed
	stderr.Close()
	c.mu.Lock()
	c.exit = errors.New(exitReason(err))
	state := c.cmd.ProcessState
	c.again = state != nil && (state.ExitCode() == TryAgain || state.ExitCode() < 0)
	c.mu.Unlock()
}

func (c *child) passOn(g *Group, name string, r io.Reader) {
	lines := bufio.NewReaderSize(r, maxLine)
	for {
		line, more, err := lines.ReadLine()
		if err != nil {
			return
		}
		text := strings.TrimRight(string(line), "\r")
		for more && err == nil { // the rest of a longer line is dropped
			_, more, err = lines.ReadLine()
		}
		c.mu.Lock()
		hold := !c.isReady && strings.HasPrefix(text, "tandem: ")
		if hold {
			text, c.held = c.held, text
		}
		c.mu.Unlock()
		if text != "" {
			g.say(name, text)
		}
	}
}

// cause says why the child ended; call it after ended is closed. For a child that died before it was
// ready it is the child's own last error line.
func (c *child) cause() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.held != "" && !c.isReady {
		return errors.New(strings.TrimPrefix(c.held, "tandem: "))
	}
	return c.exit
}

// mayStart reports whether the child, which has ended, may come up if it is started once more.
func (c *child) mayStart() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.again
}

// wasReady reports whether the child has said "ready".
func (c *child) wasReady() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.isReady
}

func (c *child) age() time.Duration { return time.Since(c.started) }

// signal signals the child; nothing happens if it has been waited for.
func (c *child) signal(sig syscall.Signal) { _ = c.cmd.Process.Signal(sig) }

// onOneThread runs functions on one OS thread until the channel is closed.
func onOneThread(fs <-chan func()) {
	runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
	for f := range fs {
		f()
	}
}

// Ready tells the supervisor, if there is one at fd, that this process serves. fd 0 means none.
func Ready(fd int) error { return tell(fd, "ready\n") }

// Alive tells the supervisor at fd that this process is still starting. fd 0 means none.
func Alive(fd int) error { return tell(fd, "starting\n") }

// Tell sends the supervisor at fd a line, without a line break, once this process is ready. fd 0 means none.
func Tell(fd int, line string) error { return tell(fd, line+"\n") }

// Settled tells the supervisor at fd that this process has done what it had left for when it serves. It says nothing more. fd 0 means none.
func Settled(fd int) error { return tell(fd, "settled\n") }

func tell(fd int, line string) error {
	if fd == 0 {
		return nil
	}
	if _, err := syscall.Write(fd, []byte(line)); err != nil {
		return fmt.Errorf("telling the supervisor on descriptor %d: %w", fd, err)
	}
	return nil
}
