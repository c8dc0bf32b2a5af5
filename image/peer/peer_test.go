package peer

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
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
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

const repository = "registry.example/team/app"

// authority signs certificates of a test's cluster.
type authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	file string
}

func newAuthority(t testing.TB) *authority {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must(t, err)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "ca"}, NotBefore: time.Now().Add(-time.Hour),
		NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	must(t, err)
	cert, err := x509.ParseCertificate(der)
	must(t, err)
	a := &authority{cert, key, filepath.Join(t.TempDir(), "ca.crt")}
	must(t, os.WriteFile(a.file, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o600))
	return a
}

// pair writes a certificate and its key into a file.
func (a *authority) pair(t testing.TB, s pkix.Name, usage x509.ExtKeyUsage) string {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must(t, err)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(2), Subject: s, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		ExtKeyUsage: []x509.ExtKeyUsage{usage},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, a.cert, key.Public(), a.key)
	must(t, err)
	keyDER, err := x509.MarshalECPrivateKey(key)
	must(t, err)
	file := filepath.Join(t.TempDir(), "pair.pem")
	must(t, os.WriteFile(file, append(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}),
		pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: keyDER})...), 0o600))
	return file
}

func subject(node string) pkix.Name {
	return pkix.Name{CommonName: userPrefix + node, Organization: []string{group}}
}

// settings are those of nodes at addresses of loopback that are free now.
func (a *authority) settings(t testing.TB, names ...string) (all []Settings) {
	for _, name := range names {
		// No other test listens at this address: until the node does, no one takes the port. Each is held
		// until all nodes have theirs.
		l, err := net.Listen("tcp", "127.0.0.3:0")
		must(t, err)
		defer l.Close()
		all = append(all, Settings{
			Version: settingsVersion, Self: name, Listen: l.Addr().String(), CA: a.file,
			Client: a.pair(t, subject(name), x509.ExtKeyUsageClientAuth), Serving: a.pair(t, subject(name), x509.ExtKeyUsageServerAuth),
		})
	}
	return all
}

// stock is a Stock with blobs of one repository.
type stock struct {
	mu     sync.Mutex
	blobs  map[digest.Digest][]byte
	layers map[digest.Digest][]byte
	broken error // of reading any of them
}

func newStock() *stock {
	return &stock{blobs: map[digest.Digest][]byte{}, layers: map[digest.Digest][]byte{}}
}

func (s *stock) has(data []byte) ocispec.Descriptor {
	d := digest.FromBytes(data)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.blobs[d] = data
	return ocispec.Descriptor{Digest: d, Size: int64(len(data))}
}

func (s *stock) State(repo string, blob digest.Digest) State {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case repo != repository:
		return None
	case s.blobs[blob] != nil:
		return Whole
	case s.layers[blob] != nil:
		return Unpacked
	}
	return None
}

func (s *stock) OpenBlob(_ context.Context, repo string, blob digest.Digest) (io.ReadCloser, int64, error) {
	if s.State(repo, blob) != Whole {
		return nil, 0, ErrNone
	}
	if s.broken != nil {
		return nil, 0, s.broken
	}
	data := s.blobs[blob]
	return io.NopCloser(bytes.NewReader(data)), int64(len(data)), nil
}

func (s *stock) WriteLayer(_ context.Context, repo string, blob digest.Digest, begin func(int64) io.Writer) error {
	if s.State(repo, blob) != Unpacked {
		return ErrNone
	}
	_, err := begin(int64(len(s.layers[blob]))).Write(s.layers[blob])
	return err
}

// cluster makes swarms that know each other.
func cluster(t testing.TB, a *authority, n int) (swarms []*Swarm, stocks []*stock) {
	names := make([]string, n)
	for i := range names {
		names[i] = fmt.Sprintf("node-%d", i)
	}
	all := a.settings(t, names...)
	for i := range all {
		for j := range all {
			if i != j {
				all[i].Peers = append(all[i].Peers, Node{all[j].Self, all[j].Listen})
			}
		}
		stocks = append(stocks, newStock())
		swarms = append(swarms, New(stocks[i], slog.New(slog.DiscardHandler)))
		must(t, swarms[i].Set(all[i]))
		t.Cleanup(swarms[i].Close)
	}
	return swarms, stocks
}

// file is a File in memory.
type file struct {
	mu      sync.Mutex
	data    []byte
	arrived int64
}

func (f *file) WriteAt(p []byte, off int64) (int, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.data = append(f.data[:off], p...)
	return len(p), nil
}

func (f *file) Arrived(n int64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.arrived = n
}

func ignore(int64) {}

func TestBlobOfAnotherNode(t *testing.T) {
	swarms, stocks := cluster(t, newAuthority(t), 3)
	d := stocks[1].has(bytes.Repeat([]byte("0123456789"), 100_000))
	p := swarms[0].Pull(repository, []digest.Digest{d.Digest})
	defer p.End()
	src, err := p.Next(t.Context(), d.Digest, false)
	must(t, err)
	if src == nil || src.String() != "node-1" || src.Unpacked {
		t.Fatalf("source %v", src)
	}
	var f file
	must(t, src.Blob(t.Context(), d, &f, ignore))
	if digest.FromBytes(f.data) != d.Digest || f.arrived != d.Size {
		t.Errorf("%d bytes, %d arrived", len(f.data), f.arrived)
	}
	other := swarms[0].Pull("registry.example/team/other", []digest.Digest{d.Digest})
	defer other.End()
	if src, err := other.Next(t.Context(), d.Digest, true); src != nil || err != nil {
		t.Errorf("the blob of another repository comes from %v, error %v", src, err)
	}
}

func TestLayerOfAnotherNode(t *testing.T) {
	swarms, stocks := cluster(t, newAuthority(t), 2)
	blob := digest.FromString("compressed")
	stocks[1].layers[blob] = []byte("an archive")
	first := swarms[0].Pull(repository, []digest.Digest{blob})
	defer first.End()
	if src, err := first.Next(t.Context(), blob, false); src != nil || err != nil {
		t.Fatalf("a layer in the place of a blob comes from %v, error %v", src, err)
	}
	for _, limit := range []int64{10, 9} {
		ok := limit >= int64(len("an archive"))
		p := swarms[0].Pull(repository, []digest.Digest{blob})
		defer p.End()
		src, err := p.Next(t.Context(), blob, true)
		must(t, err)
		if src == nil || !src.Unpacked {
			t.Fatalf("source %v", src)
		}
		r, size, err := src.Layer(t.Context(), limit)
		if !ok {
			if !errors.Is(err, ErrPeer) || !errors.Is(err, errUnfit) {
				t.Errorf("limit %d: error %v", limit, err)
			}
			continue
		}
		must(t, err)
		data, err := io.ReadAll(r)
		must(t, r.Close())
		if err != nil || string(data) != "an archive" || size != int64(len(data)) {
			t.Errorf("limit %d: %q of %d bytes, error %v", limit, data, size, err)
		}
		swarms[0].mu.Lock()
		swarms[0].nodes[0].avoid = time.Time{}
		swarms[0].mu.Unlock()
	}
}

// Of nodes that begin at the same time, each fetches other blobs from the registry, and each blob
// is fetched once.
func TestBlobsAreSharedOut(t *testing.T) {
	const nodes, blobs = 4, 24
	swarms, stocks := cluster(t, newAuthority(t), nodes)
	var data [][]byte
	var all []digest.Digest
	for i := range blobs {
		data = append(data, fmt.Appendf(nil, "blob %d", i))
		all = append(all, digest.FromBytes(data[i]))
	}
	var mu sync.Mutex
	asked := map[digest.Digest]int{}
	var work sync.WaitGroup
	for n, s := range swarms {
		work.Go(func() {
			p := s.Pull(repository, all)
			defer p.End()
			var each sync.WaitGroup
			for i, blob := range all {
				each.Go(func() {
					if err := fetch(t.Context(), p, blob, int64(len(data[i])), func() {
						mu.Lock()
						asked[blob]++
						mu.Unlock()
						stocks[n].has(data[i])
					}); err != nil {
						t.Error(err)
					}
				})
			}
			each.Wait()
		})
	}
	work.Wait()
	for i, blob := range all {
		if asked[blob] != 1 {
			t.Errorf("the registry was asked %d times for blob %d", asked[blob], i)
		}
	}
}

// fetch brings one blob as an image store does.
func fetch(ctx context.Context, p *Pull, blob digest.Digest, size int64, registry func()) (err error) {
	defer func() { p.Release(blob, err == nil) }()
	for {
		src, err := p.Next(ctx, blob, false)
		if err != nil {
			return err
		}
		if src != nil {
			err := src.Blob(ctx, ocispec.Descriptor{Digest: blob, Size: size}, &file{}, ignore)
			if !errors.Is(err, ErrPeer) {
				return err
			}
			continue
		}
		ours, err := p.Claim(ctx, blob, false)
		if err != nil {
			return err
		}
		if ours {
			registry()
			return nil
		}
	}
}

// A node that wants a blob and never fetches it holds up others for a while only.
func TestNodeThatNeverFetches(t *testing.T) {
	swarms, _ := cluster(t, newAuthority(t), 4)
	swarms[0].patience = 50 * time.Millisecond
	blob := digest.FromString("wanted by all")
	for _, s := range swarms[1:] {
		defer s.Pull(repository, []digest.Digest{blob}).End()
	}
	p := swarms[0].Pull(repository, []digest.Digest{blob})
	defer p.End()
	asked := false
	must(t, fetch(t.Context(), p, blob, 1, func() { asked = true }))
	if !asked {
		t.Error("the registry was not asked")
	}
}

// hostile serves as the only other node of a swarm, and sends what a test says.
func hostile(t *testing.T, blob ocispec.Descriptor, send http.HandlerFunc, change ...func(*Swarm)) (*Swarm, *Pull) {
	a := newAuthority(t)
	nodes := a.settings(t, "victim", "hostile")
	victim, other := nodes[0], nodes[1]
	l, err := net.Listen("tcp", other.Listen)
	must(t, err)
	mux := http.NewServeMux()
	mux.HandleFunc(askPath, func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, `{"states":["whole"]}`) })
	mux.HandleFunc(blobPath, send)
	server := &http.Server{Handler: mux, TLSConfig: newIdentity(other).server()}
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = server.ServeTLS(l, "", "")
	}()
	victim.Peers = []Node{{other.Self, other.Listen}}
	s := New(newStock(), slog.New(slog.DiscardHandler))
	for _, f := range change {
		f(s)
	}
	must(t, s.Set(victim))
	p := s.Pull(repository, []digest.Digest{blob.Digest})
	t.Cleanup(func() {
		p.End()
		s.Close()
		must(t, server.Close())
		<-done
	})
	return s, p
}

// What another node sends never counts unless it is the blob, and a node that does not send it in
// time is left alone.
func TestHostileNode(t *testing.T) {
	data := bytes.Repeat([]byte("x"), 1<<20)
	d := ocispec.Descriptor{Digest: digest.FromBytes(data), Size: int64(len(data))}
	attacks := map[string]http.HandlerFunc{
		"wrong bytes": func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(bytes.Repeat([]byte("y"), len(data))) },
		"endless bytes": func(w http.ResponseWriter, r *http.Request) {
			for r.Context().Err() == nil {
				_, _ = w.Write(data)
			}
		},
		"too few bytes": func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(data[1:]) },
		"no answer":     func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() },
		"no bytes": func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Length", fmt.Sprint(len(data)))
			_, _ = w.Write(data[:1])
			w.(http.Flusher).Flush()
			<-r.Context().Done()
		},
		"a byte at a time": func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Length", fmt.Sprint(len(data)))
			tick := time.NewTicker(20 * time.Millisecond)
			defer tick.Stop()
			for _, b := range data {
				_, _ = w.Write([]byte{b})
				w.(http.Flusher).Flush()
				select {
				case <-r.Context().Done():
					return
				case <-tick.C:
				}
			}
		},
		"a redirect": func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "https://127.0.0.1:1/", http.StatusTemporaryRedirect)
		},
		"breaks off": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", fmt.Sprint(len(data)))
			_, _ = w.Write(data[:1000])
			panic(http.ErrAbortHandler)
		},
	}
	for name, send := range attacks {
		t.Run(name, func(t *testing.T) {
			_, p := hostile(t, d, send, func(s *Swarm) { s.stall = 200 * time.Millisecond })
			asked := false
			began := time.Now()
			must(t, fetch(t.Context(), p, d.Digest, d.Size, func() { asked = true }))
			if took := time.Since(began); !asked || took > 5*time.Second {
				t.Errorf("registry asked: %t, after %s", asked, took)
			}
		})
	}
}

func TestNodeThatIsNotThere(t *testing.T) {
	a := newAuthority(t)
	nodes := a.settings(t, "victim", "gone")
	victim, other := nodes[0], nodes[1]
	victim.Peers = []Node{{other.Self, other.Listen}}
	s := New(newStock(), slog.New(slog.DiscardHandler))
	must(t, s.Set(victim))
	defer s.Close()
	blob := digest.FromString("x")
	p := s.Pull(repository, []digest.Digest{blob})
	defer p.End()
	asked := false
	must(t, fetch(t.Context(), p, blob, 1, func() { asked = true }))
	if !asked {
		t.Error("the registry was not asked")
	}
}

// Only nodes are served, and only at the paths there are.
func TestWhoIsServed(t *testing.T) {
	a, foreign := newAuthority(t), newAuthority(t)
	f := a.settings(t, "node")[0]
	f.Peers = []Node{{"other", "127.0.0.1:1"}}
	st := newStock()
	s := New(st, slog.New(slog.DiscardHandler))
	must(t, s.Set(f))
	defer s.Close()
	d := st.has([]byte("a blob"))
	get := func(pair, pathAndQuery string) (int, error) {
		config := &tls.Config{InsecureSkipVerify: true}
		if pair != "" {
			data, err := os.ReadFile(pair)
			must(t, err)
			c, err := tls.X509KeyPair(data, data)
			must(t, err)
			config.Certificates = []tls.Certificate{c}
		}
		tr := &http.Transport{TLSClientConfig: config, DisableKeepAlives: true}
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://"+f.Listen, nil)
		must(t, err)
		if pathAndQuery != "" {
			req.URL.Opaque = pathAndQuery
		}
		resp, err := tr.RoundTrip(req)
		if err != nil {
			return 0, err
		}
		return resp.StatusCode, resp.Body.Close()
	}
	blob := blobPath + "?" + target(repository, d.Digest)
	node := a.pair(t, subject("other"), x509.ExtKeyUsageClientAuth)
	admin := pkix.Name{CommonName: "kubernetes-admin", Organization: []string{"system:masters"}}
	noName := pkix.Name{CommonName: userPrefix, Organization: []string{group}}
	for name, pair := range map[string]string{
		"no certificate":            "",
		"another authority's":       foreign.pair(t, subject("other"), x509.ExtKeyUsageClientAuth),
		"a user's":                  a.pair(t, admin, x509.ExtKeyUsageClientAuth),
		"a node's without group":    a.pair(t, pkix.Name{CommonName: userPrefix + "other"}, x509.ExtKeyUsageClientAuth),
		"the group's without name":  a.pair(t, noName, x509.ExtKeyUsageClientAuth),
		"a node's, but for serving": a.pair(t, subject("other"), x509.ExtKeyUsageServerAuth),
	} {
		if status, err := get(pair, blob); err == nil {
			t.Errorf("a client with %s certificate gets status %d", name, status)
		}
	}
	deleted := a.pair(t, subject("deleted"), x509.ExtKeyUsageClientAuth)
	if status, err := get(deleted, blob); err != nil || status != http.StatusForbidden {
		t.Errorf("a node that is none of the others gets status %d, error %v", status, err)
	}
	for path, want := range map[string]int{
		blob:                   200,
		blob + "&blob=x":       400,
		blob + "&other=x":      400,
		blobPath:               400,
		blobPath + "/?" + blob: 404,
		"/v1/../v1/blob?" + target(repository, d.Digest): 404,
		"/v1//blob?" + target(repository, d.Digest):      404,
		"/v1/blob%2f..?" + target(repository, d.Digest):  404,
		"/etc/passwd": 404,
		blobPath + "?" + target(repository, "sha256:../../etc/passwd"):             400,
		blobPath + "?" + target(repository, "sha256:"):                             400,
		blobPath + "?" + target(repository, digest.SHA512.FromString("x")):         400,
		blobPath + "?" + target("../../team/app", d.Digest):                        400,
		blobPath + "?" + target("team/app", d.Digest):                              400,
		blobPath + "?" + target(repository+":1", d.Digest):                         400,
		blobPath + "?" + target("registry.example/team/secret", d.Digest):          404,
		layerPath + "?" + target(repository, d.Digest):                             404,
		blobPath + "?" + target(repository, digest.FromString("not in the stock")): 404,
	} {
		if status, err := get(node, path); err != nil || status != want {
			t.Errorf("%s: status %d, error %v", path, status, err)
		}
	}
}

// Regression: a node that went on asking and read no answers kept its connection, of which there is
// a limited number for all nodes.
func TestNodeThatReadsNoAnswers(t *testing.T) {
	a := newAuthority(t)
	f := a.settings(t, "node")[0]
	f.Peers = []Node{{"other", "127.0.0.1:1"}}
	s := New(newStock(), slog.New(slog.DiscardHandler))
	s.stall = 200 * time.Millisecond
	must(t, s.Set(f))
	defer s.Close()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	v := s.serve(smallBuffers{l}, f)
	defer v.close()
	data, err := os.ReadFile(a.pair(t, subject("other"), x509.ExtKeyUsageClientAuth))
	must(t, err)
	pair, err := tls.X509KeyPair(data, data)
	must(t, err)
	c, err := tls.Dial("tcp", l.Addr().String(), &tls.Config{InsecureSkipVerify: true, Certificates: []tls.Certificate{pair}})
	must(t, err)
	defer c.Close()
	must(t, c.NetConn().(*net.TCPConn).SetReadBuffer(4<<10))
	must(t, c.SetWriteDeadline(time.Now().Add(30*time.Second)))
	// The answer repeats the name, and so fills the buffers soon.
	question := "GET " + blobPath + "?" + target(strings.Repeat("a", 1900), digest.FromString("x")) + " HTTP/1.1\r\nHost: x\r\n\r\n"
	questions := []byte(strings.Repeat(question, 100))
	for err == nil {
		_, err = c.Write(questions)
	}
	if errors.Is(err, os.ErrDeadlineExceeded) {
		t.Error("the connection stays")
	}
}

// smallBuffers keeps the kernel from holding megabytes of answers, so that few of them fill a
// connection.
type smallBuffers struct{ net.Listener }

func (l smallBuffers) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err == nil {
		err = c.(*net.TCPConn).SetWriteBuffer(4 << 10)
	}
	return c, err
}

// A node with another name at a node's address is not believed.
func TestAnotherNodesAddress(t *testing.T) {
	swarms, stocks := cluster(t, newAuthority(t), 2)
	d := stocks[1].has([]byte("a blob"))
	swarms[0].mu.Lock()
	f := swarms[0].settings
	swarms[0].mu.Unlock()
	f.Peers = []Node{{"node-2", f.Peers[0].Address}}
	must(t, swarms[0].Set(f))
	p := swarms[0].Pull(repository, []digest.Digest{d.Digest})
	defer p.End()
	if src, err := p.Next(t.Context(), d.Digest, true); src != nil || err != nil {
		t.Errorf("source %v, error %v", src, err)
	}
}

func TestTooManyUploads(t *testing.T) {
	swarms, stocks := cluster(t, newAuthority(t), 2)
	swarms[0].patience = 100 * time.Millisecond
	d := stocks[1].has([]byte("a blob"))
	for range maxUploads {
		swarms[1].uploads.take("node-0", time.Now())
	}
	p := swarms[0].Pull(repository, []digest.Digest{d.Digest})
	defer p.End()
	asked := false
	must(t, fetch(t.Context(), p, d.Digest, d.Size, func() { asked = true }))
	if !asked {
		t.Error("the registry was not asked")
	}
}

// A node is not asked forever for a blob that it has and refuses to send, also where the answers
// about who has what are always too old when it refuses.
func TestNodeThatRefusesForever(t *testing.T) {
	for _, status := range []int{http.StatusServiceUnavailable, http.StatusNotFound} {
		t.Run(fmt.Sprint(status), func(t *testing.T) {
			d := ocispec.Descriptor{Digest: digest.FromString("x"), Size: 1}
			requests, late := 0, make(chan func(), 1)
			_, p := hostile(t, d, func(w http.ResponseWriter, _ *http.Request) {
				requests++
				age := <-late
				age()
				late <- age
				w.WriteHeader(status)
			}, func(s *Swarm) { s.patience = 100 * time.Millisecond })
			late <- func() {
				p.s.mu.Lock()
				defer p.s.mu.Unlock()
				p.refreshed = time.Time{}
			}
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
			defer cancel()
			asked := false
			must(t, fetch(ctx, p, d.Digest, d.Size, func() { asked = true }))
			if !asked || requests > 10 {
				t.Errorf("registry asked: %t, after %d requests", asked, requests)
			}
		})
	}
}

// A blob that waited for its download does not ask a node that another one has found to stall.
func TestNodeIsLeftAloneMeanwhile(t *testing.T) {
	d := ocispec.Descriptor{Digest: digest.FromString("x"), Size: 1}
	requests := make(chan bool, 1)
	s, p := hostile(t, d, func(http.ResponseWriter, *http.Request) { requests <- true })
	src, err := p.Next(t.Context(), d.Digest, false)
	must(t, err)
	until := time.Now().Add(time.Hour)
	s.mu.Lock()
	s.nodes[0].avoid = until
	s.mu.Unlock()
	if err := src.Blob(t.Context(), d, &file{}, ignore); !errors.Is(err, ErrPeer) || len(requests) > 0 {
		t.Errorf("error %v, %d requests", err, len(requests))
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.nodes[0].avoid.Equal(until) {
		t.Error("the node is left alone for another time")
	}
}

// Regression: a node that sent slowly could hold all downloads, so that no image came from any
// other one.
func TestSlowNodeHoldsSomeDownloads(t *testing.T) {
	d := ocispec.Descriptor{Digest: digest.FromString("x"), Size: 2}
	came := make(chan struct{}, 2*maxDownloads)
	s, p := hostile(t, d, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Length", "2")
		w.(http.Flusher).Flush()
		came <- struct{}{}
		<-r.Context().Done()
	})
	src, err := p.Next(t.Context(), d.Digest, false)
	must(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	bodies := make(chan *body, 2*maxDownloads)
	var waiting sync.WaitGroup
	for range maxDownloads {
		waiting.Go(func() {
			if b, err := src.get(ctx, blobPath, 2); err == nil {
				bodies <- b
			}
		})
	}
	for range maxFromOne {
		<-came
	}
	if n := len(s.downloads); n != maxFromOne {
		t.Errorf("%d downloads, want %d", n, maxFromOne)
	}
	(<-bodies).Close()
	<-came // one that waited
	if n := len(s.downloads); n > maxFromOne {
		t.Errorf("%d downloads, want %d", n, maxFromOne)
	}
	cancel()
	waiting.Wait()
	close(bodies)
	for b := range bodies {
		b.Close()
	}
	if all, from := len(s.downloads), len(src.n.downloads); all != 0 || from != 0 {
		t.Errorf("left: %d downloads, %d from the node", all, from)
	}
}

// The age of answers counts from when they are in: a node that takes its time would otherwise be
// asked by each blob of a pull, one after the other.
func TestAgeOfAnswers(t *testing.T) {
	d := ocispec.Descriptor{Digest: digest.FromString("x"), Size: 1}
	_, p := hostile(t, d, http.NotFound)
	connects := make(chan time.Time, 1)
	dial := p.asked[0].transport.DialTLSContext
	p.asked[0].transport.DialTLSContext = func(ctx context.Context, network, address string) (net.Conn, error) {
		connects <- time.Now()
		return dial(ctx, network, address)
	}
	must(t, p.refresh(t.Context(), 0))
	p.s.mu.Lock()
	defer p.s.mu.Unlock()
	if connected := <-connects; !p.refreshed.After(connected) {
		t.Errorf("refreshed at %s, connected at %s", p.refreshed, connected)
	}
}

// A node that is slow to answer is asked less often, and what it has said still counts.
func TestSlowNodeRests(t *testing.T) {
	d := ocispec.Descriptor{Digest: digest.FromString("x"), Size: 1}
	_, p := hostile(t, d, http.NotFound)
	q, nodes := p.question(0)
	if len(nodes) != 1 {
		t.Fatalf("%d nodes are asked", len(nodes))
	}
	p.noteAnswer(nodes[0], q, answer{States: []State{Whole}}, time.Hour, nil)
	if _, nodes := p.question(0); len(nodes) != 0 {
		t.Errorf("%d nodes are asked again", len(nodes))
	}
	if src, _ := p.choose(d.Digest, false); src == nil {
		t.Error("what the node has is forgotten")
	}
}

// A node that cannot read a blob says so, and is not asked for it again.
func TestNodeWithBrokenBlob(t *testing.T) {
	swarms, stocks := cluster(t, newAuthority(t), 2)
	d := stocks[1].has([]byte("a blob"))
	stocks[1].broken = errors.New("input/output error")
	p := swarms[0].Pull(repository, []digest.Digest{d.Digest})
	defer p.End()
	src, err := p.Next(t.Context(), d.Digest, false)
	must(t, err)
	if err := src.Blob(t.Context(), d, &file{}, ignore); !errors.Is(err, ErrPeer) || errors.Is(err, errBusy) {
		t.Errorf("error %v", err)
	}
	if src, err := p.Next(t.Context(), d.Digest, false); src != nil || err != nil {
		t.Errorf("the blob comes from %v again, error %v", src, err)
	}
}

// A node that is left alone does not get a turn either, also if it asks for the blob itself.
func TestNodeLeftAloneGetsNoTurn(t *testing.T) {
	swarms, _ := cluster(t, newAuthority(t), 2)
	blob := digest.FromString("x")
	for i := 0; weight(blob.String(), "node-1") < weight(blob.String(), "node-0"); i++ {
		blob = digest.FromString(fmt.Sprint(i))
	}
	p := swarms[0].Pull(repository, []digest.Digest{blob})
	defer p.End()
	s := swarms[0]
	s.answerTo("node-1", question{Repository: repository, Blobs: []digest.Digest{blob}, Wanted: []int{0}}, time.Now())
	turn := func() string {
		s.mu.Lock()
		defer s.mu.Unlock()
		return p.turnLocked(blob, p.wants[blob])
	}
	if got := turn(); got != "node-1" {
		t.Errorf("it is the turn of %s", got)
	}
	s.mu.Lock()
	s.nodes[0].avoid = time.Now().Add(time.Hour)
	s.mu.Unlock()
	if got := turn(); got != "node-0" {
		t.Errorf("it is the turn of %s, though node-1 is left alone", got)
	}
}

// What a blob waits for after a failed attempt gets its whole time again, and a node is not tried
// again after the minute that it is left alone.
func TestAfterAFailedAttempt(t *testing.T) {
	d := ocispec.Descriptor{Digest: digest.FromString("x"), Size: 1}
	s, p := hostile(t, d, func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("wrong")) })
	src, err := p.Next(t.Context(), d.Digest, false)
	must(t, err)
	s.mu.Lock()
	w := p.wants[d.Digest]
	w.since = time.Now().Add(-time.Hour)
	s.mu.Unlock()
	if err := src.Blob(t.Context(), d, &file{}, ignore); !errors.Is(err, ErrPeer) {
		t.Errorf("error %v", err)
	}
	s.mu.Lock()
	if !w.since.IsZero() {
		t.Error("the attempt counts as waiting")
	}
	s.nodes[0].avoid = time.Time{}
	s.mu.Unlock()
	if src, err := p.Next(t.Context(), d.Digest, false); src != nil || err != nil {
		t.Errorf("the blob comes from %v again, error %v", src, err)
	}
}

// A server whose listener fails is started again by Set with the same nodes.
func TestServerThatFailed(t *testing.T) {
	swarms, stocks := cluster(t, newAuthority(t), 2)
	d := stocks[1].has([]byte("a blob"))
	must(t, swarms[1].server.l.Close())
	swarms[1].server.work.Wait()
	swarms[1].mu.Lock()
	f := swarms[1].settings
	swarms[1].mu.Unlock()
	must(t, swarms[1].Set(f))
	p := swarms[0].Pull(repository, []digest.Digest{d.Digest})
	defer p.End()
	if src, err := p.Next(t.Context(), d.Digest, false); src == nil || err != nil {
		t.Errorf("source %v, error %v", src, err)
	}
}

// One node gets all uploads only while no other node asks.
func TestUploadsAreShared(t *testing.T) {
	u, now := newUploads(), time.Now()
	take := func(name string) (n int) {
		for u.take(name, now) {
			n++
		}
		return n
	}
	if n := take("a"); n != maxUploads {
		t.Errorf("alone, a node gets %d uploads", n)
	}
	if n := take("b"); n != 0 {
		t.Errorf("another one gets %d on top of all", n)
	}
	for range 3 {
		u.done("a")
	}
	if n := take("a"); n != 0 {
		t.Errorf("the first gets %d more than its share", n)
	}
	if n := take("b"); n != 3 {
		t.Errorf("the second gets %d of 3", n)
	}
	u.done("a")
	now = now.Add(askedFor + 1)
	if n := take("a"); n != 1 {
		t.Errorf("the first gets %d after the second has gone", n)
	}
}

func TestSettings(t *testing.T) {
	good := `{"version":1,"self":"a","listen":"10.0.0.1:10266","ca":"/ca","client":"/client","serving":"/serving",` +
		`"peers":[{"name":"b","address":"10.0.0.2:10266"}]}`
	if _, err := parseSettings([]byte(good)); err != nil {
		t.Error(err)
	}
	for _, bad := range [][2]string{
		{`"version":1`, `"version":2`},
		{`"version":1`, `"version":1,"strange":1`},
		{`10.0.0.2:10266`, `10.0.0.2`},
		{`"name":"b"`, `"name":"a"`},
		{`"self":"a"`, `"self":""`},
		{`"/ca"`, `"ca"`},
		{`]}`, `]}{}`},
	} {
		text := bytes.Replace([]byte(good), []byte(bad[0]), []byte(bad[1]), 1)
		if _, err := parseSettings(text); err == nil {
			t.Errorf("%s is accepted", text)
		}
	}
	if f, err := Read(filepath.Join(t.TempDir(), "none")); err != nil || len(f.Peers) != 0 {
		t.Errorf("no file: %v, error %v", f, err)
	}
}

func FuzzTarget(f *testing.F) {
	f.Add(target(repository, digest.FromString("x")))
	f.Add("repository=a&blob=sha256:..%2f..")
	f.Add("repository=%00&blob=%zz;x")
	f.Fuzz(func(t *testing.T, query string) {
		repo, blob, err := parseTarget(query)
		if err != nil {
			return
		}
		again, same, err := parseTarget(target(repo, blob))
		if err != nil || again != repo || same != blob || blob.Validate() != nil {
			t.Errorf("%q: %q %q, again %q %q, error %v", query, repo, blob, again, same, err)
		}
	})
}

func FuzzQuestion(f *testing.F) {
	f.Add([]byte(`{"repository":"registry.example/a","blobs":["` + digest.FromString("x").String() + `"],"wanted":[0]}`))
	f.Add([]byte(`{"repository":"a","blobs":["sha256:.."],"wanted":[-1]}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		q, err := parseQuestion(data)
		if err != nil {
			return
		}
		s := New(newStock(), slog.New(slog.DiscardHandler))
		if a := s.answerTo("node", q, time.Now()); len(a.States) != len(q.Blobs) {
			t.Errorf("%d states for %d blobs", len(a.States), len(q.Blobs))
		}
	})
}
