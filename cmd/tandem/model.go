package main

import (
	"fmt"
	"maps"
	"slices"
	"text/tabwriter"

	"github.com/tandem-llm/tandem/engine"
	"github.com/tandem-llm/tandem/engine/gguf"
	"github.com/tandem-llm/tandem/kernels"
)

type modelCmd struct {
	Info modelInfoCmd `cmd:"" help:"What a GGUF file holds, which kernels run it, what memory it needs."`
}

type modelInfoCmd struct {
	File string `arg:"" help:"GGUF file."`
	sizeFlags
	output
}

// sizeFlags bound what a process holds at once.
type sizeFlags struct {
	Ctx      int `help:"Longest session in tokens, prompt included; 0 = the model's context." default:"0"`
	Sessions int `help:"Sessions held at once; 0 = 8, for generate 1." default:"0"`
}

type modelInfo struct {
	File       string            `json:"file"`
	Name       string            `json:"name"`
	Arch       string            `json:"architecture"`
	GGUF       int               `json:"gguf_version"`
	Parameters int64             `json:"parameters"`
	FileBytes  int64             `json:"file_bytes"`
	Layers     int               `json:"layers"`
	Dim        int               `json:"dim"`
	Heads      int               `json:"heads"`
	KVHeads    int               `json:"kv_heads"`
	HeadDim    int               `json:"head_dim"`
	FFN        int               `json:"ffn"`
	Vocabulary int               `json:"vocabulary"`
	Tokenizer  string            `json:"tokenizer_fingerprint"`
	Context    int               `json:"context"`
	TiedHead   bool              `json:"tied_head"`
	Tensors    map[string]int    `json:"tensors"`    // number by type
	TypeBytes  map[string]int64  `json:"type_bytes"` // bytes in the file by type
	Kernels    kernelInfo        `json:"kernels"`
	Memory     memoryInfo        `json:"memory"`
	Keys       map[string]string `json:"keys"`
}

type kernelInfo struct {
	ISA       string   `json:"isa"`
	Available []string `json:"available"`
}

type memoryInfo struct {
	Weights    int64 `json:"weights_bytes"`
	KVPosition int64 `json:"kv_bytes_per_position"`
	Ctx        int   `json:"ctx"`
	Sessions   int   `json:"sessions"`
	KV         int64 `json:"kv_bytes"` // for ctx and sessions
	Total      int64 `json:"total_bytes"`
}

// Run prints what a model file holds.
func (c *modelInfoCmd) Run(a *app) error {
	if err := c.sizeFlags.check(); err != nil {
		return err
	}
	info, err := engine.Inspect(c.File)
	if err != nil {
		return err
	}
	f, err := gguf.Open(c.File)
	if err != nil {
		return err
	}
	defer f.Close()
	m := c.describe(info, f)
	if c.JSON {
		return printJSON(a.stdout, m)
	}
	w := tabwriter.NewWriter(a.stdout, 0, 0, 2, ' ', 0)
	for _, row := range [][2]string{
		{"file", fmt.Sprintf("%s (GGUF v%d, %s)", m.File, m.GGUF, mib(m.FileBytes))},
		{"name", m.Name},
		{"architecture", m.Arch},
		{"parameters", fmt.Sprintf("%.1f million", float64(m.Parameters)/1e6)},
		{"shape", fmt.Sprintf("%d layers, d %d, %d heads, %d kv heads of %d, ffn %d", m.Layers, m.Dim, m.Heads, m.KVHeads, m.HeadDim, m.FFN)},
		{"vocabulary", fmt.Sprintf("%d tokens, fingerprint %s", m.Vocabulary, m.Tokenizer)},
		{"context", fmt.Sprint(m.Context)},
		{"kernels", fmt.Sprintf("%s (this machine has %v)", m.Kernels.ISA, m.Kernels.Available)},
		{"memory", fmt.Sprintf("weights %s, KV cache %s for %d sessions of %d tokens", mib(m.Memory.Weights), mib(m.Memory.KV), m.Memory.Sessions, m.Memory.Ctx)},
	} {
		fmt.Fprintf(w, "%s\t%s\n", row[0], row[1])
	}
	for _, t := range slices.Sorted(maps.Keys(m.Tensors)) {
		fmt.Fprintf(w, "tensors\t%d of %s, %s\n", m.Tensors[t], t, mib(m.TypeBytes[t]))
	}
	for _, k := range f.Keys() {
		fmt.Fprintf(w, "key\t%s = %s\n", k.Name, m.Keys[k.Name])
	}
	return w.Flush()
}

func (c *modelInfoCmd) describe(info *engine.Info, f *gguf.File) modelInfo {
	isas := kernels.Supported()
	available := make([]string, len(isas))
	for i, isa := range isas {
		available[i] = isa.String()
	}
	ctx := c.context(info.Config.Context)
	sessions := c.sessionsOr(defaultSessions)
	pages := int64(engine.PagesFor(sessions, ctx, treeRows))
	kv := pages * kernels.PageRows * info.KVBytes
	cfg := info.Config
	m := modelInfo{
		File: c.File, Name: cfg.Name, Arch: cfg.Arch, GGUF: f.Version(), Parameters: info.Parameters, FileBytes: info.FileBytes,
		Layers: cfg.Layers, Dim: cfg.Dim, Heads: cfg.Heads, KVHeads: cfg.KVHeads, HeadDim: cfg.HeadDim, FFN: cfg.FFN,
		Vocabulary: cfg.Vocab, Tokenizer: fmt.Sprintf("%016x", info.Tokenizer), Context: cfg.Context, TiedHead: info.TiedHead,
		Tensors: info.Tensors, TypeBytes: info.TypeBytes,
		Kernels: kernelInfo{ISA: available[len(available)-1], Available: available},
		Memory:  memoryInfo{info.WeightBytes, info.KVBytes, ctx, sessions, kv, info.WeightBytes + kv},
		Keys:    map[string]string{},
	}
	for _, k := range f.Keys() {
		m.Keys[k.Name] = f.Describe(k.Name)
	}
	return m
}

func mib(bytes int64) string { return fmt.Sprintf("%.1f MiB", float64(bytes)/(1<<20)) }
