package main

import (
	"fmt"
	"io"
	"runtime"
	"runtime/debug"
	"strings"

	"github.com/alecthomas/kong"

	"github.com/tandem-llm/tandem/app/terminal"
)

// output is the flag of every command that prints a result.
type output struct {
	JSON bool `name:"json" help:"Print the result as JSON." setting:"-"`
}

type versionCmd struct {
	Verbose bool `help:"Also print what computes here: instruction sets, and how weights are read." setting:"-"`
	output
}

// Run prints the version.
func (c *versionCmd) Run(a *app) error {
	v := buildVersion()
	v.CUDA = new(describeCUDA())
	if c.Verbose {
		v.Kernels = describeKernels()
	}
	if c.JSON {
		return terminal.PrintJSON(a.stdout, v)
	}
	_, err := fmt.Fprintf(a.stdout, "%s%s", v.line(), v.CUDA)
	if err != nil || v.Kernels == nil {
		return err
	}
	k := v.Kernels
	_, err = fmt.Fprintf(a.stdout, "kernels: %s (of %s; all give the same bits)\nweights of one or two rows: read as %s (%s)\n",
		k.ISA, strings.Join(k.Supported, ", "), k.Reading, k.ReadingWhy)
	return err
}

// versionFlag prints the version in place of a command.
type versionFlag bool

// BeforeReset is called by kong when the flag is there.
func (versionFlag) BeforeReset(parser *kong.Kong) error {
	_, err := io.WriteString(parser.Stdout, buildVersion().line())
	parser.Exit(0)
	return err
}

// line says which program this is.
func (v versionInfo) line() string {
	commit := ""
	if v.Commit != "" {
		commit = ", commit " + v.Commit
	}
	return fmt.Sprintf("tandem %s (%s, %s%s)\n", v.Version, v.Go, v.Platform, commit)
}

type versionInfo struct {
	Version  string       `json:"version"`
	Commit   string       `json:"commit,omitempty"`
	Go       string       `json:"go"`
	Platform string       `json:"platform"`
	CUDA     *cudaInfo    `json:"cuda,omitempty"`
	Kernels  *kernelsInfo `json:"kernels,omitempty"`
}

// cudaInfo tells whether this program can use NVIDIA GPUs.
type cudaInfo struct {
	Built bool      `json:"built"` // with the tag cuda
	GPUs  []gpuInfo `json:"gpus,omitempty"`
	Why   string    `json:"why,omitempty"` // there are none that it can use
}

type gpuInfo struct {
	Name   string `json:"name"`
	Arch   string `json:"arch"`
	Bytes  int64  `json:"bytes"`  // of memory
	Shared bool   `json:"shared"` // with the processor
	about  string
}

// String returns lines for people.
func (c *cudaInfo) String() (lines string) {
	if len(c.GPUs) == 0 {
		return "cuda: none: " + c.Why + "\n"
	}
	for i, g := range c.GPUs {
		lines += fmt.Sprintf("cuda:%d: %s\n", i, g.about)
	}
	return lines
}

// kernelsInfo tells which of the kernels this machine uses, and why. None of it changes a result.
type kernelsInfo struct {
	ISA        string   `json:"isa"` // used unless --isa says otherwise
	Supported  []string `json:"supported"`
	Reading    string   `json:"reading"` // how weights are read with one or two rows
	ReadingWhy string   `json:"reading_why"`
}

// buildVersion reads what the Go tool wrote into the binary.
func buildVersion() versionInfo {
	v := versionInfo{Version: "devel", Go: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return v
	}
	if info.Main.Version != "" && info.Main.Version != "(devel)" {
		v.Version = info.Main.Version
	}
	dirty := ""
	for _, s := range info.Settings {
		switch {
		case s.Key == "vcs.revision":
			v.Commit = s.Value
		case s.Key == "vcs.modified" && s.Value == "true":
			dirty = "+changes"
		}
	}
	if v.Commit != "" {
		v.Commit += dirty
	}
	return v
}
