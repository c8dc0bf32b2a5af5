package integration

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/specs-go"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/coracle-project/coracle/internal/testkit"
	"github.com/coracle-project/coracle/internal/testkit/ociimage"
)

// An image runs only when it is signed by whom the policy names; the kubelet learns why
// not by the name that it knows.
func TestSignaturePolicy(t *testing.T) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.MarshalPKIXPublicKey(&key.PublicKey)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	writeFile(t, filepath.Join(dir, "team.pub"), string(pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der})))
	policy := filepath.Join(dir, "policy.toml")
	writeFile(t, policy, fmt.Sprintf("default = \"accept\"\n[scope.\"%s/signed\"]\npolicy = \"cosign\"\nkeys = [\"team.pub\"]\n",
		registry.Addr))
	n := newNode(t, testkit.Options{Config: fmt.Sprintf("[image]\npolicy = %q\n", policy)})
	n.warm()
	check := n.noLeaks()

	image := build(t, ociimage.File{Path: "signed", Mode: 0o644})
	repo := registry.Addr + "/signed/app"
	push := func(tag string, b ociimage.Built) {
		t.Helper()
		if err := ociimage.Push(context.Background(), repo+":"+tag, b, ociimage.Registry{PlainHTTP: true}); err != nil {
			t.Fatal(err)
		}
	}
	push("1", image)
	pull := &cri.PullImageRequest{Image: &cri.ImageSpec{Image: repo + ":1"}}
	_, err = n.Images.PullImage(n.ctx(), pull)
	wantCode(t, "pull without a signature", err, "PermissionDenied")
	if s, _ := status.FromError(err); s.Code() != codes.Unknown || !strings.HasPrefix(s.Message(), "SignatureValidationFailed: ") {
		t.Errorf("%q does not begin as the kubelet expects", s.Message())
	}
	check()

	payload := fmt.Appendf(nil,
		`{"critical":{"type":"cosign container image signature","identity":{"docker-reference":%q},"image":{"docker-manifest-digest":%q}}}`, repo,
		image.Manifest.Digest)
	hash := sha256.Sum256(payload)
	sig, err := ecdsa.SignASN1(rand.Reader, key, hash[:])
	if err != nil {
		t.Fatal(err)
	}
	push(strings.Replace(image.Manifest.Digest.String(), ":", "-", 1)+".sig", signatureImage(t, payload, sig))
	if _, err := n.Images.PullImage(n.ctx(), pull); err != nil {
		t.Error(err)
	}
	if _, err := n.Images.RemoveImage(n.ctx(), &cri.RemoveImageRequest{Image: pull.GetImage()}); err != nil {
		t.Error(err)
	}
	check()
}

// signatureImage is what cosign stores under the tag of an image.
func signatureImage(t *testing.T, payload, sig []byte) ociimage.Built {
	t.Helper()
	b := ociimage.Built{Blobs: map[digest.Digest][]byte{}}
	add := func(mediaType string, data []byte) ocispec.Descriptor {
		d := ocispec.Descriptor{MediaType: mediaType, Digest: digest.FromBytes(data), Size: int64(len(data))}
		b.Blobs[d.Digest], b.Order = bytes.Clone(data), append(b.Order, d)
		return d
	}
	l := add("application/vnd.dev.cosign.simplesigning.v1+json", payload)
	l.Annotations = map[string]string{"dev.cosignproject.cosign/signature": base64.StdEncoding.EncodeToString(sig)}
	m, err := json.Marshal(ocispec.Manifest{
		Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: ocispec.MediaTypeImageManifest,
		Config: add(ocispec.MediaTypeImageConfig, []byte("{}")), Layers: []ocispec.Descriptor{l},
	})
	if err != nil {
		t.Fatal(err)
	}
	b.Manifest = add(ocispec.MediaTypeImageManifest, m)
	return b
}
