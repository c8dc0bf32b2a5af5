package integration

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/nftables"
	"github.com/vishvananda/netns"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/coracle-project/coracle/cluster/internal/testkit"
)

const (
	// patience is how long a test may take, or the start of all, on however slow a machine.
	patience = 5 * time.Minute
	registry = "127.0.0.1:5000"
	// image is a web server over a busybox.
	image = registry + "/demo/web:1"
)

// cluster is what `coracle up` has started, and a registry alongside it.
type cluster struct {
	dir    string
	cgroup string
	serve  *exec.Cmd // the registry
	config *rest.Config
	kube   kubernetes.Interface
	// neighbour is another machine on the node's network.
	neighbour netns.NsHandle
}

// bin is the path of a file in the directory of what is built.
func bin(elem ...string) string {
	dir := os.Getenv("CORACLE_BIN")
	if dir == "" {
		dir = filepath.Join("..", "..", "bin")
	}
	path, err := filepath.Abs(filepath.Join(append([]string{dir}, elem...)...))
	if err != nil {
		panic(err) // there is no working directory
	}
	return path
}

// startCluster starts a cluster and returns when its node is Ready. What it has started when it
// fails ends with the namespaces.
func startCluster() (*cluster, error) {
	dir, err := os.MkdirTemp("", "kube-") // short: sockets' paths are limited
	if err != nil {
		return nil, err
	}
	c := &cluster{dir: dir, cgroup: fmt.Sprintf("/coracle-clients-%d", time.Now().UnixNano())}
	if err := startNameServer(dir); err != nil {
		return nil, err
	}
	if err := c.startRegistry(); err != nil {
		return nil, err
	}
	if c.neighbour, err = newNeighbour(); err != nil {
		return nil, err
	}
	settings := fmt.Sprintf("[image.registry.%q]\nplain_http = true\n[network]\ncni_conf_dir = %q\n", registry, filepath.Join(dir, "cni"))
	if err := os.WriteFile(filepath.Join(dir, "coracled.toml"), []byte(settings), 0o600); err != nil {
		return nil, err
	}
	if err := c.up(); err != nil {
		return nil, err
	}
	if c.config, err = clientcmd.BuildConfigFromFlags("", filepath.Join(c.root(), "kubeconfig")); err != nil {
		return nil, err
	}
	c.config.QPS = -1
	c.kube, err = kubernetes.NewForConfig(c.config)
	return c, err
}

func (c *cluster) root() string { return filepath.Join(c.dir, "root") }

// up is `coracle up`. When all runs already, it waits until all answers.
func (c *cluster) up() error {
	return c.coracle("up", "--node-name", "boat", "--node-ip", "127.0.0.1", "--runtime-config", filepath.Join(c.dir, "coracled.toml"),
		"--load-balancer-cidr", balancers, "--service-cidr", services, "--cgroup-root", c.cgroup,
		"--pod-log-dir", filepath.Join(c.root(), "logs", "pods"), "--timeout", patience.String(),
		"--eviction-hard", "memory.available<0%") // nothing is watched: how much room the machine has is not the tests' business
}

func (c *cluster) coracle(args ...string) error {
	return run(bin("coracle"), append(args, "--root", c.root(), "--state", filepath.Join(c.dir, "state"))...)
}

// run runs a program, whose error holds what it printed.
func run(program string, args ...string) error {
	if out, err := exec.Command(program, args...).CombinedOutput(); err != nil {
		return fmt.Errorf("%s %s: %w\n%s", filepath.Base(program), strings.Join(args, " "), err, out)
	}
	return nil
}

// startRegistry serves the demo's images.
func (c *cluster) startRegistry() error {
	config := fmt.Sprintf("version: 0.1\nlog: {level: error, accesslog: {disabled: true}}\nstorage: {filesystem: {rootdirectory: "+
		"%s}}\nhttp: {addr: %q}\n",
		filepath.Join(c.dir, "registry"), registry)
	file := filepath.Join(c.dir, "registry.yml")
	if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
		return err
	}
	c.serve = exec.Command(bin("tools", "registry"), "serve", file)
	c.serve.Env = append(os.Environ(), "OTEL_TRACES_EXPORTER=none")
	if err := c.serve.Start(); err != nil {
		return err
	}
	push := func(context.Context) (bool, error) { // it says nothing when it is ready
		return run(bin("test", "imagetool"), "push", "-registry", registry, "-set", "demo") == nil, nil
	}
	if err := wait.PollUntilContextTimeout(context.Background(), 50*time.Millisecond, patience, true, push); err != nil {
		return fmt.Errorf("push the demo's images: %w", err)
	}
	return nil
}

// stop takes the cluster down and says what it leaves.
func (c *cluster) stop() error {
	err := c.coracle("down", "--purge", "--delete-volumes")
	err = errors.Join(err, c.serve.Process.Kill())
	_ = c.serve.Wait()                                                         // it was killed
	for _, hierarchy := range []string{"/sys/fs/cgroup", "/sys/fs/cgroup/*"} { // the one, or version 1's
		if left, e := filepath.Glob(hierarchy + c.cgroup); e != nil || len(left) > 0 {
			err = errors.Join(err, fmt.Errorf("down has left cgroups %v", left), e)
		}
	}
	return errors.Join(err, nothingHeld(), os.RemoveAll(c.dir))
}

// nothingHeld says what is left of the cluster's addresses on this machine.
func nothingHeld() error {
	addrs, err := net.InterfaceAddrs()
	if err != nil {
		return err
	}
	for _, a := range addrs {
		if strings.HasPrefix(a.String(), "10.96.") || strings.HasPrefix(a.String(), "fd96:") {
			return fmt.Errorf("down has left the address %s", a)
		}
	}
	conn, err := nftables.New()
	if err != nil {
		return err
	}
	tables, err := conn.ListTables()
	for _, table := range tables {
		if strings.HasPrefix(table.Name, "coracle-addr-") || strings.HasPrefix(table.Name, "coracle-policy-") {
			return fmt.Errorf("down has left the nftables table %s", table.Name)
		}
	}
	return errors.Join(err, nothingAnnounced())
}

func (c *cluster) showLogs() {
	for _, name := range []string{"kube.log", "coracled.log"} {
		data, err := os.ReadFile(filepath.Join(c.root(), "logs", name))
		fmt.Printf("%s ends (%v) with:\n%s\n", name, err, data[max(len(data)-8<<10, 0):])
	}
}

// kill ends the cluster process (API server, scheduler, controllers and kubelet) with SIGKILL, and
// returns when another one, which its supervisor has started, serves.
func (c *cluster) kill(t *testing.T) {
	t.Helper()
	p, err := os.FindProcess(c.process(t))
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Kill(); err != nil {
		t.Fatal(err)
	}
	if err := c.up(); err != nil {
		t.Fatal(err)
	}
}

// process is the id of the cluster process. One that it has made and that has not executed its own
// program yet is another.
func (c *cluster) process(t *testing.T) int {
	t.Helper()
	all := processes(t, bin("coracle-kube"))
	all = slices.DeleteFunc(slices.Clone(all), func(pid int) bool {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:])) // state, parent, ...
		return err != nil || len(fields) < 2 || slices.ContainsFunc(all, func(p int) bool { return strconv.Itoa(p) == fields[1] })
	})
	if len(all) == 0 {
		t.Fatal("the cluster process does not run")
	}
	return all[0]
}

// processes are the ids of those that run a program.
func processes(t *testing.T, program string) (all []int) {
	t.Helper()
	links, err := filepath.Glob("/proc/[0-9]*/exe")
	if err != nil {
		t.Fatal(err)
	}
	for _, link := range links {
		if to, err := os.Readlink(link); err == nil && to == program {
			pid, err := strconv.Atoi(filepath.Base(filepath.Dir(link)))
			if err != nil {
				t.Fatal(err)
			}
			all = append(all, pid)
		}
	}
	return all
}

// namespace makes a namespace that ends with the test, and a context that ends when patience does.
func namespace(t *testing.T) (context.Context, string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	ns, err := boat.kube.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{
		GenerateName: "test-", Annotations: map[string]string{"test": t.Name()},
	}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		// Not t.Context, which has ended.
		if err := boat.kube.CoreV1().Namespaces().Delete(context.Background(), ns.Name, metav1.DeleteOptions{}); err != nil {
			t.Error(err)
		}
	})
	// Admission waits for it, too, but only a second or two, which is short after a kill.
	eventually(ctx, t, "the namespace has its service account", func() (bool, error) {
		_, err := boat.kube.CoreV1().ServiceAccounts(ns.Name).Get(ctx, "default", metav1.GetOptions{})
		return err == nil, err
	})
	return ctx, ns.Name
}

var eventually = testkit.Eventually
