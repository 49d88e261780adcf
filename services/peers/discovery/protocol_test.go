package discovery

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/tandem-llm/tandem"
	peerv1 "github.com/tandem-llm/tandem/proto/peer/v1"
	"github.com/tandem-llm/tandem/services/peers/rpc"
)

// older is a drafter process that tells that it speaks another protocol, or none.
type older struct {
	peerv1.UnimplementedDrafterServiceServer
	protocol uint32
}

func (o older) Describe(context.Context, *peerv1.DrafterServiceDescribeRequest) (*peerv1.DrafterServiceDescribeResponse, error) {
	return &peerv1.DrafterServiceDescribeResponse{Description: &peerv1.Description{Name: "old", Drafters: []string{"old"},
		Protocol: o.protocol}}, nil
}

// Processes of another protocol are not used, whether they announce themselves or are configured; each is named once in its life. One that
// takes the place of a process that was used ends its use.
func TestOtherProtocol(t *testing.T) {
	cfg, _ := start(t)
	dir := t.TempDir()
	static := "unix://" + filepath.Join(dir, "static")
	s, err := rpc.NewServer(rpc.ServerConfig{Listen: static})
	if err != nil {
		t.Fatal(err)
	}
	peerv1.RegisterDrafterServiceServer(s.Registrar(), older{})
	ctx, cancel := context.WithCancel(context.Background())
	var work sync.WaitGroup
	work.Go(func() { _ = s.Run(ctx) })
	defer func() { cancel(); work.Wait() }()

	counters := new(tandem.Counters)
	v := &view{counters: counters}
	var mu sync.Mutex
	var said []string
	v.table, err = NewTable(TableConfig{Pool: cfg, Static: []string{static}, Beat: beat, Counters: counters,
		Refused: func(err error) {
			mu.Lock()
			defer mu.Unlock()
			if tandem.Refusal(err) != tandem.OpProtocol {
				t.Errorf("refused with %v", err)
			}
			said = append(said, err.Error())
		},
		Changed: func(processes []Process) {
			v.mu.Lock()
			defer v.mu.Unlock()
			v.processes = processes
		}})
	if err != nil {
		t.Fatal(err)
	}
	defer v.table.Close()
	a := startProcess(t, cfg, "unix://"+filepath.Join(dir, "a"), false, "go")
	v.until(t, "the one that speaks our protocol", drafters("go"))
	a.announcer.Close()
	a.announcer = nil
	v.until(t, "nothing of it is under way any more", func(all []Process) bool {
		return slices.ContainsFunc(all, func(p Process) bool { return p.Addr == a.addr && p.Lapsed })
	})

	nc, err := cfg.Connect("other", func() {})
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	say := func(instance uint64, addr string, protocol uint32) {
		data, err := proto.Marshal(&peerv1.Announcement{Version: 1, Instance: instance, Sequence: 1, Address: addr,
			State:    peerv1.State_STATE_UP,
			Drafters: []*peerv1.AnnouncedDrafter{{Name: "new"}}, Protocol: protocol})
		if err != nil {
			t.Fatal(err)
		}
		if err := nc.Publish(cfg.Subject(Drafters.subject), data); err != nil {
			t.Fatal(err)
		}
	}
	for range 3 { // again and again, as processes do
		say(7, "unix:///other", tandem.Protocol+1)
		say(8, "unix:///old", 0)
		say(9, a.addr, tandem.Protocol+1)
	}
	v.until(t, "the one that was replaced is not used any more", drafters())
	v.until(t, "all are counted", func([]Process) bool { return counters.Snapshot()["refused.protocol"] == 4 })
	v.beats(t, 3)
	mu.Lock()
	defer mu.Unlock()
	all := strings.ReplaceAll(strings.Join(said, "\n"), `"`, "") // what was announced is quoted
	for _, want := range []string{
		fmt.Sprintf("drafter process at unix:///other speaks protocol %d, this process %d", tandem.Protocol+1, tandem.Protocol),
		"unix:///old speaks a protocol older than 1",
		fmt.Sprintf("%s speaks protocol %d", a.addr, tandem.Protocol+1), static + " speaks a protocol older than 1"} {
		if strings.Count(all, want) != 1 {
			t.Errorf("said\n%s\nwant %q once", all, want)
		}
	}
	if len(said) != 4 {
		t.Errorf("said %d times: want 4", len(said))
	}
}
