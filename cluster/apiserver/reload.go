package apiserver

import (
	"bytes"
	"crypto/tls"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"time"

	utilnet "k8s.io/apimachinery/pkg/util/net"
	kubeletclient "k8s.io/kubernetes/pkg/kubelet/client"
)

// ReloadCredentials has the server use the credentials that are in their files now: the keys of
// service account tokens, and its certificate for kubelets. It notices others itself.
func (s *Server) ReloadCredentials() error {
	return errors.Join(s.reloadTokenKeys(), reloadKubeletClient(KubeletClient(s.options.PKI)))
}

// reloadKubeletClient has calls to kubelets use the certificate that is in the file now. client-go
// would notice it in the handshake of the next connection, and close all that it has: also this
// one, so that an exec fails.
func reloadKubeletClient(config kubeletclient.KubeletClientConfig) error {
	want, err := tls.LoadX509KeyPair(config.TLSClientConfig.CertFile, config.TLSClientConfig.KeyFile)
	if err != nil {
		return err
	}
	// They are not made again: client-go keeps those that are in use, by their settings.
	for _, transport := range []func(*kubeletclient.KubeletClientConfig) (http.RoundTripper, error){
		kubeletclient.MakeTransport, kubeletclient.MakeInsecureTransport,
	} {
		used, err := transport(&config)
		if err != nil {
			return err
		}
		if err := reloadCertificate(used, want); err != nil {
			return fmt.Errorf("certificate for kubelets: %w", err)
		}
	}
	return nil
}

// reloadWithin is for client-go, which looks at a file once in a second, and reloadEvery is how
// often it is asked.
const (
	reloadWithin = 5 * time.Second
	reloadEvery  = 100 * time.Millisecond
)

// reloadCertificate returns when a transport uses the certificate that its file has.
func reloadCertificate(transport http.RoundTripper, want tls.Certificate) error {
	settings, err := utilnet.TLSClientConfig(transport)
	if err != nil {
		return err
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
