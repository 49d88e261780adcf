// Package telemetry turns tandem.Events into OpenTelemetry spans and exports them by OTLP. It is off by
// default, and then nothing of it runs. A collector that is down or slow costs nothing but
// spans.
package telemetry

import (
	"context"
	"net/url"
	"os"
	"strings"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracegrpc"
	"go.opentelemetry.io/otel/sdk/resource"
	sdk "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"

	"github.com/tandem-llm/tandem"
)

const (
	exportTime   = 5 * time.Second // for one batch, retries included
	exportEvery  = time.Second
	shutdownTime = 2 * time.Second
)

// Config says what one process records and where it goes.
type Config struct {
	Service  string           // "tandem-gateway", "tandem-drafter" or "tandem-verifier"
	Version  string           // of tandem
	Endpoint string           // OTLP over gRPC, "host:port" or "http(s)://host:port"; "" takes the OTEL_* environment
	Roots    bool             // the process may begin a trace: the gateway alone
	Counters *tandem.Counters // "telemetry.lost_spans": not taken by the collector; may be nil
}

// Telemetry records and exports the spans of this process; a nil Telemetry does neither.
type Telemetry struct {
	provider *sdk.TracerProvider
	tracer   trace.Tracer
	exporter *quiet
	events   tandem.Events
}

// Setup returns nil if neither cfg nor the environment names an endpoint, or the environment switches
// tracing off. It does not wait for the collector. The caller must Shutdown the result. Errors: Invalid.
func Setup(ctx context.Context, cfg Config) (*Telemetry, error) {
	endpoint := endpoint(cfg.Endpoint, os.Getenv)
	if endpoint == "" {
		return nil, nil
	}
	target, err := parse(endpoint)
	if err != nil {
		return nil, err
	}
	exporter, err := otlptracegrpc.New(ctx, append(reaching(target), otlptracegrpc.WithTimeout(exportTime),
		otlptracegrpc.WithRetry(otlptracegrpc.RetryConfig{
			Enabled: true, InitialInterval: 250 * time.Millisecond, MaxInterval: time.Second, MaxElapsedTime: exportTime}))...)
	if err != nil {
		return nil, tandem.Errorf("telemetry", tandem.Invalid, "%s: %w", endpoint, err)
	}
	res, err := resource.New(ctx, resource.WithHost(), resource.WithFromEnv(), resource.WithAttributes(
		attribute.String("service.name", cfg.Service), attribute.String("service.version", cfg.Version),
		attribute.Int("process.pid", os.Getpid())))
	if err != nil {
		return nil, tandem.Errorf("telemetry", tandem.Invalid, "OTEL_RESOURCE_ATTRIBUTES: %w", err)
	}
	q := &quiet{SpanExporter: exporter, counters: cfg.Counters, closed: make(chan struct{})}
	q.life, q.end = context.WithCancel(context.Background())
	opts := []sdk.TracerProviderOption{sdk.WithResource(res), sdk.WithBatcher(q, sdk.WithBatchTimeout(exportEvery),
		sdk.WithExportTimeout(exportTime))}
	if !cfg.Roots {
		opts = append(opts, sdk.WithSampler(sdk.ParentBased(sdk.NeverSample())))
	}
	provider := sdk.NewTracerProvider(opts...)
	return &Telemetry{provider: provider, tracer: provider.Tracer(scope), exporter: q, events: Events(provider)}, nil
}

// Events returns callbacks that record, and ones that do nothing for a nil Telemetry.
func (t *Telemetry) Events() tandem.Events {
	if t == nil {
		return tandem.Events{}
	}
	return t.events
}

// Shutdown exports what is recorded, for two seconds at most, and ends the exporter.
func (t *Telemetry) Shutdown() {
	if t == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), shutdownTime)
	defer cancel()
	_ = t.provider.Shutdown(ctx) // spans that could not be exported are counted
	t.exporter.end()
	<-t.exporter.closed
}

// endpoint returns the configured endpoint, or the environment's unless that switches tracing off.
func endpoint(configured string, env func(string) string) string {
	if configured != "" {
		return configured
	}
	if strings.EqualFold(env("OTEL_SDK_DISABLED"), "true") || strings.EqualFold(env("OTEL_TRACES_EXPORTER"), "none") {
		return ""
	}
	if e := env("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"); e != "" {
		return e
	}
	return env("OTEL_EXPORTER_OTLP_ENDPOINT")
}

// parse returns endpoint as a URL; one without a scheme is not encrypted.
func parse(endpoint string) (*url.URL, error) {
	if !strings.Contains(endpoint, "://") {
		endpoint = "http://" + endpoint
	}
	u, err := url.Parse(endpoint)
	if err != nil || u.Port() == "" || u.Hostname() == "" || (u.Scheme != "http" && u.Scheme != "https") {
		return nil, tandem.Errorf("telemetry", tandem.Invalid, "OTLP endpoint %q: want host:port or http://host:port", endpoint)
	}
	return u, nil
}

// reaching returns how a collector is dialled: one that starts late, or comes back with another address, is found within a second. The
// name is left to the dialer (passthrough), which looks it up at every attempt; gRPC's own lookup waits for half a minute between two.
func reaching(collector *url.URL) []otlptracegrpc.Option {
	wait := backoff.Config{BaseDelay: 100 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: time.Second}
	return []otlptracegrpc.Option{otlptracegrpc.WithEndpointURL(collector.String()),
		otlptracegrpc.WithEndpoint("passthrough:///" + collector.Host),
		otlptracegrpc.WithDialOption(grpc.WithConnectParams(grpc.ConnectParams{Backoff: wait, MinConnectTimeout: time.Second}))}
}

// quiet counts what could not be exported in place of logging it, and gives up at once when life ends.
type quiet struct {
	sdk.SpanExporter
	counters *tandem.Counters
	life     context.Context
	end      context.CancelFunc
	closed   chan struct{} // once the processor, after its last export, has shut the exporter down
}

func (q *quiet) ExportSpans(ctx context.Context, spans []sdk.ReadOnlySpan) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(q.life, cancel)()
	if err := q.SpanExporter.ExportSpans(ctx, spans); err != nil && q.counters != nil {
		q.counters.Add("telemetry.lost_spans", int64(len(spans)))
	}
	return nil
}

func (q *quiet) Shutdown(ctx context.Context) error {
	defer close(q.closed)
	return q.SpanExporter.Shutdown(ctx)
}
