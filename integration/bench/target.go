package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/coracle-project/coracle/integration/bench/page"
	"github.com/coracle-project/coracle/internal/testkit"
)

// target is a runtime that can be started and stopped.
type target struct {
	name    string
	handler string
	seccomp *cri.SecurityProfile
	dir     string
	launch  func(t *target) (stop func() error, socket string, err error)
	peer    bool

	figures []page.Figure
	version string

	client *client
	others int // clients that there were besides
	stop   func() error
	socket string
	data   string // directory of images and layers
}

// chooseTargets returns the runtimes to measure, coracle first.
func chooseTargets(names, dir string, seccomp bool) ([]*target, error) {
	peers := os.Getenv("PEERS_PREFIX")
	if peers == "" {
		bin, err := testkit.FindBin("coracled")
		if err != nil {
			return nil, err
		}
		peers = filepath.Join(filepath.Dir(bin), "peers")
	}
	known := []*target{
		{name: "coracle", launch: launchCoracle},
		{name: "coracle+CNI", launch: launchCoracleCNI},
		{name: "containerd+runc", handler: "runc", launch: launchContainerd(peers), peer: true},
		{name: "containerd+crun", handler: "crun", launch: launchContainerd(peers), peer: true},
		{name: "cri-o+crun", handler: "crun", launch: launchCRIO(peers), peer: true},
	}
	var chosen []*target
	for i, t := range known {
		t.dir = filepath.Join(dir, fmt.Sprintf("t%d", i))
		if seccomp {
			t.seccomp = &cri.SecurityProfile{ProfileType: cri.SecurityProfile_RuntimeDefault}
		}
		want := names == "" && (!t.peer || installed(peers, t.name))
		for n := range strings.SplitSeq(names, ",") {
			want = want || n == t.name
		}
		if want {
			chosen = append(chosen, t)
		}
	}
	if len(chosen) == 0 || names != "" && len(chosen) != strings.Count(names, ",")+1 {
		return nil, fmt.Errorf("targets %q: not all known", names)
	}
	if !chosen[len(chosen)-1].peer && names == "" {
		fmt.Fprintf(os.Stderr, "bench: no peers in %s: `make bench-peers` installs them\n", peers)
	}
	return chosen, nil
}

// installed says whether both programs of "daemon+engine" are there.
func installed(prefix, name string) bool {
	for program := range strings.SplitSeq(strings.ReplaceAll(name, "-", ""), "+") {
		if _, err := os.Stat(filepath.Join(prefix, "bin", program)); err != nil {
			return false
		}
	}
	return true
}

// up starts the runtime and pulls the payload.
func (t *target) up(ctx context.Context) (*client, error) {
	if err := t.open(); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	r, err := t.client.Images.PullImage(ctx, &cri.PullImageRequest{Image: &cri.ImageSpec{Image: image}})
	if err != nil {
		return nil, errors.Join(err, t.down())
	}
	t.client.ref = r.GetImageRef()
	return t.client, nil
}

// open starts the runtime and connects to it.
func (t *target) open() error {
	if err := os.MkdirAll(filepath.Join(t.dir, "logs"), 0o755); err != nil {
		return err
	}
	t.data = filepath.Join(t.dir, "root")
	var err error
	if t.stop, t.socket, err = t.launch(t); err != nil {
		return err
	}
	conn, err := testkit.NewCRI(t.socket)
	if err != nil {
		return errors.Join(err, t.stop())
	}
	t.client = &client{
		CRI: conn, handler: t.handler, seccomp: t.seccomp, cgroup: "coracle-bench-" + filepath.Base(t.dir),
		logs: filepath.Join(t.dir, "logs"), prefix: filepath.Base(t.dir),
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	v, err := conn.Version(ctx, &cri.VersionRequest{})
	if err != nil {
		return errors.Join(err, t.down())
	}
	t.version = v.GetRuntimeName() + " " + v.GetRuntimeVersion()
	return nil
}

// add notes the value of one run.
func (t *target) add(name string, value float64) {
	t.figures = append(t.figures, page.Figure{Of: t.name, Name: name, Value: value})
}

// say tells how the measurement goes.
func (t *target) say(format string, args ...any) {
	fmt.Fprintf(os.Stderr, "bench: %s: %s\n", t.name, fmt.Sprintf(format, args...))
}

// down removes all pods and ends the runtime.
func (t *target) down() error {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	list, err := t.client.ListPodSandbox(ctx, &cri.ListPodSandboxRequest{})
	for _, p := range list.GetItems() {
		_, serr := t.client.StopPodSandbox(ctx, &cri.StopPodSandboxRequest{PodSandboxId: p.GetId()})
		_, rerr := t.client.RemovePodSandbox(ctx, &cri.RemovePodSandboxRequest{PodSandboxId: p.GetId()})
		err = errors.Join(err, serr, rerr)
	}
	return errors.Join(err, t.client.Close(), t.stop(), testkit.RemoveCgroups(t.client.cgroup))
}

// joinDown keeps the first error: after it, a failing clean-up is no news.
func joinDown(err error, t *target) error {
	if derr := t.down(); err == nil && derr != nil {
		return fmt.Errorf("%s: stop: %w", t.name, derr)
	}
	return err
}

// pid is the daemon.
func (t *target) pid() int {
	return testkit.SocketPID(t.socket)
}

func launchCoracle(t *target) (func() error, string, error) { return startCoracle(t, "") }

// startCoracle starts coracled with the built-in network, or with the CNI configuration of a
// directory.
func startCoracle(t *target, cni string) (func() error, string, error) {
	d, err := testkit.NewDaemon(testkit.Options{Dir: t.dir, Registries: []string{registryAddr}, LogLevel: "info", CNIConfDir: cni})
	if err != nil {
		return nil, "", err
	}
	if err := d.MountState(); err != nil {
		return nil, "", err
	}
	stop := func() error { return errors.Join(d.Purge(), d.UnmountState(), d.RemoveScratch()) }
	if err := d.Start(); err != nil {
		return nil, "", errors.Join(err, stop())
	}
	t.data = d.Root
	return stop, d.Socket, nil
}

// daemon starts a peer in a mount namespace of its own and waits until it answers.
// crun refuses machines where cgroup2 is mounted alongside the v1 controllers, so the
// side mount is taken away in there; / is shared, as Kubernetes asks, and /run, where
// it has its state, is a tmpfs, as on a node with systemd. What it writes elsewhere goes to the
// disk that all have.
func daemon(t *target, socket string, env []string, argv ...string) (func() error, string, error) {
	log, err := os.Create(filepath.Join(t.dir, "daemon.log"))
	if err != nil {
		return nil, "", err
	}
	defer log.Close()
	const prepare = `
		set -e
		if [ "$(stat -fc %T /sys/fs/cgroup)" != cgroup2fs ] && mountpoint -q /sys/fs/cgroup/unified; then umount /sys/fs/cgroup/unified; fi
		mount -t tmpfs -o nosuid,nodev,mode=755 tmpfs /run
		mkdir -p /var/lib/cni "$BENCH_DIR/cni-cache" "$TMPDIR"
		mount --bind "$BENCH_DIR/cni-cache" /var/lib/cni
		mount --make-rshared /
		exec "$@"`
	cmd := exec.Command("unshare", append([]string{"-m", "--propagation", "private", "sh", "-c", prepare, "sh"}, argv...)...)
	cmd.Env = append(append(os.Environ(), "BENCH_DIR="+t.dir, "TMPDIR="+filepath.Join(t.dir, "tmp")), env...)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return nil, "", err
	}
	exit := make(chan error, 1)
	go func() { exit <- cmd.Wait() }()
	stop := func() error {
		if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
			return err
		}
		select {
		case <-exit: // any status: it was told to go
			return nil
		case <-time.After(30 * time.Second):
			return errors.Join(fmt.Errorf("%s does not end", argv[0]), cmd.Process.Kill())
		}
	}
	deadline, tick := time.After(30*time.Second), time.NewTicker(20*time.Millisecond)
	defer tick.Stop()
	for {
		if serves(socket) {
			return stop, socket, nil
		}
		select {
		case <-tick.C:
			continue
		case err = <-exit:
		case <-deadline:
			err = errors.Join(errors.New("does not answer"), stop())
		}
		tail, _ := exec.Command("tail", "-n", "15", log.Name()).Output()
		return nil, "", fmt.Errorf("%s: %w\n%s", argv[0], err, tail)
	}
}

// serves says whether CRI answers on a socket.
func serves(socket string) bool {
	if _, err := os.Stat(socket); err != nil {
		return false
	}
	c, err := testkit.NewCRI(socket)
	if err != nil {
		return false
	}
	defer c.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	_, err = c.Version(ctx, &cri.VersionRequest{})
	return err == nil
}
