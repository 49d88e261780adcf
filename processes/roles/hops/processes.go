package hops

import (
	"context"
	"time"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/processes/roles"
	"github.com/tandem-llm/tandem/services/peers/discovery"
	"github.com/tandem-llm/tandem/services/peers/drafting"
	"github.com/tandem-llm/tandem/services/peers/pool"
	"github.com/tandem-llm/tandem/services/peers/rpc"
	"github.com/tandem-llm/tandem/services/peers/shm"
	"github.com/tandem-llm/tandem/services/peers/trees"
	"github.com/tandem-llm/tandem/services/peers/verifying"
	"github.com/tandem-llm/tandem/services/peers/wire"
)

// probeBytes is the size of the memory that a verifier reads: more than fits into the caches of most processors.
const probeBytes = 256 << 20

// Peer configures a drafter or verifier process of empty rounds.
type Peer struct {
	roles.Config
	Models  roles.Models // of the verifier: the device whose threads read memory
	Pool    string       // as roles.Process.PoolAccess takes it
	Drafter string       // address of the drafter, for the verifier
}

// RunDrafter runs a drafter process until ctx ends.
func RunDrafter(ctx context.Context, c Peer) error {
	r, err := roles.Start(ctx, rpc.Drafter, c.Config, nil)
	if err != nil {
		return err
	}
	defer r.Close()
	var undo roles.Cleanup
	defer undo.Run()
	if err := c.drafter(ctx, r, &undo); err != nil {
		r.Server.Close()
		return err
	}
	return r.Serve(ctx)
}

// drafter assembles a drafter process, as package processes/roles/drafter does.
func (c Peer) drafter(ctx context.Context, r *roles.Process, undo *roles.Cleanup) error {
	socket := roles.Besides(r.Server.Addr())
	segment, err := r.OpenSegment(socket, shm.Config{})
	if err != nil {
		return err
	}
	undo.Add(func() { segment.Close() })
	written := trees.NewWriter(segment, 0, r.Counters)
	access, err := r.PoolAccess(ctx, c.Pool)
	if err != nil {
		return err
	}
	config := pool.Config{Access: access, Counters: r.Counters, Log: r.Log}
	publisher, err := pool.NewPublisher(pool.PublisherConfig{Config: config, Trees: written})
	if err != nil {
		return err
	}
	undo.Add(publisher.Close)
	forget := drafting.Register(r.Server.Registrar(), drafting.Config{Trees: written, Drafters: []drafting.Named{{Name: Name,
		Drafter: drafter{publisher}, Describe: r.DescribeProcess(Name, socket)}}})
	r.Server.WhenGone(forget)
	announcer, err := discovery.Announce(discovery.AnnouncerConfig{Pool: config, Sign: r.Credentials.Sign,
		What: wire.Announcement{Addr: roles.Reachable(r.Server.Addr(), r.Certificate), Segment: segment.ID(),
			Drafters: []wire.AnnouncedDrafter{{Name: Name}}}})
	if err != nil {
		return err
	}
	undo.Add(announcer.Close)
	return nil
}

// RunVerifier runs a verifier process until ctx ends.
func RunVerifier(ctx context.Context, c Peer) error {
	var server *verifying.Server // set before the address is served
	r, err := roles.Start(ctx, rpc.Verifier, c.Config, func() { server.Close() })
	if err != nil {
		return err
	}
	defer r.Close()
	var undo roles.Cleanup
	defer undo.Run()
	if server, err = c.verifier(ctx, r, &undo); err != nil {
		r.Server.Close()
		return err
	}
	server.Register(r.Server.Registrar())
	return r.Serve(ctx)
}

// verifier assembles a verifier process, as package processes/roles/verifier does.
func (c Peer) verifier(ctx context.Context, r *roles.Process, undo *roles.Cleanup) (*verifying.Server, error) {
	access, err := r.PoolAccess(ctx, c.Pool)
	if err != nil {
		return nil, err
	}
	read, err := c.reader(undo)
	if err != nil {
		return nil, err
	}
	v := newVerifier(ctx, read, r.DescribeProcess("verifier", ""))
	mapped := new(shm.Set)
	server := verifying.NewServer(verifying.Config{Verifier: v, Counters: r.Counters, MaxNodes: tandem.DefaultLimits.Nodes})
	r.Server.WhenGone(server.Forget)
	config := pool.Config{Access: access, Counters: r.Counters, Log: r.Log}
	memory := discovery.NewMemory(shm.Verifier, mapped)
	table, err := discovery.NewTable(discovery.Config{Pool: config, Dial: r.Credentials.Dialer(rpc.Drafter), Vouch: r.Credentials.Vouch,
		Static:   []string{c.Drafter},
		Counters: r.Counters, Log: r.Log, Changed: memory.Update, Refused: r.Refused})
	if err != nil {
		return nil, err
	}
	undo.Add(table.Close)
	undo.Add(memory.Close)
	tickets, err := pool.NewSource(pool.SourceConfig{Config: config, Submit: v.Submit, Segments: mapped, Fetcher: memory})
	if err != nil {
		return nil, err
	}
	undo.Add(tickets.Close)
	return server, nil
}

// reader returns a function that reads memory with the device's threads and multiplies, for about so long in all.
func (c Peer) reader(undo *roles.Cleanup) (func(time.Duration) error, error) {
	device, err := c.Models.Device(c.Models.Threads)
	if err != nil {
		return nil, err
	}
	undo.Add(device.Close)
	probe, err := device.NewProbe(probeBytes)
	if err != nil {
		return nil, err
	}
	undo.Add(probe.Close)
	return func(long time.Duration) error {
		_, err := probe.Sample(long / 3) // of three limits: first of reading, then of multiply-adds
		return err
	}, nil
}
