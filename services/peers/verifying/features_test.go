package verifying

import (
	"context"
	"path/filepath"
	"reflect"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"

	"github.com/tandem-llm/tandem"
	peerv1 "github.com/tandem-llm/tandem/proto/peer/v1"
	"github.com/tandem-llm/tandem/services/peers/rpc"
	"github.com/tandem-llm/tandem/services/peers/shm"
	"github.com/tandem-llm/tandem/test/testkit"
)

// source is a FeatureSource that says one thing.
type source struct {
	asked tandem.FeatureQuery
	out   tandem.Features
	err   error
	waits bool
}

func (s *source) Features(ctx context.Context, q tandem.FeatureQuery) (tandem.Features, error) {
	s.asked = q
	if s.waits {
		<-ctx.Done()
		return tandem.Features{}, tandem.Errorf("features", tandem.KindOf(ctx.Err()), "%w", ctx.Err())
	}
	return s.out, s.err
}

// rows returns features of n positions from first on.
func rows(first, n, width int) tandem.Features {
	f := tandem.Features{From: tandem.Position(first), Taps: []int{3, -1}, Width: width, Rows: make([]uint16, n*width)}
	for i := range f.Rows {
		f.Rows[i] = uint16(i)
	}
	return f
}

// watched counts how rows came, and may change what the client is told.
type watched struct {
	peerv1.VerifierServiceClient
	handles, inline int
	forge           func(*peerv1.FeaturesResponse)
}

func (w *watched) Features(ctx context.Context, r *peerv1.FeaturesRequest, o ...grpc.CallOption) (*peerv1.FeaturesResponse, error) {
	out, err := w.VerifierServiceClient.Features(ctx, r, o...)
	switch {
	case err != nil:
	case out.Handle != nil:
		w.handles++
	default:
		w.inline++
	}
	if w.forge != nil && err == nil {
		w.forge(out)
	}
	return out, err
}

func segment(t *testing.T, socket string, slots int) *shm.Segment {
	t.Helper()
	o, err := shm.New(shm.SegmentConfig{Slots: slots, SlotSize: 64 << 10, Lease: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = o.Close() })
	l, err := rpc.Listen("unix://" + socket)
	if err == nil {
		err = o.Serve(l)
	}
	if err != nil {
		t.Fatal(err)
	}
	return o
}

// linked returns a link to the segment at a socket once it is mapped.
func linked(t *testing.T, socket string) *shm.Link {
	t.Helper()
	link := shm.NewLink(shm.Drafter, new(shm.Set), func(context.Context) (string, error) { return socket, nil })
	t.Cleanup(link.Close)
	testkit.Eventually(t, "the segment is mapped", func() bool { return link.Segment() != 0 })
	return link
}

var query = tandem.FeatureQuery{Session: 3, Epoch: 2, From: 5, Until: 500}

// TestFeaturesByHandle: a drafter on the verifier's host reads large answers in shared memory; one elsewhere, and one whose mapping is
// of another start, finds them in the answer, and so does everybody when no slot is free.
func TestFeaturesByHandle(t *testing.T) {
	dir := t.TempDir()
	addr, socket := "unix://"+filepath.Join(dir, "v"), filepath.Join(dir, "seg")
	own, other := segment(t, socket, 2), filepath.Join(dir, "other")
	segment(t, other, 1)
	f, counters := &source{out: rows(6, 20, 400)}, new(tandem.Counters)
	serve(t, addr, ServerConfig{Verifier: new(fake), Features: f, Segment: own, Counters: counters})
	small, large := rows(5, 2, 400), rows(6, 20, 400)
	for _, c := range []struct {
		what    string
		link    *shm.Link
		out     tandem.Features
		handles int
	}{
		{"mapped", linked(t, socket), large, 5},
		{"mapped, but little", linked(t, socket), small, 0},
		{"elsewhere", nil, large, 0},
		{"another segment", linked(t, other), large, 0},
		{"more than a slot", linked(t, socket), rows(5, 200, 400), 0},
	} {
		client := dial(t, addr).Mapping(c.link, "draft")
		w := &watched{VerifierServiceClient: client.rpc}
		client.rpc, f.out = w, c.out
		for range 5 {
			if got, err := client.Features(t.Context(), query); err != nil || !reflect.DeepEqual(got, c.out) || f.asked != query {
				t.Fatalf("%s: %d rows from %d, %v, asked for %+v", c.what, got.Len(), got.From, err, f.asked)
			}
		}
		if w.handles != c.handles || w.inline != 5-c.handles {
			t.Errorf("%s: %d by handle and %d in the answer: want %d and %d", c.what, w.handles, w.inline, c.handles, 5-c.handles)
		}
	}
	f.out = large
	link := linked(t, socket)
	for _, name := range []string{"a", "b", "c", "a"} { // one slot for each of them
		if got, err := dial(t, addr).Mapping(link, name).Features(t.Context(), query); err != nil || !reflect.DeepEqual(got, large) {
			t.Errorf("drafter %s: %d rows, %v", name, got.Len(), err)
		}
	}
	if n := counters.Snapshot(); n["features.shared"] < 5 || n["features.no_slot"] < 5 || n["features.rows"] == 0 {
		t.Errorf("counted %v", n)
	}
}

// TestGarbageFeatures: an answer that contradicts itself or the question is refused.
func TestGarbageFeatures(t *testing.T) {
	dir := t.TempDir()
	addr, socket := "unix://"+filepath.Join(dir, "v"), filepath.Join(dir, "seg")
	f := &source{}
	serve(t, addr, ServerConfig{Verifier: new(fake), Features: f, Segment: segment(t, socket, 8)})
	client := dial(t, addr).Mapping(linked(t, socket), "draft")
	w := &watched{VerifierServiceClient: client.rpc}
	client.rpc = w
	for name, c := range map[string]struct {
		out   tandem.Features
		forge func(*peerv1.FeaturesResponse)
		want  tandem.Kind
	}{
		"other width":     {rows(5, 2, 40), func(r *peerv1.FeaturesResponse) { r.Width = 32 }, tandem.Corrupt},
		"no width":        {rows(5, 2, 40), func(r *peerv1.FeaturesResponse) { r.Width = 0 }, tandem.Corrupt},
		"negative width":  {rows(5, 2, 40), func(r *peerv1.FeaturesResponse) { r.Width = -40 }, tandem.Corrupt},
		"no taps":         {rows(5, 2, 40), func(r *peerv1.FeaturesResponse) { r.Taps = nil }, tandem.Corrupt},
		"many taps":       {rows(5, 2, 40), func(r *peerv1.FeaturesResponse) { r.Taps = make([]int32, 1<<20) }, tandem.Corrupt},
		"truncated":       {rows(5, 2, 40), func(r *peerv1.FeaturesResponse) { r.Rows = r.Rows[:81] }, tandem.Corrupt},
		"part of a row":   {rows(5, 2, 40), func(r *peerv1.FeaturesResponse) { r.Rows = r.Rows[:80-2] }, tandem.Corrupt},
		"too early":       {rows(4, 2, 40), nil, tandem.Corrupt},
		"too late":        {rows(501, 0, 40), nil, tandem.Corrupt},
		"too many rows":   {rows(499, 2, 40), nil, tandem.Corrupt},
		"unknown segment": {rows(5, 20, 400), func(r *peerv1.FeaturesResponse) { r.Handle.Segment++ }, tandem.Corrupt},
		"no segment":      {rows(5, 20, 400), func(r *peerv1.FeaturesResponse) { r.Handle.Segment = 0 }, tandem.Corrupt},
		"slot beyond":     {rows(5, 20, 400), func(r *peerv1.FeaturesResponse) { r.Handle.Slot = 99 }, tandem.Corrupt},
		"old generation":  {rows(5, 20, 400), func(r *peerv1.FeaturesResponse) { r.Handle.Generation -= 2 }, tandem.Stale},
		"shorter":         {rows(5, 20, 400), func(r *peerv1.FeaturesResponse) { r.Handle.Length -= 2 }, tandem.Corrupt},
		"both":            {rows(5, 20, 400), func(r *peerv1.FeaturesResponse) { r.Rows = make([]byte, 800) }, tandem.Corrupt},
	} {
		f.out, w.forge = c.out, c.forge
		if got, err := client.Features(t.Context(), query); tandem.KindOf(err) != c.want || got.Len() > 0 {
			t.Errorf("%s: %d rows, %v: want %v", name, got.Len(), err, c.want)
		}
	}
}

// TestFeaturesThatDoNotCome: errors keep their kind, and neither a caller's deadline nor the verifier's end is waited past.
func TestFeaturesThatDoNotCome(t *testing.T) {
	addr := "unix://" + filepath.Join(t.TempDir(), "v")
	f := &source{err: tandem.Errorf("features", tandem.Stale, "epoch 2: epoch 3 is held")}
	server, stop := serve(t, addr, ServerConfig{Verifier: new(fake), Features: f})
	c := dial(t, addr)
	if _, err := c.Features(t.Context(), query); tandem.KindOf(err) != tandem.Stale {
		t.Errorf("another epoch: %v", err)
	}
	f.waits = true
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	if _, err := c.Features(ctx, query); tandem.KindOf(err) != tandem.Deadline {
		t.Errorf("a wait past the deadline: %v", err)
	}
	var ended atomic.Bool
	done := make(chan struct{})
	go func() {
		defer close(done)
		_, err := c.Features(t.Context(), query)
		ended.Store(err != nil)
	}()
	time.Sleep(10 * time.Millisecond)
	server.Close()
	<-done
	if !ended.Load() {
		t.Error("a verifier that ends has handed out features")
	}
	stop()
	none := "unix://" + filepath.Join(t.TempDir(), "v")
	serve(t, none, ServerConfig{Verifier: new(fake)})
	if _, err := dial(t, none).Features(t.Context(), query); tandem.KindOf(err) != tandem.Unsupported {
		t.Errorf("a verifier without features: %v", err)
	}
}
