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
	"github.com/tandem-llm/tandem/app/device"
	"github.com/tandem-llm/tandem/app/terminal"
	"github.com/tandem-llm/tandem/drafter"
	"github.com/tandem-llm/tandem/engine"
	"github.com/tandem-llm/tandem/engine/memory"
	"github.com/tandem-llm/tandem/modelfile/gguf"
	"github.com/tandem-llm/tandem/modelfile/side"
	"github.com/tandem-llm/tandem/processes/roles"
)

// Side is what a side file holds.
type Side struct {
	File       string            `json:"file"`
	Name       string            `json:"name"`
	Kind       string            `json:"kind"`
	Called     string            `json:"called"`                   // where ways and drafters are named
	RunsIn     string            `json:"runs_in"`                  // verifier or drafter
	Lineage    string            `json:"target_lineage,omitempty"` // an assistant names none
	Vocabulary string            `json:"target_vocabulary,omitempty"`
	Dim        int               `json:"target_dim"`
	Tokens     int               `json:"target_tokens"`
	Fits       *bool             `json:"fits,omitempty"` // the target that was named
	Because    string            `json:"because,omitempty"`
	Memory     int64             `json:"memory_bytes,omitempty"`  // beside that target, in its process; of medusa and ppd it is not told
	Process    int64             `json:"process_bytes,omitempty"` // of a draft in a process of its own
	Taps       []int             `json:"taps"`
	Shape      string            `json:"shape"`
	Parameters int64             `json:"parameters"`
	FileBytes  int64             `json:"file_bytes"`
	Types      map[string]int    `json:"types"` // tensors by type
	Digest     string            `json:"digest,omitempty"`
	Keys       map[string]string `json:"keys"`
	keys       []string          // in the file's order
	version    int               // of GGUF
}

// side looks into a side file.
func (c Query) side(ctx context.Context, f *gguf.File, s *side.Spec) (*Side, error) {
	m := &Side{Kind: string(s.Kind), Lineage: s.Lineage, Vocabulary: s.Vocabulary, Dim: s.Dim, Tokens: s.Vocab,
		Taps: append([]int{}, s.Taps...), Shape: s.Shape()}
	if m.Called, m.RunsIn = roles.ModelName(c.Path), "drafter"; s.Kind.InVerifier() {
		m.Called, m.RunsIn = s.SelfDraft().Name, "verifier"
	}
	return c.describe(ctx, f, m, func(target string) error {
		if s.Kind == side.Assistant { // which names no target
			return c.beside(m, target)
		}
		t, err := SideTarget(ctx, target)
		if err != nil {
			return err
		}
		why := s.Fits(c.Path, t)
		if why == nil && s.Kind.IsDraft() {
			o := engine.Options{Device: device.Planner(), KVType: c.KVType}
			m.Memory, m.Process, why = roles.DraftMemory(target, c.Path, o, c.Sizes, drafter.DefaultTreeRows)
		}
		return m.compare(why)
	})
}

// beside finds out what an assistant takes beside a target.
func (c Query) beside(m *Side, target string) error {
	o := engine.Options{Device: device.Planner(), KVType: c.KVType}
	alone, err := engine.Measure(target, o)
	if err != nil {
		return err
	}
	with, err := engine.Measure(target, o, c.Path)
	if err == nil {
		m.Memory = with.Total() - alone.Total()
	}
	return m.compare(err)
}

// describe adds what every file has, and with compare whether it fits the target that is named, if one is.
func (c Query) describe(ctx context.Context, f *gguf.File, m *Side, compare func(target string) error) (_ *Side, err error) {
	m.version, m.File, m.FileBytes, m.Types, m.Keys = f.Version(), c.Path, f.Size(), map[string]int{}, map[string]string{}
	if m.Name, err = f.StringOr("general.name", m.Kind); err != nil {
		return nil, err
	}
	for i := range f.Tensors() {
		t := &f.Tensors()[i]
		m.Parameters += int64(t.Elements())
		m.Types[t.Type.String()]++
	}
	for _, k := range f.Keys() {
		m.Keys[k.Name] = f.Describe(k.Name)
		m.keys = append(m.keys, k.Name)
	}
	if c.Target != "" {
		if err := compare(c.Target); err != nil {
			return nil, err
		}
	}
	if c.Identity {
		if m.Digest, err = f.NewDigest().Sum(ctx); err != nil {
			return nil, err
		}
	}
	return m, nil
}

// compare keeps whether the side file fits a target: why not, or nil. Other errors than a file's that does not fit are returned.
func (m *Side) compare(why error) error {
	switch tandem.KindOf(why) {
	case tandem.Invalid, tandem.Unsupported:
		m.Because = why.Error()
	default:
		if why != nil {
			return why
		}
	}
	m.Fits = new(why == nil)
	return nil
}

// tapsOf describes hidden states.
func tapsOf(taps []int) string {
	words := make([]string, len(taps))
	for i, t := range taps {
		if words[i] = fmt.Sprintf("after layer %d", t); t == side.LastNorm {
			words[i] = "after the final norm"
		}
	}
	return cmp.Or(strings.Join(words, ", "), "none")
}

// Print writes the result as text.
func (m *Side) Print(to io.Writer) error {
	fits := "name it with --target FILE to compare"
	if m.Fits != nil {
		if fits = "no: " + m.Because; *m.Fits {
			fits = "yes"
		}
	}
	size := memory.Bytes(m.FileBytes)
	if m.FileBytes < 1<<20 {
		size = fmt.Sprintf("%d bytes", m.FileBytes)
	}
	w := tabwriter.NewWriter(terminal.Printable{To: to}, 0, 0, 2, ' ', 0)
	rows := [][2]string{
		{"file", fmt.Sprintf("%s (GGUF v%d, %s)", m.File, m.version, size)},
		{"name", m.Name},
		{"side file", m.Kind},
		{"runs in", fmt.Sprintf("the %s, called %s", m.RunsIn, m.Called)},
		{"target", m.target()},
		{"fits the target", fits},
		{"hidden states", tapsOf(m.Taps)},
		{"shape", m.Shape},
		{"parameters", fmt.Sprint(m.Parameters)},
	}
	if m.Memory > 0 {
		takes := memory.Bytes(m.Memory) + " beside the target"
		if m.Process > 0 {
			takes = fmt.Sprintf("%s in the verifier's process, %s in its own", takes, memory.Bytes(m.Process))
		}
		rows = append(rows, [2]string{"memory", takes})
	}
	if m.Digest != "" {
		rows = append(rows, [2]string{"digest", m.Digest})
	}
	for _, row := range rows {
		fmt.Fprintf(w, "%s\t%s\n", row[0], terminal.OneLine(row[1]))
	}
	for _, name := range slices.Sorted(maps.Keys(m.Types)) {
		fmt.Fprintf(w, "tensors\t%d of %s\n", m.Types[name], name)
	}
	for _, name := range m.keys {
		fmt.Fprintf(w, "key\t%s = %s\n", terminal.Shown(name), terminal.Shown(m.Keys[name]))
	}
	return w.Flush()
}

// target describes the target that a side file is made for.
func (m *Side) target() string {
	size := fmt.Sprintf("d %d, %d tokens", m.Dim, m.Tokens)
	if m.Lineage == "" {
		return size + ", its lineage is not named"
	}
	return fmt.Sprintf("lineage %s, %s, fingerprint %s", m.Lineage, size, m.Vocabulary)
}

// SideTarget returns what a side file for the model at path must fit. If the model states no lineage, it reads the whole file to find it.
func SideTarget(ctx context.Context, path string) (side.Target, error) {
	info, err := engine.Inspect(path)
	if err != nil {
		return side.Target{}, err
	}
	names, err := engine.Identify(ctx, path, engine.Options{})
	if err != nil {
		return side.Target{}, err
	}
	c := info.Config
	return side.Target{Path: path, Lineage: names.Lineage, Vocabulary: names.Vocabulary, Dim: c.Dim, Vocab: c.Vocab, Layers: c.Layers}, nil
}
