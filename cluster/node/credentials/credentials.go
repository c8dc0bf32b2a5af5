// Package credentials keeps what makes a machine a node of a cluster elsewhere, in one directory
// that only root reads:
//
//	cluster.json  where the API server is, and the node's name; written last, so that its presence
//	              says that the rest is there
//	ca.crt        the cluster's authority, while it is replaced also the former one
//	client.pem    the node's client certificate and key
//	serving.pem   its kubelet's serving certificate and key
//	servers.json  the addresses of API servers, when there were several
//
// [Join] asks for the client certificate with a bootstrap token, by a CertificateSigningRequest as
// upstream's kubelets do. [Node.Keep] replaces both certificates before they end, and [Node.Follow]
// all three files when the cluster's authority is replaced. Certificate and key are one file, so a
// pair is never half new.
package credentials

import (
	"cmp"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/version"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/cert"
	"k8s.io/client-go/util/certificate/csr"
	"k8s.io/client-go/util/keyutil"
	componentversion "k8s.io/component-base/version"

	"github.com/coracle-project/coracle/cluster/node/discovery"
	"github.com/coracle-project/coracle/cluster/node/servers"
	"github.com/coracle-project/coracle/cluster/node/token"
	"github.com/coracle-project/coracle/cluster/pki"
)

const (
	// answered is how long Join waits for its certificate.
	answered = 30 * time.Second
	// call bounds its other requests.
	call = 10 * time.Second

	fileVersion = 1
	userPrefix  = "system:node:"
)

// Node is a machine that has joined a cluster.
type Node struct {
	Version int `json:"version"`
	// Server is the URL of the API server, Name the node's.
	Server string `json:"server"`
	Name   string `json:"name"`

	dir string
	// used are the transports of what Config and Through return, nil if nothing reloads them.
	used *transports
	log  *slog.Logger
}

// ErrNone is the error of Read for a machine that has not joined.
var ErrNone = errors.New("this machine has joined no cluster")

// Read returns what dir has. log may be nil.
func Read(dir string, log *slog.Logger) (Node, error) {
	path := filepath.Join(dir, "cluster.json")
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return Node{}, ErrNone
	}
	if err != nil {
		return Node{}, err
	}
	n := Node{dir: dir, used: &transports{}, log: cmp.Or(log, slog.New(slog.DiscardHandler))}
	if err := json.Unmarshal(data, &n); err != nil {
		return Node{}, fmt.Errorf("%s cannot be read: %w", path, err)
	}
	if n.Version != fileVersion {
		return Node{}, fmt.Errorf("%s has version %d, and this release reads version %d", path, n.Version, fileVersion)
	}
	return n, nil
}

// CAFile is the file with the cluster's authority.
func (n Node) CAFile() string { return filepath.Join(n.dir, "ca.crt") }

// Pairs are the files of the node's client certificate and its kubelet's serving certificate.
func (n Node) Pairs() (client, serving string) { return n.clientFile(), n.servingFile() }

func (n Node) clientFile() string  { return filepath.Join(n.dir, "client.pem") }
func (n Node) servingFile() string { return filepath.Join(n.dir, "serving.pem") }

// Servers returns the API servers that the node knows of.
func (n Node) Servers() (*servers.Servers, error) {
	u, err := url.Parse(n.Server)
	if err != nil {
		return nil, err
	}
	return servers.Open(n.serversFile(), u.Host, func() (*tls.Config, error) {
		ca, err := os.ReadFile(n.CAFile())
		if err != nil {
			return nil, err
		}
		pool := x509.NewCertPool()
		pool.AppendCertsFromPEM(ca)
		return &tls.Config{RootCAs: pool, ServerName: servers.Name, MinVersion: tls.VersionTLS12}, nil
	}, n.log)
}

func (n Node) serversFile() string { return filepath.Join(n.dir, "servers.json") }

// Config is how the node reaches the API server: the one it was told of, or if it knows of others,
// any. Its connections follow a new client certificate. Each client made of it counts for reload:
// make no more than a few.
func (n Node) Config() *rest.Config {
	if _, err := os.Stat(n.serversFile()); err == nil {
		if s, err := n.Servers(); err == nil {
			return n.Through(s)
		}
	}
	return n.config()
}

// Through is how the node reaches any of the API servers. It is for clusters whose API servers all
// have a certificate for servers.Name.
func (n Node) Through(s *servers.Servers) *rest.Config {
	c := n.config()
	c.Dial, c.ServerName = s.Dial, servers.Name
	return c
}

func (n Node) config() *rest.Config {
	c := &rest.Config{
		Host: n.Server, QPS: -1, // the API server's own fairness is the limit
		TLSClientConfig: rest.TLSClientConfig{CAFile: n.CAFile(), CertFile: n.clientFile(), KeyFile: n.clientFile()},
	}
	if n.used != nil {
		c.WrapTransport = n.used.note
	}
	return c
}

// Check says why the node's client certificate cannot be used, nil if it can.
func (n Node) Check(now time.Time) error {
	pair, err := tls.LoadX509KeyPair(n.clientFile(), n.clientFile())
	if err != nil {
		return fmt.Errorf("the node's certificate: %w", err)
	}
	switch {
	case now.After(pair.Leaf.NotAfter):
		return fmt.Errorf("the node's certificate ended on %s, and it is %s by this machine's clock: correct the clock, or if it is right, "+
			"leave the cluster and join it again", pair.Leaf.NotAfter.Format(time.DateTime), now.UTC().Format(time.DateTime))
	case now.Before(pair.Leaf.NotBefore):
		return fmt.Errorf("the node's certificate begins on %s, and it is %s by this machine's clock: correct the clock",
			pair.Leaf.NotBefore.Format(time.DateTime), now.UTC().Format(time.DateTime))
	}
	return nil
}

// Join makes the machine the node called name of the cluster that was given, and keeps its
// credentials in dir. It does not register the node, which its kubelet does. Once dir exists, and
// before the machine counts as joined, it calls look with a client that has the node's identity.
func Join(ctx context.Context, dir string, g discovery.Given, name string,
	look func(context.Context, kubernetes.Interface) error,
) (Node, error) {
	if n, err := Read(dir, nil); !errors.Is(err, ErrNone) {
		if err == nil {
			err = fmt.Errorf("this machine is node %s of the cluster at %s already", n.Name, n.Server)
		}
		return Node{}, err
	}
	if wrong := validation.IsDNS1123Subdomain(name); len(wrong) > 0 {
		return Node{}, fmt.Errorf("%q is no name of a node: %s; choose another --node-name", name, strings.Join(wrong, "; "))
	}
	ca, err := discovery.Find(ctx, g)
	if err != nil {
		return Node{}, err
	}
	pair, err := request(ctx, g, ca, name)
	if err != nil {
		return Node{}, err
	}
	if err := errors.Join(os.MkdirAll(dir, 0o700), os.Chmod(dir, 0o700)); err != nil {
		return Node{}, err
	}
	n := Node{Version: fileVersion, Server: g.Server, Name: name, dir: dir, log: slog.New(slog.DiscardHandler)}
	data, err := json.MarshalIndent(n, "", "  ")
	if err != nil {
		return Node{}, err
	}
	if err := errors.Join(pki.Replace(n.CAFile(), ca, 0o644), pki.Replace(n.clientFile(), pair, 0o600)); err != nil {
		return Node{}, err
	}
	config := n.config()
	config.Timeout = call
	kube, err := kubernetes.NewForConfig(config)
	if err != nil {
		return Node{}, err
	}
	if err := look(ctx, kube); err != nil {
		return Node{}, err
	}
	return n, pki.Replace(filepath.Join(dir, "cluster.json"), append(data, '\n'), 0o600)
}

// request returns the first client certificate and key of a node, PEM.
func request(ctx context.Context, g discovery.Given, ca []byte, name string) ([]byte, error) {
	kube, err := kubernetes.NewForConfig(&rest.Config{
		Host: g.Server, BearerToken: g.Token, Timeout: call, TLSClientConfig: rest.TLSClientConfig{CAData: ca},
	})
	if err != nil {
		return nil, err
	}
	if err := checkVersion(kube, componentversion.Get().GitVersion); err != nil {
		return nil, err
	}
	id, _, _ := token.Parse(g.Token) // Find has looked
	_, err = kube.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
	switch {
	case err == nil:
		return nil, fmt.Errorf("the cluster has a node %s: choose another --node-name, or 'kubectl delete node %s' if that machine is gone", name,
			name)
	case apierrors.IsUnauthorized(err):
		return nil, fmt.Errorf("token %s is not valid any more: 'coracle token create' makes another", id)
	case apierrors.IsForbidden(err), apierrors.IsNotFound(err): // another control plane may not let it look
	default:
		return nil, fmt.Errorf("look for node %s at %s: %w", name, g.Server, err)
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	keyPEM, err := keyutil.MarshalPrivateKeyToPEM(key)
	if err != nil {
		return nil, err
	}
	text, err := cert.MakeCSRFromTemplate(key, clientTemplate(name))
	if err != nil {
		return nil, err
	}
	made, uid, err := csr.RequestCertificateWithContext(ctx, kube, text, "", certificatesv1.KubeAPIServerClientKubeletSignerName, nil,
		clientUsages, key)
	if err != nil {
		return nil, fmt.Errorf("ask %s for a certificate with token %s: %w", g.Server, id, err)
	}
	waiting, stop := context.WithTimeout(ctx, answered)
	defer stop()
	certPEM, err := csr.WaitForCertificate(waiting, kube, made, uid)
	switch {
	case err == nil:
	case waiting.Err() != nil && ctx.Err() == nil:
		return nil, fmt.Errorf("the cluster did not sign this machine's request within %s: 'kubectl describe csr %s' tells more, and "+
			"'kubectl certificate approve %s' approves it by hand", answered, made, made)
	default:
		return nil, fmt.Errorf("this machine's request %s for a certificate: %w", made, err)
	}
	pair := append(certPEM, keyPEM...)
	if _, err := tls.X509KeyPair(pair, pair); err != nil {
		return nil, fmt.Errorf("the certificate of request %s: %w", made, err)
	}
	return pair, nil
}

// checkVersion refuses a cluster that is older than this program: its API server may not know what
// a newer node sends. The patch release does not count.
func checkVersion(kube kubernetes.Interface, own string) error {
	told, err := kube.Discovery().ServerVersion()
	if err != nil {
		return nil // what follows says what is wrong
	}
	mine, err := version.ParseGeneric(own)
	if err != nil {
		return nil
	}
	theirs, err := version.ParseGeneric(told.GitVersion)
	if err != nil || !theirs.WithPatch(0).LessThan(mine.WithPatch(0)) {
		return nil
	}
	return fmt.Errorf("this machine's Coracle is of Kubernetes %d.%d, newer than the cluster's %d.%d: upgrade the first machine before, or "+
		"install its version here", mine.Major(), mine.Minor(), theirs.Major(), theirs.Minor())
}

var clientUsages = []certificatesv1.KeyUsage{certificatesv1.UsageDigitalSignature, certificatesv1.UsageClientAuth}

func clientTemplate(name string) *x509.CertificateRequest {
	return &x509.CertificateRequest{Subject: pkix.Name{CommonName: userPrefix + name, Organization: []string{user.NodesGroup}}}
}
