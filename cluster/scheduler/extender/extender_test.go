package extender

import (
	"encoding/pem"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
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
	other, err := pki.Ensure(t.TempDir(), "https://127.0.0.1:1", []string{"127.0.0.1"})
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
