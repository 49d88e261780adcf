package campaign

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tandem-llm/tandem/lab/campaign/history"
)

// dying is for how long behind a fault a death is its fault.
const dying = 10 * time.Second

// unsupported returns why a kind of fault cannot be had here, "" if it can.
func (h *hub) unsupported(ctx context.Context, kind string) string {
	switch kind {
	case Memory:
		if h.limits == nil {
			return "no control group for memory can be made here"
		}
	case Mixed:
		if _, err := os.Stat(filepath.Join(h.dir, "bin", "other")); err != nil {
			return "no program of another release: give --other FILE"
		}
	case Slots:
		for _, m := range h.layout.Members {
			if m.Local {
				return ""
			}
		}
		return "no two processes share memory in this layout"
	case Partition, Asymmetric, HalfOpen, Cut, Loss, Delay:
		if err := tool(ctx, 0, "nft list ruleset"); err != nil {
			return "nftables does not work here: " + err.Error()
		}
	case Bandwidth:
		if err := tool(ctx, 0, "tc qdisc add dev lo root tbf rate 1gbit burst 1mbit latency 1s && tc qdisc del dev lo root"); err != nil {
			return "the kernel has no token bucket filter: " + err.Error()
		}
	}
	return ""
}

// inject runs one fault from its begin to its end.
func (h *hub) inject(ctx context.Context, n int, f fault) error {
	h.log.Add(history.Record{Kind: history.Fault, ID: n, What: f.kind, Target: f.target(), Role: h.roleOf(f.name)})
	heal, err := h.begin(ctx, f)
	if err == nil && f.span > 0 {
		select {
		case <-ctx.Done():
		case <-time.After(f.span):
		}
	}
	if heal != nil {
		err = errors.Join(err, heal())
	}
	h.log.Add(history.Record{Kind: history.Healed, ID: n, What: f.kind, Target: f.target()})
	if err != nil {
		return fmt.Errorf("fault %d, %s of %s: %w", n, f.kind, f.target(), err)
	}
	return nil
}

func (h *hub) roleOf(name string) string {
	if m, ok := h.members[name]; ok {
		return m.Role
	}
	return ""
}

// begin makes a fault, and returns what ends it; nil for nothing.
func (h *hub) begin(ctx context.Context, f fault) (heal func() error, err error) {
	switch f.kind {
	case Kill:
		h.signal(f.name, syscall.SIGKILL)
		return nil, nil
	case Box:
		for _, m := range h.layout.Members {
			if m.Box == f.box {
				h.signal(m.Name, syscall.SIGKILL)
			}
		}
		return nil, nil
	case Stop:
		pid := h.signal(f.name, syscall.SIGSTOP)
		return func() error { return gone(unix.Kill(pid, unix.SIGCONT)) }, nil
	case Slots:
		return h.corrupt(f), nil
	case Disk:
		return h.fill(f)
	case Memory:
		for _, m := range h.layout.Members {
			if m.Box == f.box {
				h.excuse(m.Name, f.kind, f.span+dying)
			}
		}
		return func() error { return h.limits.lift(f.box) }, gone(h.limits.lower(f.box, 4<<20))
	case Descriptors:
		return h.starve(f)
	case Mixed:
		return h.mix(f)
	}
	return h.disturb(ctx, f)
}

// gone forgives a process that has ended before it could be reached, and a group's limit that was reached first.
func gone(err error) error {
	if errors.Is(err, unix.ESRCH) || errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.EBUSY) {
		return nil
	}
	return err
}

// signal sends a signal to a process, and returns its number: that of none, if it is away.
func (h *hub) signal(name string, s syscall.Signal) int {
	const none = 1 << 30
	pid := h.pid(name)
	if pid == 0 {
		return none
	}
	if s == syscall.SIGKILL {
		h.excuse(name, Kill, dying)
	}
	_ = unix.Kill(pid, s)
	return pid
}

// corrupt writes garbage into the memory that a process shares with others, again and again until the fault ends.
func (h *hub) corrupt(f fault) (heal func() error) {
	stop, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		for r := rand.New(rand.NewPCG(f.seed, 1)); ; {
			if pid := h.pid(f.name); pid != 0 {
				garble(pid, r)
			}
			select {
			case <-stop:
				return
			case <-time.After(20 * time.Millisecond):
			}
		}
	}()
	return func() error { close(stop); <-done; return nil }
}

// garble overwrites a few bytes of each shared writable mapping of tandem's memory files. A process that ends meanwhile is no error.
func garble(pid int, r *rand.Rand) {
	maps, err := os.ReadFile(fmt.Sprintf("/proc/%d/maps", pid))
	if err != nil {
		return
	}
	mem, err := os.OpenFile(fmt.Sprintf("/proc/%d/mem", pid), os.O_WRONLY, 0)
	if err != nil {
		return
	}
	defer mem.Close()
	for line := range strings.Lines(string(maps)) {
		var from, to int64
		var mode string
		n, _ := fmt.Sscanf(line, "%x-%x %s", &from, &to, &mode)
		if n != 3 || mode != "rw-s" || !strings.Contains(line, "memfd:tandem") {
			continue
		}
		garbage := make([]byte, 1+r.IntN(64))
		for i := range garbage {
			garbage[i] = byte(r.Uint32())
		}
		const page = 4 << 10 // slots begin at some of them, and trees at the begin of slots
		for range 1 + (to-from)>>14 {
			_, _ = mem.WriteAt(garbage, from+r.Int64N((to-from)/page)*page+r.Int64N(page/8))
		}
	}
}

// fill fills a box's folder of temporary files.
func (h *hub) fill(f fault) (heal func() error, err error) {
	path := fmt.Sprintf("/proc/%d/root/tmp/full", h.boxes[f.box].cmd.Process.Pid)
	file, err := os.Create(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	for block := make([]byte, 64<<10); err == nil; {
		_, err = file.Write(block)
	}
	if errors.Is(err, unix.ENOSPC) {
		err = nil
	}
	return func() error { return os.Remove(path) }, err
}

// starve lets a process open no more files than it has.
func (h *hub) starve(f fault) (heal func() error, err error) {
	pid := h.pid(f.name)
	if pid == 0 {
		return nil, nil
	}
	open, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
	if err != nil {
		return nil, gone(err)
	}
	var old unix.Rlimit
	if err := unix.Prlimit(pid, unix.RLIMIT_NOFILE, nil, &old); err != nil {
		return nil, gone(err)
	}
	low := unix.Rlimit{Cur: uint64(len(open)), Max: old.Max}
	set := func(to *unix.Rlimit) error { return gone(unix.Prlimit(pid, unix.RLIMIT_NOFILE, to, nil)) }
	return func() error { return set(&old) }, set(&low)
}

// mix restarts a process with the other release's program, and ends with its own again.
func (h *hub) mix(f fault) (heal func() error, err error) {
	with := func(program string) error {
		h.mu.Lock()
		defer h.mu.Unlock()
		return json.NewEncoder(h.boxes[f.box].stdin).Encode(order{Name: f.name, Program: program})
	}
	if err := with(other); err != nil {
		return nil, err
	}
	h.signal(f.name, syscall.SIGKILL)
	return func() error {
		err := with("")
		h.signal(f.name, syscall.SIGKILL)
		return err
	}, nil
}

// disturb makes a fault of the network.
func (h *hub) disturb(ctx context.Context, f fault) (heal func() error, err error) {
	pid := func(box int) int {
		if box == 0 {
			return 0
		}
		return h.boxes[box].cmd.Process.Pid
	}
	table := "lab" + strconv.FormatUint(f.seed, 36)
	rules := func(box int, chain ...string) error {
		return tool(ctx, pid(box), nft(table, "in", "type filter hook input priority 0", chain...))
	}
	lift := func(boxes ...int) func() error {
		return func() error {
			var errs []error
			for _, b := range boxes {
				errs = append(errs, tool(context.WithoutCancel(ctx), pid(b), "nft delete table ip "+table))
			}
			return errors.Join(errs...)
		}
	}
	from := "ip saddr " + address(f.from)
	switch f.kind {
	case Partition:
		if err := rules(f.from, "ip saddr "+address(f.box)+" drop"); err != nil {
			return nil, err
		}
		return lift(f.box, f.from), rules(f.box, from+" drop")
	case Asymmetric:
		return lift(f.box), rules(f.box, from+" drop")
	case Cut:
		if err := rules(f.box, from+" meta l4proto tcp reject with tcp reset"); err != nil {
			return nil, err
		}
		time.Sleep(time.Second)
		return lift(f.box), nil
	case Loss:
		return lift(f.box), rules(f.box, fmt.Sprintf("numgen random mod 100 < %d drop", 1+f.seed%10))
	case HalfOpen: // connections that say something within a second are marked, and are deaf from then on
		if err := rules(f.box, from+" ct state established ct mark set 7"); err != nil {
			return nil, err
		}
		time.Sleep(time.Second)
		deaf := "nft flush chain ip " + table + " in && nft add rule ip " + table + " in " + from + " ct mark 7 drop"
		return lift(f.box), tool(ctx, pid(f.box), deaf)
	case Bandwidth:
		rate := 200 * (1 + f.seed%20) // kbit/s
		err := tool(ctx, pid(f.box), fmt.Sprintf("tc qdisc add dev eth0 root tbf rate %dkbit burst 16kb latency 400ms", rate))
		return func() error { return tool(context.WithoutCancel(ctx), pid(f.box), "tc qdisc del dev eth0 root") }, err
	case Delay:
		return h.delay(ctx, f)
	}
	return nil, fmt.Errorf("no such fault")
}

// nft is the shell line that makes a table with one chain of rules.
func nft(table, chain, hook string, rules ...string) string {
	return fmt.Sprintf("nft -f - <<'EOF'\ntable ip %s {\n chain %s {\n %s\n %s\n }\n}\nEOF\n", table, chain, hook,
		strings.Join(rules, "\n "))
}
