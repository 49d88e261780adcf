package drafter

import (
	"context"
	"path/filepath"
	"testing"

	"github.com/tandem-llm/tandem/engine"
	"github.com/tandem-llm/tandem/kernels/testdevice"
	"github.com/tandem-llm/tandem/processes/roles"
	"github.com/tandem-llm/tandem/services/peers/discovery"
	"github.com/tandem-llm/tandem/services/peers/rpc"
	"github.com/tandem-llm/tandem/test/testkit"
)

// TestDrafterTellsItsCosts: a process of drafters that has nothing to do measures what passes of each of its models cost, of one
// row and of as many as read a prompt, and tells it to whoever asks. The next has it at once.
func TestDrafterTellsItsCosts(t *testing.T) {
	dir := t.TempDir()
	addr := "unix://" + filepath.Join(dir, "d")
	const models = "../../../models/"
	c := Setup{Program: roles.Program{Version: "test", Calm: func() bool { return true }},
		Models: roles.Models{Threads: 1, Open: engine.Open, Device: func(int) (roles.Device, error) { return testdevice.CPU(t, 1), nil }}}
	c.Listen, c.Pool, c.Sessions = addr, "file:"+filepath.Join(dir, "pool"), 2
	c.Draft = []string{models + "gopher-draft-all-f16.gguf", models + "gopher-19m-q8_0.gguf"}
	c.Cache = dir
	for _, start := range []string{"the first", "the second"} {
		told(t, c, addr, start)
	}
}

// told starts a process and ends it when it has told its costs; the second start at once.
func told(t *testing.T, c Setup, addr, start string) {
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- Run(ctx, c) }()
	conn, err := new(rpc.Credentials).Dialer(rpc.Drafter)(addr)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	testkit.Eventually(t, "both drafters tell their costs", func() bool {
		told, err := discovery.Drafters.Describe(t.Context(), addr, conn)
		if err != nil {
			return false
		}
		for _, d := range told.Drafters {
			if len(d.Costs) == 0 && start == "the first" {
				return false
			}
			if c := d.Costs; len(c) != 2 || c[0].Rows != 1 || c[1].Rows != 64 || !c[0].Valid() || c[1].Time < c[0].Time {
				t.Fatalf("%s costs %+v: want passes of 1 and of 64 rows", d.Name, c)
			}
		}
		return len(told.Drafters) == 2
	})
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}
