package credentials

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"log/slog"
	"math/big"
	"os"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/coracle-project/coracle/cluster/client"
	"github.com/coracle-project/coracle/cluster/node/clusterinfo"
	"github.com/coracle-project/coracle/cluster/node/discovery"
	"github.com/coracle-project/coracle/cluster/pki"
)

// published returns what a cluster with its credentials in dir publishes, after a rotation.
func published(t *testing.T, dir string, what pki.What) (*pki.Bundle, pki.Succession) {
	t.Helper()
	if what != (pki.What{}) {
		if err := pki.Rotate(dir, what); err != nil {
			t.Fatal(err)
		}
	}
	b := must(pki.Ensure(dir, "https://127.0.0.1:1", []string{"127.0.0.1"}, nil))(t)
	return b, must(pki.ReadSuccession(dir))(t)
}

func TestSuccessors(t *testing.T) {
	dir, elsewhere := t.TempDir(), t.TempDir()
	first, alone := published(t, dir, pki.What{})
	old := must(os.ReadFile(first.CACert))(t)
	_, both := published(t, dir, pki.What{Authority: true})
	_, finished := published(t, dir, pki.What{DropFormer: true})
	now := must(os.ReadFile(first.CACert))(t)
	_, foreign := published(t, elsewhere, pki.What{})
	_, foreignBoth := published(t, elsewhere, pki.What{Authority: true})
	join := func(parts ...[]byte) []byte { return bytes.Join(parts, nil) }
	for name, c := range map[string]struct {
		have, published []byte
		want            []byte // nil for an error
	}{
		"as it is":                        {old, alone.PEM, old},
		"a new one":                       {old, both.PEM, join(now, old)},
		"both known":                      {join(now, old), both.PEM, join(now, old)},
		"finished":                        {join(now, old), finished.PEM, now},
		"finished while the node was off": {old, finished.PEM, now},
		"another cluster's":               {old, foreign.PEM, nil},
		"another cluster's that is new":   {old, foreignBoth.PEM, nil},
		"another's added":                 {old, join(old, foreign.PEM), old},
		"another's first":                 {old, join(foreign.PEM, old), nil},
		"without the cross certificate":   {old, join(now, old), nil},
		"a cross certificate first":       {old, join([]byte(lastBlock(both.PEM)), now), nil},
		"too many":                        {old, bytes.Repeat(old, mostAuthorities+1), nil},
		"no certificate":                  {old, []byte("x"), nil},
		"a leaf":                          {old, must(os.ReadFile(first.Serving))(t), nil},
	} {
		got, err := successors(c.have, c.published)
		if (err == nil) != (c.want != nil) || err == nil && !bytes.Equal(encode(got), c.want) {
			t.Errorf("%s: %s, %v", name, encode(got), err)
		}
	}
}

func lastBlock(text []byte) string {
	const begin = "-----BEGIN"
	return begin + string(text[bytes.LastIndex(text, []byte(begin))+len(begin):])
}

// The node takes the new authority, gets certificates of it and says so, also after it was cut off
// between two steps.
func TestFollow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		b, s := published(t, dir, pki.What{})
		files := must(b.Node("two", []string{"192.0.2.2"}))(t)
		node := Node{Name: "two", log: slog.New(slog.DiscardHandler), dir: t.TempDir()}
		for from, to := range map[string]string{files.Client: node.clientFile(), files.Serving: node.servingFile(), b.CACert: node.CAFile()} {
			if err := os.WriteFile(to, must(os.ReadFile(from))(t), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		kube := fake.NewClientset(
			&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "two"}},
			&corev1.ConfigMap{
				ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: clusterinfo.AgentConfigMap},
				Data:       map[string]string{"authority.pem": string(s.PEM)},
			})
		signWith(t, kube, b.CA)
		follow := func() (stop func()) {
			ctx, cancel := context.WithCancel(t.Context())
			set := &client.Set{Kube: kube, Informers: client.NewInformers(kube)}
			keeper := must(node.Keep(kube, func() []corev1.NodeAddress {
				return []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "192.0.2.2"}}
			}))(t)
			var running sync.WaitGroup
			f := node.Follow(set, keeper)
			running.Go(func() { _ = f.Run(ctx) })
			running.Go(func() { _ = keeper.Run(ctx) })
			set.Informers.Start(ctx.Done())
			return func() {
				if keeper.Serving() == nil {
					t.Error("the kubelet has no certificate")
				}
				cancel()
				running.Wait()
				set.Informers.Shutdown()
				time.Sleep(366 * 24 * time.Hour) // upstream's managers look at their end when a renewal is due
			}
		}
		check := func(ca []byte, newest *x509.Certificate) {
			t.Helper()
			if got := must(os.ReadFile(node.CAFile()))(t); !bytes.Equal(got, ca) {
				t.Errorf("the node trusts %s, want %s", got, ca)
			}
			if !node.issuedBy(newest) {
				t.Error("the node's certificates are not of the newest authority")
			}
			n := must(kube.CoreV1().Nodes().Get(t.Context(), "two", metav1.GetOptions{}))(t)
			if hash := must(discovery.Hash(pki.Encode(newest)))(t); n.Annotations[AuthorityAnnotation] != hash {
				t.Errorf("annotations %v, want %s", n.Annotations, hash)
			}
		}
		publish := func(text []byte) {
			t.Helper()
			m := must(kube.CoreV1().ConfigMaps("kube-system").Get(t.Context(), clusterinfo.AgentConfigMap, metav1.GetOptions{}))(t)
			m.Data["authority.pem"] = string(text)
			if _, err := kube.CoreV1().ConfigMaps("kube-system").Update(t.Context(), m, metav1.UpdateOptions{}); err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Minute)
		}
		stop := follow()
		time.Sleep(time.Minute)
		check(must(os.ReadFile(b.CACert))(t), s.Newest)
		client := must(os.ReadFile(node.clientFile()))(t)
		_, foreign := published(t, t.TempDir(), pki.What{})
		publish(foreign.PEM)
		check(must(os.ReadFile(b.CACert))(t), s.Newest)
		// A certificate that cannot be replaced yet is tried again.
		release := fix(t, node.clientFile())
		b, s = published(t, dir, pki.What{Authority: true})
		publish(s.PEM)
		if node.issuedBy(s.Newest) {
			t.Error("the file was to be refused")
		}
		release()
		time.Sleep(time.Hour)
		check(must(os.ReadFile(b.CACert))(t), s.Newest)
		stop()

		// It was cut off when it trusted the new one and had one of two certificates.
		if err := os.WriteFile(node.clientFile(), client, 0o600); err != nil {
			t.Fatal(err)
		}
		b, s = published(t, dir, pki.What{Certificates: true}) // a year has passed
		stop = follow()
		time.Sleep(time.Minute)
		check(must(os.ReadFile(b.CACert))(t), s.Newest)
		b, s = published(t, dir, pki.What{DropFormer: true})
		publish(s.PEM)
		check(must(os.ReadFile(b.CACert))(t), s.Newest)
		stop()
	})
}

// fix has a file whose mode cannot be changed at a path, until release is called.
func fix(t *testing.T, path string) (release func()) {
	t.Helper()
	content := must(os.ReadFile(path))(t)
	file := os.NewFile(uintptr(must(unix.MemfdCreate("fixed", unix.MFD_ALLOW_SEALING))(t)), "fixed")
	if _, err := file.Write(content); err != nil {
		t.Fatal(err)
	}
	must(unix.FcntlInt(file.Fd(), unix.F_ADD_SEALS, unix.F_SEAL_EXEC))(t)
	if err := errors.Join(os.Remove(path), os.Symlink(fmt.Sprintf("/proc/self/fd/%d", file.Fd()), path)); err != nil {
		t.Fatal(err)
	}
	return func() {
		if err := errors.Join(os.Remove(path), os.WriteFile(path, content, 0o600), file.Close()); err != nil {
			t.Fatal(err)
		}
	}
}

// signWith has a fake API sign all requests with the authority that is in a file by then.
func signWith(t *testing.T, kube *fake.Clientset, ca string) {
	serial := int64(1)
	signBy(t, kube, func(r *x509.CertificateRequest) []byte {
		pair := must(tls.LoadX509KeyPair(ca, ca))(t)
		serial++
		template := &x509.Certificate{
			SerialNumber: big.NewInt(serial), Subject: r.Subject, IPAddresses: r.IPAddresses, DNSNames: r.DNSNames,
			NotBefore: time.Now(), NotAfter: time.Now().Add(365 * 24 * time.Hour),
		}
		der := must(x509.CreateCertificate(rand.Reader, template, pair.Leaf, r.PublicKey, pair.PrivateKey))(t)
		return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	})
}
