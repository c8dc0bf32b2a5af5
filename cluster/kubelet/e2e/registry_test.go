package e2e

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"
)

// guestVar names the guest program where there is no compiler to build it.
const guestVar = "KUBELET_E2E_GUEST"

// startRegistry serves an image, guest:1, with the guest program in it, and returns its name.
// Alongside it is guest:pause, for runtimes whose sandboxes run an image: it sleeps.
func startRegistry(t *testing.T) (address, guest string) {
	t.Helper()
	program := os.Getenv(guestVar)
	if program == "" {
		program = filepath.Join(t.TempDir(), "guest")
		build := exec.Command("go", "build", "-ldflags", "-s -w", "-o", program, "./guest")
		build.Env = append(os.Environ(), "CGO_ENABLED=0")
		if out, err := build.CombinedOutput(); err != nil {
			t.Fatalf("build the guest: %v\n%s", err, out)
		}
	}
	content, err := os.ReadFile(program)
	if err != nil {
		t.Fatal(err)
	}
	blobs := map[string][]byte{}
	put := func(blob []byte) map[string]any {
		sum := sha256.Sum256(blob)
		digest := "sha256:" + hex.EncodeToString(sum[:])
		blobs[digest] = blob
		return map[string]any{"digest": digest, "size": len(blob)}
	}
	describe := func(kind string, blob []byte) map[string]any {
		d := put(blob)
		d["mediaType"] = "application/vnd.oci.image." + kind
		return d
	}
	layer := describe("layer.v1.tar", layerOf(t, content))
	const manifestType = "application/vnd.oci.image.manifest.v1+json"
	manifests := map[string]string{} // digests by tag
	image := func(tag string, entrypoint ...string) {
		config := describe("config.v1+json", marshal(t, map[string]any{
			"os": "linux", "architecture": runtime.GOARCH,
			"config": map[string]any{"Entrypoint": entrypoint, "Env": []string{"PATH=/"}},
			"rootfs": map[string]any{"type": "layers", "diff_ids": []any{layer["digest"]}},
		}))
		manifests[tag], _ = put(marshal(t, map[string]any{
			"schemaVersion": 2, "mediaType": manifestType, "config": config, "layers": []any{layer},
		}))["digest"].(string)
	}
	image("1", "/guest")
	image("pause", "/guest", "sleep")
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/v2/" {
			return
		}
		kind, name, ok := strings.Cut(strings.TrimPrefix(r.URL.Path, "/v2/guest/"), "/")
		digest := name
		if kind == "manifests" {
			if tagged, found := manifests[name]; found {
				digest = tagged
			}
			w.Header().Set("Content-Type", manifestType)
			w.Header().Set("Docker-Content-Digest", digest)
		}
		blob := blobs[digest]
		if !ok || blob == nil {
			w.Header().Del("Docker-Content-Digest")
			http.Error(w, `{"errors":[{"code":"NAME_UNKNOWN","message":"not here"}]}`, http.StatusNotFound)
			return
		}
		http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(blob))
	}))
	t.Cleanup(server.Close)
	address = strings.TrimPrefix(server.URL, "http://")
	return address, address + "/guest:1"
}

func layerOf(t *testing.T, program []byte) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, dir := range []string{"dev/", "etc/", "proc/", "sys/", "tmp/"} {
		if err := w.WriteHeader(&tar.Header{Name: dir, Typeflag: tar.TypeDir, Mode: 0o755}); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.WriteHeader(&tar.Header{Name: "guest", Typeflag: tar.TypeReg, Mode: 0o755, Size: int64(len(program))}); err != nil {
		t.Fatal(err)
	}
	if _, err := w.Write(program); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func marshal(t *testing.T, v any) []byte {
	t.Helper()
	b, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return b
}
