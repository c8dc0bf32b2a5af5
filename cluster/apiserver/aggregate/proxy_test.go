package aggregate

import (
	"crypto/tls"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"sync/atomic"
	"testing"

	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/endpoints/request"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
)

// at is where all servers are.
type at url.URL

func (a *at) ResolveEndpoint(string, string, int32) (*url.URL, error) { return (*url.URL)(a), nil }

// A server that sends an endless HTML page does not take the API server's memory.
func TestEndlessPage(t *testing.T) {
	const attack = 64 << 20 // it has an end for the test only
	var sent atomic.Int64
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/html")
		block := make([]byte, 64<<10)
		for err := error(nil); err == nil && sent.Load() < attack; {
			var n int
			n, err = w.Write(block)
			sent.Add(int64(n))
		}
	}))
	defer server.Close()
	location, err := url.Parse(server.URL)
	if err != nil {
		t.Fatal(err)
	}
	a := &Aggregator{options: Options{Log: slog.New(slog.DiscardHandler), Resolver: (*at)(location)}}
	r := &route{
		available: true,
		spec: apiregistrationv1.APIServiceSpec{
			Group: "g", Version: "v1",
			Service: &apiregistrationv1.ServiceReference{Namespace: "default", Name: "g"},
		},
		transport: &http.Transport{
			TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, DialContext: (&net.Dialer{}).DialContext,
		},
	}
	front := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		ctx := request.WithUser(req.Context(), &user.DefaultInfo{Name: "jane"})
		a.pass(w, req.WithContext(request.WithRequestInfo(ctx, &request.RequestInfo{})), r)
	}))
	defer front.Close()
	resp, err := http.Get(front.URL + "/apis/g/v1/page")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if n := sent.Load(); resp.StatusCode != http.StatusOK || n == 0 || n > attack/2 {
		t.Errorf("%s, the API server took %d bytes before the client got any", resp.Status, n)
	}
}
