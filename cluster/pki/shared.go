package pki

import (
	"bytes"
	"cmp"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"time"

	certutil "k8s.io/client-go/util/cert"
)

// shared are the files that all control-plane nodes of a cluster have in common. Each makes the
// others of them.
var shared = []string{authorityFile, "front-proxy-ca.pem", tokenKeyFile, etcdAuthority}

// Shared returns what another control-plane node of the cluster with its credentials in dir has to
// have, by file name. log may be nil.
func Shared(dir string, log *slog.Logger) (map[string][]byte, error) {
	s, err := ReadSuccession(dir)
	if err != nil {
		return nil, err
	}
	if s.Unfinished {
		return nil, errors.New("the cluster's authority is being replaced: 'coracle certificate rotate --authority --finish' ends that, " +
			"and then control-plane nodes can join")
	}
	if err := ensureEtcdAuthority(dir, cmp.Or(log, slog.New(slog.DiscardHandler))); err != nil {
		return nil, err
	}
	all := map[string][]byte{}
	for _, name := range shared {
		data, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			return nil, fmt.Errorf("pki: %w", err)
		}
		all[name] = data
	}
	return all, nil
}

// ensureEtcdAuthority makes the authority of etcd's members if there is none, or only one that is
// older than the last rotation of the authorities. That is for clusters with one member, which has
// no use for it, so nothing has to trust the former one.
func ensureEtcdAuthority(dir string, log *slog.Logger) error {
	unlock, err := lock(dir)
	if err != nil {
		return err
	}
	defer unlock()
	now := time.Now()
	r, err := readRotation(dir, now)
	if err != nil {
		return err
	}
	path := filepath.Join(dir, etcdAuthority)
	data, err := read(path)
	if err != nil {
		return err
	}
	if a := decodeAuthority(data); a.cert != nil && a.keyMade().Before(r.Authority) {
		if err := os.Remove(path); err != nil {
			return err
		}
	}
	_, err = ensureAuthorityLocked("coracle-etcd-ca", path, r.latest(now), Rotation{}, log)
	return err
}

// Adopt puts what Shared has returned into dir, which must not exist, for Ensure to make the rest.
// ca is the authority that the cluster is known by, PEM.
func Adopt(dir string, files map[string][]byte, ca []byte) error {
	for _, name := range shared {
		cert, key := decodePair(files[name])
		if key == nil {
			return fmt.Errorf("pki: %s of the cluster has no key", name)
		}
		if name == authorityFile && (cert == nil || !contains(ca, cert)) {
			return errors.New("pki: the authority of the cluster's keys is not the one that the cluster is known by")
		}
	}
	if err := os.Mkdir(dir, 0o700); err != nil {
		return fmt.Errorf("pki: %w", err)
	}
	for _, name := range shared {
		if err := Replace(filepath.Join(dir, name), files[name], 0o600); err != nil {
			return err
		}
	}
	return nil
}

// CheckShared refuses files in dir of what Shared returns that are missing or damaged. [Ensure]
// makes them again, which is good for a lone machine only: others would not trust what they sign.
func CheckShared(dir string) error {
	for _, name := range shared {
		path := filepath.Join(dir, name)
		data, err := read(path)
		if err != nil {
			return err
		}
		good := decodeAuthority(data).whole()
		if name == tokenKeyFile {
			good = decodeTokenKeys(data).key != nil
		}
		if good {
			continue
		}
		what := "damaged"
		if data == nil {
			what = "missing"
		}
		return fmt.Errorf("pki: %s is %s, and all control-plane nodes have it in common: copy it from another one, or run "+
			"'coracle leave --force' here and join again", path, what)
	}
	return nil
}

// contains says whether one of the certificates in a PEM file has the key of cert.
func contains(ca []byte, cert *x509.Certificate) bool {
	all, err := certutil.ParseCertsPEM(ca)
	return err == nil && slices.ContainsFunc(all, func(c *x509.Certificate) bool {
		return bytes.Equal(c.RawSubjectPublicKeyInfo, cert.RawSubjectPublicKeyInfo)
	})
}
