// Package modelinfo says what a model file or a side file holds, which kernels run it, how much memory it needs and how fast it may be:
// what tandem model info prints.
package modelinfo

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/app/bench/figures"
	"github.com/tandem-llm/tandem/app/device"
	"github.com/tandem-llm/tandem/app/terminal"
	"github.com/tandem-llm/tandem/engine"
	"github.com/tandem-llm/tandem/engine/memory"
	"github.com/tandem-llm/tandem/kernels"
	"github.com/tandem-llm/tandem/kernels/cpu"
	"github.com/tandem-llm/tandem/modelfile/gguf"
	"github.com/tandem-llm/tandem/modelfile/side"
	"github.com/tandem-llm/tandem/processes/roles"
	"github.com/tandem-llm/tandem/processes/settings"
)

// Query says which file to look into, and for which use.
type Query struct {
	Path     string
	Identity bool           // also the identity and lineage, or a side file's digest: reads the whole file
	Target   string         // of a side file: the model that it may belong to; "": none
	Heads    []string       // paths of side files that the model is to have as a target
	Sizes    settings.Sizes // of a verifier with the model
	KVType   string
	KVMemory int64            // in bytes; 0: what roles.Room chooses
	Budget   int64            // memory of a verifier; 0: none is named
	Streams  *roles.Streaming // how a verifier streams what does not fit into a budget
}

// Info is what a file holds: a *Model or a *Side.
type Info interface {
	Print(to io.Writer) error // in words, for a person; an error is of writing
}

// Of looks into the file c.Path. Errors: Invalid for settings that do not go with it, and those of reading it.
func Of(ctx context.Context, c Query) (Info, error) {
	f, err := gguf.Open(c.Path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	s, err := engine.SideOf(c.Path)
	switch {
	case err == nil && s.Kind != "" && len(c.Heads) > 0:
		return nil, tandem.Errorf("", tandem.Invalid, "--heads: %s is itself a side file, and has none", c.Path)
	case err == nil && s.Kind != "":
		return c.side(ctx, f, &s)
	case side.Is(f): // and broken
		return nil, err
	case c.Target != "":
		return nil, tandem.Errorf("", tandem.Invalid, "--target: %s is no side file, it belongs to no target", c.Path)
	}
	return c.model(ctx, f)
}

// model looks into a model's file.
func (c Query) model(ctx context.Context, f *gguf.File) (*Model, error) {
	info, err := engine.Inspect(c.Path)
	if err != nil {
		return nil, err
	}
	memory, err := c.memory(info)
	if err != nil {
		return nil, err
	}
	m := describe(c.Path, info, f, memory)
	if m.Speed, err = speedOf(info, memory); err != nil {
		return nil, err
	}
	if c.Budget > 0 || !memory.Fits {
		if m.Budgets, err = c.budgets(memory); err != nil {
			return nil, err
		}
	}
	if c.Identity {
		names, err := engine.Identify(ctx, c.Path, engine.Options{Context: c.Sizes.Ctx, KVType: c.KVType})
		if err != nil {
			return nil, err
		}
		m.Identity, m.Lineage = names.Identity, names.Lineage
	}
	return m, nil
}

// Model is what a model's file holds.
type Model struct {
	File       string            `json:"file"`
	Files      int               `json:"files"` // number of files that the model is split into
	Name       string            `json:"name"`
	Identity   tandem.Identity   `json:"identity,omitempty"` // of a process that loads it with the same --ctx and --kv-type
	Lineage    string            `json:"lineage,omitempty"`
	Arch       string            `json:"architecture"`
	Traits     []string          `json:"traits"`
	GGUF       int               `json:"gguf_version"`
	Parameters int64             `json:"parameters"`
	FileBytes  int64             `json:"file_bytes"`
	Layers     int               `json:"layers"`
	Dim        int               `json:"dim"`
	Heads      int               `json:"heads"`
	KVHeads    int               `json:"kv_heads"`
	HeadDim    int               `json:"head_dim"`
	FFN        int               `json:"ffn"`
	Context    int               `json:"context"`
	TiedHead   bool              `json:"tied_head"`
	Tokenizer  tokenizerInfo     `json:"tokenizer"`
	Types      []typeInfo        `json:"types"`
	Kernels    kernelInfo        `json:"kernels"`
	Memory     memoryInfo        `json:"memory"`
	Speed      speedInfo         `json:"speed"`
	LeftOut    []leftOutInfo     `json:"left_out,omitempty"` // what of the file reads pictures or sound
	Budgets    *budgetInfo       `json:"budgets,omitempty"`  // if it does not fit, or a budget was named
	Notes      []string          `json:"notes,omitempty"`    // what its tokenizer lacks, what of its store is not used
	Stored     []Value           `json:"stored,omitempty"`   // what its store says beside the file
	Keys       map[string]string `json:"keys"`
	keys       []string          // in the file's order
}

// Value is a setting that lies beside a model's file.
type Value struct {
	Name  string `json:"name"`
	Value string `json:"value"`
}

type tokenizerInfo struct {
	Kind         string `json:"kind"`
	Pre          string `json:"pre,omitempty"`
	Vocabulary   int    `json:"vocabulary"`
	Fingerprint  string `json:"fingerprint"`
	ChatTemplate bool   `json:"chat_template"`
}

// typeInfo is the size of the tensors of one type, and the kernel that computes with them.
type typeInfo struct {
	Type        string `json:"type"`
	Tensors     int    `json:"tensors"`
	FileBytes   int64  `json:"file_bytes"`
	MemoryBytes int64  `json:"memory_bytes"`
	Kernel      string `json:"kernel"`
}

type kernelInfo struct {
	ISA       string   `json:"isa"`
	Available []string `json:"available"`
}

// memoryInfo is what a process with the model reserves at start.
type memoryInfo struct {
	Weights    int64    `json:"weights_bytes"`
	Beside     int64    `json:"heads_bytes,omitempty"` // of weights: those of side files
	KVType     string   `json:"kv_type"`
	KVPosition int64    `json:"kv_bytes_per_position"`
	Ctx        int      `json:"ctx"`
	Sessions   int      `json:"sessions"`
	KV         int64    `json:"kv_bytes"`               // of the pool that all sessions share
	Room       Capacity `json:"room"`                   // in it, for a target without drafts beside it
	States     int64    `json:"states_bytes,omitempty"` // of recurrent layers
	Slot       int64    `json:"slot_bytes,omitempty"`   // the states of a session
	Record     int64    `json:"record_bytes,omitempty"` // of a tree's row
	Slots      int      `json:"slots,omitempty"`
	Records    int      `json:"records,omitempty"`
	Scratch    int64    `json:"scratch_bytes"`
	Total      int64    `json:"total_bytes"` // with the process itself
	InUse      []inUse  `json:"in_use"`
	Available  int64    `json:"available_bytes"`
	Bound      string   `json:"available_by"`
	Fits       bool     `json:"fits"`
	Advice     string   `json:"advice,omitempty"` // what would fit
}

// inUse is what a process takes after texts of so many tokens in all.
type inUse struct {
	Tokens int   `json:"tokens"`
	Bytes  int64 `json:"bytes"`
}

// inUseAt are texts that are mostly asked for, in tokens.
var inUseAt = []int{2048, 8192, 32768}

// memory returns what a verifier with the model reserves, and whether that much is available.
func (c Query) memory(info *engine.Info) (memoryInfo, error) {
	sizes := c.Sizes.OrDefault()
	r := roles.Room{Sizes: sizes, Options: engine.Options{Device: device.Planner(), KVType: c.KVType}, KVMemory: c.KVMemory}
	if err := r.Add(c.Path, tandem.DefaultLimits.Nodes, 0, c.Heads...); err != nil {
		return memoryInfo{}, err
	}
	available := memory.Free()
	if err := r.Plan(available, 1); err != nil && tandem.KindOf(err) != tandem.Exhausted {
		return memoryInfo{}, err
	}
	t := r.Models[0]
	m := memoryInfo{
		Weights: t.Weights, Beside: t.Footprint.Beside,
		KVType: c.KVType, KVPosition: t.PageBytes / kernels.PageRows, Ctx: sizes.ContextOf(info.Config.Context),
		Sessions: r.Sessions,
		KV:       t.KV(), Scratch: t.Scratch, Total: t.Total(), Available: available.Bytes, Bound: available.By,
		Fits: t.Total() <= available.Bytes,
	}
	for _, n := range inUseAt {
		if n <= max(m.Ctx, inUseAt[0]) {
			m.InUse = append(m.InUse, inUse{n, t.InUse(n)})
		}
	}
	m.States, m.Slots, m.Slot, m.Records, m.Record = t.States, t.Slots, t.SlotBytes, t.Records, t.RecordBytes
	if m.Room = (Capacity{Fit: r.Fit(), Free: available.Bytes}); !m.Fits {
		m.Advice = r.Advice(available)
	}
	return m, nil
}

// describe returns what the file says.
func describe(path string, info *engine.Info, f *gguf.File, memory memoryInfo) *Model {
	isas := cpu.Supported()
	available := make([]string, len(isas))
	for i, isa := range isas {
		available[i] = isa.String()
	}
	cfg := info.Config
	m := &Model{
		File: path, Files: info.Parts, Name: cfg.Name, Arch: cfg.Arch, Traits: append([]string{}, info.Traits...), GGUF: f.Version(),
		Parameters: info.Parameters, FileBytes: info.FileBytes,
		Layers: cfg.Layers, Dim: cfg.Dim, Heads: cfg.Heads, KVHeads: cfg.KVHeads, HeadDim: cfg.HeadDim, FFN: cfg.FFN,
		Context: cfg.Context, TiedHead: info.TiedHead,
		Tokenizer: tokenizerInfo{info.Tokenizer, info.Pre, cfg.Vocab,
			roles.Fingerprint(info.Header.Vocab.Fingerprint()), info.ChatTemplate},
		Kernels: kernelInfo{ISA: available[len(available)-1], Available: available},
		Memory:  memory,
		Notes:   info.Notes,
		Keys:    map[string]string{},
	}
	for _, name := range slices.Sorted(maps.Keys(info.Types)) {
		u := info.Types[name]
		m.Types = append(m.Types, typeInfo{name, u.Tensors, u.FileBytes, u.MemoryBytes, u.Kernel})
	}
	for _, k := range f.Keys() {
		m.Keys[k.Name] = f.Describe(k.Name)
		m.keys = append(m.keys, k.Name)
	}
	for _, p := range info.LeftOut {
		m.LeftOut = append(m.LeftOut, leftOutInfo{p.What, p.Tensors, p.Bytes})
	}
	return m
}

// Print writes the result as text.
func (m *Model) Print(to io.Writer) error {
	w := tabwriter.NewWriter(terminal.Printable{To: to}, 0, 0, 2, ' ', 0)
	for _, row := range m.rows() {
		fmt.Fprintf(w, "%s\t%s\n", row[0], terminal.Shown(row[1]))
	}
	for _, t := range m.Types {
		fmt.Fprintf(w, "tensors\t%d of %s, %s in the file, %s in memory, %s\n", t.Tensors, t.Type, figures.MiB(t.FileBytes),
			figures.MiB(t.MemoryBytes), t.Kernel)
	}
	for _, row := range m.Stored {
		fmt.Fprintf(w, "beside it\t%s = %s\n", row.Name, terminal.Shown(row.Value))
	}
	for _, name := range m.keys {
		fmt.Fprintf(w, "key\t%s = %s\n", terminal.Shown(name), terminal.Shown(m.Keys[name]))
	}
	return w.Flush()
}

// rows returns what is one line each.
func (m *Model) rows() [][2]string {
	files, template, fits := "", "no", "fits here"
	if m.Files > 1 {
		files = fmt.Sprintf(", %d files", m.Files)
	}
	if m.Tokenizer.ChatTemplate {
		template = "yes"
	}
	if !m.Memory.Fits {
		fits = "does not fit here: " + m.Memory.Advice
	}
	weights := figures.MiB(m.Memory.Weights)
	if m.Memory.Beside > 0 {
		weights += fmt.Sprintf(", of which side files %s", figures.MiB(m.Memory.Beside))
	}
	rows := [][2]string{
		{"file", fmt.Sprintf("%s (GGUF v%d, %s%s)", m.File, m.GGUF, figures.MiB(m.FileBytes), files)},
		{"name", m.Name},
		{"architecture", m.Arch},
		{"traits", strings.Join(m.Traits, ", ")},
		{"parameters", fmt.Sprintf("%.1f million", float64(m.Parameters)/1e6)},
		{"shape", fmt.Sprintf("%d layers, d %d, %d heads, %d kv heads of %d, ffn %d", m.Layers, m.Dim, m.Heads, m.KVHeads, m.HeadDim,
			m.FFN)},
		{"tokenizer", fmt.Sprintf("%s %s, %d tokens, fingerprint %s", m.Tokenizer.Kind, cmp.Or(m.Tokenizer.Pre, "(no pre-tokenizer)"),
			m.Tokenizer.Vocabulary, m.Tokenizer.Fingerprint)},
		{"chat template", template},
		{"context", fmt.Sprint(m.Context)},
		{"kernels", fmt.Sprintf("%s (this machine has %v)", m.Kernels.ISA, m.Kernels.Available)},
		{"weights", weights},
		{"KV cache", fmt.Sprintf("%s, %s, %d bytes a token", m.Memory.Room, m.Memory.KVType, m.Memory.KVPosition)},
		{"buffers", figures.MiB(m.Memory.Scratch)},
		{"memory", fmt.Sprintf("%s in all; %s allows %s: %s", figures.MiB(m.Memory.Total), m.Memory.Bound, figures.MiB(m.Memory.Available),
			fits)},
	}
	var used []string
	for _, u := range m.Memory.InUse {
		used = append(used, fmt.Sprintf("%s with %s tokens of text", figures.MiB(u.Bytes), Digits(u.Tokens)))
	}
	rows = append(rows, [2]string{"in use", strings.Join(used, ", ")})
	if m.Memory.States > 0 {
		s := &m.Memory
		rows = append(rows, [2]string{"recurrent states", fmt.Sprintf("%s: %d slots of %s, one for each session and as many for prefixes, "+
			"and %d records of %d bytes, one for each row of a tree", figures.MiB(s.States), s.Slots, memory.Bytes(s.Slot), s.Records,
			s.Record)})
	}
	for _, note := range m.Notes {
		rows = append(rows, [2]string{"note", note})
	}
	rows = append(rows, m.Speed.rows()...)
	for _, p := range m.LeftOut {
		rows = append(rows, [2]string{"left out", fmt.Sprintf("%s, %d tensors, %s: tandem continues text, which does not depend on it",
			p.What, p.Tensors, figures.MiB(p.Bytes))})
	}
	rows = append(rows, m.Budgets.rows()...)
	if m.Identity != "" {
		rows = append(rows, [2]string{"identity", string(m.Identity)}, [2]string{"lineage", m.Lineage})
	}
	return rows
}
