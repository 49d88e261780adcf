// Package device names what computes, as --device does, and opens it: all cores of the processor, a group of them, a GPU, two processors
// that divide each pass, or the processor with a GPU that has some of the layers.
package device

import (
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/kernels/cpu"
	"github.com/tandem-llm/tandem/kernels/cuda"
	"github.com/tandem-llm/tandem/kernels/cuda/gpu"
)

// Spec says where something computes: on one processor, or on two that divide each pass. The zero Spec is all cores.
type Spec struct {
	GPU   *int  // the index of a GPU
	Cores []int // a group of cores, each with one thread
	Auto  bool  // to be chosen: where the profile says, else on a GPU if one can be used
	Right *Spec // the second processor of a pair; the first one has the dense part of attention

	Layers int64 // bytes of the first GPU's memory for the first layers of a model that runs on the cores; 0: none
}

// Help ends the help of flags that say where to compute.
const Help = "cpu, cuda, cuda:N, cores:LIST (a group of cores, as in cores:0-3,6), " +
	"two of them that divide each pass (cuda+cpu), or auto"

// Parse reads s, the value of the named flag; "" is all cores. Errors: Invalid. Whether the processors are there only Check asks.
func Parse(flag, s string) (Spec, error) {
	wrong := func(format string, args ...any) (Spec, error) {
		return Spec{}, tandem.Errorf("", tandem.Invalid, "--%s is %q: %s", flag, s, fmt.Sprintf(format, args...))
	}
	parts := strings.Split(s, "+")
	if len(parts) > 2 {
		return wrong("%d processors: want one, or two that divide each pass, as in cuda+cpu", len(parts))
	}
	var all []Spec
	for _, part := range parts {
		p, why := parseProcessor(part)
		if s == "" {
			p, why = Spec{}, ""
		}
		if why != "" {
			return wrong("%s", why)
		}
		all = append(all, p)
	}
	if len(all) == 1 {
		return all[0], nil
	}
	left, right := all[0], all[1]
	switch common := left.common(right); {
	case left.Auto || right.Auto:
		return wrong("auto chooses one processor: want both of a pair named, as in cuda+cpu")
	case left.Overlaps(right) && left.GPU != nil:
		return wrong("cuda:%d is on both sides: want two processors, as in cuda+cpu", *left.GPU)
	case left.Overlaps(right) && (left.Cores == nil || right.Cores == nil):
		return wrong("cpu is all cores: want cores:LIST on both sides, as in cores:0-3+cores:4-7")
	case len(common) > 0:
		return wrong("core %d is on both sides: want groups without a core in common", common[0])
	}
	left.Right = &right
	return left, nil
}

// parseProcessor reads one processor; why is not empty if s is none.
func parseProcessor(s string) (p Spec, why string) {
	kind, rest, more := strings.Cut(s, ":")
	switch {
	case s == "cpu":
		return Spec{}, ""
	case s == "auto":
		return Spec{Auto: true}, ""
	case kind == "cuda":
		n := 0
		if more {
			var err error
			if n, err = strconv.Atoi(rest); err != nil || n < 0 {
				return Spec{}, fmt.Sprintf("no GPU has the number %q: want cuda:N with N from 0 on", rest)
			}
		}
		return Spec{GPU: &n}, ""
	case kind == "cores" && more:
		cores, why := parseCores(rest)
		return Spec{Cores: cores}, why
	}
	return Spec{}, fmt.Sprintf("no processor is called %q: want %s", s, Help)
}

// mostCores bounds the numbers of cores.
const mostCores = 1024

// parseCores reads a list of cores as taskset has it: numbers and ranges, separated by commas.
func parseCores(list string) (cores []int, why string) {
	for item := range strings.SplitSeq(list, ",") {
		from, to, isRange := strings.Cut(item, "-")
		a, err := strconv.ParseUint(from, 10, 16)
		b := a
		if err == nil && isRange {
			b, err = strconv.ParseUint(to, 10, 16)
		}
		if err != nil || a > b || b >= mostCores {
			return nil, fmt.Sprintf("%q in its list of cores: want numbers and ranges from 0 to %d, as in cores:0-3,6", item, mostCores-1)
		}
		for c := int(a); c <= int(b); c++ {
			if slices.Contains(cores, c) {
				return nil, fmt.Sprintf("core %d is named twice: want each once", c)
			}
			cores = append(cores, c)
		}
	}
	slices.Sort(cores)
	return cores, ""
}

// Processors returns the one or two processors of p, each as a Spec of its own. With Layers the second is the first GPU.
func (p Spec) Processors() []Spec {
	switch {
	case p.Layers > 0:
		return []Spec{{Cores: p.Cores}, {GPU: new(int)}}
	case p.Right == nil:
		return []Spec{p}
	}
	left, right := p, *p.Right
	left.Right = nil
	return []Spec{left, right}
}

func (p Spec) String() string {
	switch {
	case p.Right != nil:
		all := p.Processors()
		return all[0].String() + "+" + all[1].String()
	case p.Layers > 0: // as flags
		return fmt.Sprintf("cpu%s%d", LayersSetting, p.Layers)
	case p.Auto:
		return "auto"
	case p.GPU != nil && *p.GPU > 0:
		return fmt.Sprintf("cuda:%d", *p.GPU)
	case p.GPU != nil:
		return "cuda"
	case p.Cores != nil:
		return "cores:" + cpu.CoreList(p.Cores)
	}
	return "cpu"
}

// LayersSetting stands between "cpu" and the bytes of layers on a GPU in the String of a Spec with Layers.
const LayersSetting = ", --gpu-memory "

// common returns the cores that two groups have in common.
func (p Spec) common(q Spec) []int {
	return slices.DeleteFunc(slices.Clone(p.Cores), func(c int) bool { return !slices.Contains(q.Cores, c) })
}

// Overlaps reports whether a core or GPU is in both p and q.
func (p Spec) Overlaps(q Spec) bool {
	for _, a := range p.Processors() {
		for _, b := range q.Processors() {
			switch {
			case a.GPU != nil && b.GPU != nil:
				if *a.GPU == *b.GPU {
					return true
				}
			case a.GPU != nil || b.GPU != nil:
			case a.Cores == nil || b.Cores == nil || len(a.common(b)) > 0:
				return true
			}
		}
	}
	return false
}

// Grouped reports whether p names cores. Then these say how many threads there are, and no flag may.
func (p Spec) Grouped() bool {
	return slices.ContainsFunc(p.Processors(), func(x Spec) bool { return x.Cores != nil })
}

// Shared reports whether p computes on all cores, or may (auto).
func (p Spec) Shared() bool { return p.Auto || p.Right == nil && p.GPU == nil && p.Cores == nil }

// OnGPU reports whether one of p's processors is a GPU.
func (p Spec) OnGPU() bool {
	return slices.ContainsFunc(p.Processors(), func(x Spec) bool { return x.GPU != nil })
}

// Others returns those of the cores in all that p does not compute on.
func (p Spec) Others(all []int) []int {
	return slices.DeleteFunc(slices.Clone(all), func(c int) bool { return p.Overlaps(Spec{Cores: []int{c}}) })
}

// Check is Parse for the error alone, and also returns one if a processor of s is not there: Unavailable for a GPU, Invalid for a core.
func Check(flag, s string) error {
	p, err := Parse(flag, s)
	if err != nil {
		return err
	}
	for _, x := range p.Processors() {
		if err := x.there(); err != nil {
			return tandem.Errorf("", tandem.KindOf(err), "--%s %s: %w", flag, s, err)
		}
	}
	return nil
}

// there refuses a processor that is not there.
func (p Spec) there() error {
	if p.GPU != nil {
		chips, err := gpu.Chips()
		if err == nil && *p.GPU >= len(chips) {
			err = fmt.Errorf("there are %d GPUs: want cuda:0 to cuda:%d", len(chips), len(chips)-1)
		}
		if err != nil {
			return tandem.Errorf("", tandem.Unavailable, "%w", err)
		}
	}
	all, err := cpu.Cores()
	if err != nil {
		return err
	}
	for _, c := range p.Cores {
		if !slices.Contains(all, c) {
			return tandem.Errorf("", tandem.Invalid, "there is no core %d for this process: want some of %s", c, cpu.CoreList(all))
		}
	}
	return nil
}

// Streams reports whether weights can be streamed to p: only to cores of the processor alone.
func (p Spec) Streams() bool { return p.GPU == nil && p.Right == nil && p.Layers == 0 }

// GPUs names GPUs and their driver, for what was measured with them; "" without a GPU.
func GPUs(chips []cuda.Chip) string {
	if len(chips) == 0 {
		return ""
	}
	var all []string
	for _, c := range chips {
		all = append(all, About(c))
	}
	driver, _ := os.ReadFile("/proc/driver/nvidia/version") // missing where the driver is the system's own
	line, _, _ := strings.Cut(string(driver), "\n")
	words := strings.Join(strings.Fields(strings.Join(append(all, line), "; ")), " ")
	return words[:min(len(words), 200)]
}
