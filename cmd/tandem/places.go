package main

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/kernels/cpu"
	"github.com/tandem-llm/tandem/kernels/cuda/gpu"
)

// place is where something computes: on one processor, or on two that divide each pass. The zero place is all cores.
type place struct {
	gpu   *int   // the index of a GPU
	cores []int  // a group of cores, each with one thread
	auto  bool   // where the plan says, else on a GPU if one can be used
	right *place // the second processor of a pair; the first one has the dense part of attention

	layers int64 // bytes of the first GPU's memory for the first layers of what runs on the cores; 0: none
}

// placeHelp ends the help of flags that say where to compute.
const placeHelp = "cpu, cuda, cuda:N, cores:LIST (a group of cores, as in cores:0-3,6), " +
	"two of them that divide each pass (cuda+cpu), or auto"

// parsePlace reads the value of a flag. It does not ask whether the processors are there: see checkPlace.
func parsePlace(flag, s string) (place, error) {
	wrong := func(format string, args ...any) (place, error) {
		return place{}, tandem.Errorf("", tandem.Invalid, "--%s is %q: %s", flag, s, fmt.Sprintf(format, args...))
	}
	parts := strings.Split(s, "+")
	if len(parts) > 2 {
		return wrong("%d processors: want one, or two that divide each pass, as in cuda+cpu", len(parts))
	}
	var all []place
	for _, part := range parts {
		p, why := parseProcessor(part)
		if s == "" {
			p, why = place{}, ""
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
	case left.auto || right.auto:
		return wrong("auto chooses one processor: want both of a pair named, as in cuda+cpu")
	case left.overlaps(right) && left.gpu != nil:
		return wrong("cuda:%d is on both sides: want two processors, as in cuda+cpu", *left.gpu)
	case left.overlaps(right) && (left.cores == nil || right.cores == nil):
		return wrong("cpu is all cores: want cores:LIST on both sides, as in cores:0-3+cores:4-7")
	case len(common) > 0:
		return wrong("core %d is on both sides: want groups without a core in common", common[0])
	}
	left.right = &right
	return left, nil
}

// parseProcessor reads one processor; why is not empty if s is none.
func parseProcessor(s string) (p place, why string) {
	kind, rest, more := strings.Cut(s, ":")
	switch {
	case s == "cpu":
		return place{}, ""
	case s == "auto":
		return place{auto: true}, ""
	case kind == "cuda":
		n := 0
		if more {
			var err error
			if n, err = strconv.Atoi(rest); err != nil || n < 0 {
				return place{}, fmt.Sprintf("no GPU has the number %q: want cuda:N with N from 0 on", rest)
			}
		}
		return place{gpu: &n}, ""
	case kind == "cores" && more:
		cores, why := parseCores(rest)
		return place{cores: cores}, why
	}
	return place{}, fmt.Sprintf("no processor is called %q: want %s", s, placeHelp)
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

// processors returns the one or two of p.
func (p place) processors() []place {
	switch {
	case p.layers > 0:
		return []place{{cores: p.cores}, {gpu: new(int)}}
	case p.right == nil:
		return []place{p}
	}
	left, right := p, *p.right
	left.right = nil
	return []place{left, right}
}

func (p place) String() string {
	switch {
	case p.right != nil:
		all := p.processors()
		return all[0].String() + "+" + all[1].String()
	case p.layers > 0: // as flags
		return fmt.Sprintf("cpu%s%d", layersSetting, p.layers)
	case p.auto:
		return "auto"
	case p.gpu != nil && *p.gpu > 0:
		return fmt.Sprintf("cuda:%d", *p.gpu)
	case p.gpu != nil:
		return "cuda"
	case p.cores != nil:
		return "cores:" + cpu.CoreList(p.cores)
	}
	return "cpu"
}

// layersSetting stands between a place and the bytes of layers on a GPU.
const layersSetting = ", --gpu-memory "

// common returns the cores that two groups have in common.
func (p place) common(q place) []int {
	return slices.DeleteFunc(slices.Clone(p.cores), func(c int) bool { return !slices.Contains(q.cores, c) })
}

// overlaps reports whether something would compute for both.
func (p place) overlaps(q place) bool {
	for _, a := range p.processors() {
		for _, b := range q.processors() {
			switch {
			case a.gpu != nil && b.gpu != nil:
				if *a.gpu == *b.gpu {
					return true
				}
			case a.gpu != nil || b.gpu != nil:
			case a.cores == nil || b.cores == nil || len(a.common(b)) > 0:
				return true
			}
		}
	}
	return false
}

// grouped reports whether p names its cores, so that nobody else says how many threads there are.
func (p place) grouped() bool {
	return slices.ContainsFunc(p.processors(), func(x place) bool { return x.cores != nil })
}

// shared reports whether p is all cores and nothing else, or may become that.
func (p place) shared() bool { return p.auto || p.right == nil && p.gpu == nil && p.cores == nil }

// onGPU reports whether p has a GPU.
func (p place) onGPU() bool {
	return slices.ContainsFunc(p.processors(), func(x place) bool { return x.gpu != nil })
}

// others returns the cores that p leaves alone, of all that there are.
func (p place) others(all []int) []int {
	return slices.DeleteFunc(slices.Clone(all), func(c int) bool { return p.overlaps(place{cores: []int{c}}) })
}

// checkPlace refuses a place that is not there.
func checkPlace(flag, s string) error {
	p, err := parsePlace(flag, s)
	if err != nil {
		return err
	}
	for _, x := range p.processors() {
		if err := x.check(); err != nil {
			return tandem.Errorf("", tandem.KindOf(err), "--%s %s: %w", flag, s, err)
		}
	}
	return nil
}

// check refuses a processor that is not there.
func (p place) check() error {
	if p.gpu != nil {
		chips, err := gpu.Chips()
		if err == nil && *p.gpu >= len(chips) {
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
	for _, c := range p.cores {
		if !slices.Contains(all, c) {
			return tandem.Errorf("", tandem.Invalid, "there is no core %d for this process: want some of %s", c, cpu.CoreList(all))
		}
	}
	return nil
}
