// Package controlplane lets a machine join the control plane of a cluster.
//
// A control-plane node needs the keys of the cluster's authorities, and of service accounts. They
// come through a Secret in kube-system, encrypted with AES-GCM under a certificate key that only
// the administrator has, as kubeadm's do. The Secret belongs to one bootstrap token: only that
// token may read it, it goes with the token after two hours at most, and the machine that joins
// deletes it.
//
// With the keys a machine is trusted with everything. The token without the certificate key gives
// what a token for an agent gives; the certificate key without the token gives nothing.
package controlplane

import (
	"bytes"
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/version"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	bootstrapapi "k8s.io/cluster-bootstrap/token/api"
	"k8s.io/cluster-bootstrap/token/util"
	componentversion "k8s.io/component-base/version"
	"k8s.io/kubernetes/cmd/kubeadm/app/util/crypto"

	"github.com/coracle-project/coracle/cluster/apiserver"
	"github.com/coracle-project/coracle/cluster/apiserver/etcd"
	"github.com/coracle-project/coracle/cluster/node/discovery"
	"github.com/coracle-project/coracle/cluster/node/token"
	"github.com/coracle-project/coracle/cluster/pki"
)

const (
	// Life is how long a certificate key is valid at most.
	Life = 2 * time.Hour

	secretPrefix  = "coracle-certs-"
	bundleKey     = "bundle"
	bundleVersion = 1
	keyBytes      = 32
	call          = 10 * time.Second
	// added is how long a machine tries to become a member: the first other one has the API server
	// start again, and etcd refuses changes that follow each other quickly.
	added = time.Minute
	again = 500 * time.Millisecond
)

// bundle is what is encrypted.
type bundle struct {
	Version int               `json:"version"`
	Expires time.Time         `json:"expires"`
	Files   map[string][]byte `json:"files"`
	// Settings are the cluster's, in the words of the program that calls.
	Settings json.RawMessage `json:"settings,omitempty"`
}

// Invited says whether there are keys that another machine may still become a control-plane node
// with.
func Invited(ctx context.Context, kube kubernetes.Interface) (bool, error) {
	all, err := kube.CoreV1().Secrets(metav1.NamespaceSystem).List(ctx, metav1.ListOptions{})
	if err != nil {
		return false, err
	}
	return slices.ContainsFunc(all.Items, func(s corev1.Secret) bool { return strings.HasPrefix(s.Name, secretPrefix) }), nil
}

// Upload encrypts the keys in the directory of credentials for the machine that has a token, and
// returns the certificate key, hexadecimal. log may be nil.
func Upload(ctx context.Context, kube kubernetes.Interface, t token.Info, dir string, settings json.RawMessage,
	log *slog.Logger,
) (string, error) {
	if t.Expires.IsZero() || time.Until(t.Expires) > Life {
		return "", fmt.Errorf("a token for control-plane nodes is valid for %s at most", Life)
	}
	files, err := pki.Shared(dir, log)
	if err != nil {
		return "", err
	}
	text, err := json.Marshal(bundle{Version: bundleVersion, Expires: t.Expires, Files: files, Settings: settings})
	if err != nil {
		return "", err
	}
	key, err := crypto.CreateRandBytes(keyBytes)
	if err != nil {
		return "", err
	}
	closed, err := crypto.EncryptBytes(text, key)
	if err != nil {
		return "", err
	}
	owner, err := kube.CoreV1().Secrets(metav1.NamespaceSystem).Get(ctx, util.BootstrapTokenSecretName(t.ID), metav1.GetOptions{})
	if err != nil {
		return "", fmt.Errorf("the Secret of token %s: %w", t.ID, err)
	}
	meta := metav1.ObjectMeta{Name: secretPrefix + t.ID, OwnerReferences: []metav1.OwnerReference{{
		APIVersion: "v1", Kind: "Secret", Name: owner.Name, UID: owner.UID,
	}}}
	secret := &corev1.Secret{ObjectMeta: meta, Data: map[string][]byte{bundleKey: closed}}
	role := &rbacv1.Role{ObjectMeta: meta, Rules: []rbacv1.PolicyRule{{
		APIGroups: []string{""}, Resources: []string{"secrets"}, ResourceNames: []string{meta.Name}, Verbs: []string{"get"},
	}}}
	binding := &rbacv1.RoleBinding{
		ObjectMeta: meta, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: meta.Name},
		Subjects: []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: bootstrapapi.BootstrapUserPrefix + t.ID}},
	}
	if _, err := kube.CoreV1().Secrets(metav1.NamespaceSystem).Create(ctx, secret, metav1.CreateOptions{}); err != nil {
		return "", fmt.Errorf("keep the encrypted keys: %w", err)
	}
	if err := unchanged(dir, files, log); err != nil {
		return "", errors.Join(err, kube.CoreV1().Secrets(metav1.NamespaceSystem).Delete(ctx, meta.Name, metav1.DeleteOptions{}))
	}
	_, err = kube.RbacV1().Roles(metav1.NamespaceSystem).Create(ctx, role, metav1.CreateOptions{})
	if err == nil {
		_, err = kube.RbacV1().RoleBindings(metav1.NamespaceSystem).Create(ctx, binding, metav1.CreateOptions{})
	}
	if err != nil {
		return "", fmt.Errorf("let token %s read the encrypted keys: %w", t.ID, err)
	}
	return hex.EncodeToString(key), nil
}

// unchanged returns an error if the keys have been replaced. A rotation that has looked for
// invitations ([Invited]) before the Secret was made has not seen it.
func unchanged(dir string, files map[string][]byte, log *slog.Logger) error {
	now, err := pki.Shared(dir, log)
	if err == nil && !maps.EqualFunc(files, now, bytes.Equal) {
		err = errors.New("the cluster's keys were replaced meanwhile: repeat this")
	}
	return err
}

// Given is what a machine is told.
type Given struct {
	discovery.Given
	// CertificateKey is hexadecimal.
	CertificateKey string
}

// Machine is the one that joins.
type Machine struct {
	// Root is the directory of its cluster process.
	Root string
	apiserver.Joiner
	// Shared are its files that have to be the cluster's.
	Shared apiserver.SharedFiles
	// Log gets which keys were damaged; nil discards it.
	Log *slog.Logger
}

// Settings returns what Upload was given. It changes nothing.
func Settings(ctx context.Context, g Given) (json.RawMessage, error) {
	b, _, err := open(ctx, g)
	return b.Settings, err
}

// open returns the keys of the cluster, and the authority that it is known by.
func open(ctx context.Context, g Given) (b bundle, ca []byte, err error) {
	key, err := hex.DecodeString(g.CertificateKey)
	if err != nil || len(key) != keyBytes {
		return b, nil, fmt.Errorf("the certificate key has to be %d hexadecimal digits: copy the whole key", 2*keyBytes)
	}
	if ca, err = discovery.Find(ctx, g.Given); err != nil {
		return b, nil, err
	}
	b, err = download(ctx, g, ca, key)
	return b, ca, err
}

// Joined is what Join did.
type Joined struct {
	// Members are the URLs of etcd's members by name, nil if etcd is elsewhere.
	Members map[string]string `json:"members,omitempty"`
	// Kept says why the encrypted keys stay until their token ends, "" if they are deleted.
	Kept string `json:"kept,omitempty"`
}

// Join makes m a control-plane node of the cluster that was given: its root has the cluster's keys
// then, and etcd counts it as a learner. Nothing stays in the root if it fails.
func Join(ctx context.Context, g Given, m Machine) (*Joined, error) {
	b, ca, err := open(ctx, g)
	if err != nil {
		return nil, err
	}
	own := filepath.Join(m.Root, "pki")
	if _, err := os.Stat(own); err == nil {
		return nil, fmt.Errorf("this machine has keys of a cluster in %s", own)
	}
	staging := stagingOf(m.Root)
	if err := errors.Join(os.MkdirAll(m.Root, 0o700), Forget(m.Root)); err != nil {
		return nil, err
	}
	if err := os.Mkdir(staging, 0o700); err != nil {
		return nil, err
	}
	defer os.RemoveAll(staging)
	lock, err := lockStaging(staging)
	if err != nil {
		return nil, err
	}
	defer lock.Close()
	keys := filepath.Join(staging, "pki")
	if err := pki.Adopt(keys, b.Files, ca); err != nil {
		return nil, err
	}
	credentials, err := pki.Ensure(keys, g.Server, []string{"localhost"}, m.Log) // the server's names come with its first start
	if err != nil {
		return nil, err
	}
	config, err := clientcmd.BuildConfigFromFlags("", credentials.AdminKubeconfig)
	if err != nil {
		return nil, err
	}
	config.Timeout = apiserverPatience
	kube, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	if err := checkVersion(kube, componentversion.Get().GitVersion); err != nil {
		return nil, err
	}
	if err := m.agree(b); err != nil {
		return nil, err
	}
	peers, err := enter(ctx, kube, g.Server, m)
	if err != nil {
		return nil, err
	}
	if peers != nil {
		if err := peers.Write(m.Root); err != nil {
			return nil, err
		}
	}
	if err := os.Rename(keys, own); err != nil { // last: its presence says that the rest is there
		if peers != nil { // before the staging directory goes, without which Forget removes nothing
			err = errors.Join(err, os.Remove(etcd.PeersFile(m.Root)))
		}
		return nil, err
	}
	// From here on no error may say that the machine has not joined.
	var joined Joined
	if peers != nil {
		joined.Members = peers.Cluster
	}
	id, _, _ := token.Parse(g.Token)
	err = kube.CoreV1().Secrets(metav1.NamespaceSystem).Delete(ctx, secretPrefix+id, metav1.DeleteOptions{})
	if err != nil && !apierrors.IsNotFound(err) { // the token may have ended meanwhile, and its keys with it
		joined.Kept = fmt.Sprintf("the encrypted keys stay in the cluster until token %s ends: %v", id, err)
	}
	return &joined, nil
}

// agree has the machine tell what it has got and has of what all control-plane nodes agree on.
func (m *Machine) agree(b bundle) (err error) {
	if m.Files, err = m.Shared.Digests(); err != nil {
		return err
	}
	m.TokenKey, err = pki.TokenKeyID(b.Files["service-account.pem"])
	return err
}

// apiserverPatience is more than a change of etcd's members takes.
const apiserverPatience = 30 * time.Second

// download returns the keys.
func download(ctx context.Context, g Given, ca, key []byte) (bundle, error) {
	id, _, _ := token.Parse(g.Token) // Find has looked
	kube, err := kubernetes.NewForConfig(&rest.Config{
		Host: g.Server, BearerToken: g.Token, Timeout: call, TLSClientConfig: rest.TLSClientConfig{CAData: ca},
	})
	if err != nil {
		return bundle{}, err
	}
	const another = "'coracle token create --control-plane' there makes another command"
	secret, err := kube.CoreV1().Secrets(metav1.NamespaceSystem).Get(ctx, secretPrefix+id, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return bundle{}, fmt.Errorf("the certificate key of token %s was used before, or has expired: %s", id, another)
	case apierrors.IsForbidden(err):
		return bundle{}, fmt.Errorf("token %s is for nodes without a control plane: %s", id, another)
	case apierrors.IsUnauthorized(err):
		return bundle{}, fmt.Errorf("token %s is not valid any more: %s", id, another)
	case err != nil:
		return bundle{}, fmt.Errorf("get the cluster's keys from %s: %w", g.Server, err)
	}
	text, err := crypto.DecryptBytes(secret.Data[bundleKey], key)
	if err != nil {
		return bundle{}, fmt.Errorf("the certificate key is not the one of token %s: copy the whole key", id)
	}
	var b bundle
	if err := json.Unmarshal(text, &b); err != nil {
		return bundle{}, fmt.Errorf("the cluster's keys cannot be read: %w", err)
	}
	switch {
	case b.Version != bundleVersion:
		return bundle{}, fmt.Errorf("the cluster's keys have version %d, and this release reads version %d", b.Version, bundleVersion)
	case time.Now().After(b.Expires):
		return bundle{}, fmt.Errorf("the certificate key expired at %s: %s", b.Expires.Format(time.DateTime), another)
	}
	return b, nil
}

// checkVersion refuses a cluster of another minor version than this program's. A newer API server
// would write objects that the others cannot read, and those would not start again; an older one
// would not start on the cluster's data.
func checkVersion(kube kubernetes.Interface, own string) error {
	told, err := kube.Discovery().ServerVersion()
	if err != nil {
		return fmt.Errorf("which version the cluster has: %w", err)
	}
	mine, err := version.ParseGeneric(own)
	if err != nil || mine.Major() == 0 {
		return nil // a development build
	}
	theirs, err := version.ParseGeneric(told.GitVersion)
	if err != nil || theirs.Major() == 0 || theirs.Major() == mine.Major() && theirs.Minor() == mine.Minor() {
		return nil
	}
	return fmt.Errorf("this machine's Coracle is of Kubernetes %d.%d, and the cluster's is of %d.%d: control-plane nodes join with the version of "+
		"the cluster", mine.Major(), mine.Minor(), theirs.Major(), theirs.Minor())
}

// enter adds the machine to etcd's members, and returns nil if etcd is elsewhere.
func enter(ctx context.Context, kube kubernetes.Interface, server string, m Machine) (*etcd.Peers, error) {
	_, err := kube.CoreV1().Nodes().Get(ctx, m.Name, metav1.GetOptions{})
	switch {
	case err == nil:
		return nil, fmt.Errorf("the cluster has a node %s: choose another --node-name, or 'coracle node remove %[1]s' there if that machine is gone",
			m.Name)
	case !apierrors.IsNotFound(err):
		return nil, fmt.Errorf("look for node %s at %s: %w", m.Name, server, err)
	}
	body, err := json.Marshal(m.Joiner)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, added)
	defer cancel()
	for {
		result := kube.CoreV1().RESTClient().Post().AbsPath(apiserver.MembersPath).Body(body).MaxRetries(0).Do(ctx)
		answer, err := result.Raw()
		if err != nil { // Error has what the server says, Raw only its code
			err = result.Error()
		}
		status := apierrors.APIStatus(nil)
		switch {
		case err == nil:
			p := &etcd.Peers{}
			return p, json.Unmarshal(answer, p)
		case errors.As(err, &status) && status.Status().Code == http.StatusNotFound:
			return nil, nil //nolint:nilnil // it is no error
		case errors.As(err, &status) && status.Status().Code != http.StatusServiceUnavailable:
			return nil, fmt.Errorf("add %s to etcd's members: %w", m.Name, err)
		}
		select {
		case <-time.After(again):
		case <-ctx.Done():
			return nil, fmt.Errorf("add %s to etcd's members: %w", m.Name, err)
		}
	}
}
