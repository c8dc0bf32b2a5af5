package main

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/coracle-project/coracle/cluster/node/credentials"
	"github.com/coracle-project/coracle/cluster/node/discovery"
	"github.com/coracle-project/coracle/cluster/pki"
)

// nodeAddress is that of the nodes of these tests, whose kubelets toLoopback connects to.
const nodeAddress = "192.0.2.1"

func toLoopback(ctx context.Context, network, address string) (net.Conn, error) {
	host, port, err := net.SplitHostPort(address)
	if err != nil || host != nodeAddress {
		return nil, fmt.Errorf("%s is the address of no node (%v)", address, err)
	}
	return new(net.Dialer).DialContext(ctx, network, net.JoinHostPort("127.0.0.1", port))
}

// A rotation is finished only if each node has shown that it follows: claims do not count.
func TestNodesThatLag(t *testing.T) {
	dir := t.TempDir()
	ensure := func() *pki.Bundle {
		t.Helper()
		b, err := pki.Ensure(dir, "https://127.0.0.1:1", []string{"127.0.0.1"}, nil)
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	serving := func(b *pki.Bundle, name string) tls.Certificate {
		t.Helper()
		files, err := b.Node(name, []string{name, nodeAddress})
		if err != nil {
			t.Fatal(err)
		}
		pair, err := tls.LoadX509KeyPair(files.Serving, files.Serving)
		if err != nil {
			t.Fatal(err)
		}
		return pair
	}
	former := serving(ensure(), "liar")
	if err := pki.Rotate(dir, pki.What{Authority: true}); err != nil {
		t.Fatal(err)
	}
	b := ensure()
	s, err := pki.ReadSuccession(dir)
	if err != nil {
		t.Fatal(err)
	}
	hash, err := discovery.Hash(pki.Encode(s.Newest))
	if err != nil {
		t.Fatal(err)
	}
	kube := fake.NewClientset()
	add := func(name, annotation string, pair *tls.Certificate) {
		t.Helper()
		n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: map[string]string{credentials.AuthorityAnnotation: annotation}}}
		n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
		if pair != nil {
			kubelet := httptest.NewUnstartedServer(http.NotFoundHandler())
			kubelet.TLS = &tls.Config{Certificates: []tls.Certificate{*pair}}
			kubelet.StartTLS()
			t.Cleanup(kubelet.Close)
			n.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: nodeAddress}}
			n.Status.DaemonEndpoints.KubeletEndpoint.Port = int32(kubelet.Listener.Addr().(*net.TCPAddr).Port)
		}
		if _, err := kube.CoreV1().Nodes().Create(t.Context(), n, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	good := serving(b, "good")
	own := func(name string) bool { return name == "own" }
	add("own", "", nil)
	add("good", hash, &good)
	if got, err := lagging(t.Context(), kube, s.Newest, own, toLoopback); err != nil || len(got) != 0 {
		t.Errorf("all nodes follow: %q, %v", got, err)
	}
	add("former", "sha256:00", &former)
	add("liar", hash, &former)
	add("mask", hash, &good)
	add("nowhere", hash, nil)
	got, err := lagging(t.Context(), kube, s.Newest, own, toLoopback)
	if err != nil || len(got) != 4 {
		t.Fatalf("%q, %v", got, err)
	}
	for i, want := range []string{
		"former: it has not taken the new authority", "liar: its kubelet shows no certificate of the new authority",
		"mask: its kubelet shows no certificate of the new authority: it is system:node:good's", "nowhere: its kubelet shows no certificate",
	} {
		if !strings.HasPrefix(got[i], want) {
			t.Errorf("%q, want %q", got[i], want)
		}
	}
	files, err := b.Node("\x1b[2J", []string{nodeAddress})
	if err != nil {
		t.Fatal(err)
	}
	escapes, err := tls.LoadX509KeyPair(files.Serving, files.Serving)
	if err != nil {
		t.Fatal(err)
	}
	add("zz-escapes", hash, &escapes)
	add("zz-name", hash, &good)
	nodes := kube.CoreV1().Nodes()
	n, err := nodes.Get(t.Context(), "zz-name", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	n.Status.Addresses[0].Address = "localhost"
	if _, err := nodes.Update(t.Context(), n, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	got, err = lagging(t.Context(), kube, s.Newest, own, toLoopback)
	if err != nil || len(got) != 6 || strings.ContainsRune(got[4], 0x1b) || !strings.Contains(got[4], "?[2J") ||
		!strings.Contains(got[5], "is no address") {
		t.Errorf("of a hostile node: %q, %v", got, err)
	}
	for range mostNamed {
		add("n"+strings.Repeat("x", len(kube.Actions())), "", nil)
	}
	got, err = lagging(t.Context(), kube, s.Newest, own, toLoopback)
	if err != nil || len(got) != mostNamed+1 || got[mostNamed] != "and 6 more" {
		t.Errorf("many: %q, %v", got, err)
	}
}

// The cluster process may do nothing, as it does when its clock was set back.
func TestRotationThatChangesNothing(t *testing.T) {
	r := rotation{dir: t.TempDir()}
	for _, what := range []pki.What{{}, {Authority: true}} {
		if what.Authority {
			if err := pki.Rotate(r.dir, what); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := pki.Ensure(r.dir, "https://127.0.0.1:1", []string{"127.0.0.1"}, nil); err != nil {
			t.Fatal(err)
		}
		if err := r.check(what.Authority); err != nil {
			t.Error(err)
		}
		if err := r.check(!what.Authority); err == nil || !strings.Contains(err.Error(), "correct the clock") {
			t.Errorf("former authority %t: %v", !what.Authority, err)
		}
	}
}

// Regression: with a timeout that the first look at the nodes did not fit in, the answer was an
// error without their names.
func TestNodesAreNamedWithAShortTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		looks := 0
		lagging := func(ctx context.Context) ([]string, error) {
			looks++
			select {
			case <-time.After(3 * time.Second):
				return []string{"two"}, nil
			case <-ctx.Done():
				return nil, ctx.Err()
			}
		}
		for wait, want := range map[time.Duration]int{time.Millisecond: 1, 6 * time.Second: 2} {
			looks = 0
			got, err := awaitNone(t.Context(), wait, lagging)
			if err != nil || !slices.Equal(got, []string{"two"}) || looks != want {
				t.Errorf("with %v: %v after %d looks, %v", wait, got, looks, err)
			}
		}
		began := time.Now()
		hangs := func(ctx context.Context) ([]string, error) { <-ctx.Done(); return nil, ctx.Err() }
		if _, err := awaitNone(t.Context(), time.Millisecond, hangs); err == nil || time.Since(began) != firstLook {
			t.Errorf("without an answer: %v after %v", err, time.Since(began))
		}
	})
}
