// Package discovery finds the cluster that a machine is told to join, and makes sure that it is
// that one.
//
// The machine knows an address, a token and a hash of the authority's public key, as kubeadm's do.
// It reads the ConfigMap kube-public/cluster-info from a server that it cannot verify yet. The
// ConfigMap counts only if it is signed with the token, and if its authority has the hash. Then it
// is read again from a server that this authority vouches for.
package discovery

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	bootstrapapi "k8s.io/cluster-bootstrap/token/api"
	"k8s.io/cluster-bootstrap/token/jws"
	"k8s.io/kubernetes/cmd/kubeadm/app/util/pubkeypin"

	"github.com/coracle-project/coracle/cluster/node/token"
)

const (
	// call bounds one request.
	call = 10 * time.Second
	// signedWithin is how long the signature with a new token is waited for. 'coracle token create'
	// has waited for it: what is left is the delay of another API server, or of another signer.
	signedWithin = 2 * time.Second
	signedEvery  = 250 * time.Millisecond
	// longestAnswer bounds what is read of an answer, in bytes: the server is not known yet.
	longestAnswer = 4 << 20
)

// Given is what the machine is told.
type Given struct {
	// Server is https://HOST:PORT.
	Server string
	// Token is ID.SECRET.
	Token string
	// Hashes are those of authorities that are trusted: sha256 and the SHA-256 of the public key.
	Hashes []string
}

// Hash returns the hashes of the authorities in a PEM file's content, with commas between them. A
// machine trusts only those whose hash it is told.
func Hash(ca []byte) (string, error) {
	certs, err := certificates(ca)
	if err != nil {
		return "", err
	}
	return hashes(certs), nil
}

// hashes returns each certificate's hash once, with commas between them.
func hashes(certs []*x509.Certificate) string {
	var all []string
	for _, cert := range certs {
		if hash := pubkeypin.Hash(cert); !slices.Contains(all, hash) {
			all = append(all, hash)
		}
	}
	return strings.Join(all, ",")
}

// Check says what is wrong with what was given, without asking anyone.
func (g Given) Check() error {
	u, err := url.Parse(g.Server)
	if err != nil || !isServer(u) {
		return fmt.Errorf("%q is no address of an API server, such as https://10.0.0.1:6443", g.Server)
	}
	if _, _, err := token.Parse(g.Token); err != nil {
		return err
	}
	if len(g.Hashes) == 0 {
		return errors.New("the hash of the cluster's authority is missing: 'coracle token create' on the first machine prints it")
	}
	if err := pubkeypin.NewSet().Allow(g.Hashes...); err != nil {
		return fmt.Errorf("%q is no hash of an authority, which is sha256: and 64 hexadecimal digits", strings.Join(g.Hashes, ","))
	}
	return nil
}

// isServer says whether a URL is https://HOST:PORT and nothing more.
func isServer(u *url.URL) bool {
	port, err := strconv.ParseUint(u.Port(), 10, 16)
	return err == nil && port != 0 && u.Scheme == "https" && u.Hostname() != "" && (u.Path == "" || u.Path == "/") &&
		u.User == nil && u.RawQuery == "" && !u.ForceQuery && u.Fragment == ""
}

// Find verifies that the server at the address belongs to the cluster, and returns the cluster's
// authority, PEM.
func Find(ctx context.Context, g Given) (ca []byte, err error) {
	if err := g.Check(); err != nil {
		return nil, err
	}
	unverified := &rest.Config{Host: g.Server, Timeout: call, TLSClientConfig: rest.TLSClientConfig{Insecure: true}}
	signed, err := g.signed(ctx, unverified)
	if err != nil {
		return nil, err
	}
	if ca, err = g.authority(signed); err != nil {
		return nil, err
	}
	verified := &rest.Config{Host: g.Server, Timeout: call, TLSClientConfig: rest.TLSClientConfig{CAData: ca}}
	again, err := read(ctx, verified)
	if err != nil {
		return nil, g.unreachable(err)
	}
	if again.Data[bootstrapapi.KubeConfigKey] != signed {
		return nil, fmt.Errorf("%s answered differently when it was verified: another machine may have answered in its place", g.Server)
	}
	return ca, nil
}

// signed returns the kubeconfig of cluster-info when it is signed with the token. The signature may
// be missing or old for a moment, after the token was made or cluster-info has changed.
func (g Given) signed(ctx context.Context, config *rest.Config) (string, error) {
	id, secret, _ := token.Parse(g.Token) // Check has looked
	late := time.After(signedWithin)
	for {
		info, err := read(ctx, config) // late does not cut it off: the server would seem to be away
		if err != nil {
			return "", g.unreachable(err)
		}
		text := info.Data[bootstrapapi.KubeConfigKey]
		signature, there := info.Data[bootstrapapi.JWSSignatureKeyPrefix+id]
		if there && jws.DetachedTokenIsValid(signature, text, id, secret) {
			return text, nil
		}
		lacks := fmt.Errorf("%s does not know token %s: it was deleted or has expired; 'coracle token create' there makes another", g.Server, id)
		if there {
			lacks = fmt.Errorf("the secret of token %s is not the one that %s knows: copy the whole token", id, g.Server)
		}
		select {
		case <-ctx.Done():
			return "", ctx.Err()
		case <-late:
			return "", lacks
		case <-time.After(signedEvery):
		}
	}
}

// authority returns the certificates of a kubeconfig's authority that have one of the hashes, PEM.
// Others are left out: a holder of the token can sign a cluster-info with further authorities.
func (g Given) authority(kubeconfig string) ([]byte, error) {
	config, err := clientcmd.Load([]byte(kubeconfig))
	if err != nil {
		return nil, fmt.Errorf("%s publishes no kubeconfig: %w", g.Server, err)
	}
	if len(config.Clusters) != 1 {
		return nil, fmt.Errorf("%s publishes a kubeconfig of %d clusters, want one", g.Server, len(config.Clusters))
	}
	var ca []byte
	for _, cluster := range config.Clusters {
		ca = cluster.CertificateAuthorityData
	}
	certs, err := certificates(ca)
	if err != nil {
		return nil, fmt.Errorf("%s publishes no authority: %w", g.Server, err)
	}
	pins := pubkeypin.NewSet()
	if err := pins.Allow(g.Hashes...); err != nil {
		return nil, err
	}
	var trusted []byte
	for _, cert := range certs {
		if pins.CheckAny([]*x509.Certificate{cert}) == nil {
			trusted = append(trusted, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: cert.Raw})...)
		}
	}
	if trusted == nil {
		return nil, fmt.Errorf("%s is another cluster: its authority has the hash %s, and the one given is %s", g.Server,
			hashes(certs), strings.Join(g.Hashes, ","))
	}
	return trusted, nil
}

func certificates(ca []byte) (all []*x509.Certificate, err error) {
	for {
		block, rest := pem.Decode(ca)
		if block == nil {
			break
		}
		ca = rest
		cert, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return nil, err
		}
		all = append(all, cert)
	}
	if len(all) == 0 {
		return nil, errors.New("no certificate in it")
	}
	return all, nil
}

// limited bounds the answers that it gets.
type limited struct{ http.RoundTripper }

// RoundTrip implements http.RoundTripper.
func (l limited) RoundTrip(r *http.Request) (*http.Response, error) {
	answer, err := l.RoundTripper.RoundTrip(r)
	if err == nil {
		answer.Body = http.MaxBytesReader(nil, answer.Body, longestAnswer)
	}
	return answer, err
}

// read returns the ConfigMap, over a connection of its own.
func read(ctx context.Context, config *rest.Config) (*corev1.ConfigMap, error) {
	config = rest.CopyConfig(config)
	config.Wrap(func(rt http.RoundTripper) http.RoundTripper { return limited{rt} })
	hc, err := rest.HTTPClientFor(config)
	if err != nil {
		return nil, err
	}
	defer hc.CloseIdleConnections()
	kube, err := kubernetes.NewForConfigAndClient(config, hc)
	if err != nil {
		return nil, err
	}
	return kube.CoreV1().ConfigMaps(metav1.NamespacePublic).Get(ctx, bootstrapapi.ConfigMapClusterInfo, metav1.GetOptions{})
}

// unreachable says what an error of read means to the user who typed the address.
func (g Given) unreachable(err error) error {
	var host x509.HostnameError
	var verify *tls.CertificateVerificationError
	var long *http.MaxBytesError
	status := apierrors.APIStatus(nil)
	switch {
	case errors.As(err, &long):
		return fmt.Errorf("%s answers with more than %d bytes: is it an API server?", g.Server, long.Limit)
	case errors.As(err, &host):
		return fmt.Errorf("%s is not an address that the cluster knows of itself: %w; use one of these", g.Server, host)
	case errors.As(err, &verify):
		return fmt.Errorf("%s does not show a certificate of the cluster that it publishes: %w; do the clocks of both machines agree?", g.Server,
			verify.Err)
	case apierrors.IsNotFound(err), apierrors.IsForbidden(err), apierrors.IsUnauthorized(err):
		return fmt.Errorf("the cluster at %s publishes nothing for machines that join: it listens on its own machine only, or "+
			"'coracle token create' was never called", g.Server)
	case errors.As(err, &status) && status.Status().Code != http.StatusServiceUnavailable:
		return fmt.Errorf("%s: %w", g.Server, err)
	}
	return fmt.Errorf("%s cannot be reached: %w; is the address right, and the port open between the machines?", g.Server, cause(err))
}

// cause leaves the request out, which is always the same.
func cause(err error) error {
	var request *url.Error
	if errors.As(err, &request) {
		return request.Err
	}
	return err
}
