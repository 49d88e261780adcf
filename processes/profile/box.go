package profile

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"

	"github.com/tandem-llm/tandem"
)

// Box names a machine by what decides how long passes take on it. Two machines of the same kind are the same box.
type Box struct {
	CPU    string `json:"cpu"`           // the processor's own name
	Cores  int    `json:"cores"`         // cores that the process may use
	Memory int    `json:"memory"`        // GiB, rounded
	System string `json:"system"`        // such as linux/amd64
	GPU    string `json:"gpu,omitempty"` // GPUs and their driver, where they count: ThisBox leaves them out
}

// ThisBox returns the box that this process runs on. What cannot be found out is left empty.
func ThisBox() Box {
	b := Box{Cores: runtime.NumCPU(), System: runtime.GOOS + "/" + runtime.GOARCH}
	info, _ := os.ReadFile("/proc/cpuinfo") // missing outside Linux
	b.CPU = cpuName(info)
	memory, _ := os.ReadFile("/proc/meminfo")
	b.Memory = memoryGiB(memory)
	return b
}

// cpuName returns the CPU's name in /proc/cpuinfo; on ARM, which has none, the numbers of its maker and part.
func cpuName(info []byte) string {
	fields := map[string]string{}
	for line := range bytes.Lines(info) {
		name, value, found := strings.Cut(string(line), ":")
		if name = strings.TrimSpace(name); found && fields[name] == "" {
			fields[name] = strings.Join(strings.Fields(strings.ToValidUTF8(value, "?")), " ")
		}
	}
	cpu := fields["model name"]
	if cpu == "" && fields["CPU part"] != "" {
		cpu = fmt.Sprintf("ARM implementer %s part %s", fields["CPU implementer"], fields["CPU part"])
	}
	return strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f {
			return '?'
		}
		return r
	}, cpu[:min(len(cpu), mostText/2)])
}

// memoryGiB returns MemTotal of /proc/meminfo in GiB, rounded: kernels keep different amounts for themselves. 0 if it is not there.
func memoryGiB(info []byte) int {
	for line := range bytes.Lines(info) {
		if rest, found := bytes.CutPrefix(line, []byte("MemTotal:")); found {
			kB, err := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(string(rest)), " kB"), 10, 64)
			if err != nil || kB < 0 || kB > 1<<40 {
				return 0
			}
			return int((kB + 1<<19) >> 20)
		}
	}
	return 0
}

// ID returns 16 hexadecimal digits that are equal for equal boxes.
func (b Box) ID() string {
	raw, err := json.Marshal(b)
	if err != nil {
		panic("profile: " + err.Error()) // strings and numbers
	}
	sum := sha256.Sum256(raw)
	return hex.EncodeToString(sum[:8])
}

func (b Box) String() string {
	cpu := b.CPU
	if cpu == "" {
		cpu = "an unknown CPU"
	}
	return fmt.Sprintf("%s, %d cores, %d GiB, %s", cpu, b.Cores, b.Memory, b.System)
}

func (b Box) validate() error {
	if b.Cores < 1 || b.Cores > mostRows || b.Memory < 0 || b.Memory > 1<<20 {
		return corrupt("a box of %d cores and %d GiB: want 1 to %d cores, 0 to %d GiB", b.Cores, b.Memory, mostRows, 1<<20)
	}
	return firstError(text("cpu", b.CPU), name("system", b.System), text("gpu", b.GPU))
}

// Costs returns the measured times of what, if the plan has them for this box and version. Errors: Stale, with the reason in words, such
// as that it was measured on another machine.
func (p *Plan) Costs(box Box, version string, what What) ([]tandem.Cost, error) {
	m, err := p.current(box, version)
	if err != nil {
		return nil, err
	}
	why := fmt.Sprintf("it has no %s", what.Kind)
	for _, s := range m.Subjects {
		if s.What == what {
			return s.Costs(), nil
		}
		why = s.otherwise(what, why)
	}
	return nil, stale("%s", why)
}

// current returns the part of the plan that depends on the machine, if it is of this box and version. Errors: Stale.
func (p *Plan) current(box Box, version string) (*Machine, error) {
	m := p.Machine
	switch {
	case m == nil:
		return nil, stale("no times of passes were measured")
	case m.Box != box:
		return nil, stale("it was measured on another machine: %v (%s), this is %v (%s)", m.Box, m.Box.ID(), box, box.ID())
	case m.Version != version:
		return nil, stale("it was measured by tandem %s, this is %s", m.Version, version)
	}
	return m, nil
}

// otherwise says why w, which the plan has, is not what is asked for; why, if it is of another kind.
func (w What) otherwise(what What, why string) string {
	switch {
	case w.Kind != what.Kind:
		return why
	case w.Identity != what.Identity:
		return fmt.Sprintf("its %s is %s, not %s: they differ in %s", w.Kind, w.Identity, what.Identity,
			w.Identity.Difference(what.Identity))
	}
	return fmt.Sprintf("its %s ran on %d threads of %q, not on %d of %q", w.Kind, w.Threads, w.Device, what.Threads, what.Device)
}

func stale(format string, args ...any) error {
	return tandem.Errorf(op, tandem.Stale, format+": measure again with `tandem profile`", args...)
}
