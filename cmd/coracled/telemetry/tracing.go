package telemetry

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path"
	"time"

	"go.opentelemetry.io/contrib/instrumentation/google.golang.org/grpc/otelgrpc"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracegrpc"
	"go.opentelemetry.io/otel/metric/noop"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/sdk/resource"
	"go.opentelemetry.io/otel/sdk/trace"
	semconv "go.opentelemetry.io/otel/semconv/v1.40.0"
	"google.golang.org/grpc"
	"google.golang.org/grpc/stats"
)

// Tracing is where spans go.
type Tracing struct {
	// Endpoint is the URL of an OTLP collector (gRPC): http://host:port, or https:// for TLS.
	Endpoint string
	// Ratio of traces that begin here and are sampled, 0 to 1. A trace that the caller has
	// started is sampled if the caller's is (W3C Trace Context, in the call's metadata).
	Ratio   float64
	Version string
	Log     *slog.Logger
}

// flushLimit is how long the last spans may take to be sent when the daemon ends.
const flushLimit = 2 * time.Second

// Tracer sends a span for each call.
type Tracer struct {
	provider *trace.TracerProvider
	exporter trace.SpanExporter
	flush    time.Duration // flushLimit, but for tests
}

// StartTracing starts to export spans. It does not wait for the collector, which may come
// and go; spans that cannot be sent are dropped, and logged.
func StartTracing(ctx context.Context, t Tracing) (*Tracer, error) {
	exporter, err := otlptracegrpc.New(ctx, otlptracegrpc.WithEndpointURL(t.Endpoint))
	if err != nil {
		return nil, fmt.Errorf("tracing to %s: %w", t.Endpoint, err)
	}
	otel.SetErrorHandler(otel.ErrorHandlerFunc(func(err error) {
		t.Log.Warn("tracing", "endpoint", t.Endpoint, "err", err)
	}))
	provider := trace.NewTracerProvider(trace.WithBatcher(exporter),
		trace.WithSampler(trace.ParentBased(trace.TraceIDRatioBased(t.Ratio))),
		trace.WithResource(resource.NewSchemaless(
			semconv.ServiceName("coracled"), semconv.ServiceVersion(t.Version))),
	)
	return &Tracer{provider, exporter, flushLimit}, nil
}

// ServerOption makes a gRPC server trace its calls. A stream of events lasts as long as its
// reader and would be one span of days.
func (t *Tracer) ServerOption() grpc.ServerOption {
	return grpc.StatsHandler(otelgrpc.NewServerHandler(
		otelgrpc.WithTracerProvider(t.provider),
		otelgrpc.WithMeterProvider(noop.NewMeterProvider()),
		otelgrpc.WithPropagators(propagation.TraceContext{}),
		otelgrpc.WithFilter(func(i *stats.RPCTagInfo) bool { return path.Base(i.FullMethodName) != "GetContainerEvents" }),
	))
}

// Close sends what is left and ends.
func (t *Tracer) Close() error {
	ctx, cancel := context.WithTimeout(context.Background(), t.flush)
	defer cancel()
	// An exporter without a receiver would go on trying if the provider's patience
	// ends before its own.
	if err := errors.Join(t.provider.Shutdown(ctx), t.exporter.Shutdown(ctx)); err != nil {
		return fmt.Errorf("tracing: %w", err)
	}
	return nil
}
