// Package collectortest is an OTLP collector for tests: it keeps the spans it is sent in memory.
package collectortest

import (
	"context"
	"encoding/hex"
	"fmt"
	"net"
	"sync"
	"time"

	collectorv1 "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	commonv1 "go.opentelemetry.io/proto/otlp/common/v1"
	tracev1 "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/grpc"
)

// Span is a span as it arrived.
type Span struct {
	Service string // service.name of its process
	Host    string // host.name of its process
	PID     int64  // process.pid of its process
	Name    string
	Kind    string // "INTERNAL", "SERVER", "CLIENT", "PRODUCER" or "CONSUMER"
	Trace   string // hexadecimal, as are the ids below
	ID      string
	Parent  string // "" for a root
	Links   []Ref  // spans that it is linked to
	Start   time.Time
	End     time.Time
	Attrs   map[string]any // string, int64, float64, bool or []any
	Error   string         // status description; "" unless the status is an error
}

// Ref names a span.
type Ref struct{ Trace, ID string }

// Int returns an integer attribute, 0 if there is none.
func (s Span) Int(key string) int64 {
	n, _ := s.Attrs[key].(int64)
	return n
}

// Collector is a running collector. Safe for concurrent use.
type Collector struct {
	collectorv1.UnimplementedTraceServiceServer
	addr   string
	server *grpc.Server
	done   chan struct{}

	mu    sync.Mutex
	spans []Span
}

// Start listens on a port of 127.0.0.1. The caller must Close the collector.
func Start() (*Collector, error) { return StartAt("127.0.0.1:0") }

// StartAt listens on host:port. The caller must Close the collector.
func StartAt(addr string) (*Collector, error) {
	l, err := net.Listen("tcp", addr)
	if err != nil {
		return nil, fmt.Errorf("collector: %w", err)
	}
	c := &Collector{addr: l.Addr().String(), server: grpc.NewServer(grpc.WaitForHandlers(true)), done: make(chan struct{})}
	collectorv1.RegisterTraceServiceServer(c.server, c)
	go func() {
		defer close(c.done)
		_ = c.server.Serve(l)
	}()
	return c, nil
}

// Endpoint returns "host:port".
func (c *Collector) Endpoint() string { return c.addr }

// Close stops the collector.
func (c *Collector) Close() {
	c.server.Stop()
	<-c.done
}

// Spans returns all spans so far.
func (c *Collector) Spans() []Span {
	c.mu.Lock()
	defer c.mu.Unlock()
	return append([]Span(nil), c.spans...)
}

// Wait returns the spans once ready says that they are complete, or what there is after d.
func (c *Collector) Wait(d time.Duration, ready func([]Span) bool) []Span {
	for end := time.Now().Add(d); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		if s := c.Spans(); ready(s) {
			return s
		}
	}
	return c.Spans()
}

// Export implements the OTLP trace service.
func (c *Collector) Export(_ context.Context, r *collectorv1.ExportTraceServiceRequest) (*collectorv1.ExportTraceServiceResponse, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, rs := range r.GetResourceSpans() {
		of := attributes(rs.GetResource().GetAttributes())
		for _, ss := range rs.GetScopeSpans() {
			for _, s := range ss.GetSpans() {
				c.spans = append(c.spans, decode(of, s))
			}
		}
	}
	return &collectorv1.ExportTraceServiceResponse{}, nil
}

func decode(of map[string]any, s *tracev1.Span) Span {
	out := Span{Name: s.GetName(), Kind: s.GetKind().String()[len("SPAN_KIND_"):],
		Trace: hex.EncodeToString(s.GetTraceId()), ID: hex.EncodeToString(s.GetSpanId()), Parent: hex.EncodeToString(s.GetParentSpanId()),
		Start: time.Unix(0, int64(s.GetStartTimeUnixNano())), End: time.Unix(0, int64(s.GetEndTimeUnixNano())),
		Attrs: attributes(s.GetAttributes())}
	out.Service, _ = of["service.name"].(string)
	out.Host, _ = of["host.name"].(string)
	out.PID, _ = of["process.pid"].(int64)
	for _, l := range s.GetLinks() {
		out.Links = append(out.Links, Ref{hex.EncodeToString(l.GetTraceId()), hex.EncodeToString(l.GetSpanId())})
	}
	if s.GetStatus().GetCode() == tracev1.Status_STATUS_CODE_ERROR {
		out.Error = s.GetStatus().GetMessage()
	}
	return out
}

func attributes(list []*commonv1.KeyValue) map[string]any {
	out := map[string]any{}
	for _, kv := range list {
		out[kv.GetKey()] = value(kv.GetValue())
	}
	return out
}

func value(v *commonv1.AnyValue) any {
	switch v := v.GetValue().(type) {
	case *commonv1.AnyValue_StringValue:
		return v.StringValue
	case *commonv1.AnyValue_IntValue:
		return v.IntValue
	case *commonv1.AnyValue_DoubleValue:
		return v.DoubleValue
	case *commonv1.AnyValue_BoolValue:
		return v.BoolValue
	case *commonv1.AnyValue_ArrayValue:
		var all []any
		for _, e := range v.ArrayValue.GetValues() {
			all = append(all, value(e))
		}
		return all
	}
	return nil
}
