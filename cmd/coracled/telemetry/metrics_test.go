package telemetry

import (
	"io"
	"log/slog"
	"net/http"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/grpc/codes"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func scrape(t *testing.T, s *Server, path string) (int, string) {
	t.Helper()
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := client.Get("http://" + s.Address() + path)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(b)
}

func TestMetricsAreServed(t *testing.T) {
	m := NewMetrics("v1.2.3")
	m.Called("RunPodSandbox", codes.OK, 20*time.Millisecond)
	m.Called("RunPodSandbox", codes.NotFound, time.Microsecond)
	m.Pulled(3 << 20)
	m.Recovered(Recovery{Took: 250 * time.Millisecond, Pods: 7, Containers: 9, Errors: 1})
	m.Objects(func() (pods, containers map[string]int) {
		return map[string]int{"ready": 2}, map[string]int{"running": 3}
	})
	m.State(State{Unmanaged: func() int { return 4 }, Used: func() float64 { return 0.5 }})
	s, err := Listen("127.0.0.1:0", m, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}()
	code, text := scrape(t, s, "/metrics")
	if code != http.StatusOK {
		t.Fatalf("%d: %s", code, text)
	}
	for _, line := range []string{
		`coracle_call_duration_seconds_bucket{code="OK",method="RunPodSandbox",le="0.025"} 1`,
		`coracle_call_duration_seconds_bucket{code="OK",method="RunPodSandbox",le="0.01"} 0`,
		`coracle_call_duration_seconds_count{code="NotFound",method="RunPodSandbox"} 1`,
		`coracle_image_pull_bytes_bucket{le="4.194304e+06"} 1`,
		`coracle_recovered{what="pods"} 7`,
		`coracle_recovered{what="errors"} 1`,
		`coracle_recovery_duration_seconds 0.25`,
		`coracle_pods{state="ready"} 2`,
		`coracle_containers{state="running"} 3`,
		`coracle_build_info{version="v1.2.3"} 1`,
		`coracle_unmanaged 4`,
		`coracle_state_used_ratio 0.5`,
		`go_goroutines `,
		`process_open_fds `,
	} {
		if !strings.Contains(text, "\n"+line) {
			t.Errorf("no %q in\n%s", line, text)
		}
	}
	if code, _ := scrape(t, s, "/"); code != http.StatusNotFound {
		t.Errorf("/: %d", code)
	}
}

func TestListenWhereItCannot(t *testing.T) {
	if _, err := Listen("192.0.2.1:1", NewMetrics(""), slog.Default()); err == nil || !strings.Contains(err.Error(), "192.0.2.1:1") {
		t.Errorf("%v", err)
	}
}
