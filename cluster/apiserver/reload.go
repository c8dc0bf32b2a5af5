package apiserver

import (
	"crypto/tls"
	"errors"
	"fmt"
	"net/http"

	kubeletclient "k8s.io/kubernetes/pkg/kubelet/client"

	"github.com/coracle-project/coracle/cluster/client"
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
		if err := client.ReloadCertificate(used, want); err != nil {
			return fmt.Errorf("certificate for kubelets: %w", err)
		}
	}
	return nil
}
