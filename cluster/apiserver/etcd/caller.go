package etcd

import (
	"context"
	"crypto/tls"
	"net"
	"net/http"
	"time"

	"go.etcd.io/etcd/client/pkg/v3/transport"
	"k8s.io/client-go/util/cert"

	"github.com/coracle-project/coracle/cluster/node/servers"
)

// caller asks other control-plane nodes how they are.
type caller struct{ client *http.Client }

// memberCaller asks members of etcd. It needs the files of the members' authority, and of this
// member's certificate and key. One call takes up to limit.
func memberCaller(ca, pair string, limit time.Duration) (caller, error) {
	config, err := transport.TLSInfo{CertFile: pair, KeyFile: pair, TrustedCAFile: ca}.ClientConfig()
	if err != nil {
		return caller{}, err
	}
	return newCaller(config, limit), nil
}

// apiCaller asks API servers of the cluster. It needs the file of their authority. One call takes
// up to limit.
func apiCaller(ca string, limit time.Duration) (caller, error) {
	roots, err := cert.NewPool(ca)
	if err != nil {
		return caller{}, err
	}
	return newCaller(&tls.Config{RootCAs: roots, ServerName: servers.Name, MinVersion: tls.VersionTLS13}, limit), nil
}

// newCaller uses no proxy, and follows no redirection: others would answer for machines that are
// gone. Each call has a connection of its own, and so tells whether the machine accepts one.
func newCaller(config *tls.Config, limit time.Duration) caller {
	return caller{&http.Client{
		Timeout: limit,
		Transport: &http.Transport{
			DialContext: (&net.Dialer{Timeout: answerLimit}).DialContext, TLSClientConfig: config, DisableKeepAlives: true,
		},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}
}

// status returns that of the answer to a GET.
func (c caller) status(ctx context.Context, url string) (int, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return 0, err
	}
	answer, err := c.client.Do(r)
	if err != nil {
		return 0, err
	}
	_ = answer.Body.Close()
	return answer.StatusCode, nil
}
