package extender

import (
	"bytes"
	"encoding/json"
	"encoding/pem"
	"errors"
	"io"
	"log"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	extenderv1 "k8s.io/kube-scheduler/extender/v1"
	"k8s.io/kubernetes/pkg/scheduler/apis/config"

	"github.com/coracle-project/coracle/cluster/pki"
)

// Over HTTPS the server is verified by the CA that is configured, and by none if none is, as
// upstream does.
func TestHTTPS(t *testing.T) {
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "{}") }))
	server.Config.ErrorLog = log.New(io.Discard, "", 0)
	server.StartTLS()
	defer server.Close()
	theirs := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
	other, err := pki.Ensure(t.TempDir(), "https://127.0.0.1:1", []string{"127.0.0.1"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		name string
		tls  *config.ExtenderTLSConfig
		want string
	}{
		{"its CA", &config.ExtenderTLSConfig{CAData: theirs}, ""},
		{"another CA", &config.ExtenderTLSConfig{CAFile: other.CACert}, "certificate"},
		{"another name", &config.ExtenderTLSConfig{CAData: theirs, ServerName: "elsewhere.example"}, "elsewhere.example"},
		{"no CA", nil, ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			e, err := New(config.Extender{URLPrefix: server.URL, BindVerb: "bind", EnableHTTPS: true, TLSConfig: test.tls})
			if err != nil {
				t.Fatal(err)
			}
			err = e.Bind(t.Context(), &v1.Pod{}, "a")
			if test.want == "" && err != nil || test.want != "" && (err == nil || !strings.Contains(err.Error(), test.want)) {
				t.Errorf("error is %v, not of %q", err, test.want)
			}
		})
	}
}

// An answer takes not much more memory than it is long, whatever it would be to upstream's types.
func TestAnswerOfManyNodes(t *testing.T) {
	const length = 1 << 18
	answer := `{"Nodes": {"items": [{}` + strings.Repeat(",{}", length/3) + `]}}`
	allocated := func(f func()) uint64 {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		f()
		runtime.ReadMemStats(&after)
		return after.TotalAlloc - before.TotalAlloc
	}
	if n := allocated(func() {
		var result extenderv1.ExtenderFilterResult
		if err := json.Unmarshal([]byte(answer), &result); err != nil {
			t.Error(err)
		}
	}); n < 100*length {
		t.Errorf("upstream's type takes only %d bytes for %d: this tests nothing", n, length)
	}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, answer) }))
	defer server.Close()
	e, err := New(config.Extender{URLPrefix: server.URL, FilterVerb: "filter"})
	if err != nil {
		t.Fatal(err)
	}
	n := allocated(func() {
		if _, err := e.Filter(t.Context(), &v1.Pod{}, nil, nil); !errors.Is(err, errTooMany) {
			t.Errorf("error is %v", err)
		}
	})
	if n > 12*length {
		t.Errorf("an answer of %d bytes takes %d", length, n)
	}
}

// A pause is told of when it begins and when it ends, not for each pod.
func TestPauseIsToldOfOnce(t *testing.T) {
	var told bytes.Buffer
	e := NewOver(config.Extender{URLPrefix: "http://x"}, nil)
	e.Log = slog.New(slog.NewTextHandler(&told, nil))
	for range 10 {
		e.heard(false)
	}
	for range 10 {
		e.heard(true)
	}
	if begins, ends := strings.Count(told.String(), "does not answer"), strings.Count(told.String(), "answers again"); begins != 1 ||
		ends != 1 {
		t.Errorf("%d begins and %d ends are in %s", begins, ends, &told)
	}
}
