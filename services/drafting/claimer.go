package drafting

import (
	"context"
	"sync"
	"time"

	peerv1 "github.com/tandem-llm/tandem/proto/peer/v1"
	"github.com/tandem-llm/tandem/services/shm"
	"github.com/tandem-llm/tandem/services/wire"
)

const (
	attachPause = time.Second // between attempts to map a segment that could not be mapped
	releaseTime = time.Second // for one Release
	releaseRoom = 256         // handles that wait for one; beyond it leases end by themselves
)

// Claimer implements pool.Claimer for one drafter. It maps the drafter's segment when it first needs
// it, and again when the drafter was restarted; where it cannot, payloads come through gRPC. Safe for
// concurrent use.
type Claimer struct {
	client *Client

	mu     sync.Mutex
	reader *shm.Reader // nil: not mapped
	failed time.Time   // last attempt to map that failed

	releases chan *peerv1.Handle
	work     sync.WaitGroup
}

// NewClaimer returns a Claimer that asks the drafter of c. The caller must Close it after the last
// Claim has returned.
func NewClaimer(c *Client) *Claimer {
	cl := &Claimer{client: c, releases: make(chan *peerv1.Handle, releaseRoom)}
	cl.work.Go(cl.release)
	return cl
}

// Close releases what was claimed and unmaps the segment.
func (c *Claimer) Close() {
	close(c.releases)
	c.work.Wait()
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.reader != nil {
		_ = c.reader.Close()
		c.reader = nil
	}
}

// Claim implements pool.Claimer.Claim. Leases are released in the background.
func (c *Claimer) Claim(ctx context.Context, _ string, h shm.Handle) ([]byte, error) {
	r := c.segment(ctx, h.Segment)
	req := &peerv1.ClaimRequest{Handle: wire.FromHandle(h), Inline: r == nil}
	if r != nil {
		req.Peer = r.Peer()
	}
	granted, err := c.client.rpc.Claim(ctx, req)
	if err != nil || r == nil {
		return granted.GetPayload(), err
	}
	payload, err := r.Read(h)
	select {
	case c.releases <- req.GetHandle():
	default:
	}
	return payload, err
}

// segment returns a reader of the segment, nil if it cannot be mapped here and now.
func (c *Claimer) segment(ctx context.Context, id uint64) *shm.Reader {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.reader != nil && c.reader.Segment() == id {
		return c.reader
	}
	if time.Since(c.failed) < attachPause {
		return nil
	}
	c.failed = time.Now()
	d, err := c.client.Describe(ctx)
	if err != nil || d.SegmentSocket == "" {
		return nil
	}
	r, err := shm.Attach(ctx, d.SegmentSocket)
	if err != nil {
		return nil
	}
	if c.reader != nil {
		_ = c.reader.Close()
	}
	if c.reader = r; r.Segment() != id {
		return nil
	}
	c.failed = time.Time{}
	return r
}

// release ends leases, several with one call, until Close.
func (c *Claimer) release() {
	for h := range c.releases {
		r := &peerv1.ReleaseRequest{Handles: []*peerv1.Handle{h}}
		for more := true; more; {
			select {
			case h, ok := <-c.releases:
				if more = ok; ok {
					r.Handles = append(r.Handles, h)
				}
			default:
				more = false
			}
		}
		ctx, cancel := context.WithTimeout(context.Background(), releaseTime)
		_, _ = c.client.rpc.Release(ctx, r) // a lease that is not released ends by itself
		cancel()
	}
}
