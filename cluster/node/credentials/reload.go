package credentials

import (
	"crypto/tls"
	"net/http"
	"slices"
	"sync"

	"github.com/coracle-project/coracle/cluster/client"
)

// transports are those that show the node's client certificate.
type transports struct {
	mu  sync.Mutex
	all []http.RoundTripper
}

// note is what client-go calls for each client: some may share a transport.
func (t *transports) note(used http.RoundTripper) http.RoundTripper {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !slices.Contains(t.all, used) {
		t.all = append(t.all, used)
	}
	return used
}

// reload returns when all connections to the API server show the client certificate in its file.
func (n Node) reload() error {
	if n.used == nil {
		return nil
	}
	want, err := tls.LoadX509KeyPair(n.clientFile(), n.clientFile())
	if err != nil {
		return err
	}
	n.used.mu.Lock()
	all := slices.Clone(n.used.all)
	n.used.mu.Unlock()
	for _, t := range all {
		if err := client.ReloadCertificate(t, want); err != nil {
			return err
		}
	}
	return nil
}
