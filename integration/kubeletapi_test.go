//go:build kubelet

package integration

import (
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/coracle-project/coracle/internal/testkit"
)

// TestKubeletWithAPIServer: upstream's kubelet on coracled, with Coracle's API server, scheduler
// and controllers; kubectl says what is wanted, as the scripts of testdata/kubelet/api do: in-place
// resize, ephemeral containers, exec, logs and port-forward, objects mounted into pods,
// Deployments.
func TestKubeletWithAPIServer(t *testing.T) {
	n := newNode(t, testkit.Options{LogLevel: "info"})
	addKubeletIP(t)
	c := startControlPlane(t)
	config := fmt.Sprintf(
		"featureGates: {EventedPLEG: true}\ntlsCertFile: %[1]s\ntlsPrivateKeyFile: %[1]s\nclusterDNS: [10.96.0.10]\nclusterDomain: "+
			"cluster.local\n", c.serving(t),
	)
	k := startKubelet(t, n, kubeletOptions{config: config, kubeconfig: c.kubeconfig})
	k.await(t, "the node is Ready", func() error {
		_, err := c.tryKubectl("wait", "node/"+kubeletNode, "--for=condition=Ready", "--timeout=1s")
		return err
	})
	check := k.noLeaks(t)
	runKubeletScripts(t, k, "api", c.namespace)
	check()
}

// controlPlane is Coracle's, without its kubelet.
type controlPlane struct {
	dir, kubeconfig string
}

// startControlPlane starts the API server, and when it answers the others. They end with the test.
func startControlPlane(t *testing.T) *controlPlane {
	t.Helper()
	dir := t.TempDir()
	c := &controlPlane{dir: dir, kubeconfig: filepath.Join(dir, "admin.kubeconfig")}
	run := func(name string, args ...string) <-chan struct{} {
		log, err := os.Create(filepath.Join(dir, name+".log"))
		if err != nil {
			t.Fatal(err)
		}
		defer log.Close()
		cmd := exec.Command(testkit.Bin(t, "coracle-kube"), append([]string{name}, args...)...)
		cmd.Stdout, cmd.Stderr = log, log
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		exit := make(chan struct{})
		go func() {
			defer close(exit)
			_ = cmd.Wait()
		}()
		t.Cleanup(func() {
			_ = cmd.Process.Signal(syscall.SIGTERM)
			<-exit
			if t.Failed() {
				said, _ := os.ReadFile(log.Name())
				t.Logf("the log of coracle-kube %s ends:\n%s", name, said[max(0, len(said)-4000):])
			}
		})
		return exit
	}
	ended := run("apiserver", "--bind-address", kubeletIP, "--root", filepath.Join(dir, "root"), "--state", filepath.Join(dir, "state"),
		"--kubeconfig-out", c.kubeconfig)
	end := time.NewTimer(kubeletPatience)
	defer end.Stop()
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for {
		_, err := os.Stat(c.kubeconfig)
		if err == nil {
			_, err = c.tryKubectl("get", "--raw", "/readyz")
		}
		if err == nil {
			break
		}
		select {
		case <-tick.C:
		case <-ended:
			t.Fatalf("the API server has ended: %v", err)
		case <-end.C:
			t.Fatalf("the API server is not ready: %v", err)
		}
	}
	run("controllers", "--kubeconfig", c.kubeconfig)
	run("scheduler", "--kubeconfig", c.kubeconfig)
	return c
}

// serving makes a certificate for the kubelet, signed by the API server's authority: without it
// exec and logs are refused.
func (c *controlPlane) serving(t *testing.T) string {
	t.Helper()
	pki := filepath.Join(c.dir, "root", "pki")
	ca, err := tls.LoadX509KeyPair(filepath.Join(pki, "ca.pem"), filepath.Join(pki, "ca.pem"))
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()),
		Subject:      pkix.Name{CommonName: "system:node:" + kubeletNode, Organization: []string{"system:nodes"}},
		NotBefore:    time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
		DNSNames: []string{kubeletNode}, IPAddresses: []net.IP{net.ParseIP(kubeletIP)},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	// The authority's own key will do for a node that lives for minutes.
	cert, err := x509.CreateCertificate(rand.Reader, template, ca.Leaf, ca.Leaf.PublicKey, ca.PrivateKey)
	if err != nil {
		t.Fatal(err)
	}
	key, err := x509.MarshalPKCS8PrivateKey(ca.PrivateKey)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(c.dir, "kubelet.pem")
	pair := append(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: cert}),
		pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: key})...)
	if err := os.WriteFile(path, pair, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func (c *controlPlane) tryKubectl(args ...string) (string, error) {
	kubectl, err := testkit.FindBin("tools", "kubectl")
	if err != nil {
		return "", err
	}
	out, err := exec.Command(kubectl, append([]string{"--kubeconfig", c.kubeconfig}, args...)...).CombinedOutput()
	if err != nil {
		err = fmt.Errorf("kubectl %s: %w\n%s", strings.Join(args, " "), err, out)
	}
	return string(out), err
}

// namespace gives a script a namespace of its name, which is gone with all that is in it when it
// ends. In it kubectl acts there, $NODE is the node, and `expand FILE` replaces variables in a
// file.
func (c *controlPlane) namespace(env *testscript.Env) error {
	name := strings.TrimPrefix(filepath.Base(env.WorkDir), "script-")
	data, err := os.ReadFile(c.kubeconfig)
	if err != nil {
		return err
	}
	config := filepath.Join(env.WorkDir, ".kubeconfig")
	if err := os.WriteFile(config, data, 0o600); err != nil {
		return err
	}
	env.Setenv("NS", name)
	env.Setenv("NODE", kubeletNode)
	env.Setenv("HOME", env.WorkDir)
	env.Setenv("KUBECONFIG", config)
	env.Setenv("TERM", "dumb")
	if _, err := c.tryKubectl("create", "namespace", name); err != nil {
		return err
	}
	env.Defer(func() { _, _ = c.tryKubectl("delete", "namespace", name, "--timeout=2m") })
	_, err = c.tryKubectl("config", "set-context", "--current", "--namespace", name, "--kubeconfig", config)
	return err
}
