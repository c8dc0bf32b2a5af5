package controlplane

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	kubeversion "k8s.io/apimachinery/pkg/version"
	"k8s.io/apiserver/pkg/authentication/serviceaccount"
	"k8s.io/apiserver/pkg/authentication/user"
	fakediscovery "k8s.io/client-go/discovery/fake"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/rest"
	clienttesting "k8s.io/client-go/testing"
	bootstrapapi "k8s.io/cluster-bootstrap/token/api"
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/cmd/kubeadm/app/util/crypto"

	"github.com/coracle-project/coracle/cluster/apiserver"
	"github.com/coracle-project/coracle/cluster/apiserver/etcd"
	"github.com/coracle-project/coracle/cluster/apiserver/servertest"
	"github.com/coracle-project/coracle/cluster/client"
	"github.com/coracle-project/coracle/cluster/controllers/upstream"
	"github.com/coracle-project/coracle/cluster/internal/testkit"
	"github.com/coracle-project/coracle/cluster/node/clusterinfo"
	"github.com/coracle-project/coracle/cluster/node/discovery"
	"github.com/coracle-project/coracle/cluster/node/token"
	"github.com/coracle-project/coracle/cluster/pki"
)

const patience = 3 * time.Minute

func must[T any](v T, err error) func(*testing.T) T {
	return func(t *testing.T) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

// first is a cluster whose etcd has a port for peers.
type first struct {
	kube            kubernetes.Interface
	url, hash, keys string
	ca              []byte
}

func freeURL(t *testing.T) string {
	t.Helper()
	l := must(net.Listen("tcp", "127.0.0.1:0"))(t)
	defer l.Close()
	return "https://" + l.Addr().String()
}

// quiet silences klog. It is not safe while a server of an earlier test ends, so it is done once.
var quiet = sync.OnceFunc(func() { klog.SetSlogLogger(slog.New(slog.NewTextHandler(io.Discard, nil))) })

// startFirst starts the cluster, on an etcd elsewhere if change says so.
func startFirst(t *testing.T, change func(*apiserver.Options)) *first {
	t.Helper()
	quiet()
	o := servertest.Options(t)
	o.Several = true
	bundle, f := o.PKI, &first{keys: o.PKI.Dir}
	must(bundle.EtcdPeer([]string{"127.0.0.1"}))(t)
	if err := (etcd.Peers{Name: "one", URL: freeURL(t)}).Write(o.Root); err != nil {
		t.Fatal(err)
	}
	if change != nil {
		change(&o)
	}
	server := servertest.New(t, o)
	set := must(client.New(server.ClientConfig(serviceaccount.MakeUsername(metav1.NamespaceSystem, "bootstrap-signer"),
		serviceaccount.MakeGroupNames(metav1.NamespaceSystem)...), server.Informers(), nil))(t)
	signer := upstream.NewBootstrapSigner(set)
	servertest.Run(t, server)
	ctx, stop := context.WithCancel(context.Background())
	var working sync.WaitGroup
	t.Cleanup(func() {
		stop()
		working.Wait()
	})
	working.Go(func() { signer.Run(ctx) })
	f.kube = must(kubernetes.NewForConfig(server.ClientConfig("test", user.SystemPrivilegedGroup)))(t)
	_, port, _ := net.SplitHostPort(server.Address().String())
	f.url = "https://127.0.0.1:" + port
	f.ca = must(os.ReadFile(bundle.CACert))(t)
	f.hash = must(discovery.Hash(f.ca))(t)
	testkit.Eventually(t.Context(), t, "publish cluster-info", func() (bool, error) { // its namespace is made a moment after the start
		err := clusterinfo.Publish(ctx, f.kube, f.url, f.ca, nil, clusterinfo.Settings{})
		return err == nil, err
	})
	return f
}

// invite returns what a machine is told, once the token's rights have effect: the authorizer learns
// new roles by watching, a moment later.
func (f *first) invite(ctx context.Context, t *testing.T) Given {
	t.Helper()
	text, info, err := token.Create(ctx, f.kube, token.New{TTL: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	key, err := Upload(ctx, f.kube, info, f.keys, json.RawMessage(`{"a":"b"}`), nil)
	if err != nil {
		t.Fatal(err)
	}
	review := &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{
		User: bootstrapapi.BootstrapUserPrefix + info.ID,
		ResourceAttributes: &authorizationv1.ResourceAttributes{
			Namespace: metav1.NamespaceSystem, Verb: "get", Resource: "secrets", Name: secretPrefix + info.ID,
		},
	}}
	testkit.Eventually(ctx, t, "let the token read its keys", func() (bool, error) {
		answer, err := f.kube.AuthorizationV1().SubjectAccessReviews().Create(ctx, review, metav1.CreateOptions{})
		return err == nil && answer.Status.Allowed, err
	})
	return Given{discovery.Given{Server: f.url, Token: text, Hashes: []string{f.hash}}, key}
}

func machine(t *testing.T, name string) Machine {
	t.Helper()
	return Machine{Root: filepath.Join(t.TempDir(), "kube"), Joiner: apiserver.Joiner{Name: name, URL: freeURL(t)}}
}

func TestJoin(t *testing.T) {
	var alone atomic.Bool
	policy := filepath.Join(t.TempDir(), "policy.yaml")
	writePolicy := func(text string) {
		t.Helper()
		if err := os.WriteFile(policy, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	writePolicy("before")
	f := startFirst(t, func(o *apiserver.Options) {
		o.SharedFiles = apiserver.SharedFiles{"audit-policy-file": policy}
		o.LeavePeers = func() error {
			alone.Store(true)
			return nil
		}
	})
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	g := f.invite(ctx, t)
	id, _, _ := token.Parse(g.Token)
	refused := func(what string, g Given, want string) {
		t.Helper()
		m := machine(t, "two")
		_, err := Join(ctx, g, m)
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: %v, want %q", what, err, want)
		}
		if left, _ := os.ReadDir(m.Root); len(left) > 0 {
			t.Errorf("%s: files are left: %v", what, left)
		}
	}
	with := func(change func(*Given)) Given {
		changed := g
		change(&changed)
		return changed
	}
	refused("half a key", with(func(g *Given) { g.CertificateKey = g.CertificateKey[:32] }), "64 hexadecimal digits: copy the whole key")
	refused("wrong key", with(func(g *Given) { g.CertificateKey = strings.Repeat("0", 64) }), "the certificate key is not the one of token "+id)
	refused("unknown token", with(func(g *Given) { g.Token = "zzzzzz.0123456789abcdef" }), "does not know token zzzzzz")
	refused("another cluster", with(func(g *Given) { g.Hashes = []string{"sha256:" + strings.Repeat("0", 64)} }), "is another cluster")
	agents, _, err := token.Create(ctx, f.kube, token.New{TTL: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	refused("a token for agents", with(func(g *Given) { g.Token = agents }), "is for nodes without a control plane")

	// The keys are nothing for other tokens, not even encrypted, and the members nothing for any.
	for what, config := range map[string]*rest.Config{
		"another token": {BearerToken: agents}, "the token": {BearerToken: g.Token}, "no one": {},
	} {
		config.Host, config.CAData = f.url, f.ca
		kube := must(kubernetes.NewForConfig(config))(t)
		_, err := kube.CoreV1().Secrets(metav1.NamespaceSystem).Get(ctx, secretPrefix+id, metav1.GetOptions{})
		if what != "the token" && !apierrors.IsForbidden(err) && !apierrors.IsUnauthorized(err) {
			t.Errorf("%s reads the encrypted keys: %v", what, err)
		}
		body := must(json.Marshal(machine(t, "two").Joiner))(t)
		err = kube.CoreV1().RESTClient().Post().AbsPath(apiserver.MembersPath).Body(body).Do(ctx).Error()
		if !apierrors.IsForbidden(err) && !apierrors.IsUnauthorized(err) {
			t.Errorf("%s adds a member of etcd: %v", what, err)
		}
	}

	// Regression: a machine had the key of before. Its API server refused the tokens of the others.
	late := f.invite(ctx, t)
	key := filepath.Join(f.keys, "service-account.pem")
	handedOut := must(os.ReadFile(key))(t)
	elsewhere := filepath.Join(t.TempDir(), "pki")
	must(pki.Ensure(elsewhere, "https://127.0.0.1:1", []string{"127.0.0.1"}, nil))(t)
	replaced := must(os.ReadFile(filepath.Join(elsewhere, "service-account.pem")))(t)
	if err := os.WriteFile(key, replaced, 0o600); err != nil {
		t.Fatal(err)
	}
	refused("keys of before a rotation", late, "the key of service account tokens is another one than two has got")
	if err := os.WriteFile(key, handedOut, 0o600); err != nil {
		t.Fatal(err)
	}

	// Regression: a machine had to have the file as it was when its token was made.
	same := filepath.Join(t.TempDir(), "same.yaml")
	if err := os.WriteFile(same, []byte("now"), 0o600); err != nil {
		t.Fatal(err)
	}
	shares := func(files apiserver.SharedFiles, want string) {
		t.Helper()
		m := machine(t, "two")
		m.Shared = files
		_, err := Join(ctx, g, m)
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("with %v: %v, want %q", files, err, want)
		}
	}
	shares(apiserver.SharedFiles{"audit-policy-file": same}, "--audit-policy-file: the file on two differs from the cluster's "+policy)
	shares(nil, "the cluster has --audit-policy-file "+policy+": copy that file to two")
	writePolicy("now")
	shares(apiserver.SharedFiles{"audit-policy-file": same, "scheduler-config": same}, "--scheduler-config on two: the cluster has none")
	shares(apiserver.SharedFiles{"audit-policy-file": filepath.Join(t.TempDir(), "gone")}, "--audit-policy-file: open ")
	endless := filepath.Join(t.TempDir(), "endless")
	if err := errors.Join(os.WriteFile(endless, nil, 0o600), os.Truncate(endless, 1<<40)); err != nil {
		t.Fatal(err)
	}
	shares(apiserver.SharedFiles{"audit-policy-file": endless}, "is longer than")

	settings, err := Settings(ctx, g)
	if err != nil || string(settings) != `{"a":"b"}` {
		t.Errorf("settings %s, %v", settings, err)
	}
	m := machine(t, "two")
	m.Shared = apiserver.SharedFiles{"audit-policy-file": same}
	joined, err := Join(ctx, g, m)
	if err != nil {
		t.Fatal(err)
	}
	if joined.Members["two"] != m.URL || joined.Members["one"] == "" || joined.Kept != "" {
		t.Errorf("joined: %+v", joined)
	}
	peers, err := etcd.ReadPeers(m.Root)
	if err != nil || peers == nil || peers.Name != "two" {
		t.Errorf("peers %+v, %v", peers, err)
	}
	for _, name := range []string{"ca.pem", "service-account.pem", "etcd-ca.pem", "front-proxy-ca.pem"} {
		own, info := filepath.Join(m.Root, "pki", name), must(os.Stat(filepath.Join(m.Root, "pki", name)))(t)
		if string(must(os.ReadFile(own))(t)) != string(must(os.ReadFile(filepath.Join(f.keys, name)))(t)) || info.Mode().Perm() != 0o600 {
			t.Errorf("%s is not the cluster's, or has mode %v", name, info.Mode())
		}
	}
	refused("a key that was used", g, "was used before, or has expired")

	// Regression: when the keys could not be put in their place, the file that makes a member stayed.
	half := m
	half.Root = filepath.Join(t.TempDir(), "kube")
	if err := errors.Join(os.Mkdir(half.Root, 0o700), os.Symlink("nowhere", filepath.Join(half.Root, "pki"))); err != nil {
		t.Fatal(err)
	}
	if _, err := Join(ctx, f.invite(ctx, t), half); err == nil {
		t.Error("a machine joins whose keys are not in their place")
	}
	if peers, err := etcd.ReadPeers(half.Root); err != nil || peers != nil {
		t.Errorf("it is a member nevertheless: %+v, %v", peers, err)
	}

	// It never started, and is removed by its URL.
	remove := func(name string) error {
		return f.kube.CoreV1().RESTClient().Delete().AbsPath(apiserver.MembersPath + "/" + url.PathEscape(name)).Do(ctx).Error()
	}
	if err := remove("two"); !apierrors.IsNotFound(err) || alone.Load() {
		t.Errorf("removing a member that never told its name: %v", err)
	}
	if err := remove(m.URL); err != nil || !alone.Load() {
		t.Errorf("removing the last other member: %v; the server starts again without peers: %t", err, alone.Load())
	}
	if err := remove("one"); !apierrors.IsConflict(err) {
		t.Errorf("removing the only member: %v", err)
	}
}

// Regression: a machine became a member of etcd first, and did not start then on data of a newer
// version, or wrote what the others could not read.
func TestVersionsThatDiffer(t *testing.T) {
	for _, c := range []struct {
		own, cluster string
		good         bool
	}{
		{"v1.36.3", "v1.36.1", true},
		{"v1.36.3", "v1.37.0", false},
		{"v1.36.0", "v1.35.9", false},
		{"v1.36.0-alpha.1", "v1.36.0", true},
		{"v0.0.0-master+$Format:%H$", "v1.36.0", true},
	} {
		kube := fake.NewClientset()
		kube.Discovery().(*fakediscovery.FakeDiscovery).FakedServerVersion = &kubeversion.Info{GitVersion: c.cluster}
		err := checkVersion(kube, c.own)
		if (err == nil) != c.good || err != nil && !strings.Contains(err.Error(), "is of Kubernetes 1.36, and the cluster's is of 1.3") {
			t.Errorf("%s in a cluster of %q: %v", c.own, c.cluster, err)
		}
	}
}

// The members of an etcd elsewhere are its owner's to add.
func TestJoinWithEtcdElsewhere(t *testing.T) {
	dir, err := os.MkdirTemp("", "etcd") // short: sockets' paths are limited
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	elsewhere := must(etcd.Start(t.Context(), etcd.Options{Dir: dir, State: filepath.Join(dir, "run")}))(t)
	t.Cleanup(elsewhere.Close)
	policy := filepath.Join(dir, "policy.yaml")
	if err := os.WriteFile(policy, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	shared := apiserver.SharedFiles{"audit-policy-file": policy}
	f := startFirst(t, func(o *apiserver.Options) { o.EtcdServers, o.SharedFiles = []string{elsewhere.Endpoint}, shared })
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	m := machine(t, "two")
	if _, err := Join(ctx, f.invite(ctx, t), m); err == nil || !strings.Contains(err.Error(), "the cluster has --audit-policy-file") {
		t.Errorf("without a file that the cluster has: %v", err)
	}
	m.Shared = shared
	joined, err := Join(ctx, f.invite(ctx, t), m)
	if err != nil || joined.Members != nil {
		t.Errorf("joined: %+v, %v", joined, err)
	}
	if peers, err := etcd.ReadPeers(m.Root); peers != nil || err != nil {
		t.Errorf("peers %+v, %v", peers, err)
	}
	if _, err := os.Stat(filepath.Join(m.Root, "pki", "ca.pem")); err != nil {
		t.Error(err)
	}
	if got := elsewhere.Members(); len(got) != 1 {
		t.Errorf("members %v", got)
	}
}

func TestKeysExpire(t *testing.T) {
	f := startFirst(t, nil)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	_, endless, err := token.Create(ctx, f.kube, token.New{})
	if err != nil {
		t.Fatal(err)
	}
	for _, info := range []token.Info{endless, {ID: endless.ID, Expires: time.Now().Add(Life + time.Minute)}} {
		if _, err := Upload(ctx, f.kube, info, f.keys, nil, nil); err == nil || !strings.Contains(err.Error(), "valid for 2h0m0s at most") {
			t.Errorf("keys for a token that ends at %v: %v", info.Expires, err)
		}
	}

	// A Secret that no one has deleted in time.
	g := f.invite(ctx, t)
	id, _, _ := token.Parse(g.Token)
	secrets := f.kube.CoreV1().Secrets(metav1.NamespaceSystem)
	secret := must(secrets.Get(ctx, secretPrefix+id, metav1.GetOptions{}))(t)
	if len(secret.OwnerReferences) != 1 || secret.OwnerReferences[0].Name != "bootstrap-token-"+id {
		t.Errorf("the keys stay when the token has gone: %+v", secret.OwnerReferences)
	}
	key := make([]byte, keyBytes)
	if _, err := fmt.Sscanf(g.CertificateKey, "%x", &key); err != nil {
		t.Fatal(err)
	}
	var b bundle
	if err := json.Unmarshal(must(crypto.DecryptBytes(secret.Data[bundleKey], key))(t), &b); err != nil {
		t.Fatal(err)
	}
	b.Expires = time.Now().Add(-time.Second)
	secret.Data[bundleKey] = must(crypto.EncryptBytes(must(json.Marshal(b))(t), key))(t)
	must(secrets.Update(ctx, secret, metav1.UpdateOptions{}))(t)
	if _, err := Join(ctx, g, machine(t, "two")); err == nil || !strings.Contains(err.Error(), "the certificate key expired at") {
		t.Errorf("an expired key: %v", err)
	}
}

// Regression: a token that was made during a rotation could have the former keys.
func TestKeysThatAreReplacedMeanwhile(t *testing.T) {
	for want, what := range map[string]pki.What{
		"authority is being replaced": {Authority: true}, "keys were replaced meanwhile": {ServiceAccountKey: true},
	} {
		dir := t.TempDir()
		ensure := func() {
			b := must(pki.Ensure(dir, "https://127.0.0.1:1", []string{"127.0.0.1"}, nil))(t)
			must(b.EtcdPeer([]string{"127.0.0.1"}))(t)
		}
		ensure()
		const id = "abcdef"
		owner := metav1.ObjectMeta{Name: "bootstrap-token-" + id, Namespace: metav1.NamespaceSystem}
		kube := fake.NewClientset(&corev1.Secret{ObjectMeta: owner})
		kube.PrependReactor("create", "secrets", func(clienttesting.Action) (bool, runtime.Object, error) {
			if err := pki.Rotate(dir, what); err != nil {
				t.Error(err)
			}
			ensure()
			return false, nil, nil
		})
		_, err := Upload(t.Context(), kube, token.Info{ID: id, Expires: time.Now().Add(time.Hour)}, dir, nil, nil)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("keys of before: %v, want %q", err, want)
		}
		_, err = kube.CoreV1().Secrets(metav1.NamespaceSystem).Get(t.Context(), secretPrefix+id, metav1.GetOptions{})
		if !apierrors.IsNotFound(err) {
			t.Errorf("they are kept: %v", err)
		}
	}
}
