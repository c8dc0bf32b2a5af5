package e2e

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"
)

// daemon is a coracled with state of its own.
type daemon struct {
	t                                *testing.T
	exe, root, state, socket, config string
	log                              string
	cmd                              *exec.Cmd
}

// startRuntime starts a coracled that pulls over plain HTTP from registry, and purges it at the end.
func startRuntime(t *testing.T, registry string) *daemon {
	t.Helper()
	dir := scratch(t)
	d := &daemon{
		t: t, exe: binary(t, "coracled"), root: filepath.Join(dir, "root"), state: filepath.Join(dir, "state"),
		socket: filepath.Join(dir, "cri.sock"), config: filepath.Join(dir, "config.toml"), log: filepath.Join(dir, "log"),
	}
	config := fmt.Sprintf("[shim]\nsupervise = false\n[network]\ncni_conf_dir = %q\n[cgroup]\nroot = %q\n[image.registry.%q]\nplain_http = true\n",
		filepath.Join(dir, "cni"), "/"+filepath.Base(dir), registry)
	if err := os.WriteFile(d.config, []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			log, _ := os.ReadFile(d.log)
			t.Logf("coracled's log ends:\n%s", log[max(0, len(log)-8000):])
		}
		d.stop(syscall.SIGTERM)
		if out, err := exec.Command(d.exe, append([]string{"purge"}, d.args()...)...).CombinedOutput(); err != nil {
			t.Errorf("purge: %v\n%s", err, out)
		}
	})
	d.start()
	return d
}

func (d *daemon) args() []string {
	return []string{"--root", d.root, "--state", d.state, "--address", "unix://" + d.socket, "--config", d.config}
}

func (d *daemon) start() {
	d.t.Helper()
	log, err := os.OpenFile(d.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		d.t.Fatal(err)
	}
	defer log.Close()
	d.cmd = exec.Command(d.exe, d.args()...)
	d.cmd.Stdout, d.cmd.Stderr = log, log
	d.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := d.cmd.Start(); err != nil {
		d.t.Fatal(err)
	}
}

func (d *daemon) stop(s syscall.Signal) {
	_ = d.cmd.Process.Signal(s)
	_ = d.cmd.Wait()
}

// binary returns an executable of the runtime, or says how it is made.
func binary(t *testing.T, name string) string {
	t.Helper()
	dir := os.Getenv("CORACLE_BIN")
	if dir == "" {
		dir = "../../../bin"
	}
	path, err := filepath.Abs(filepath.Join(dir, name))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(path); err != nil {
		t.Fatalf("%v: build it with `make build` in the repository's root, or name its directory in CORACLE_BIN", err)
	}
	return path
}

// scratch is a directory whose name is short enough for sockets in it.
func scratch(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "ck-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	return dir
}

// startRegistry serves one image, guest:1, with the guest program in it, and returns its name.
func startRegistry(t *testing.T) (address, image string) {
	t.Helper()
	program := filepath.Join(t.TempDir(), "guest")
	build := exec.Command("go", "build", "-ldflags", "-s -w", "-o", program, "./guest")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build the guest: %v\n%s", err, out)
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
	config := describe("config.v1+json", marshal(t, map[string]any{
		"os": "linux", "architecture": runtime.GOARCH,
		"config": map[string]any{"Entrypoint": []string{"/guest"}, "Env": []string{"PATH=/"}},
		"rootfs": map[string]any{"type": "layers", "diff_ids": []any{layer["digest"]}},
	}))
	const manifestType = "application/vnd.oci.image.manifest.v1+json"
	manifest := marshal(t, map[string]any{
		"schemaVersion": 2, "mediaType": manifestType, "config": config, "layers": []any{layer},
	})
	digest, _ := put(manifest)["digest"].(string)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, kind, ok := strings.Cut(r.URL.Path, "/v2/guest/")
		blob := blobs[filepath.Base(r.URL.Path)]
		switch {
		case r.URL.Path == "/v2/":
			return
		case ok && strings.HasPrefix(kind, "manifests/") && (kind == "manifests/1" || kind == "manifests/"+digest):
			w.Header().Set("Content-Type", manifestType)
			w.Header().Set("Docker-Content-Digest", digest)
			blob = manifest
		case !ok || blob == nil:
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

// refused is an address that nobody listens on.
func refused(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}
