package integration

import (
	"io"
	"net/http"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/coracle-project/coracle/internal/testkit"
)

// TestOwnMetrics: what the daemon tells of itself is what was done: calls by their result, no
// longer than their callers had to wait, bytes of pulls, what is there, and after a restart what
// was found.
func TestOwnMetrics(t *testing.T) {
	n := newNode(t, testkit.Options{Config: "[metrics]\naddress = \"127.0.0.1:0\"\n"})
	url := metricsURL(t, n)
	fresh := scrape(t, url)
	expect(t, fresh, map[string]float64{
		`coracle_recovered{what="pods"}`: 0, `coracle_recovered{what="containers"}`: 0, `coracle_recovered{what="errors"}`: 0,
		`coracle_image_pull_bytes_count`: 0, `coracle_pods{state="ready"}`: 0, `coracle_containers{state="running"}`: 0,
	})
	ref := n.pull("busybox")
	img, err := n.Images.ImageStatus(n.ctx(), &cri.ImageStatusRequest{Image: &cri.ImageSpec{Image: ref}})
	if err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	p := n.runPod(nil)
	waited := time.Since(began).Seconds()
	c := p.run(shell("main", forever))
	c.status()
	c.status()
	if _, err := n.StartContainer(n.ctx(), &cri.StartContainerRequest{ContainerId: "none"}); status.Code(err) != codes.NotFound {
		t.Fatal(err)
	}
	got := scrape(t, url)
	calls := func(what, method, code string) string {
		return `coracle_call_duration_seconds_` + what + `{code="` + code + `",method="` + method + `"}`
	}
	expect(t, got, map[string]float64{
		calls("count", "PullImage", "OK"): 1, calls("count", "RunPodSandbox", "OK"): 1, calls("count", "CreateContainer", "OK"): 1,
		calls("count", "StartContainer", "OK"): 1, calls("count", "StartContainer", "NotFound"): 1, calls("count", "ContainerStatus", "OK"): 2,
		`coracle_call_duration_seconds_bucket{code="OK",method="ContainerStatus",le="+Inf"}`: 2,
		`coracle_image_pull_bytes_count`: 1, `coracle_image_pull_bytes_sum`: float64(img.GetImage().GetSize()),
		`coracle_pods{state="ready"}`: 1, `coracle_containers{state="running"}`: 1,
	})
	if took := got[calls("sum", "RunPodSandbox", "OK")]; took <= 0 || took > waited {
		t.Errorf("RunPodSandbox took %v s, its caller waited %v s", took, waited)
	}
	for _, name := range []string{"go_goroutines", "process_open_fds", "process_resident_memory_bytes", "coracle_recovery_duration_seconds"} {
		if got[name] <= 0 {
			t.Errorf("%s is %v", name, got[name])
		}
	}

	if err := n.Terminate(); err != nil {
		t.Fatal(err)
	}
	if err := n.Start(); err != nil {
		t.Fatal(err)
	}
	n.ready()
	expect(t, scrape(t, metricsURL(t, n)), map[string]float64{
		`coracle_recovered{what="pods"}`: 1, `coracle_recovered{what="containers"}`: 1, `coracle_recovered{what="errors"}`: 0,
		`coracle_image_pull_bytes_count`: 0, `coracle_pods{state="ready"}`: 1, `coracle_containers{state="running"}`: 1,
	})
	p.remove()
}

var metricsLine = regexp.MustCompile(`msg=metrics address=(http://\S+)`)

// metricsURL is where the coracled that was started last says that it has its metrics.
func metricsURL(t *testing.T, n *node) string {
	t.Helper()
	log, err := os.ReadFile(n.LogFile)
	if err != nil {
		t.Fatal(err)
	}
	said := metricsLine.FindAllSubmatch(log, -1)
	if len(said) == 0 {
		t.Fatalf("no word of metrics:\n%s", n.LogTail(20))
	}
	return string(said[len(said)-1][1])
}

// scrape reads metrics: values by name and labels, as they are written.
func scrape(t testing.TB, url string) map[string]float64 {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Close = true
	r, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	text, err := io.ReadAll(r.Body)
	if err != nil || r.StatusCode != http.StatusOK {
		t.Fatalf("%s, %v: %s", r.Status, err, text)
	}
	all := map[string]float64{}
	for line := range strings.Lines(string(text)) {
		line = strings.TrimSpace(line)
		if strings.HasPrefix(line, "#") {
			continue
		}
		at := strings.LastIndexByte(line, ' ')
		if all[line[:max(at, 0)]], err = strconv.ParseFloat(line[at+1:], 64); err != nil {
			t.Fatalf("%q: %v", line, err)
		}
	}
	return all
}

func expect(t *testing.T, got, want map[string]float64) {
	t.Helper()
	for name, value := range want {
		if is, there := got[name]; !there || is != value {
			t.Errorf("%s is %v (%v), want %v", name, is, there, value)
		}
	}
}
