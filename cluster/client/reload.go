package client

import (
	"bytes"
	"crypto/tls"
	"errors"
	"net/http"
	"slices"
	"time"

	utilnet "k8s.io/apimachinery/pkg/util/net"
)

// reloadWithin is for client-go, which looks at a file once in a second, and reloadEvery is how
// often it is asked.
const (
	reloadWithin = 5 * time.Second
	reloadEvery  = 100 * time.Millisecond
)

// ReloadCertificate returns when a transport uses the certificate that its file has, which is want.
// Connections with another one are closed then. Otherwise client-go looks at the file when it makes
// a connection, and every 5 minutes.
func ReloadCertificate(transport http.RoundTripper, want tls.Certificate) error {
	settings, err := utilnet.TLSClientConfig(transport)
	if err != nil {
		return err
	}
	if settings == nil || settings.GetClientCertificate == nil {
		return errors.New("the transport has no certificate")
	}
	again := time.NewTicker(reloadEvery)
	defer again.Stop()
	late := time.NewTimer(reloadWithin)
	defer late.Stop()
	for {
		got, err := settings.GetClientCertificate(nil)
		if err != nil {
			return err
		}
		if slices.EqualFunc(got.Certificate, want.Certificate, bytes.Equal) {
			return nil
		}
		select {
		case <-again.C:
		case <-late.C:
			return errors.New("the former one is still in use")
		}
	}
}
