package pki

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
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

// Until the rotation is finished, those who trust only the former authority, only the new one, or
// both, believe certificates of the new one; and those who trust both believe certificates of the
// former. After it, those who trust only the former still believe the new one's.
func TestRotateAuthority(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		b := ensure(t, dir)
		oldRoots, oldPair := pool(t, b.CACert), load(t, b.KubeletClient)
		if err := Rotate(dir, What{DropFormer: true}); err == nil || !strings.Contains(err.Error(), "no authority is being replaced") {
			t.Errorf("finished before it starts: %v", err)
		}
		rotate(t, dir, What{Authority: true})
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
		during := contents(t, b)
		rotate(t, dir, What{Authority: true}) // again, since it may have been cut off
		time.Sleep(40 * 24 * time.Hour)
		if got := changed(during, contents(t, ensure(t, dir))); got != "" {
			t.Errorf("replaced %q before the rotation is finished", got)
		}
		if _, err := Shared(dir, nil); err == nil || !strings.Contains(err.Error(), "is being replaced") {
			t.Errorf("another control-plane node gets both: %v", err)
		}
		rotate(t, dir, What{DropFormer: true})
		b = ensure(t, dir)
		finished := contents(t, b)
		rotate(t, dir, What{DropFormer: true}) // again, since it may have been cut off
		if got := changed(finished, contents(t, ensure(t, dir))); got != "" {
			t.Errorf("replaced %q when it was finished again", got)
		}
		if err := verify(t, oldPair, pool(t, b.CACert)); err == nil {
			t.Error("a certificate of the former authority is believed after the rotation")
		}
		for name, roots := range map[string]*x509.CertPool{"new": newRoots, "former": oldRoots} {
			if err := verify(t, load(t, b.Serving), roots, x509.ExtKeyUsageServerAuth); err != nil {
				t.Errorf("a client that knows the %s authority only: %v", name, err)
			}
		}
		for range 2 * mostCross {
			before := pool(t, b.CACert)
			rotate(t, dir, What{Authority: true})
			ensure(t, dir)
			rotate(t, dir, What{DropFormer: true})
			b = ensure(t, dir)
			if err := verify(t, load(t, b.Serving), before, x509.ExtKeyUsageServerAuth); err != nil {
				t.Errorf("a client that knows the authority before only: %v", err)
			}
		}
		if all := len(b.issuer.cross); all != mostCross {
			t.Errorf("%d certificates are shown, want %d", all, mostCross)
		}
		after := contents(t, b)
		if got := changed(after, contents(t, ensure(t, dir))); got != "" {
			t.Errorf("replaced %q after the rotation", got)
		}
		rotate(t, dir, What{Authority: true})
		time.Sleep(time.Second)
		if got := ensure(t, dir).issuer.cert; got.Equal(b.issuer.cert) || got.Subject.CommonName == b.issuer.cert.Subject.CommonName {
			t.Errorf("the authority is not replaced again, or has the same name: %s", got.Subject)
		}
	})
}

// The credentials of a name that the machine had before, and the serving certificate of one, are
// none of a node.
func TestHasNode(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		node := func(name string) {
			t.Helper()
			if _, err := ensure(t, dir).Node(name, []string{name}); err != nil {
				t.Fatal(err)
			}
		}
		node("before")
		node("now")
		rotate(t, dir, What{Authority: true})
		node("now")
		s, err := ReadSuccession(dir)
		if err != nil {
			t.Fatal(err)
		}
		for name, want := range map[string]bool{"now": true, "now-serving": false, "before": false, "other": false, "../x/now": false} {
			if got := HasNode(dir, name, s.Newest); got != want {
				t.Errorf("%s: %t", name, got)
			}
		}
	})
}

// A rotation that was cut off between two files is completed by the next Ensure.
func TestRotateAuthorityCutOff(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		files := func() map[string]string {
			t.Helper()
			b := ensure(t, dir)
			all := contents(t, b)
			for _, name := range []string{"front-proxy-ca.pem", "front-proxy-ca.crt"} {
				data, err := os.ReadFile(filepath.Join(dir, name))
				if err != nil {
					t.Fatal(err)
				}
				all[name] = string(data)
			}
			return all
		}
		first := files()
		rotate(t, dir, What{Authority: true})
		whole := files()
		for _, name := range []string{"ca.crt", "front-proxy-ca.pem", "front-proxy-ca.crt", "apiserver.pem", "admin.kubeconfig"} {
			if first[name] == whole[name] {
				t.Errorf("%s is not replaced", name)
			}
			if err := os.WriteFile(filepath.Join(dir, name), []byte(first[name]), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		got, b := files(), ensure(t, dir)
		if got["ca.pem"] != whole["ca.pem"] || got["ca.crt"] != whole["ca.crt"] {
			t.Error("the authority is replaced once more")
		}
		if err := verify(t, load(t, b.Serving), pool(t, b.CACert), x509.ExtKeyUsageServerAuth); err != nil {
			t.Error(err)
		}
		if got["front-proxy-ca.pem"] == first["front-proxy-ca.pem"] {
			t.Error("the front proxy's authority is not replaced")
		}
	})
}

// The authority of etcd's members is another one for the next member.
func TestEtcdAuthorityIsReplaced(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		ensure(t, dir)
		etcd := func() string {
			t.Helper()
			files, err := Shared(dir, nil)
			if err != nil {
				t.Fatal(err)
			}
			return string(files[etcdAuthority])
		}
		first := etcd()
		rotate(t, dir, What{Authority: true})
		ensure(t, dir)
		time.Sleep(time.Minute)
		rotate(t, dir, What{DropFormer: true})
		ensure(t, dir)
		second := etcd()
		if first == second || second != etcd() {
			t.Error("it is the same after the rotation, or another one each time")
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

// Regression: after a boot with the clock behind, an authority that had once replaced another one
// was replaced again, by a key that no one had asked for.
func TestRotatedAuthorityAfterTheClockWasBehind(t *testing.T) {
	path := filepath.Join(t.TempDir(), "ca.pem")
	at := time.Now().Truncate(time.Second)
	ensured := func(now time.Time, r Rotation) authority {
		t.Helper()
		a, err := ensureAuthorityPair("coracle-ca", path, now, r, slog.New(slog.DiscardHandler))
		if err != nil {
			t.Fatal(err)
		}
		return a
	}
	rotation := Rotation{Authority: at, DropFormer: at}
	rotated := ensured(at, rotation)
	behind := ensured(at.AddDate(0, -2, 0), Rotation{}) // whose times are in the future then
	if behind.cert.Equal(rotated.cert) || !matches(behind.cert, rotated.key) {
		t.Error("the certificate is not made again with the same key, although it is not valid yet")
	}
	after := ensured(at.Add(time.Hour), rotation)
	if !matches(after.cert, rotated.key) || after.former != nil {
		t.Error("the authority has another key when the clock is right again")
	}
	if next := ensured(at.Add(2*time.Hour), Rotation{Authority: at.Add(2 * time.Hour)}); matches(next.cert, rotated.key) {
		t.Error("a later rotation replaces nothing")
	}
}

// What a process that was killed has written of a key does not stay.
func TestReplaceRemovesWhatIsLeft(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "ca.pem")
	for name, age := range map[string]time.Duration{
		".new-ca.pem-1": time.Hour, ".new-ca.pem-2": 0, ".new-other.pem-3": time.Hour, "ca.pem-4": time.Hour,
	} {
		file := filepath.Join(dir, name)
		if err := os.WriteFile(file, []byte("key"), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Chtimes(file, time.Time{}, time.Now().Add(-age)); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(path, []byte("new"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := Replace(path, []byte("new"), 0o600); err != nil { // which has nothing else to do
		t.Fatal(err)
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var left []string
	for _, e := range entries {
		left = append(left, e.Name())
	}
	if want := []string{".new-ca.pem-2", ".new-other.pem-3", "ca.pem", "ca.pem-4"}; !slices.Equal(left, want) {
		t.Errorf("left: %q, want %q", left, want)
	}
	ensure(t, dir)
	if _, err := os.Stat(filepath.Join(dir, ".new-other.pem-3")); err == nil {
		t.Error("a start does not remove what an earlier release has left")
	}
}

func TestRotationThatCannotBeRead(t *testing.T) {
	for content, want := range map[string]string{`{"version": 2}`: "has format 2", `{`: "is damaged"} {
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, "rotation.json"), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := Ensure(dir, testServer, testHosts, nil); err == nil || !strings.Contains(err.Error(), want) {
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

// verify verifies a certificate, of a client if no usages are given, with what it is shown with.
func verify(t *testing.T, pair tls.Certificate, roots *x509.CertPool, usages ...x509.ExtKeyUsage) error {
	t.Helper()
	if usages == nil {
		usages = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}
	}
	between := x509.NewCertPool()
	for _, der := range pair.Certificate[1:] {
		cert, err := x509.ParseCertificate(der)
		if err != nil {
			t.Fatal(err)
		}
		between.AddCert(cert)
	}
	_, err := pair.Leaf.Verify(x509.VerifyOptions{
		Roots: roots, Intermediates: between, KeyUsages: usages,
	})
	return err
}
