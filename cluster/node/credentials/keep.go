package credentials

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"os"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/util/certificate"

	"github.com/coracle-project/coracle/cluster/pki"
)

// Keeper renews a node's certificates.
type Keeper struct{ client, serving certificate.Manager }

// Keep returns what renews the certificates before they end, and asks for the serving certificate.
// addresses returns those that the API has of the node, none while it has no node: a certificate
// for others would not be approved.
func (n Node) Keep(kube kubernetes.Interface, addresses func() []corev1.NodeAddress) (*Keeper, error) {
	clients := func(*tls.Certificate) (kubernetes.Interface, error) { return kube, nil }
	client, err := certificate.NewManager(&certificate.Config{
		ClientsetFn: clients, Template: clientTemplate(n.Name), SignerName: certificatesv1.KubeAPIServerClientKubeletSignerName,
		Usages: clientUsages, CertificateStore: pair(n.clientFile()),
	})
	if err != nil {
		return nil, fmt.Errorf("the node's certificate: %w", err)
	}
	serving, err := certificate.NewManager(&certificate.Config{
		ClientsetFn: clients, GetTemplate: func() *x509.CertificateRequest { return servingTemplate(n.Name, addresses()) },
		SignerName:       certificatesv1.KubeletServingSignerName,
		Usages:           []certificatesv1.KeyUsage{certificatesv1.UsageDigitalSignature, certificatesv1.UsageServerAuth},
		CertificateStore: pair(n.servingFile()),
	})
	if err != nil {
		return nil, fmt.Errorf("the kubelet's serving certificate: %w", err)
	}
	return &Keeper{client, serving}, nil
}

// Serving returns the kubelet's serving certificate, nil while there is none.
func (k *Keeper) Serving() *tls.Certificate { return k.serving.Current() }

// Run works until ctx ends. It does not wait for upstream's managers: they look at their end only
// when a renewal is due, and ask for nothing then.
func (k *Keeper) Run(ctx context.Context) error {
	k.client.Start()
	k.serving.Start()
	<-ctx.Done()
	k.client.Stop()
	k.serving.Stop()
	return nil
}

// servingTemplate is nil while there is nothing to serve under.
func servingTemplate(name string, addresses []corev1.NodeAddress) *x509.CertificateRequest {
	if len(addresses) == 0 {
		return nil
	}
	t := &x509.CertificateRequest{Subject: pkix.Name{CommonName: userPrefix + name, Organization: []string{user.NodesGroup}}}
	for _, a := range addresses {
		if ip := net.ParseIP(a.Address); ip != nil {
			t.IPAddresses = append(t.IPAddresses, ip)
		} else {
			t.DNSNames = append(t.DNSNames, a.Address)
		}
	}
	return t
}

// pair is a file with a certificate and its key, as the store of a certificate.Manager.
type pair string

// Current implements certificate.Store.
func (p pair) Current() (*tls.Certificate, error) {
	c, err := tls.LoadX509KeyPair(string(p), string(p))
	switch {
	case errors.Is(err, fs.ErrNotExist):
		none := certificate.NoCertKeyError("no certificate in " + string(p))
		return nil, &none
	case err != nil && !errors.Is(err, fs.ErrPermission): // another is asked for
		slog.Warn("a certificate of this node is damaged", "file", string(p), "err", err)
		none := certificate.NoCertKeyError(err.Error())
		return nil, &none
	case err != nil:
		return nil, err
	}
	return &c, os.Chmod(string(p), 0o600)
}

// Update implements certificate.Store.
func (p pair) Update(cert, key []byte) (*tls.Certificate, error) {
	data := append(append([]byte(nil), cert...), key...)
	c, err := tls.X509KeyPair(data, data)
	if err != nil {
		return nil, err
	}
	return &c, pki.Replace(string(p), data, 0o600)
}
