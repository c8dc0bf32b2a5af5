package credentials

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kubeversion "k8s.io/apimachinery/pkg/version"
	"k8s.io/apiserver/pkg/authentication/serviceaccount"
	"k8s.io/apiserver/pkg/authentication/user"
	fakediscovery "k8s.io/client-go/discovery/fake"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/klog/v2"

	"github.com/coracle-project/coracle/cluster/apiserver/servertest"
	"github.com/coracle-project/coracle/cluster/client"
	"github.com/coracle-project/coracle/cluster/controllers/certificates"
	"github.com/coracle-project/coracle/cluster/controllers/upstream"
	"github.com/coracle-project/coracle/cluster/internal/testkit"
	"github.com/coracle-project/coracle/cluster/node/clusterinfo"
	"github.com/coracle-project/coracle/cluster/node/discovery"
	"github.com/coracle-project/coracle/cluster/node/token"
)

// patience bounds what a test waits for, on however slow a machine.
const patience = 3 * time.Minute

// first is the API server of a cluster with what lets machines join.
type first struct {
	kube      kubernetes.Interface
	url, hash string
}

func startFirst(t *testing.T) *first {
	t.Helper()
	klog.SetSlogLogger(slog.New(slog.NewTextHandler(io.Discard, nil)))
	o := servertest.Options(t)
	bundle, server := o.PKI, servertest.New(t, o)
	account := func(name string) *client.Set {
		return must(client.New(server.ClientConfig(serviceaccount.MakeUsername(metav1.NamespaceSystem, name),
			serviceaccount.MakeGroupNames(metav1.NamespaceSystem)...), server.Informers(), nil))(t)
	}
	manager := must(kubernetes.NewForConfig(server.ClientConfig(user.KubeControllerManager)))(t)
	signing := func() (tls.Certificate, error) { return tls.LoadX509KeyPair(bundle.CA, bundle.CA) }
	runners := []interface{ Run(ctx context.Context) }{
		upstream.NewBootstrapSigner(account("bootstrap-signer")),
		certificates.NewApprover(account("certificate-controller"), manager, certificates.Reserved{Hosts: []string{"192.0.2.1"}}),
		certificates.NewSigner(account("certificate-controller"), signing, 0),
	}
	servertest.Run(t, server)
	ctx, stop := context.WithCancel(context.Background())
	var working sync.WaitGroup
	t.Cleanup(func() {
		stop()
		working.Wait()
	})
	for _, r := range runners {
		working.Go(func() { r.Run(ctx) })
	}
	f := &first{kube: must(kubernetes.NewForConfig(server.ClientConfig("test", user.SystemPrivilegedGroup)))(t)}
	_, port, _ := net.SplitHostPort(server.Address().String())
	f.url = "https://127.0.0.1:" + port
	ca := must(os.ReadFile(bundle.CACert))(t)
	f.hash = must(discovery.Hash(ca))(t)
	testkit.Eventually(t.Context(), t, "publish cluster-info", func() (bool, error) { // its namespace is made a moment after the start
		err := clusterinfo.Publish(ctx, f.kube, f.url, ca, nil, clusterinfo.Settings{})
		return err == nil, err
	})
	return f
}

func must[T any](v T, err error) func(*testing.T) T {
	return func(t *testing.T) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

func nothing(context.Context, kubernetes.Interface) error { return nil }

func TestJoin(t *testing.T) {
	f := startFirst(t)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	text, _, err := token.Create(ctx, f.kube, token.New{TTL: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	given := discovery.Given{Server: f.url, Token: text, Hashes: []string{f.hash}}
	dir := filepath.Join(t.TempDir(), "agent")
	looked := false
	node, err := Join(ctx, dir, given, "two", func(ctx context.Context, kube kubernetes.Interface) error {
		looked = true
		if _, err := Read(dir, nil); !errors.Is(err, ErrNone) {
			t.Errorf("the machine counts as joined before anyone has looked: %v", err)
		}
		_, published, err := clusterinfo.ReadSettings(ctx, kube)
		if !published {
			t.Error("the node finds no settings of the cluster")
		}
		return err
	})
	if err != nil || !looked {
		t.Fatalf("looked %t, %v", looked, err)
	}
	for _, file := range []string{node.clientFile(), filepath.Join(dir, "cluster.json")} {
		if info := must(os.Stat(file))(t); info.Mode().Perm() != 0o600 {
			t.Errorf("%s has mode %v", file, info.Mode())
		}
	}
	if err := node.Check(time.Now()); err != nil {
		t.Error(err)
	}
	for off, want := range map[time.Duration]string{2 * 365 * 24 * time.Hour: "ended on", -time.Hour: "begins on"} {
		clock := time.Now().UTC().Add(off)
		err := node.Check(clock)
		if err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "correct the clock") ||
			!strings.Contains(err.Error(), "it is "+clock.Format(time.DateTime)+" by this machine's clock") {
			t.Errorf("with a clock that is off by %v: %v", off, err)
		}
	}

	// The credentials are a node's: it registers itself.
	kube := must(kubernetes.NewForConfig(node.Config()))(t)
	object := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "two"}, Status: corev1.NodeStatus{Addresses: []corev1.NodeAddress{
		{Type: corev1.NodeInternalIP, Address: "192.0.2.2"}, {Type: corev1.NodeHostName, Address: "two"},
	}}}
	registered := must(kube.CoreV1().Nodes().Create(ctx, object, metav1.CreateOptions{}))(t)
	other := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "three"}}
	if _, err := kube.CoreV1().Nodes().Create(ctx, other, metav1.CreateOptions{}); err == nil {
		t.Error("it may register another node")
	}

	// It gets a certificate to serve under its addresses.
	keeper := must(node.Keep(kube, func() []corev1.NodeAddress { return registered.Status.Addresses }))(t)
	running, stop := context.WithCancel(ctx)
	defer stop()
	go func() { _ = keeper.Run(running) }()
	testkit.Eventually(ctx, t, "a serving certificate", func() (bool, error) { return keeper.Serving() != nil, nil })
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(must(os.ReadFile(node.CAFile()))(t))
	for _, host := range []string{"192.0.2.2", "two"} {
		if _, err := keeper.Serving().Leaf.Verify(x509.VerifyOptions{Roots: roots, DNSName: host}); err != nil {
			t.Error(err)
		}
	}

	again, err := Read(dir, nil)
	again.used, again.log = node.used, node.log
	if err != nil || again != node {
		t.Errorf("%+v, %v", again, err)
	}
	if _, err = Join(ctx, dir, given, "two", nothing); err == nil || !strings.Contains(err.Error(), "already") {
		t.Errorf("joined twice: %v", err)
	}

	id, secret, _ := token.Parse(text)
	wrong := func(change func(*discovery.Given)) discovery.Given {
		g := given
		change(&g)
		return g
	}
	for name, c := range map[string]struct {
		given discovery.Given
		node  string
		want  string
	}{
		"a node that exists": {given, "two", "the cluster has a node two: choose another --node-name"},
		"a wrong secret": {
			wrong(func(g *discovery.Given) { g.Token = id + "." + strings.Repeat("x", len(secret)) }), "three",
			"the secret of token " + id + " is not the one that " + f.url + " knows",
		},
		"an unknown token": {
			wrong(func(g *discovery.Given) { g.Token = "zzzzzz." + secret }), "three",
			"does not know token zzzzzz: it was deleted or has expired",
		},
		"another authority": {
			wrong(func(g *discovery.Given) { g.Hashes = []string{"sha256:" + strings.Repeat("0", 64)} }), "three",
			"is another cluster: its authority has the hash " + f.hash,
		},
		"no authority": {wrong(func(g *discovery.Given) { g.Hashes = nil }), "three", "the hash of the cluster's authority is missing"},
		"no hash":      {wrong(func(g *discovery.Given) { g.Hashes = []string{"sha256:12"} }), "three", "is no hash of an authority"},
		"no token":     {wrong(func(g *discovery.Given) { g.Token = "abc" }), "three", "the token is not ID.SECRET"},
		"no address":   {wrong(func(g *discovery.Given) { g.Server = "10.0.0.1" }), "three", "is no address of an API server"},
		"no name of a node": {
			wrong(func(g *discovery.Given) { g.Server = "https://127.0.0.1:1" }), "My_Host", `"My_Host" is no name of a node: `,
		},
		"no one at that place": {wrong(func(g *discovery.Given) { g.Server = "https://127.0.0.1:1" }), "three", "cannot be reached"},
		"a name it has not": {
			wrong(func(g *discovery.Given) { g.Server = strings.Replace(f.url, "127.0.0.1", "localhost", 1) }), "three",
			"is not an address that the cluster knows of itself",
		},
	} {
		t.Run(name, func(t *testing.T) {
			to := filepath.Join(t.TempDir(), "agent")
			_, err := Join(ctx, to, c.given, c.node, nothing)
			if err == nil || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "\n") {
				t.Errorf("%v\nwant %s", err, c.want)
			}
			if err != nil && strings.Contains(err.Error(), secret) {
				t.Errorf("the error has the token's secret: %v", err)
			}
			if _, err := os.Stat(to); err == nil {
				t.Error("it has left something")
			}
		})
	}
}

func TestReadRefuses(t *testing.T) {
	for name, text := range map[string]string{"a later format": `{"version": 2}`, "damaged": `{"version"`} {
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, "cluster.json"), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := Read(dir, nil); err == nil || !strings.Contains(fmt.Sprint(err), "cluster.json") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestVersionsThatDiffer(t *testing.T) {
	for _, c := range []struct {
		own, cluster string
		good         bool
	}{
		{"v1.36.3", "v1.36.1", true},
		{"v1.36.3", "v1.37.0", true},
		{"v1.36.0", "v1.35.9", false},
		{"v1.36.0-alpha.1", "v1.36.0", true},
		{"v1.36.0", "v0.0.0-master+$Format:%H$", false},
		{"v1.36.0", "", true},
	} {
		kube := fake.NewClientset()
		kube.Discovery().(*fakediscovery.FakeDiscovery).FakedServerVersion = &kubeversion.Info{GitVersion: c.cluster}
		err := checkVersion(kube, c.own)
		if (err == nil) != c.good || err != nil && !strings.Contains(err.Error(), "this machine's Coracle is of Kubernetes 1.36, newer than") {
			t.Errorf("%s in a cluster of %q: %v", c.own, c.cluster, err)
		}
	}
}
