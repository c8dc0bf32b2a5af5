package pki

import (
	"crypto/tls"
	"crypto/x509"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/client-go/tools/clientcmd"
)

const testServer = "https://127.0.0.1:6443"

var testHosts = []string{"127.0.0.1", "localhost", "kubernetes.default.svc"}

func ensure(t *testing.T, dir string) *Bundle {
	t.Helper()
	b, err := Ensure(dir, testServer, testHosts, nil)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func contents(t *testing.T, b *Bundle) map[string]string {
	t.Helper()
	all := map[string]string{}
	for _, path := range []string{
		b.CACert, b.CA, b.Serving, b.KubeletClient, b.FrontProxyCACert, b.FrontProxyClient, b.ServiceAccountKey,
		b.AdminKubeconfig,
	} {
		data, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		all[filepath.Base(path)] = string(data)
	}
	return all
}

func changed(before, after map[string]string) string {
	var names []string
	for _, name := range []string{
		"admin.kubeconfig", "apiserver.pem", "ca.crt", "ca.pem", "front-proxy-ca.crt", "front-proxy-client.pem",
		"kubelet-client.pem", "service-account.pem",
	} {
		if before[name] != after[name] {
			names = append(names, name)
		}
	}
	return strings.Join(names, " ")
}

func TestEnsureReplacesOnlyWhatIsNoLongerGood(t *testing.T) {
	const everythingSigned = "admin.kubeconfig apiserver.pem ca.crt ca.pem kubelet-client.pem"
	damage := func(name string) func(*testing.T, string) {
		return func(t *testing.T, dir string) {
			if err := os.WriteFile(filepath.Join(dir, name), []byte("-----BEGIN CERT"), 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	for _, test := range []struct {
		name   string
		damage func(*testing.T, string)
		want   string
	}{
		{"nothing happened", func(*testing.T, string) {}, ""},
		{"serving certificate damaged", damage("apiserver.pem"), "apiserver.pem"},
		{"serving certificate lost", func(t *testing.T, dir string) { _ = os.Remove(filepath.Join(dir, "apiserver.pem")) }, "apiserver.pem"},
		{"pair of another authority", func(t *testing.T, dir string) {
			other := ensure(t, t.TempDir())
			data, _ := os.ReadFile(other.KubeletClient)
			_ = os.WriteFile(filepath.Join(dir, "kubelet-client.pem"), data, 0o600)
		}, "kubelet-client.pem"},
		{"authority damaged", damage("ca.pem"), everythingSigned},
		{"authority's copy damaged", damage("ca.crt"), ""},
		{"front proxy's authority damaged", damage("front-proxy-ca.pem"), "front-proxy-ca.crt front-proxy-client.pem"},
		{"front proxy's certificate of the cluster's authority", func(t *testing.T, dir string) {
			data, _ := os.ReadFile(filepath.Join(dir, "kubelet-client.pem"))
			_ = os.WriteFile(filepath.Join(dir, "front-proxy-client.pem"), data, 0o600)
		}, "front-proxy-client.pem"},
		{"token key damaged", damage("service-account.pem"), "service-account.pem"},
		{"kubeconfig damaged", damage("admin.kubeconfig"), "admin.kubeconfig"},
	} {
		t.Run(test.name, func(t *testing.T) {
			dir := t.TempDir()
			before := contents(t, ensure(t, dir))
			test.damage(t, dir)
			after := contents(t, ensure(t, dir))
			if got := changed(before, after); got != test.want {
				t.Errorf("replaced %q, want %q", got, test.want)
			}
		})
	}
}

func TestEnsureRenews(t *testing.T) {
	const leaves = "admin.kubeconfig apiserver.pem front-proxy-client.pem kubelet-client.pem"
	for _, test := range []struct {
		name  string
		after time.Duration
		want  string
	}{
		{"long before the end", certificateLife - renewBefore - time.Hour, ""},
		{"30 days before the end", certificateLife - renewBefore + time.Hour, leaves},
		{"after the end", certificateLife + time.Hour, leaves},
		{
			"the authority's end is near", authorityLife - renewBefore + time.Hour,
			"admin.kubeconfig apiserver.pem ca.crt ca.pem front-proxy-ca.crt front-proxy-client.pem kubelet-client.pem",
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			dir := t.TempDir()
			synctest.Test(t, func(t *testing.T) {
				before := contents(t, ensure(t, dir))
				time.Sleep(test.after) // the bubble's clock: takes no time
				after := contents(t, ensure(t, dir))
				if got := changed(before, after); got != test.want {
					t.Errorf("replaced %q, want %q", got, test.want)
				}
			})
		})
	}
}

func TestEnsureAfterTheClockWasSetBack(t *testing.T) {
	dir := t.TempDir()
	log := slog.New(slog.DiscardHandler)
	a, err := ensureAuthorityPair("coracle-ca", filepath.Join(dir, "ca.pem"), time.Now().Add(48*time.Hour), Rotation{}, log)
	if err != nil {
		t.Fatal(err)
	}
	b := ensure(t, dir)
	if b.issuer.cert.Equal(a.cert) {
		t.Error("an authority that is not valid yet was kept")
	}
	if !matches(a.cert, b.issuer.key) {
		t.Error("the authority's key changed with its renewal")
	}
}

func TestEnsureWithOtherHostsOrAddress(t *testing.T) {
	dir := t.TempDir()
	before := contents(t, ensure(t, dir))
	b, err := Ensure(dir, "https://10.1.2.3:7443", append(testHosts, "10.1.2.3"), nil)
	if err != nil {
		t.Fatal(err)
	}
	if got := changed(before, contents(t, b)); got != "admin.kubeconfig apiserver.pem" {
		t.Errorf("replaced %q", got)
	}
	config, err := clientcmd.LoadFromFile(b.AdminKubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	if got := config.Clusters[contextName].Server; got != "https://10.1.2.3:7443" {
		t.Errorf("kubeconfig points to %s", got)
	}
}

func TestCredentialsVerify(t *testing.T) {
	b := ensure(t, t.TempDir())
	node, err := b.Node("n1", []string{"n1", "10.0.0.9"})
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	ca, _ := os.ReadFile(b.CACert)
	roots.AppendCertsFromPEM(ca)
	for _, test := range []struct {
		path, name, group, host string
		usage                   x509.ExtKeyUsage
	}{
		{b.Serving, "kube-apiserver", "", "localhost", x509.ExtKeyUsageServerAuth},
		{b.Serving, "kube-apiserver", "", "127.0.0.1", x509.ExtKeyUsageServerAuth},
		{b.KubeletClient, "kube-apiserver-kubelet-client", "system:masters", "", x509.ExtKeyUsageClientAuth},
		{node.Client, "system:node:n1", "system:nodes", "", x509.ExtKeyUsageClientAuth},
		{node.Serving, "system:node:n1", "system:nodes", "10.0.0.9", x509.ExtKeyUsageServerAuth},
	} {
		pair, err := tls.LoadX509KeyPair(test.path, test.path)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := pair.Leaf.Verify(x509.VerifyOptions{
			Roots: roots, DNSName: test.host,
			KeyUsages: []x509.ExtKeyUsage{test.usage},
		}); err != nil {
			t.Errorf("%s: %v", test.path, err)
		}
		if got := pair.Leaf.Subject; got.CommonName != test.name || strings.Join(got.Organization, ",") != test.group {
			t.Errorf("%s is for %v", test.path, got)
		}
	}
	front, err := tls.LoadX509KeyPair(b.FrontProxyClient, b.FrontProxyClient)
	if err != nil {
		t.Fatal(err)
	}
	only := x509.NewCertPool()
	frontCA, _ := os.ReadFile(b.FrontProxyCACert)
	only.AppendCertsFromPEM(frontCA)
	clients := []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}
	if _, err := front.Leaf.Verify(x509.VerifyOptions{Roots: only, KeyUsages: clients}); err != nil ||
		front.Leaf.Subject.CommonName != FrontProxyName {
		t.Errorf("%s is for %v: %v", b.FrontProxyClient, front.Leaf.Subject, err)
	}
	// With the cluster's authority, each of its clients could say for which user it asks.
	if _, err := front.Leaf.Verify(x509.VerifyOptions{Roots: roots, KeyUsages: clients}); err == nil {
		t.Error("the front proxy's certificate is of the cluster's authority")
	}
	kubelet, err := tls.LoadX509KeyPair(b.KubeletClient, b.KubeletClient)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := kubelet.Leaf.Verify(x509.VerifyOptions{Roots: only, KeyUsages: clients}); err == nil {
		t.Error("a client of the cluster's authority is taken for the front proxy")
	}
	for _, path := range []string{
		b.CA, b.Serving, b.KubeletClient, b.FrontProxyClient, b.ServiceAccountKey, b.AdminKubeconfig, node.Client,
		node.Kubeconfig,
	} {
		if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("%s: mode %v, %v", path, info.Mode(), err)
		}
	}
}

func TestBadInput(t *testing.T) {
	b := ensure(t, t.TempDir())
	if _, err := b.Node("../evil", nil); err == nil || !strings.Contains(err.Error(), "no node name") {
		t.Errorf("node name with a path: %v", err)
	}
	if _, err := Ensure(t.TempDir(), testServer, nil, nil); err == nil {
		t.Error("no hosts were accepted")
	}
	if _, err := Ensure(t.TempDir(), "127.0.0.1:6443", testHosts, nil); err == nil || !strings.Contains(err.Error(), "looks like https://") {
		t.Errorf("address without scheme: %v", err)
	}
	// A directory in a file's place is unreadable for root too.
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, "ca.pem"), 0o700); err != nil {
		t.Fatal(err)
	}
	if _, err := Ensure(dir, testServer, testHosts, nil); err == nil || !strings.Contains(err.Error(), "must be readable") {
		t.Errorf("unreadable authority: %v", err)
	}
}

func TestDirectoryIsClosedToOthers(t *testing.T) {
	dir := t.TempDir()
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	ensure(t, dir)
	if info, err := os.Stat(dir); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("mode %v, %v", info.Mode(), err)
	}
}

// A member of etcd may read and write everything, so the cluster's authority must not sign one.
func TestEtcdHasAnAuthorityOfItsOwn(t *testing.T) {
	b := ensure(t, t.TempDir())
	files, err := b.EtcdPeer([]string{"10.0.0.1"})
	if err != nil {
		t.Fatal(err)
	}
	pair, err := tls.LoadX509KeyPair(files.Pair, files.Pair)
	if err != nil {
		t.Fatal(err)
	}
	own, cluster := pool(t, files.CACert), pool(t, b.CACert)
	for _, usage := range []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth} {
		o := x509.VerifyOptions{Roots: own, KeyUsages: []x509.ExtKeyUsage{usage}, DNSName: "10.0.0.1"}
		if _, err := pair.Leaf.Verify(o); err != nil {
			t.Error(err)
		}
		o.Roots = cluster
		if _, err := pair.Leaf.Verify(o); err == nil {
			t.Error("the cluster's authority has signed it")
		}
	}
}

// Regression: two first tokens for control-plane nodes that were made at once had different
// authorities of etcd's members, so the machines that joined with them did not trust each other.
func TestOneAuthorityForAllThatAskAtOnce(t *testing.T) {
	dir := ensure(t, t.TempDir()).Dir
	oneForAll := func() string {
		t.Helper()
		var asked sync.WaitGroup
		found := make([]string, 8)
		for i := range found {
			asked.Go(func() {
				files, err := Shared(dir, nil)
				if err != nil {
					t.Error(err)
				}
				found[i] = string(files[etcdAuthority])
			})
		}
		asked.Wait()
		if all := slices.Compact(found); len(all) != 1 {
			t.Errorf("%d calls got %d authorities", len(found), len(all))
		}
		return found[0]
	}
	first := oneForAll()
	rotate(t, dir, What{Authority: true})
	ensure(t, dir)
	rotate(t, dir, What{DropFormer: true})
	ensure(t, dir)
	if oneForAll() == first {
		t.Error("it is the same after the rotation")
	}
}

func pool(t *testing.T, file string) *x509.CertPool {
	t.Helper()
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	p := x509.NewCertPool()
	if !p.AppendCertsFromPEM(data) {
		t.Fatalf("%s has no certificate", file)
	}
	return p
}
