package image

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/coracle-project/coracle/image/ingest"
	"github.com/coracle-project/coracle/image/manifest"
	"github.com/coracle-project/coracle/image/peer"
	"github.com/coracle-project/coracle/image/reference"
)

// peers makes stores know each other as nodes of a cluster.
func peers(t testing.TB, stores ...*testStore) {
	t.Helper()
	for i, n := range peerSettings(t, len(stores)) {
		must(t, stores[i].SetPeers(n))
	}
}

// peerSettings are those of nodes that know each other.
func peerSettings(t testing.TB, n int) []peer.Settings {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must(t, err)
	dir := t.TempDir()
	write := func(name string, cert *x509.Certificate, parent *x509.Certificate) string {
		der, err := x509.CreateCertificate(rand.Reader, cert, parent, key.Public(), key)
		must(t, err)
		keyDER, err := x509.MarshalECPrivateKey(key)
		must(t, err)
		file := filepath.Join(dir, name)
		must(t, os.WriteFile(file, append(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}),
			pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: keyDER})...), 0o600))
		return file
	}
	ca := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "ca"}, NotBefore: time.Now().Add(-time.Hour),
		NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	nodes := make([]peer.Settings, n)
	for i := range nodes {
		// No other test listens at this address: until the node does, no one takes the port. Each is held
		// until all nodes have theirs.
		l, err := net.Listen("tcp", "127.0.0.2:0")
		must(t, err)
		defer l.Close()
		name := fmt.Sprintf("node-%d", i)
		pair := write(name, &x509.Certificate{
			SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: "system:node:" + name, Organization: []string{"system:nodes"}},
			NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
			ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth},
		}, ca)
		nodes[i] = peer.Settings{Version: 1, Self: name, Listen: l.Addr().String(), CA: write("ca", ca, ca), Client: pair, Serving: pair}
	}
	for i := range nodes {
		for j, n := range nodes {
			if i != j {
				nodes[i].Peers = append(nodes[i].Peers, peer.Node{Name: n.Self, Address: n.Listen})
			}
		}
	}
	return nodes
}

// Nodes that pull an image at the same time fetch each of its layers once from the registry.
func TestNodesThatPullAtOnce(t *testing.T) {
	for _, kept := range []bool{true, false} {
		t.Run(fmt.Sprint("blobs kept ", kept), func(t *testing.T) {
			r := newFake(t)
			var stores []*testStore
			for range 4 {
				stores = append(stores, openStore(t, func(c *Config) { c.KeepBlobs = kept }))
			}
			peers(t, stores...)
			var layers []testLayer
			for i := range 8 {
				layers = append(layers, plainLayer(tarOf(fmt.Sprint("file", i), strings.Repeat(fmt.Sprint(i), 200_000))))
			}
			p := r.image("app:1", layers, nil)
			var pulls sync.WaitGroup
			for _, s := range stores {
				pulls.Go(func() {
					if _, err := s.Pull(t.Context(), r.ref("app:1"), PullOptions{}); err != nil {
						t.Error(err)
					}
				})
			}
			pulls.Wait()
			for i, l := range p.layers {
				if n := r.asked(string(l)); n != 1 {
					t.Errorf("layer %d was asked for %d times", i, n)
				}
				for _, s := range stores {
					if got := s.content(t, p.diffIDs[i], fmt.Sprint("file", i)); len(got) != 200_000 {
						t.Errorf("layer %d has %d bytes", i, len(got))
					}
				}
			}
		})
	}
}

// A layer is passed on while it arrives: the registry does not end its answer before the second
// node has the beginning.
func TestLayerIsPassedOnWhileItArrives(t *testing.T) {
	r, first, second := newFake(t), openStore(t, nil), openStore(t, nil)
	peers(t, first, second)
	p := r.image("app:1", []testLayer{bigLayer()}, nil)
	begun, rest := make(chan struct{}), make(chan struct{})
	var requests atomic.Int32
	r.intercept = func(w http.ResponseWriter, req *http.Request) bool {
		if !strings.HasSuffix(req.URL.Path, string(p.layers[0])) {
			return false
		}
		requests.Add(1)
		data := r.blobs[p.layers[0]]
		w.Header().Set("Content-Length", fmt.Sprint(len(data)))
		_, _ = w.Write(data[:len(data)/2])
		w.(http.Flusher).Flush()
		close(begun)
		<-rest
		_, _ = io.Copy(w, bytes.NewReader(data[len(data)/2:]))
		return true
	}
	var pulls sync.WaitGroup
	pull := func(s *testStore, progress func(done, total int64)) {
		pulls.Go(func() {
			if _, err := s.Pull(t.Context(), r.ref("app:1"), PullOptions{Progress: progress}); err != nil {
				t.Error(err)
			}
		})
	}
	pull(first, nil)
	<-begun
	half := int64(len(r.blobs[p.layers[0]]) / 4)
	release := sync.OnceFunc(func() { close(rest) })
	pull(second, func(done, _ int64) {
		if done > half {
			release()
		}
	})
	pulls.Wait()
	if requests.Load() != 1 {
		t.Errorf("the registry was asked %d times", requests.Load())
	}
}

// stopping is a writer that stops before its first byte, and again on the way.
type stopping struct {
	reached, begin, goOn chan struct{}
	written              int
}

func (s *stopping) Write(p []byte) (int, error) {
	if s.written == 0 {
		close(s.reached)
		<-s.begin
	}
	if s.written > 300_000 {
		<-s.goOn
	}
	s.written += len(p)
	return len(p), nil
}

// emptyStock is a peer.Stock without blobs.
type emptyStock struct{}

func (emptyStock) State(string, digest.Digest) peer.State { return peer.None }

func (emptyStock) OpenBlob(context.Context, string, digest.Digest) (io.ReadCloser, int64, error) {
	return nil, 0, peer.ErrNone
}

func (emptyStock) WriteLayer(context.Context, string, digest.Digest, func(int64) io.Writer) error {
	return peer.ErrNone
}

// In a large cluster a layer that comes unpacked is passed on while it arrives, if another node
// has asked for it: here a third node, which does not know the first, gets the beginning from
// the second before that has the end.
func TestUnpackedLayerIsPassedOnWhileItArrives(t *testing.T) {
	keepNone := func(c *Config) { c.KeepBlobs = false }
	r, has, passes := newFake(t), openStore(t, keepNone), openStore(t, keepNone)
	third := peer.New(emptyStock{}, slog.New(slog.DiscardHandler))
	t.Cleanup(third.Close)
	nodes := peerSettings(t, 3)
	for port := range 8 { // nothing listens there
		nodes[1].Peers = append(nodes[1].Peers, peer.Node{Name: fmt.Sprintf("away-%d", port), Address: fmt.Sprintf("127.0.0.2:%d", port+1)})
	}
	nodes[2].Peers = nodes[2].Peers[1:]
	must(t, errors.Join(has.SetPeers(nodes[0]), passes.SetPeers(nodes[1]), third.Set(nodes[2])))
	p := r.image("app:1", []testLayer{bigLayer()}, nil)
	_, err := has.Pull(t.Context(), r.ref("app:1"), PullOptions{})
	must(t, err)
	stop := &stopping{reached: make(chan struct{}), begin: make(chan struct{}), goOn: make(chan struct{})}
	has.layers.through = stop
	pulled := make(chan error, 1)
	go func() {
		_, err := passes.Pull(t.Context(), r.ref("app:1"), PullOptions{})
		pulled <- err
	}()
	<-stop.reached
	name, err := reference.Parse(r.ref("app:1"))
	must(t, err)
	blob := p.layers[0]
	wants := third.Pull(name.Repo, []digest.Digest{blob})
	defer wants.End()
	_, err = wants.Claim(t.Context(), blob, true) // which tells the second node
	must(t, err)
	wants.Release(blob, false)
	close(stop.begin)
	var src *peer.Source
	for src == nil {
		src, err = wants.Next(t.Context(), blob, true)
		must(t, err)
	}
	if src.String() != "node-1" || !src.Unpacked {
		t.Fatalf("the layer comes from %s, unpacked %t", src, src.Unpacked)
	}
	archive, size, err := src.Layer(t.Context(), 1<<30)
	must(t, err)
	defer archive.Close()
	data := make([]byte, size)
	_, err = io.ReadFull(archive, data[:200_000])
	must(t, err)
	select {
	case err := <-pulled:
		t.Fatalf("the second node has the whole layer: %v", err)
	default:
	}
	close(stop.goOn)
	_, err = io.ReadFull(archive, data[200_000:])
	must(t, err)
	if got := digest.FromBytes(data); got != p.diffIDs[0] {
		t.Errorf("layer %s was passed on as %s", p.diffIDs[0], got)
	}
	must(t, <-pulled)
	if n := r.asked(string(blob)); n != 1 {
		t.Errorf("the layer was asked for %d times", n)
	}
	if left, err := os.ReadDir(passes.blobs.Ingest()); err != nil || len(left) > 0 {
		t.Errorf("%v are left, %v", left, err)
	}
}

// A layer that arrives for one blob is not given away for another one that an image says to
// unpack to the same.
func TestArchiveThatArrivesIsOfOneBlob(t *testing.T) {
	s := openStore(t, func(c *Config) { c.KeepBlobs = false })
	blob, other, diffID := digest.FromString("blob"), digest.FromString("other"), digest.FromString("layer")
	p := s.unpacker.Pass(strings.NewReader("archive"), ingest.Incoming{Blob: blob, DiffID: diffID}, 7, 0)
	defer p.Close()
	_, err := p.Read(make([]byte, 7))
	must(t, err)
	p.Finish(nil)
	c := &manifest.Content{Layers: []ocispec.Descriptor{{Digest: blob}, {Digest: other}}, Image: &ocispec.Image{}}
	c.Image.RootFS.DiffIDs = []digest.Digest{diffID, diffID}
	defer s.shares.during("r.example/app", c)()
	for b, want := range map[digest.Digest]peer.State{blob: peer.Unpacking, other: peer.None} {
		if got := s.shares.State("r.example/app", b); got != want {
			t.Errorf("blob %s is %s instead of %s", b, got, want)
		}
		var out bytes.Buffer
		err := s.shares.WriteLayer(t.Context(), "r.example/app", b, func(int64) io.Writer { return &out })
		if (want == peer.Unpacking) != (err == nil && out.String() == "archive") || want == peer.None && !errors.Is(err, peer.ErrNone) {
			t.Errorf("blob %s: %q, %v", b, &out, err)
		}
	}
	if got := s.shares.State("r.example/other", blob); got != peer.None {
		t.Errorf("in another repository the blob is %s", got)
	}
}

// The progress of a layer that another node has unpacked is that of its blob.
func TestProgressOfUnpackedLayer(t *testing.T) {
	keepNone := func(c *Config) { c.KeepBlobs = false }
	r, has, wants := newFake(t), openStore(t, keepNone), openStore(t, keepNone)
	peers(t, has, wants)
	p := r.image("app:1", []testLayer{bigLayer()}, nil)
	_, err := has.Pull(t.Context(), r.ref("app:1"), PullOptions{})
	must(t, err)
	size := int64(len(r.blobs[p.layers[0]]))
	var seen []int64
	_, err = wants.Pull(t.Context(), r.ref("app:1"), PullOptions{Layer: func(l LayerProgress) { seen = append(seen, l.Done) }})
	must(t, err)
	if n := r.asked(string(p.layers[0])); n != 1 {
		t.Errorf("the layer was asked for %d times", n)
	}
	between := func(n int64) bool { return 0 < n && n < size }
	if !slices.ContainsFunc(seen, between) || !slices.IsSorted(seen) || seen[len(seen)-1] != size {
		t.Errorf("of %d bytes, %v are told", size, seen)
	}
}

// What a node has of one repository is not passed on for another, where the registry decides.
func TestLayersOfAnotherRepository(t *testing.T) {
	r, has, wants := newFake(t), openStore(t, nil), openStore(t, nil)
	peers(t, has, wants)
	secret := bigLayer()
	p := r.image("secret:1", []testLayer{secret}, nil)
	r.image("attack:1", []testLayer{secret}, nil)
	_, err := has.Pull(t.Context(), r.ref("secret:1"), PullOptions{})
	must(t, err)
	r.intercept = func(w http.ResponseWriter, req *http.Request) bool {
		if !strings.HasPrefix(req.URL.Path, "/v2/attack/blobs/"+string(p.layers[0])) {
			return false
		}
		refuse(w, http.StatusUnauthorized, "DENIED")
		return true
	}
	if _, err := wants.Pull(t.Context(), r.ref("attack:1"), PullOptions{}); !errors.Is(err, ErrUnauthorized) {
		t.Errorf("error %v", err)
	}
	_, err = wants.Pull(t.Context(), r.ref("secret:1"), PullOptions{})
	must(t, err)
	if n := r.asked("/v2/secret/blobs/" + string(p.layers[0])); n != 1 {
		t.Errorf("the layer was asked for %d times", n)
	}
}

// A node that sends other bytes than it should cannot fail a pull with an error of this machine:
// the registry shows whether there is one. ext4 answers with ENOSPC to an extended attribute that
// is larger than a block.
func TestNodeCausesLocalError(t *testing.T) {
	for _, kept := range []bool{true, false} {
		t.Run(fmt.Sprint("blobs kept ", kept), func(t *testing.T) {
			r, wants := newFake(t), openStore(t, func(c *Config) { c.KeepBlobs = kept })
			has := openStore(t, func(c *Config) { c.KeepBlobs = true })
			peers(t, has, wants)
			p := r.image("app:1", []testLayer{plainLayer(tarOf("file", strings.Repeat("x", 32<<20)))}, nil)
			_, err := has.Pull(t.Context(), r.ref("app:1"), PullOptions{})
			must(t, err)
			var b bytes.Buffer
			tw := tar.NewWriter(&b)
			must(t, tw.WriteHeader(&tar.Header{
				Typeflag: tar.TypeReg, Name: "file", Mode: 0o644, Format: tar.FormatPAX,
				PAXRecords: map[string]string{"SCHILY.xattr.user.x": strings.Repeat("x", 60_000)},
			}))
			f, err := os.OpenFile(has.blobs.Path(p.layers[0]), os.O_WRONLY, 0)
			must(t, err)
			_, err = f.Write(b.Bytes())
			must(t, err)
			must(t, f.Close())
			_, err = wants.Pull(t.Context(), r.ref("app:1"), PullOptions{})
			must(t, err)
			if n := r.asked(string(p.layers[0])); n != 2 {
				t.Errorf("the layer was asked for %d times", n)
			}
		})
	}
}

// OpenBlob says that a blob is not here only if it may still come: clients ask for that again.
func TestUnreadableBlobIsNotMissing(t *testing.T) {
	r, s := newFake(t), openStore(t, nil)
	p := r.image("app:1", []testLayer{bigLayer()}, nil)
	_, err := s.Pull(t.Context(), r.ref("app:1"), PullOptions{})
	must(t, err)
	name, err := reference.Parse(r.ref("app:1"))
	must(t, err)
	path := s.blobs.Path(p.layers[0])
	for what, damage := range map[string]func() error{
		"is cut short":     func() error { return os.Truncate(path, 1) },
		"cannot be opened": func() error { return errors.Join(os.RemoveAll(path), os.Symlink(path, path)) },
	} {
		must(t, damage())
		if _, _, err := s.shares.OpenBlob(t.Context(), name.Repo, p.layers[0]); err == nil || errors.Is(err, peer.ErrNone) {
			t.Errorf("a blob that %s: error %v", what, err)
		}
		must(t, errors.Join(os.RemoveAll(path), os.WriteFile(path, nil, 0o600)))
	}
	must(t, os.Remove(path))
	if _, _, err := s.shares.OpenBlob(t.Context(), name.Repo, p.layers[0]); !errors.Is(err, peer.ErrNone) {
		t.Errorf("a blob that is not there: error %v", err)
	}
}

// A layer that turns out to be in the store, or that another pull fetches, is not wanted any more:
// other nodes must not wait until this node fetches it.
func TestLayerInTheStoreIsNotWanted(t *testing.T) {
	r, has, other := newFake(t), openStore(t, nil), openStore(t, nil)
	peers(t, has, other)
	var layers []testLayer
	for i := range 8 { // of which about every second one is the first node's turn
		layers = append(layers, plainLayer(tarOf("file", fmt.Sprint(i))))
	}
	p := r.image("app:1", layers, nil)
	_, err := has.Pull(t.Context(), r.ref("app:1"), PullOptions{})
	must(t, err)
	name, err := reference.Parse(r.ref("other:1"))
	must(t, err)
	src, err := has.registries.Load().Repository(name.Domain, name.Path, Auth{})
	must(t, err)
	from := ingest.Origin{Repository: src, Peers: has.peers.Pull(name.Repo, p.layers)}
	defer from.Peers.End()
	wants := other.peers.Pull(name.Repo, p.layers)
	defer wants.End()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	for i, l := range p.layers {
		d := ocispec.Descriptor{MediaType: layers[i].mediaType, Digest: l, Size: int64(len(layers[i].data))}
		must(t, has.unpacker.EnsureLayer(ctx, from, d, p.diffIDs[i], ingest.Unwatched()))
	}
	for i, l := range p.layers {
		if node, err := wants.Next(ctx, l, true); node != nil || err != nil {
			t.Errorf("layer %d is waited for: node %v, error %v", i, node, err)
		}
	}
}

// A damaged blob of another node is fetched from the registry instead.
func TestDamagedBlobOfAnotherNode(t *testing.T) {
	r, has, wants := newFake(t), openStore(t, nil), openStore(t, nil)
	peers(t, has, wants)
	p := r.image("app:1", []testLayer{bigLayer()}, nil)
	_, err := has.Pull(t.Context(), r.ref("app:1"), PullOptions{})
	must(t, err)
	path := has.blobs.Path(p.layers[0])
	data, err := os.ReadFile(path)
	must(t, err)
	data[len(data)/2] ^= 1
	must(t, os.WriteFile(path, data, 0o600))
	_, err = wants.Pull(t.Context(), r.ref("app:1"), PullOptions{})
	must(t, err)
	if n := r.asked(string(p.layers[0])); n != 2 {
		t.Errorf("the layer was asked for %d times", n)
	}
	stored, err := os.ReadFile(wants.blobs.Path(p.layers[0]))
	must(t, err)
	if digest.FromBytes(stored) != p.layers[0] {
		t.Error("the damaged blob is in the store")
	}
}
