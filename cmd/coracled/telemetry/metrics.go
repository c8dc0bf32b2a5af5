// Package telemetry tells how the daemon itself is doing: metrics for Prometheus and
// traces for OpenTelemetry, both only where the configuration asks for them. The parts
// that are measured know nothing of either; cmd/coracled hands them functions.
//
//	m := telemetry.NewMetrics("v1.2.3")
//	… cri.Deps{Called: m.Called, Pulled: m.Pulled} …
//	s, err := telemetry.Listen("127.0.0.1:9477", m)
//	defer s.Close()
package telemetry

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"google.golang.org/grpc/codes"
)

// namespace starts the name of every metric of ours.
const namespace = "coracle"

// Metrics are the daemon's own. Its methods may be called concurrently.
type Metrics struct {
	registry *prometheus.Registry
	calls    *prometheus.HistogramVec
	pulls    prometheus.Histogram
	recovery *prometheus.GaugeVec
	took     prometheus.Gauge
}

// NewMetrics makes metrics without any value; version is the daemon's.
func NewMetrics(version string) *Metrics {
	m := &Metrics{
		registry: prometheus.NewRegistry(),
		calls: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Namespace: namespace, Name: "call_duration_seconds",
			Help: "How long calls over the socket took, by method and by gRPC status code.",
			// A List takes microseconds, a pull minutes.
			Buckets: []float64{.0001, .0005, .001, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 120, 300},
		}, []string{"method", "code"}),
		pulls: prometheus.NewHistogram(prometheus.HistogramOpts{
			Namespace: namespace, Name: "image_pull_bytes",
			Help:    "Sizes of images that were pulled, in bytes as they lie in the registry.",
			Buckets: prometheus.ExponentialBuckets(1<<20, 4, 8), // 1 MiB to 16 GiB
		}),
		recovery: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Namespace: namespace, Name: "recovered",
			Help: "What the daemon found of its predecessor when it started: pods, containers, and errors that kept something from being put in " +
				"order.",
		}, []string{"what"}),
		took: prometheus.NewGauge(prometheus.GaugeOpts{
			Namespace: namespace, Name: "recovery_duration_seconds",
			Help: "How long the daemon took from its start until it served.",
		}),
	}
	build := prometheus.NewGauge(prometheus.GaugeOpts{
		Namespace: namespace, Name: "build_info", Help: "1, with the version as its label.",
		ConstLabels: prometheus.Labels{"version": version},
	})
	build.Set(1)
	m.registry.MustRegister(m.calls, m.pulls, m.recovery, m.took, build,
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return m
}

// Called counts a call; method is its name without the service's.
func (m *Metrics) Called(method string, code codes.Code, took time.Duration) {
	m.calls.WithLabelValues(method, code.String()).Observe(took.Seconds())
}

// Pulled counts an image that was pulled, of size bytes.
func (m *Metrics) Pulled(size int64) { m.pulls.Observe(float64(size)) }

// Recovery is what a start found.
type Recovery struct {
	Took                     time.Duration
	Pods, Containers, Errors int
}

// Recovered notes what the start found.
func (m *Metrics) Recovered(r Recovery) {
	m.took.Set(r.Took.Seconds())
	for what, n := range map[string]int{"pods": r.Pods, "containers": r.Containers, "errors": r.Errors} {
		m.recovery.WithLabelValues(what).Set(float64(n))
	}
}

// Objects adds the numbers of pods and containers by state, which count is asked for at
// each scrape.
func (m *Metrics) Objects(count func() (pods, containers map[string]int)) {
	m.registry.MustRegister(objects{count})
}

// State is the state of the state directory. It is read at each scrape.
type State struct {
	// Unmanaged is the number of pods and containers without a readable record.
	Unmanaged func() int
	// Used is the usage of its file system, 0 to 1; NaN if unknown.
	Used func() float64
}

// State adds the metrics of the state directory.
func (m *Metrics) State(s State) {
	m.registry.MustRegister(
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Namespace: namespace, Name: "unmanaged",
			Help: "Pods and containers that are left alone because their records cannot be read; crictl info lists them.",
		}, func() float64 { return float64(s.Unmanaged()) }),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Namespace: namespace, Name: "state_used_ratio",
			Help: "Usage of the state directory's file system, in bytes or inodes, whichever is higher: 0 to 1.",
		}, s.Used))
}

// objects is a collector of what is there at the moment.
type objects struct {
	count func() (pods, containers map[string]int)
}

var (
	podsDesc       = prometheus.NewDesc(namespace+"_pods", "Pods by state.", []string{"state"}, nil)
	containersDesc = prometheus.NewDesc(namespace+"_containers", "Containers by state.", []string{"state"}, nil)
)

func (objects) Describe(c chan<- *prometheus.Desc) { c <- podsDesc; c <- containersDesc }

func (o objects) Collect(c chan<- prometheus.Metric) {
	pods, containers := o.count()
	for state, n := range pods {
		c <- prometheus.MustNewConstMetric(podsDesc, prometheus.GaugeValue, float64(n), state)
	}
	for state, n := range containers {
		c <- prometheus.MustNewConstMetric(containersDesc, prometheus.GaugeValue, float64(n), state)
	}
}

// Server serves /metrics.
type Server struct {
	http   *http.Server
	listen net.Listener
	done   chan struct{}
}

// Listen serves m at address, a host:port, until Close.
func Listen(address string, m *Metrics, log *slog.Logger) (*Server, error) {
	l, err := net.Listen("tcp", address)
	if err != nil {
		return nil, fmt.Errorf("metrics server: %w", err)
	}
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{MaxRequestsInFlight: 4, Timeout: 10 * time.Second}))
	s := &Server{
		listen: l, done: make(chan struct{}),
		http: &http.Server{
			Handler: mux, ReadHeaderTimeout: 10 * time.Second, WriteTimeout: 30 * time.Second, IdleTimeout: 5 * time.Minute,
			ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelDebug),
		},
	}
	go func() {
		defer close(s.done)
		if err := s.http.Serve(l); !errors.Is(err, http.ErrServerClosed) {
			log.Error("metrics server ended", "err", err)
		}
	}()
	return s, nil
}

// Address is where it serves.
func (s *Server) Address() string { return s.listen.Addr().String() }

// Close ends it with all connections.
func (s *Server) Close() error {
	err := s.http.Close()
	<-s.done
	return err
}
