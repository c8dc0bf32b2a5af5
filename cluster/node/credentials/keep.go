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
	"sync"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/util/certificate"

	"github.com/coracle-project/coracle/cluster/pki"
)

// Keeper renews a node's certificates.
type Keeper struct {
	node      Node
	kube      kubernetes.Interface
	addresses func() []corev1.NodeAddress

	mu              sync.Mutex
	client, serving certificate.Manager
	running         bool
	// last is what the kubelet serves with while it has no certificate of the newest authority.
	last *tls.Certificate
}

// Keep returns what renews the certificates before they end, and asks for the serving certificate.
// addresses returns those that the API has of the node, none while it has no node: a certificate
// for others would not be approved.
func (n Node) Keep(kube kubernetes.Interface, addresses func() []corev1.NodeAddress) (*Keeper, error) {
	k := &Keeper{node: n, kube: kube, addresses: addresses}
	return k, k.manageLocked(n.pair(n.clientFile()), n.pair(n.servingFile()))
}

// manageLocked makes the managers. They renew what the stores have.
func (k *Keeper) manageLocked(ofClient, ofServing certificate.Store) error {
	clients := func(*tls.Certificate) (kubernetes.Interface, error) { return k.kube, nil }
	name := k.node.Name
	client, err := certificate.NewManager(&certificate.Config{
		ClientsetFn: clients, Template: clientTemplate(name), SignerName: certificatesv1.KubeAPIServerClientKubeletSignerName,
		Usages: clientUsages, CertificateStore: ofClient,
	})
	if err != nil {
		return fmt.Errorf("the node's certificate: %w", err)
	}
	serving, err := certificate.NewManager(&certificate.Config{
		ClientsetFn: clients, GetTemplate: func() *x509.CertificateRequest { return servingTemplate(name, k.addresses()) },
		SignerName:       certificatesv1.KubeletServingSignerName,
		Usages:           []certificatesv1.KeyUsage{certificatesv1.UsageDigitalSignature, certificatesv1.UsageServerAuth},
		CertificateStore: ofServing,
	})
	if err != nil {
		return fmt.Errorf("the kubelet's serving certificate: %w", err)
	}
	k.client, k.serving = client, serving
	return nil
}

// replace asks issuer for new certificates in place of those that another authority signed. Those
// stay in use until then. written is called after each.
func (k *Keeper) replace(issuer *x509.Certificate, written func()) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	client, serving := k.client, k.serving
	if err := k.manageLocked(issued{k.node.pair(k.node.clientFile()), issuer, written},
		issued{k.node.pair(k.node.servingFile()), issuer, written}); err != nil {
		return err
	}
	if c := serving.Current(); c != nil {
		k.last = c
	}
	if k.running {
		client.Stop()
		serving.Stop()
		k.client.Start()
		k.serving.Start()
	}
	return nil
}

// Serving returns the kubelet's serving certificate, nil while there is none.
func (k *Keeper) Serving() *tls.Certificate {
	k.mu.Lock()
	defer k.mu.Unlock()
	if c := k.serving.Current(); c != nil {
		return c
	}
	return k.last
}

// Run works until ctx ends. It does not wait for upstream's managers: they notice that they are
// stopped only when a renewal is due, and request nothing then.
func (k *Keeper) Run(ctx context.Context) error {
	k.mu.Lock()
	k.running = true
	k.client.Start()
	k.serving.Start()
	k.mu.Unlock()
	<-ctx.Done()
	k.mu.Lock()
	defer k.mu.Unlock()
	k.running = false
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
type pair struct {
	file string
	log  *slog.Logger
}

func (n Node) pair(file string) pair { return pair{file, n.log} }

// Current implements certificate.Store.
func (p pair) Current() (*tls.Certificate, error) {
	c, err := tls.LoadX509KeyPair(p.file, p.file)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		none := certificate.NoCertKeyError("no certificate in " + p.file)
		return nil, &none
	case err != nil && !errors.Is(err, fs.ErrPermission): // another is asked for
		p.log.Warn("a certificate of this node is damaged", "file", p.file, "err", err)
		none := certificate.NoCertKeyError(err.Error())
		return nil, &none
	case err != nil:
		return nil, err
	}
	return &c, os.Chmod(p.file, 0o600)
}

// Update implements certificate.Store.
func (p pair) Update(cert, key []byte) (*tls.Certificate, error) {
	data := append(append([]byte(nil), cert...), key...)
	c, err := tls.X509KeyPair(data, data)
	if err != nil {
		return nil, err
	}
	return &c, pki.Replace(p.file, data, 0o600)
}

// issued is a pair that counts only if an authority has signed it.
type issued struct {
	pair
	by      *x509.Certificate
	written func()
}

// Current implements certificate.Store.
func (i issued) Current() (*tls.Certificate, error) {
	c, err := i.pair.Current()
	if err == nil && c.Leaf.CheckSignatureFrom(i.by) != nil {
		none := certificate.NoCertKeyError("another authority has signed " + i.file)
		return nil, &none
	}
	return c, err
}

// Update implements certificate.Store.
func (i issued) Update(cert, key []byte) (*tls.Certificate, error) {
	c, err := i.pair.Update(cert, key)
	if err == nil {
		i.written()
	}
	return c, err
}
