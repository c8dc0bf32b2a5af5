//go:build image

package integration

import (
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/coracle-project/coracle/internal/testkit"
)

// TestImageTools runs testdata/imagelong as TestImageCommands does its scripts: what needs
// BuildKit, podman, skopeo or docker. `make test-image` has them. Besides its commands there are
//
//	podman ARG...    podman, on a storage of the script's own
//	docker ARG...    docker, with a daemon of the script's own
func TestImageTools(t *testing.T) {
	runImageScripts(t, "imagelong", map[string]func(*testscript.TestScript, bool, []string){"podman": podman, "docker": docker})
}

// scratch is a directory with a short name: podman and sockets want that.
func scratch(ts *testscript.TestScript, name string) string {
	if dir := ts.Getenv(name); dir != "" {
		return dir
	}
	dir, err := os.MkdirTemp("", name+"-")
	ts.Check(err)
	ts.Defer(func() { ts.Check(os.RemoveAll(dir)) })
	ts.Setenv(name, dir)
	return dir
}

func podman(ts *testscript.TestScript, neg bool, args []string) {
	dir := scratch(ts, "podman")
	own := []string{
		"--root", filepath.Join(dir, "root"), "--runroot", filepath.Join(dir, "run"), "--tmpdir", filepath.Join(dir, "tmp"),
		"--storage-driver", "vfs",
	}
	if err := ts.Exec("podman", append(own, args...)...); (err != nil) != neg {
		ts.Fatalf("podman %s: %v", strings.Join(args, " "), err)
	}
}

func docker(ts *testscript.TestScript, neg bool, args []string) {
	bin, err := testkit.FindBin("image", "docker", "usr")
	ts.Check(err)
	socket := filepath.Join(scratch(ts, "docker"), "docker.sock")
	if _, err := os.Stat(socket); err != nil {
		startDocker(ts, bin, socket)
	}
	if err := ts.Exec(filepath.Join(bin, "bin", "docker"), append([]string{"-H", "unix://" + socket}, args...)...); (err != nil) != neg {
		ts.Fatalf("docker %s: %v", strings.Join(args, " "), err)
	}
}

// startDocker starts a daemon that makes no containers and touches no network, in a mount
// namespace of its own, and waits until it answers. It ends with the script.
func startDocker(ts *testscript.TestScript, bin, socket string) {
	dir := filepath.Dir(socket)
	cmd := exec.Command(filepath.Join(bin, "sbin", "dockerd"), "-H", "unix://"+socket, "--data-root", filepath.Join(dir, "data"),
		"--exec-root", filepath.Join(dir, "exec"),
		"--pidfile", filepath.Join(dir, "pid"), "--config-file", filepath.Join(dir, "none.json"), "--storage-driver", "vfs", "--bridge", "none",
		"--iptables=false", "--ip6tables=false")
	cmd.Env = []string{"PATH=" + filepath.Join(bin, "bin") + ":" + filepath.Join(bin, "sbin") + ":" + os.Getenv("PATH")}
	cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS}
	log, err := os.Create(filepath.Join(dir, "log"))
	ts.Check(err)
	defer log.Close()
	cmd.Stdout, cmd.Stderr = log, log
	ts.Check(os.WriteFile(filepath.Join(dir, "none.json"), []byte("{}"), 0o600))
	ts.Check(cmd.Start())
	exit := make(chan error, 1)
	go func() { exit <- cmd.Wait() }()
	ts.Defer(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM) // it ends its containerd
		<-exit
	})
	end := time.NewTimer(30 * time.Second)
	defer end.Stop()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		if c, err := net.Dial("unix", socket); err == nil {
			ts.Check(c.Close())
			return
		}
		select {
		case <-tick.C:
		case err := <-exit:
			exit <- err
			said, _ := os.ReadFile(log.Name())
			ts.Fatalf("dockerd ends: %v\n%s", err, said)
		case <-end.C:
			ts.Fatalf("dockerd does not answer")
		}
	}
}
