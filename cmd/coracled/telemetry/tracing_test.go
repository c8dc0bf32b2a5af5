package telemetry

import (
	"context"
	"encoding/hex"
	"log/slog"
	"net"
	"testing"
	"time"

	collector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	spans "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/test/bufconn"

	"github.com/coracle-project/coracle/internal/testkit"
)

// sink is a collector that hands on what it gets.
type sink struct {
	collector.UnimplementedTraceServiceServer
	got chan *spans.Span
}

func (s sink) Export(_ context.Context, r *collector.ExportTraceServiceRequest) (*collector.ExportTraceServiceResponse, error) {
	for _, resource := range r.ResourceSpans {
		for _, scope := range resource.ScopeSpans {
			for _, span := range scope.Spans {
				s.got <- span
			}
		}
	}
	return &collector.ExportTraceServiceResponse{}, nil
}

// collect serves a sink on loopback.
func collect(t *testing.T) (s sink, endpoint string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s = sink{got: make(chan *spans.Span, 10)}
	server := grpc.NewServer()
	collector.RegisterTraceServiceServer(server, s)
	served := make(chan error, 1)
	go func() { served <- server.Serve(l) }()
	t.Cleanup(func() {
		server.Stop()
		<-served
	})
	return s, "http://" + l.Addr().String()
}

// traced serves something that is traced, and calls it with the trace context of a caller.
func traced(t *testing.T, tracer *Tracer, traceparents ...string) {
	t.Helper()
	l := bufconn.Listen(1 << 16)
	server := grpc.NewServer(tracer.ServerOption())
	grpc_health_v1.RegisterHealthServer(server, health.NewServer())
	served := make(chan error, 1)
	go func() { served <- server.Serve(l) }()
	defer func() {
		server.Stop()
		<-served
	}()
	conn, err := grpc.NewClient("passthrough:///x",
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return l.DialContext(ctx) }),
		grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	for _, parent := range traceparents {
		ctx := metadata.AppendToOutgoingContext(t.Context(), "traceparent", parent)
		if _, err := grpc_health_v1.NewHealthClient(conn).Check(ctx, &grpc_health_v1.HealthCheckRequest{}); err != nil {
			t.Fatal(err)
		}
	}
	server.GracefulStop()
}

const (
	traceID = "0af7651916cd43dd8448eb211c80319c"
	spanID  = "b7ad6b7169203331"
)

func TestSpansContinueTheCallersTrace(t *testing.T) {
	s, endpoint := collect(t)
	tracer, err := StartTracing(t.Context(), Tracing{Endpoint: endpoint, Ratio: 0, Version: "v1", Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	tracer.flush = time.Hour
	// One that the caller records, and one that it does not.
	traced(t, tracer, "00-"+traceID+"-"+spanID+"-01", "00-"+traceID+"-"+spanID+"-00")
	if err := tracer.Close(); err != nil {
		t.Fatal(err)
	}
	close(s.got)
	n := 0
	for span := range s.got {
		n++
		if hex.EncodeToString(span.TraceId) != traceID || hex.EncodeToString(span.ParentSpanId) != spanID {
			t.Errorf("span %x of trace %x has parent %x", span.SpanId, span.TraceId, span.ParentSpanId)
		}
		if span.Name != "grpc.health.v1.Health/Check" {
			t.Errorf("span of %q", span.Name)
		}
	}
	if n != 1 {
		t.Errorf("%d spans, want that of the recorded trace", n)
	}
}

// TestNoCollectorHoldsNothingUp: spans that cannot be sent are dropped, or the test would hang.
func TestNoCollectorHoldsNothingUp(t *testing.T) {
	endpoint := "http://" + testkit.RefusingAddr(t)
	tracer, err := StartTracing(t.Context(), Tracing{Endpoint: endpoint, Ratio: 1, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	traced(t, tracer, "00-"+traceID+"-"+spanID+"-01")
	tracer.flush = time.Millisecond
	if err := tracer.Close(); err == nil {
		t.Error("no one says that a span was lost")
	}
}
