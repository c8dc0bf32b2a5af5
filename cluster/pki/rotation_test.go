package pki

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/client-go/util/keyutil"
)

func rotate(t *testing.T, dir string, w What) {
	t.Helper()
	if err := Rotate(dir, w); err != nil {
		t.Fatal(err)
	}
}

// A rotation is done once, also if it is cut off: it says what is old, and no step depends on the
// step before.
func TestRotateCertificates(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		first := contents(t, ensure(t, dir))
		rotate(t, dir, What{Certificates: true}) // in the second in which they were made
		whole := contents(t, ensure(t, dir))
		const leaves = "admin.kubeconfig apiserver.pem front-proxy-client.pem kubelet-client.pem"
		if got := changed(first, whole); got != leaves {
			t.Errorf("replaced %q, want %q", got, leaves)
		}
		// Cut off before one of them was replaced.
		if err := os.WriteFile(filepath.Join(dir, "apiserver.pem"), []byte(first["apiserver.pem"]), 0o600); err != nil {
			t.Fatal(err)
		}
		if got := changed(whole, contents(t, ensure(t, dir))); got != "apiserver.pem" {
			t.Errorf("after a rotation that was cut off, replaced %q, want the rest", got)
		}
		again := contents(t, ensure(t, dir))
		time.Sleep(time.Hour)
		if got := changed(again, contents(t, ensure(t, dir))); got != "" {
			t.Errorf("replaced %q after the rotation", got)
		}
	})
}

// During the overlap, those who trust only the former authority, only the new one, or both, believe
// certificates of the new one; and those who trust both believe certificates of the former.
func TestRotateAuthority(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		b := ensure(t, dir)
		oldRoots, oldPair := pool(t, b.CACert), load(t, b.KubeletClient)
		const overlap = 7 * 24 * time.Hour
		rotate(t, dir, What{Authority: true, TrustFormer: overlap})
		b = ensure(t, dir)
		both := pool(t, b.CACert)
		newRoots := x509.NewCertPool()
		newRoots.AddCert(b.issuer.cert)
		pair := load(t, b.KubeletClient)
		for name, c := range map[string]struct {
			pair  tls.Certificate
			roots *x509.CertPool
			good  bool
		}{
			"the former authority alone":       {pair, oldRoots, true},
			"the new authority alone":          {pair, newRoots, true},
			"both":                             {pair, both, true},
			"both, of a certificate of before": {oldPair, both, true},
			"the new one, of one of before":    {oldPair, newRoots, false},
			"the former one, of one of before": {oldPair, oldRoots, true},
		} {
			if err := verify(t, c.pair, c.roots); (err == nil) != c.good {
				t.Errorf("%s: %v", name, err)
			}
		}
		if err := Rotate(dir, What{Authority: true}); err == nil || !strings.Contains(err.Error(), "is trusted until") {
			t.Errorf("another rotation meanwhile: %v", err)
		}
		if ends := time.Until(b.Next); ends < overlap-time.Minute || ends > overlap+time.Minute {
			t.Errorf("something is due in %s", ends)
		}
		during := contents(t, b)
		if got := changed(during, contents(t, ensure(t, dir))); got != "" {
			t.Errorf("replaced %q during the overlap", got)
		}
		time.Sleep(overlap + time.Minute)
		b = ensure(t, dir)
		if err := verify(t, oldPair, pool(t, b.CACert)); err == nil {
			t.Error("a certificate of the former authority is believed after the overlap")
		}
		if err := verify(t, load(t, b.KubeletClient), newRoots); err != nil {
			t.Error(err)
		}
		if !b.Next.IsZero() {
			t.Errorf("something is due on %s", b.Next)
		}
		rotate(t, dir, What{Authority: true, TrustFormer: time.Hour})
		time.Sleep(time.Second)
		if got := ensure(t, dir).issuer.cert; got.Equal(b.issuer.cert) || got.Subject.CommonName == b.issuer.cert.Subject.CommonName {
			t.Errorf("the authority is not replaced again, or has the same name: %s", got.Subject)
		}
	})
}

// The new key signs, and the former one verifies until no token of it is valid any more.
func TestRotateTokenKey(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		keys := func(b *Bundle) (signer string, verifiers int) {
			t.Helper()
			data, err := os.ReadFile(b.ServiceAccountKey)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := keyutil.ParsePrivateKeyPEM(data); err != nil {
				t.Error(err)
			}
			all, err := keyutil.PublicKeysFromFile(b.ServiceAccountKey)
			if err != nil {
				t.Error(err)
			}
			block, _ := pem.Decode(data)
			return string(block.Bytes), len(all)
		}
		b := ensure(t, dir)
		first, _ := keys(b)
		rotate(t, dir, What{ServiceAccountKey: true})
		b = ensure(t, dir)
		second, verifiers := keys(b)
		if first == second || verifiers != 2 || b.Next.IsZero() {
			t.Errorf("the key is replaced: %t; %d keys verify; the next look is on %s", first != second, verifiers, b.Next)
		}
		time.Sleep(tokenLife - time.Hour)
		if same, verifiers := keys(ensure(t, dir)); same != second || verifiers != 2 {
			t.Errorf("before tokens end, %d keys verify", verifiers)
		}
		time.Sleep(2 * time.Hour)
		if same, verifiers := keys(ensure(t, dir)); same != second || verifiers != 1 {
			t.Errorf("after tokens have ended, %d keys verify", verifiers)
		}
		for range mostFormerKeys {
			rotate(t, dir, What{ServiceAccountKey: true})
			ensure(t, dir)
			time.Sleep(time.Minute)
		}
		if err := Rotate(dir, What{ServiceAccountKey: true}); err == nil || !strings.Contains(err.Error(), "still verify tokens") {
			t.Errorf("one key too many: %v", err)
		}
	})
}

// One that was noted while the clock was years ahead must not replace keys again and again.
func TestRotationOfAWrongClock(t *testing.T) {
	dir := t.TempDir()
	const content = `{"version": 1, "certificates": "2200-01-01T00:00:00Z", "serviceAccountKey": "2200-01-01T00:00:00Z"}`
	if err := os.WriteFile(filepath.Join(dir, "rotation.json"), []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	before := contents(t, ensure(t, dir))
	if got := changed(before, contents(t, ensure(t, dir))); got != "" {
		t.Errorf("replaced %q", got)
	}
	rotate(t, dir, What{Certificates: true})
	if got := changed(before, contents(t, ensure(t, dir))); !strings.Contains(got, "apiserver.pem") {
		t.Errorf("replaced %q when the clock was right again", got)
	}
}

func TestRotationThatCannotBeRead(t *testing.T) {
	for content, want := range map[string]string{`{"version": 2}`: "has format 2", `{`: "is damaged"} {
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, "rotation.json"), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := Ensure(dir, testServer, testHosts); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", content, err)
		}
	}
}

func TestListWarns(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		ensure(t, dir)
		warned := func() (warnings []string) {
			t.Helper()
			all, err := List(dir)
			if err != nil || len(all) != 6 || all[0].Expires.After(all[len(all)-1].Expires) {
				t.Errorf("%+v, %v", all, err)
			}
			for _, c := range all {
				if c.Warning != "" {
					warnings = append(warnings, c.File+": "+c.Warning)
				}
			}
			return warnings
		}
		if got := warned(); got != nil {
			t.Errorf("at first: %q", got)
		}
		time.Sleep(certificateLife - 7*24*time.Hour)
		if got := warned(); len(got) != 4 || !strings.HasPrefix(got[0], "admin.kubeconfig: it expires on") {
			t.Errorf("a week before the end: %q", got)
		}
		time.Sleep(8 * 24 * time.Hour)
		if got := warned(); len(got) != 4 || !strings.HasPrefix(got[0], "admin.kubeconfig: it expired on") {
			t.Errorf("after the end: %q", got)
		}
	})
}

func load(t *testing.T, file string) tls.Certificate {
	t.Helper()
	pair, err := tls.LoadX509KeyPair(file, file)
	if err != nil {
		t.Fatal(err)
	}
	return pair
}

// verify verifies a client's certificate with what it is shown with.
func verify(t *testing.T, pair tls.Certificate, roots *x509.CertPool) error {
	t.Helper()
	between := x509.NewCertPool()
	for _, der := range pair.Certificate[1:] {
		cert, err := x509.ParseCertificate(der)
		if err != nil {
			t.Fatal(err)
		}
		between.AddCert(cert)
	}
	_, err := pair.Leaf.Verify(x509.VerifyOptions{
		Roots: roots, Intermediates: between, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	})
	return err
}
