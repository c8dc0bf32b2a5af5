package aggregate

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"reflect"
	"time"

	utilnet "k8s.io/apimachinery/pkg/util/net"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	"k8s.io/kube-aggregator/pkg/apis/apiregistration/v1/helper"
)

const (
	// dialLimit bounds connecting to a server, which is on this node or a few hops away.
	dialLimit = 10 * time.Second
	// defaultPort is the port of a Service if an APIService names none.
	defaultPort = 443
)

// route is the way to one group and version that another server serves. It is not changed.
type route struct {
	spec      apiregistrationv1.APIServiceSpec
	available bool
	transport *http.Transport // nil if it cannot be made
	err       error           // why it cannot
}

// newRoute returns the way that s describes. Connections of the old one are kept if it is the same
// way.
func (a *Aggregator) newRoute(s *apiregistrationv1.APIService, old *route) *route {
	r := &route{spec: s.Spec, available: helper.IsAPIServiceConditionTrue(s, apiregistrationv1.Available)}
	if old != nil && reflect.DeepEqual(old.spec, s.Spec) {
		r.transport, r.err = old.transport, old.err
		return r
	}
	config := &tls.Config{
		MinVersion: tls.VersionTLS12,
		ServerName: s.Spec.Service.Name + "." + s.Spec.Service.Namespace + ".svc",
		// Read for each connection: the certificate is renewed while the server runs.
		GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
			pair, err := tls.LoadX509KeyPair(a.options.ClientPair, a.options.ClientPair)
			return &pair, err
		},
		InsecureSkipVerify: s.Spec.InsecureSkipTLSVerify, //nolint:gosec // the object says so
	}
	if len(s.Spec.CABundle) > 0 {
		config.RootCAs = x509.NewCertPool()
		if !config.RootCAs.AppendCertsFromPEM(s.Spec.CABundle) {
			r.err = fmt.Errorf("APIService %s: spec.caBundle has no certificate", s.Name)
			return r
		}
	}
	r.transport = utilnet.SetTransportDefaults(&http.Transport{
		TLSClientConfig: config, DialContext: (&net.Dialer{Timeout: dialLimit, KeepAlive: 30 * time.Second}).DialContext,
	})
	r.transport.Proxy = nil // of the environment; SetTransportDefaults sets it
	return r
}

// close closes connections that no request uses. Requests under way go on.
func (r *route) close() {
	if r.transport != nil {
		r.transport.CloseIdleConnections()
	}
}

// locate says where the server is now, with the path of a request.
func (a *Aggregator) locate(r *route, path, query string) (*url.URL, error) {
	if r.err != nil {
		return nil, r.err
	}
	port := int32(defaultPort)
	if r.spec.Service.Port != nil {
		port = *r.spec.Service.Port
	}
	at, err := a.options.Resolver.ResolveEndpoint(r.spec.Service.Namespace, r.spec.Service.Name, port)
	if err != nil {
		return nil, err
	}
	if at.Host == "" {
		return nil, errors.New("the Service has no address")
	}
	return &url.URL{Scheme: "https", Host: at.Host, Path: path, RawQuery: query}, nil
}

// clientPair is for upstream's check of servers. Without the certificate a server refuses the
// check, and the APIService's condition says so.
func (a *Aggregator) clientPair() (cert, key []byte) {
	data, err := os.ReadFile(a.options.ClientPair)
	if err != nil {
		return nil, nil
	}
	return data, data
}
