package image

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/coracle-project/coracle/image/trust"
)

// signed makes a policy that wants signatures by a new key, and what signs with it.
func signed(t *testing.T, registry string) (policy trust.File, sign func(r *fakeRegistry, repo string, d digest.Digest)) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must(t, err)
	der, err := x509.MarshalPKIXPublicKey(&key.PublicKey)
	must(t, err)
	dir := t.TempDir()
	must(t, os.WriteFile(filepath.Join(dir, "key.pub"), pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der}), 0o600))
	policy.Path = filepath.Join(dir, "policy.toml")
	must(t, os.WriteFile(policy.Path, fmt.Appendf(nil, "default = 'reject'\n[scope.%q]\npolicy = 'cosign'\nkeys = ['key.pub']\n", registry),
		0o600))
	return policy, func(r *fakeRegistry, repo string, d digest.Digest) {
		payload := fmt.Appendf(nil,
			`{"critical":{"type":"cosign container image signature","identity":{"docker-reference":%q},"image":{"docker-manifest-digest":%q}}}`,
			r.ref(repo), d)
		hash := sha256.Sum256(payload)
		sig, err := ecdsa.SignASN1(rand.Reader, key, hash[:])
		must(t, err)
		data, err := json.Marshal(ocispec.Manifest{Layers: []ocispec.Descriptor{{
			MediaType: "application/vnd.dev.cosign.simplesigning.v1+json", Digest: r.blob(payload), Size: int64(len(payload)),
			Annotations: map[string]string{"dev.cosignproject.cosign/signature": base64.StdEncoding.EncodeToString(sig)},
		}}})
		must(t, err)
		r.push(repo+":"+strings.Replace(d.String(), ":", "-", 1)+".sig", ocispec.MediaTypeImageManifest, data)
	}
}

func TestSignaturePolicy(t *testing.T) {
	r := newFake(t)
	policy, sign := signed(t, r.host())
	s := openStore(t, func(c *Config) { c.Policy = policy })
	img := r.image("app:1", threeLayers(), nil)

	_, err := s.Pull(t.Context(), r.ref("app:1"), PullOptions{})
	if !errors.Is(err, ErrUntrusted) || !strings.Contains(err.Error(), "it has no signature by cosign") || s.left(t) != nothingLeft {
		t.Errorf("%v, left %s", err, s.left(t))
	}
	for _, l := range img.layers {
		if r.asked(string(l)) != 0 {
			t.Errorf("layer %s of an image without signature was fetched", l)
		}
	}
	sign(r, "app", img.manifest)
	_, err = s.Pull(t.Context(), r.ref("app:1"), PullOptions{})
	must(t, err)

	// What is here already is asked for again when it is pulled again.
	must(t, os.WriteFile(policy.Path, []byte("default = 'reject'"), 0o600))
	if _, err := s.Pull(t.Context(), r.ref("app:1"), PullOptions{}); !errors.Is(err, ErrUntrusted) || len(s.List()) != 1 {
		t.Errorf("%v, %d images", err, len(s.List()))
	}
	must(t, os.Remove(policy.Path))
	if _, err := s.Pull(t.Context(), r.ref("app:1"), PullOptions{}); !errors.Is(err, ErrUntrusted) ||
		!strings.Contains(err.Error(), policy.Path) {
		t.Errorf("a policy that is gone: %v", err)
	}
	if _, err := Open(s.cfg); err == nil || !strings.Contains(err.Error(), policy.Path) {
		t.Errorf("open without the policy: %v", err)
	}
}

// The index may be signed, or the manifest in it.
func TestSignaturePolicyOfAnIndex(t *testing.T) {
	for _, which := range []string{"index", "manifest"} {
		r := newFake(t)
		policy, sign := signed(t, r.host())
		s := openStore(t, func(c *Config) { c.Policy = policy })
		img := r.image("app:one", threeLayers(), nil)
		index := r.index("app:1", ocispec.MediaTypeImageIndex, r.of("app", img.manifest, "linux", runtime.GOARCH, ""))
		if which == "index" {
			sign(r, "app", index)
		} else {
			sign(r, "app", img.manifest)
		}
		_, err := s.Pull(t.Context(), r.ref("app:1"), PullOptions{})
		must(t, err)
	}
}

// Signatures are fetched with the pull's own credentials.
func TestSignaturesNeedCredentialsToo(t *testing.T) {
	r := newFake(t)
	policy, sign := signed(t, r.host())
	s := openStore(t, func(c *Config) { c.Policy = policy })
	img := r.image("app:1", threeLayers(), nil)
	sign(r, "app", img.manifest)
	r.intercept = func(w http.ResponseWriter, req *http.Request) bool {
		if u, p, _ := req.BasicAuth(); u+p == "mesecret" {
			return false
		}
		w.Header().Set("WWW-Authenticate", `Basic realm="test"`)
		refuse(w, http.StatusUnauthorized, "UNAUTHORIZED")
		return true
	}
	_, err := s.Pull(t.Context(), r.ref("app:1"), PullOptions{Auth: Auth{Username: "me", Password: "secret"}})
	must(t, err)
}
