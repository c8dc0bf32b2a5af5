package integration

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"math/big"
	chacha "math/rand/v2"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/coracle-project/coracle/image/peer"
	"github.com/coracle-project/coracle/integration/faultproxy"
	"github.com/coracle-project/coracle/internal/atomicfile"
	"github.com/coracle-project/coracle/internal/testkit"
	"github.com/coracle-project/coracle/internal/testkit/ociimage"
)

// Nodes that pull an image at the same time cost the registry little more than one download.
func TestNodesShareLayers(t *testing.T) {
	downloads, _ := pullByNodes(t, 4, 8, 1<<20)
	if downloads > 1.2 {
		t.Errorf("the registry sent the image %.2f times", downloads)
	}
}

// BenchmarkPullByNodes pulls an image of 300 MiB: downloads is how often the registry sends it.
func BenchmarkPullByNodes(b *testing.B) {
	for b.Loop() {
		downloads, took := pullByNodes(b, 4, 10, 30<<20)
		b.ReportMetric(downloads, "downloads")
		b.ReportMetric(took.Seconds(), "s/pull")
	}
}

// pullByNodes has nodes pull an image at the same time, and returns how often the registry has sent
// it, and how long it took until all had it.
func pullByNodes(t testing.TB, count, layers, layerSize int) (downloads float64, took time.Duration) {
	t.Helper()
	noise := make([]byte, layers*layerSize) // that no compression makes small
	_, _ = chacha.NewChaCha8([32]byte{1}).Read(noise)
	image := ociimage.Image{Config: ocispec.ImageConfig{Cmd: []string{"/x"}}}
	for i := range layers {
		data := noise[i*layerSize : (i+1)*layerSize]
		image.Layers = append(image.Layers, ociimage.Layer{Files: []ociimage.File{{Path: fmt.Sprint("noise", i), Mode: 0o644, Data: data}}})
	}
	built, err := image.Build()
	if err != nil {
		t.Fatal(err)
	}
	repository := strings.ToLower(t.Name()) + "/app:1"
	if err := ociimage.Push(t.Context(), registry.Addr+"/"+repository, built, ociimage.Registry{PlainHTTP: true}); err != nil {
		t.Fatal(err)
	}
	var size int64
	for _, d := range built.Order {
		size += d.Size
	}
	cert, key, _ := selfSigned(t)
	pair, err := tls.LoadX509KeyPair(cert, key)
	if err != nil {
		t.Fatal(err)
	}
	transport := &http.Transport{}
	t.Cleanup(transport.CloseIdleConnections)
	counting := faultproxy.Start(t, pair, "http://"+registry.Addr, transport)
	nodes := make([]*node, count)
	for i := range nodes {
		nodes[i] = newNode(t, testkit.Options{
			Config: fmt.Sprintf("[image.registry.%q]\ninsecure_skip_verify = true\n", counting.Host()), LogLevel: "info",
		})
	}
	introduce(t, nodes)
	before, began := counting.Sent(), time.Now()
	var pulls sync.WaitGroup
	for _, n := range nodes {
		pulls.Go(func() {
			ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
			defer cancel()
			image := &cri.ImageSpec{Image: counting.Host() + "/" + repository}
			if _, err := n.Images.PullImage(ctx, &cri.PullImageRequest{Image: image}); err != nil {
				t.Error(err)
			}
		})
	}
	pulls.Wait()
	took = time.Since(began)
	downloads = float64(counting.Sent()-before) / float64(size)
	t.Logf("%d nodes pulled %d MiB in %s: the registry sent %.3f times as much", count, size>>20, took.Round(time.Millisecond), downloads)
	return downloads, took
}

// introduce tells nodes of each other, as the cluster's agent does, and waits until they listen.
func introduce(t testing.TB, nodes []*node) {
	t.Helper()
	dir := t.TempDir()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	keyDER, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	ca := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "ca"}, NotBefore: time.Now().Add(-time.Hour),
		NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	write := func(name string, cert *x509.Certificate) string {
		der, err := x509.CreateCertificate(rand.Reader, cert, ca, key.Public(), key)
		if err != nil {
			t.Fatal(err)
		}
		file := filepath.Join(dir, name)
		text := append(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}),
			pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: keyDER})...)
		if err := os.WriteFile(file, text, 0o600); err != nil {
			t.Fatal(err)
		}
		return file
	}
	all := make([]peer.Settings, len(nodes))
	for i := range nodes {
		name := fmt.Sprintf("node-%d", i)
		pair := write(name, &x509.Certificate{
			SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: "system:node:" + name, Organization: []string{"system:nodes"}},
			NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
			ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth},
		})
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		all[i] = peer.Settings{Version: 1, Self: name, Listen: l.Addr().String(), CA: write("ca", ca), Client: pair, Serving: pair}
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
	}
	for i, n := range nodes {
		for j, other := range all {
			if j != i {
				all[i].Peers = append(all[i].Peers, peer.Node{Name: other.Self, Address: other.Listen})
			}
		}
		data, err := json.Marshal(all[i])
		if err != nil {
			t.Fatal(err)
		}
		if err := atomicfile.Write(filepath.Join(n.State, "image-peers", "nodes.json"), data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for i := range nodes {
		eventually(t, "node listens for others", func() bool {
			c, err := net.Dial("tcp", all[i].Listen)
			if err != nil {
				return false
			}
			return c.Close() == nil
		})
	}
}
