package integration

import (
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/coracle-project/coracle/internal/testkit"
)

// supervisor stands in for systemd: it hears what a daemon says of its state (sd_notify(3)).
type supervisor struct {
	t testing.TB
	c *net.UnixConn
}

func newSupervisor(t testing.TB) (s supervisor, env string) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "notify")
	c, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return supervisor{t, c}, "NOTIFY_SOCKET=" + path
}

// hears waits for a message that starts so.
func (s supervisor) hears(want string) {
	s.t.Helper()
	if err := s.c.SetReadDeadline(time.Now().Add(callTimeout)); err != nil {
		s.t.Fatal(err)
	}
	buf := make([]byte, 1024)
	n, err := s.c.Read(buf)
	if err != nil || !strings.HasPrefix(string(buf[:n]), want) {
		s.t.Fatalf("heard %q, %v; want %q", buf[:n], err, want)
	}
}

// SIGHUP takes over registries, CNI and handlers, tells systemd, and changes nothing if the file is
// broken. READY=1 comes when the socket answers.
func TestReload(t *testing.T) {
	systemd, env := newSupervisor(t)
	n := newNode(t, testkit.Options{Env: []string{env}})
	systemd.hears("READY=1")
	before, err := os.ReadFile(n.Config)
	if err != nil {
		t.Fatal(err)
	}
	reload := func(config string) (log string) {
		t.Helper()
		old, err := os.ReadFile(n.LogFile)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(n.Config, []byte(config), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := syscall.Kill(n.PID(), syscall.SIGHUP); err != nil {
			t.Fatal(err)
		}
		systemd.hears("RELOADING=1\nMONOTONIC_USEC=")
		systemd.hears("READY=1")
		log = n.LogTail(1000)
		return log[min(len(log), len(old)):]
	}
	pull := func() error {
		_, err := n.Images.PullImage(n.ctx(), &cri.PullImageRequest{Image: &cri.ImageSpec{Image: "gone.invalid/test/busybox:1"}})
		return err
	}
	run := func() error {
		r, err := n.RunPodSandbox(n.ctx(), &cri.RunPodSandboxRequest{Config: n.podConfig(), RuntimeHandler: "more"})
		if err == nil {
			(&pod{n, r.GetPodSandboxId(), nil}).remove()
		}
		return err
	}
	ready := func() bool {
		r, err := n.Status(n.ctx(), &cri.StatusRequest{})
		if err != nil {
			t.Fatal(err)
		}
		return r.GetStatus().GetConditions()[1].GetStatus()
	}
	if pull() == nil || run() == nil || !ready() {
		t.Fatal("before a reload there are no mirror and no handler, and the network is ready")
	}

	brokenCNI := filepath.Join(t.TempDir(), "net.d")
	if err := os.MkdirAll(brokenCNI, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(brokenCNI, "10.conf"), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	more := string(before) + "\n[runtime]\nhandlers = [\"coracle\", \"more\"]\n[image.registry.\"gone.invalid\"]\nmirrors = [\"http://" +
		registry.Addr + "\"]\n"
	if log := reload(more); !strings.Contains(log, "settings reloaded") {
		t.Errorf("log: %s", log)
	}
	if err := pull(); err != nil {
		t.Errorf("through the mirror: %v", err)
	}
	if err := run(); err != nil {
		t.Errorf("with the handler: %v", err)
	}
	info, err := n.Status(n.ctx(), &cri.StatusRequest{Verbose: true})
	if err != nil || !strings.Contains(info.GetInfo()["config"], "gone.invalid") || len(info.GetRuntimeHandlers()) != 3 {
		t.Errorf("status: %v, %v", info, err)
	}

	lines := strings.Split(more, "\n")
	for i, l := range lines {
		if strings.HasPrefix(l, "cni_conf_dir") {
			lines[i] = "mtu = 1400\ncni_conf_dir = \"" + brokenCNI + "\""
		}
	}
	if log := reload(strings.Join(lines, "\n")); !strings.Contains(log, "some need a restart") || !strings.Contains(log, "network.mtu") {
		t.Errorf("log: %s", log)
	}
	if ready() {
		t.Error("ready with a broken CNI configuration")
	}

	if log := reload("nonsense = 1\n"); !strings.Contains(log, "settings not reloaded, those before hold") ||
		!strings.Contains(log, "unknown key nonsense") {
		t.Errorf("log: %s", log)
	}
	if err := pull(); err != nil {
		t.Errorf("after a broken reload: %v", err)
	}
	reload(string(before))
	if run() == nil || !ready() {
		t.Error("back again, the handler is still there or the network is not ready")
	}
}
