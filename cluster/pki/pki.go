// Package pki makes and renews the certificates and keys of a single-node cluster.
//
// All of them live in one directory. A certificate and its key are one PEM file, so that a pair is
// replaced by one rename and is never half new: tls.LoadX509KeyPair and its like take the same
// path for both. What a client must trust is ca.crt.
//
//	ca.pem                 the authority: signs everything below, and CSRs. After a rotation it has the
//	                       former one's certificate, and what that one certifies, too
//	ca.crt                 the certificates to trust, the newest first, readable by all
//	apiserver.pem          what the API server shows to clients
//	kubelet-client.pem     what the API server shows to kubelets
//	service-account.pem    the key that signs service account tokens
//	front-proxy-ca.pem     another authority, for the certificate below only; front-proxy-ca.crt is its certificate
//	front-proxy-client.pem what the API server shows to API servers that it passes requests on to
//	etcd-ca.pem            the authority of the members of etcd, if there are several; etcd-ca.crt is its certificate
//	etcd-peer.pem          what this machine's member shows to the others
//	admin.kubeconfig       a cluster administrator, with certificate and key inside
//	node-NAME.pem, node-NAME-serving.pem, node-NAME.kubeconfig
//	rotation.json          what is to be made again although it is good: see [Rotate]
//
// [Ensure] is called at each start, once a day, and when the clock was set. It keeps what is good
// and makes again what is missing, damaged, about to expire (30 days), not yet valid (the clock was
// ahead when it was made), signed by another authority, or made for other hosts. A renewed
// authority keeps its key, so that what it signed stays valid. Only a file that cannot be read or
// written is an error: making a new key because of a wrong permission would lock out everything
// that trusts the old one.
package pki

import (
	"cmp"
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"
)

const (
	authorityLife   = 10 * 365 * 24 * time.Hour
	certificateLife = 365 * 24 * time.Hour
	// renewBefore is how long before its end a certificate is replaced.
	renewBefore = 30 * 24 * time.Hour
	// backdate lets certificates be used after the clock was set back a little.
	backdate = 24 * time.Hour
)

// Bundle names the files of a cluster's credentials. The file of a pair has both the certificate
// and the key.
type Bundle struct {
	Dir string
	// CACert is the authority's certificate, which clients trust; CA is its certificate and key.
	CACert, CA string
	// Serving is the API server's serving pair.
	Serving string
	// KubeletClient is the pair with which the API server calls kubelets (logs, exec, ...).
	KubeletClient string
	// ServiceAccountKey signs and verifies service account tokens.
	ServiceAccountKey string
	// FrontProxyClient is the pair with which the API server calls other API servers, and says for
	// which user. FrontProxyCACert is the certificate of an authority that signs nothing else: with
	// the cluster's, every client could say for which user it asks.
	FrontProxyClient, FrontProxyCACert string
	// AdminKubeconfig is the administrator's kubeconfig (mode 0600).
	AdminKubeconfig string

	// Next is when something of it is due before the daily look, the zero time for nothing.
	Next time.Time

	server string
	issuer authority
	// made is the time in new certificates, and again that before which good ones are made again.
	made, again time.Time
	log         *slog.Logger
}

const authorityFile = "ca.pem"

// tokenKeyFile has the key that signs service account tokens, and its former ones.
const tokenKeyFile = "service-account.pem"

// FrontProxyName is the name in the certificate FrontProxyClient.
const FrontProxyName = "front-proxy-client"

// NodeFiles names the files of one node's credentials.
type NodeFiles struct {
	// Client and Serving are pairs; Kubeconfig holds Client inside.
	Client, Serving, Kubeconfig string
}

// Ensure makes the credentials in dir good and returns their names. server is the URL that
// kubeconfigs point to, hosts are the names and addresses under which the API server is called.
// log gets what is replaced; it may be nil.
func Ensure(dir, server string, hosts []string, log *slog.Logger) (*Bundle, error) {
	if len(hosts) == 0 {
		return nil, errors.New("pki: no host name or address to make a serving certificate for")
	}
	// Also one that someone has opened to others: it holds keys.
	if err := errors.Join(os.MkdirAll(dir, 0o700), os.Chmod(dir, 0o700)); err != nil {
		return nil, fmt.Errorf("pki: %w", err)
	}
	removeLeft(dir, newPrefix)
	in := func(name string) string { return filepath.Join(dir, name) }
	b := &Bundle{
		log: cmp.Or(log, slog.New(slog.DiscardHandler)),
		Dir: dir, CACert: in("ca.crt"), CA: in(authorityFile), Serving: in("apiserver.pem"), KubeletClient: in("kubelet-client.pem"),
		ServiceAccountKey: in(tokenKeyFile), AdminKubeconfig: in("admin.kubeconfig"), server: server,
		FrontProxyClient: in("front-proxy-client.pem"), FrontProxyCACert: in("front-proxy-ca.crt"),
	}
	now := time.Now()
	rotation, err := readRotation(dir, now)
	if err != nil {
		return nil, err
	}
	b.made, b.again = rotation.latest(now), rotation.Certificates
	if b.issuer, err = ensureAuthority("coracle-ca", b.CA, b.CACert, b.made, rotation, b.log); err != nil {
		return nil, err
	}
	front, err := ensureAuthority("coracle-front-proxy-ca", in("front-proxy-ca.pem"), b.FrontProxyCACert, b.made, rotation, b.log)
	if err != nil {
		return nil, err
	}
	// Each file is synced, so several at a time are quicker.
	var work errgroup.Group
	for _, pair := range []struct {
		authority
		path string
		subject
	}{
		{front, b.FrontProxyClient, subject{name: FrontProxyName}},
		{b.issuer, b.Serving, subject{name: "kube-apiserver", hosts: hosts}},
		// The group is upstream's for this certificate: kubelets ask the API server what it may do.
		{b.issuer, b.KubeletClient, subject{name: "kube-apiserver-kubelet-client", groups: []string{"system:masters"}}},
	} {
		work.Go(func() error { return b.pair(pair.authority, pair.path, pair.subject) })
	}
	work.Go(func() (err error) {
		b.Next, err = ensureKey(b.ServiceAccountKey, b.made, rotation.ServiceAccountKey, b.log)
		return err
	})
	work.Go(func() error { return b.Kubeconfig(b.AdminKubeconfig, "kubernetes-admin", "system:masters") })
	if err := work.Wait(); err != nil {
		return nil, err
	}
	return b, nil
}

// HasNode says whether a directory has credentials of the node called name that newest has signed.
// Those of a name that this machine had before are not made again, so that newest signs none.
func HasNode(dir, name string, newest *x509.Certificate) bool {
	path := filepath.Join(dir, "node-"+name+".pem")
	data, err := read(path)
	if err != nil || filepath.Dir(path) != filepath.Clean(dir) {
		return false
	}
	cert, _ := decodePair(data)
	return cert != nil && cert.Subject.CommonName == nodeUser+name && cert.CheckSignatureFrom(newest) == nil
}

const nodeUser = "system:node:"

// Node makes the credentials of the node called name, whose kubelet is reached under hosts.
func (b *Bundle) Node(name string, hosts []string) (NodeFiles, error) {
	files := NodeFiles{
		Client:     filepath.Join(b.Dir, "node-"+name+".pem"),
		Serving:    filepath.Join(b.Dir, "node-"+name+"-serving.pem"),
		Kubeconfig: filepath.Join(b.Dir, "node-"+name+".kubeconfig"),
	}
	if filepath.Dir(files.Client) != filepath.Clean(b.Dir) {
		return NodeFiles{}, fmt.Errorf("pki: %q is no node name", name)
	}
	user, group := nodeUser+name, "system:nodes"
	var work errgroup.Group
	work.Go(func() error { return b.pair(b.issuer, files.Client, subject{name: user, groups: []string{group}}) })
	work.Go(func() error {
		return b.pair(b.issuer, files.Serving, subject{name: user, groups: []string{group}, hosts: hosts})
	})
	work.Go(func() error { return b.Kubeconfig(files.Kubeconfig, user, group) })
	if err := work.Wait(); err != nil {
		return NodeFiles{}, err
	}
	return files, nil
}

func (b *Bundle) pair(a authority, path string, s subject) error {
	return a.ensurePair(path, s, b.made, b.again)
}

// read returns the content of the file at path, nil if there is none.
func read(path string) ([]byte, error) {
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("pki: %w; it must be readable by the user that runs the cluster, or be removed to get a new one", err)
	}
	return data, nil
}

// Replace gives the file at path this content and mode, in one step that survives a crash. A file
// that is like that already is left alone.
func Replace(path string, data []byte, mode fs.FileMode) error {
	own := newPrefix + filepath.Base(path) + "-"
	removeLeft(filepath.Dir(path), own)
	if old, err := os.ReadFile(path); err == nil && string(old) == string(data) {
		return os.Chmod(path, mode)
	}
	f, err := os.CreateTemp(filepath.Dir(path), own+"*")
	if err != nil {
		return fmt.Errorf("pki: %w", err)
	}
	defer os.Remove(f.Name())
	_, err = f.Write(data)
	err = errors.Join(err, f.Chmod(mode), f.Sync(), f.Close())
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		return fmt.Errorf("pki: cannot write %s: %w", path, err)
	}
	return nil
}

// newPrefix is the start of the names of files that are about to replace others.
const newPrefix = ".new-"

// removeLeft removes files that a killed process has not renamed, which may hold keys. Younger ones
// may be another process's, and are removed by a later call.
func removeLeft(dir, prefix string) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return // the caller's next step reports it
	}
	for _, e := range entries {
		if !strings.HasPrefix(e.Name(), prefix) {
			continue
		}
		if info, err := e.Info(); err == nil && time.Since(info.ModTime()).Abs() > time.Minute {
			_ = os.Remove(filepath.Join(dir, e.Name()))
		}
	}
}

// lock keeps other processes, and other calls in this one, from changing the authorities in dir.
// It is held for the time of a few writes.
func lock(dir string) (unlock func(), err error) {
	f, err := os.Open(dir)
	if err != nil {
		return nil, fmt.Errorf("pki: %w", err)
	}
	for err = unix.EINTR; errors.Is(err, unix.EINTR); {
		err = unix.Flock(int(f.Fd()), unix.LOCK_EX)
	}
	if err != nil {
		_ = f.Close()
		return nil, fmt.Errorf("pki: cannot lock %s: %w", dir, err)
	}
	return func() { _ = f.Close() }, nil
}
