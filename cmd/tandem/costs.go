package main

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/cmd/tandem/supervise"
	"github.com/tandem-llm/tandem/engine"
	"github.com/tandem-llm/tandem/engine/measure"
)

// measureTime is what a verifier spends at its start to find out what its passes cost.
const measureTime = time.Second

// measureFlags are the verifier's alone.
type measureFlags struct {
	Measure bool `help:"Measure at the start, for at most a second or eight passes, what passes of the target cost, as the planner needs it; without, it learns from the passes that it sees." default:"true" negatable:""`
}

// measured is what a verifier leaves beside its socket for its successor in the same run, which must be
// back soon: the costs, and what they depend on.
type measured struct {
	Model    string
	Bytes    int64
	Modified time.Time
	Threads  int
	ISA      string
	KVType   string
	Costs    []tandem.Cost
}

// costs returns what passes of m cost: as a predecessor measured it that served on the same socket, else
// measured now. Nil if that cannot be; then the planner learns it.
func (r *role) costs(ctx context.Context, m *engine.Model, path, listen, kvType string) []tandem.Cost {
	now := measured{Model: path, Threads: m.Threads(), ISA: m.ISA().String(), KVType: kvType}
	if info, err := os.Stat(path); err == nil {
		now.Bytes, now.Modified = info.Size(), info.ModTime().UTC()
	}
	file := costsFile(listen)
	if costs := now.read(file); costs != nil {
		return costs
	}
	var err error
	now.Costs, err = measure.Costs(ctx, m, measureTime, func() { _ = supervise.Alive(r.flags.ReadyFD) })
	if err != nil {
		r.log.Warn("costs of passes not measured", "error", err)
		return nil
	}
	if err := now.write(file); err != nil {
		r.log.Warn("costs of passes not kept for a restart", "file", file, "error", err)
	}
	return now.Costs
}

// costsFile returns where a process that listens on a socket keeps its costs; "" for one that does not.
func costsFile(listen string) string {
	socket, found := strings.CutPrefix(listen, "unix://")
	if !found {
		return ""
	}
	return socket + ".costs.json"
}

// read returns the costs in file if they were measured under the same conditions, else nil.
func (now measured) read(file string) []tandem.Cost {
	if file == "" {
		return nil
	}
	b, err := os.ReadFile(file)
	if err != nil {
		return nil
	}
	var old measured
	if json.Unmarshal(b, &old) != nil {
		return nil
	}
	same := old.Model == now.Model && old.Bytes == now.Bytes && old.Modified.Equal(now.Modified) &&
		old.Threads == now.Threads && old.ISA == now.ISA && old.KVType == now.KVType
	impossible := func(c tandem.Cost) bool { return c.Rows < 1 || c.Context < 0 || c.Time <= 0 }
	if !same || slices.ContainsFunc(old.Costs, impossible) {
		return nil
	}
	return old.Costs
}

// write keeps the costs in file, all at once.
func (now measured) write(file string) error {
	if file == "" {
		return nil
	}
	b, err := json.Marshal(now)
	if err != nil {
		return err
	}
	tmp, err := os.CreateTemp(filepath.Dir(file), ".costs-*")
	if err != nil {
		return reason(err)
	}
	defer os.Remove(tmp.Name())
	_, err = tmp.Write(b)
	if closed := tmp.Close(); err == nil {
		err = closed
	}
	if err == nil {
		err = os.Rename(tmp.Name(), file)
	}
	if err != nil {
		return reason(err)
	}
	return nil
}
