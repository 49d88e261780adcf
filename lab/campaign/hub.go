package campaign

import (
	"bufio"
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/tandem-llm/tandem/lab/campaign/history"
	"github.com/tandem-llm/tandem/services/peers/rpc/certtest"
)

// hub holds the boxes, seen from outside.
type hub struct {
	layout Layout
	dir    string // of this campaign
	log    *history.Log
	boxes  map[int]*box
	limits *limits // control groups; nil where they cannot be had

	mu      sync.Mutex
	members map[string]*member
}

// box is one box, seen from the hub.
type box struct {
	n     int
	cmd   *exec.Cmd
	stdin io.WriteCloser
}

// member is one process of the layout, seen from the hub.
type member struct {
	Member
	pid    int // in the hub's namespace; 0 while it is away
	ready  bool
	excuse string    // the fault that explains its death
	until  time.Time // for which the excuse holds
}

// chat is the template of the shipped model, which has none.
const chat = `{% for m in messages %}// {{ m.role }}: {{ m.content }}
{% endfor %}{% if add_generation_prompt %}// assistant:{% endif %}`

// apiKey lets clients in.
const apiKey = "campaign-of-faults"

// newHub makes the network, certificates and secrets. The boxes are to be started.
func newHub(ctx context.Context, l Layout, dir string, log *history.Log) (*hub, error) {
	h := &hub{layout: l, dir: dir, log: log, boxes: map[int]*box{}, members: map[string]*member{}}
	for _, m := range l.Members {
		h.members[m.Name] = &member{Member: m}
	}
	if err := tool(ctx, 0, "ip link set lo up"); err != nil {
		return nil, err
	}
	err := tool(ctx, 0, "ip link add lab type bridge && ip addr add "+hubAddress+network+" dev lab && ip link set lab up")
	if err != nil {
		return nil, err
	}
	return h, h.credentials()
}

// credentials writes for each box, and for the hub as a client, what is read at /lab/box.
func (h *hub) credentials() error {
	ca, err := certtest.NewCA(h.dir)
	if err != nil {
		return err
	}
	secret := map[int]string{}
	for _, g := range h.layout.groups() {
		secret[g] = rand.Text()
	}
	authority, err := os.ReadFile(ca.File)
	if err != nil {
		return err
	}
	for n := range h.layout.Boxes + 1 {
		dir := h.folder(n)
		if err := os.Mkdir(dir, 0o700); err != nil {
			return err
		}
		o := certtest.Options{Names: []string{address(n)}}
		if n > 0 {
			o.Roles = []string{Gateway, Verifier, Drafter}
		}
		if _, _, err := ca.Issue(dir, o); err != nil {
			return err
		}
		files := map[string]string{"ca.pem": string(authority), "chat.jinja": chat, "keys": apiKey + "\n"}
		for g, s := range secret {
			files[fmt.Sprintf("secret-%d", g)] = s + "\n"
		}
		for name, content := range files {
			if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
				return err
			}
		}
	}
	return nil
}

func (h *hub) folder(box int) string { return filepath.Join(h.dir, fmt.Sprintf("box-%d", box)) }

// start starts a box with its processes. bin and models are folders.
func (h *hub) start(ctx context.Context, n int, bin, models string) error {
	root, err := os.MkdirTemp(h.dir, "root-")
	if err != nil {
		return err
	}
	logs, err := os.Create(filepath.Join(h.dir, fmt.Sprintf("box-%d.log", n)))
	if err != nil {
		return err
	}
	defer logs.Close()
	b := &box{n: n, cmd: exec.Command("/proc/self/exe", "box")}
	b.cmd.Stderr = logs
	b.cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET | syscall.CLONE_NEWNS | syscall.CLONE_NEWPID |
		syscall.CLONE_NEWIPC | syscall.CLONE_NEWUTS}
	if b.stdin, err = b.cmd.StdinPipe(); err != nil {
		return err
	}
	out, err := b.cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := b.cmd.Start(); err != nil {
		return fmt.Errorf("start box %d: %w", n, err)
	}
	h.boxes[n] = b
	if err := h.connect(ctx, b); err != nil {
		return err
	}
	if h.limits != nil {
		if err := h.limits.put(n, b.cmd.Process.Pid); err != nil {
			return err
		}
	}
	p := plan{Root: root, Folder: h.folder(n), Bin: bin, Models: models, Run: map[string][]string{}}
	for _, m := range h.layout.Members {
		if m.Box == n {
			p.Run[m.Name] = h.layout.command(m)
		}
	}
	if err := json.NewEncoder(b.stdin).Encode(p); err != nil {
		return fmt.Errorf("tell box %d what it is: %w", n, err)
	}
	go h.listen(b, out)
	return nil
}

// connect connects a box with the bridge.
func (h *hub) connect(ctx context.Context, b *box) error {
	pid := b.cmd.Process.Pid
	err := tool(ctx, 0, fmt.Sprintf("ip link add box%d type veth peer name eth0 netns %d && ip link set box%d master lab up", b.n, pid,
		b.n))
	if err == nil {
		err = tool(ctx, pid, fmt.Sprintf("ip link set lo up && ip addr add %s%s dev eth0 && ip link set eth0 up", address(b.n), network))
	}
	if err != nil {
		return fmt.Errorf("network of box %d: %w", b.n, err)
	}
	return nil
}

// tool runs a shell line in the network of a process, 0 for the hub's.
func tool(ctx context.Context, pid int, line string) error {
	args := []string{"sh", "-c", line}
	if pid != 0 {
		args = append([]string{"nsenter", "-n", "-t", strconv.Itoa(pid)}, args...)
	}
	if out, err := exec.CommandContext(ctx, args[0], args[1:]...).CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w: %s", line, err, bytes.TrimSpace(out))
	}
	return nil
}

// listen follows what a box says of its processes.
func (h *hub) listen(b *box, out io.Reader) {
	lines := bufio.NewReader(out)
	for {
		var n news
		if err := readLine(lines, &n); err != nil {
			return // the box is gone
		}
		h.mu.Lock()
		m := h.members[n.Name]
		switch n.Event {
		case "begun":
			m.pid, m.ready = outer(b.cmd.Process.Pid, n.PID), false
			if m.pid != 0 && h.limits != nil { // before anything else of the box
				_ = os.WriteFile(fmt.Sprintf("/proc/%d/oom_score_adj", m.pid), []byte("500"), 0)
			}
		case "ready":
			m.ready = true
			h.log.Add(history.Record{Kind: history.Up, Process: m.Name, Role: m.Role, PID: m.pid})
		case "died":
			r := history.Record{Kind: history.Died, Process: m.Name, Role: m.Role, PID: m.pid, How: n.How}
			if time.Now().Before(m.until) {
				r.Excuse = m.excuse
			}
			if m.pid, m.ready = 0, false; m.excuse == Kill { // it kills once
				m.until = time.Time{}
			}
			h.log.Add(r)
		}
		h.mu.Unlock()
	}
}

// outer returns the hub's number of a process that has the number inner in a box, 0 if it is gone.
func outer(box, inner int) int {
	all, _ := filepath.Glob("/proc/[0-9]*/status")
	for _, file := range all {
		text, err := os.ReadFile(file)
		if err != nil {
			continue // it has ended
		}
		ids := strings.Fields(field(text, "NSpid:"))
		if len(ids) > 1 && ids[len(ids)-1] == strconv.Itoa(inner) && strings.TrimSpace(field(text, "PPid:")) == strconv.Itoa(box) {
			pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(file)))
			return pid
		}
	}
	return 0
}

// field returns what follows a name in a file of /proc such as status.
func field(text []byte, name string) string {
	for line := range strings.Lines(string(text)) {
		if rest, ok := strings.CutPrefix(line, name); ok {
			return rest
		}
	}
	return ""
}

// pid returns the number of a process, 0 while it is away.
func (h *hub) pid(name string) int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.members[name].pid
}

// excuse says that a fault explains the death of a process within the next time.
func (h *hub) excuse(name, fault string, within time.Duration) {
	h.mu.Lock()
	defer h.mu.Unlock()
	m := h.members[name]
	if until := time.Now().Add(within); until.After(m.until) {
		m.excuse, m.until = fault, until
	}
}

// await waits until all processes are ready.
func (h *hub) await(ctx context.Context, most time.Duration) error {
	for end := time.Now().Add(most); ; time.Sleep(50 * time.Millisecond) {
		var away []string
		h.mu.Lock()
		for _, m := range h.layout.Members {
			if !h.members[m.Name].ready {
				away = append(away, m.Name)
			}
		}
		h.mu.Unlock()
		switch {
		case len(away) == 0:
			return nil
		case ctx.Err() != nil:
			return ctx.Err()
		case time.Now().After(end):
			return fmt.Errorf("%s not ready after %v: see the logs of the boxes in %s", strings.Join(away, ", "), most, h.dir)
		}
	}
}

// close ends all boxes.
func (h *hub) close() error {
	var errs []error
	h.mu.Lock()
	for _, m := range h.members { // what ends now was meant to
		m.excuse, m.until = "end", time.Now().Add(time.Hour)
	}
	h.mu.Unlock()
	for _, b := range h.boxes {
		_ = b.cmd.Process.Kill() // with it, the kernel kills all its processes
		_ = b.cmd.Wait()
	}
	if h.limits != nil {
		errs = append(errs, h.limits.remove())
	}
	return errors.Join(errs...)
}
