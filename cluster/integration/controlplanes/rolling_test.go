//go:build ha && skew

package controlplanes

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/coracle-project/coracle/cluster/internal/testkit"
)

const (
	registry = "198.51.100.254:5000"
	webImage = registry + "/demo/web:1"
	webPort  = 8080

	// pause is between two requests of a client, and answered is how long one may take.
	pause, answered = 20 * time.Millisecond, 5 * time.Second
	// leastRequests make a run worth something, for each client.
	leastRequests = 300
)

// TestRollingUpgrade upgrades three control-plane nodes and a node without one from the programs of
// an earlier commit to those of this one, one machine after the other, while clients on each go
// through a Service. No request fails twice in a row, and no container starts again.
func TestRollingUpgrade(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 3*patience)
	defer cancel()
	all := switched(t, "198.51.100.", "one", "two", "three", "agent")
	startRegistry(t)
	for _, m := range all {
		m.installPrograms(t, bin("previous-cluster"))
		m.useRegistry(t)
	}
	t.Cleanup(func() {
		for i := range all {
			m := all[len(all)-1-i]
			if _, said, err := m.Run("down"); err != nil {
				t.Errorf("%s: down: %v\n%s", m.Name, err, said)
			}
		}
	})
	one, agent := all[0], all[3]
	one.Must(t, append([]string{"up", "--bind-address", one.ip}, one.flags()...)...)
	for _, m := range all[1:3] {
		words := strings.Fields(one.Invite(t, "--control-plane").Join)
		m.Must(t, append(append(words[1:], "--bind-address", m.ip), m.flags()...)...)
	}
	i := one.Invite(t)
	agent.Must(t, append([]string{"join", i.Server, "--token", i.Token, "--ca-hash", i.CAHash}, agent.flags()...)...)
	for _, m := range all[:3] {
		awaitMembers(t, m, "one", "two", "three")
	}

	kube := one.admin(t)
	address := webOnEach(ctx, t, kube, len(all))
	before, earlier := containers(ctx, t, kube), runtimes(ctx, t, kube)
	stop := sendLoad(ctx, t, all, address)
	for done, m := range all {
		if out := m.Must(t, "upgrade", bin(""), "--deadline", patience.String()); !strings.Contains(out, "all is well with the new programs") {
			t.Errorf("%s: upgrade says %s", m.Name, out)
		}
		m.runsNew(t)
		testkit.Eventually(ctx, t, "node "+m.Name+" reports the new runtime, and no node that is still to be upgraded does", func() (bool, error) {
			now := runtimes(ctx, t, kube)
			ok := true
			for i, other := range all {
				ok = ok && (now[other.Name] != earlier[other.Name]) == (i <= done)
			}
			return ok, fmt.Errorf("%v, before %v", now, earlier)
		})
	}
	for _, m := range all[:3] {
		awaitMembers(t, m, "one", "two", "three")
	}
	for i, l := range stop() {
		t.Logf("the client on %s: %d requests, %d failed once, the slowest took %v", all[i].Name, l.requests, l.failed, l.slowest)
		if l.twice > 0 || l.requests < leastRequests {
			t.Errorf("the client on %s: %d of %d requests failed twice, the last with %v", all[i].Name, l.twice, l.requests, l.why)
		}
	}
	if after := containers(ctx, t, kube); after != before {
		t.Errorf("containers and restarts\n%s, before\n%s", after, before)
	}
}

// programs are those of a cluster on a machine.
var programs = []string{
	"coracle", "coracled", "containerd-shim-coracle-v1", "coracle-lazy", "coracle-oci", "coracle-oci-libcontainer", "coracle-kube",
}

// installPrograms gives the machine programs of its own, which an upgrade replaces.
func (m *machine) installPrograms(t *testing.T, from string) {
	t.Helper()
	own := filepath.Join(m.dir, "bin")
	if err := os.Mkdir(own, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, name := range programs {
		data, err := os.ReadFile(filepath.Join(from, name))
		if err == nil {
			err = os.WriteFile(filepath.Join(own, name), data, 0o755)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	usual := m.argv
	m.Argv = func() []string {
		argv := usual()
		for i := range argv {
			if argv[i] == bin("coracle") {
				argv[i] = filepath.Join(own, "coracle")
			}
		}
		return argv
	}
}

// runsNew checks that no process of the machine runs a program that was replaced. Helpers of shims
// (keepers, inits of pods) do not count: they end with their containers.
func (m *machine) runsNew(t *testing.T) {
	t.Helper()
	own := must(os.Readlink(fmt.Sprintf("/proc/%d/ns/mnt", m.holder)))
	found := map[string]int{}
	for _, entry := range must(os.ReadDir("/proc")) {
		if _, err := strconv.Atoi(entry.Name()); err != nil {
			continue
		}
		proc := filepath.Join("/proc", entry.Name())
		if in, err := os.Readlink(filepath.Join(proc, "ns", "mnt")); err != nil || in != own {
			continue
		}
		program, err := os.Readlink(filepath.Join(proc, "exe"))
		if err != nil { // it has ended
			continue
		}
		path, old := strings.CutSuffix(program, " (deleted)")
		name := filepath.Base(path)
		if name != "coracle" && name != "coracled" && name != "coracle-kube" {
			continue
		}
		found[name]++
		if old {
			t.Errorf("%s: process %s still runs %s", m.Name, entry.Name(), program)
		}
	}
	if len(found) != 3 {
		t.Errorf("%s runs %v, want coracle, coracled and coracle-kube", m.Name, found)
	}
}

// admin is an administrator's client.
func (m *machine) admin(t *testing.T) kubernetes.Interface {
	t.Helper()
	config, err := clientcmd.BuildConfigFromFlags("", filepath.Join(m.Root, "kubeconfig"))
	if err != nil {
		t.Fatal(err)
	}
	config.Timeout = 10 * time.Second
	kube, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	return kube
}

// startRegistry serves the demo's images to all machines.
func startRegistry(t *testing.T) {
	t.Helper()
	dir := t.TempDir()
	file := filepath.Join(dir, "registry.yml")
	config := fmt.Sprintf("version: 0.1\nlog: {level: error, accesslog: {disabled: true}}\nstorage: {filesystem: {rootdirectory: %s}}\n"+
		"http: {addr: %q}\n", dir, registry)
	if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	serve := exec.Command(filepath.Join(bin("tools"), "registry"), "serve", file)
	serve.Env = append(os.Environ(), "OTEL_TRACES_EXPORTER=none")
	if err := serve.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = serve.Process.Kill(); _ = serve.Wait() })
	testkit.Eventually(t.Context(), t, "push the images", func() (bool, error) { // it says nothing when it is ready
		out, err := exec.Command(filepath.Join(bin("test"), "imagetool"), "push", "-registry", registry, "-set", "demo").CombinedOutput()
		if err != nil {
			err = fmt.Errorf("%w: %s", err, out)
		}
		return err == nil, err
	})
}

// webOnEach runs a pod on each of so many nodes behind a Service, whose address it returns when all
// of them are ready.
func webOnEach(ctx context.Context, t *testing.T, kube kubernetes.Interface, nodes int) string {
	t.Helper()
	labels, replicas := map[string]string{"app": "web"}, int32(nodes)
	deployment := &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: "web"},
		Spec: appsv1.DeploymentSpec{
			Replicas: &replicas, Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: labels},
				Spec: corev1.PodSpec{
					Containers: []corev1.Container{{Name: "web", Image: webImage}},
					TopologySpreadConstraints: []corev1.TopologySpreadConstraint{{
						MaxSkew: 1, TopologyKey: corev1.LabelHostname, WhenUnsatisfiable: corev1.DoNotSchedule,
						LabelSelector: &metav1.LabelSelector{MatchLabels: labels},
					}},
				},
			},
		},
	}
	if _, err := kube.AppsV1().Deployments("default").Create(ctx, deployment, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	service, err := kube.CoreV1().Services("default").Create(ctx, &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: "web"},
		Spec:       corev1.ServiceSpec{Selector: labels, Ports: []corev1.ServicePort{{Port: webPort, TargetPort: intstr.FromInt32(webPort)}}},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(ctx, t, "the pods are ready", func() (bool, error) {
		d, err := kube.AppsV1().Deployments("default").Get(ctx, "web", metav1.GetOptions{})
		if err != nil {
			return false, err
		}
		return d.Status.ReadyReplicas == replicas, fmt.Errorf("%d of %d", d.Status.ReadyReplicas, replicas)
	})
	return net.JoinHostPort(service.Spec.ClusterIP, strconv.Itoa(webPort))
}

// containers are the IDs of the pods' containers, and how often they started again.
func containers(ctx context.Context, t *testing.T, kube kubernetes.Interface) (all string) {
	t.Helper()
	testkit.Eventually(ctx, t, "list the pods", func() (bool, error) {
		list, err := kube.CoreV1().Pods("default").List(ctx, metav1.ListOptions{})
		if err != nil {
			return false, err
		}
		all = ""
		for i := range list.Items { // they are in the order of their names
			for _, c := range list.Items[i].Status.ContainerStatuses {
				all += fmt.Sprintf("%s on %s: %s, %d restarts\n", list.Items[i].Name, list.Items[i].Spec.NodeName, c.ContainerID, c.RestartCount)
			}
		}
		return true, nil
	})
	return all
}

// runtimes are the versions of coracled that the nodes report.
func runtimes(ctx context.Context, t *testing.T, kube kubernetes.Interface) map[string]string {
	t.Helper()
	versions := map[string]string{}
	testkit.Eventually(ctx, t, "list the nodes", func() (bool, error) {
		list, err := kube.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
		if err != nil {
			return false, err
		}
		for i := range list.Items {
			versions[list.Items[i].Name] = list.Items[i].Status.NodeInfo.ContainerRuntimeVersion
		}
		return true, nil
	})
	return versions
}

// load is what came of a client's requests.
type load struct {
	requests, failed int
	twice            int   // how many failed twice in a row
	why              error // the last of these
	slowest          time.Duration
}

// sendLoad has a client in a pod's network of each machine send requests until stop, which returns
// what came of them.
func sendLoad(ctx context.Context, t *testing.T, all []*machine, address string) (stop func() []load) {
	t.Helper()
	ctx, cancel := context.WithCancel(ctx)
	results := make([]load, len(all))
	var clients sync.WaitGroup
	for i, m := range all {
		pattern := filepath.Join("/proc", strconv.Itoa(m.holder), "root", m.dir, "state", "ns", "*", "net")
		networks, err := filepath.Glob(pattern)
		if err != nil || len(networks) == 0 {
			t.Fatalf("%s: pods' network namespaces %s: %v, %v", m.Name, pattern, networks, err)
		}
		fd, err := unix.Open(networks[0], unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		entered := make(chan error, 1)
		clients.Go(func() {
			leave, err := enter(fd)
			entered <- err
			if err != nil {
				return
			}
			defer leave()
			tick := time.NewTicker(pause)
			defer tick.Stop()
			for ctx.Err() == nil {
				results[i].ask(address)
				<-tick.C
			}
		})
		if err := <-entered; err != nil {
			t.Fatal(err)
		}
	}
	return func() []load {
		cancel()
		clients.Wait()
		return results
	}
}

// enter takes the calling goroutine to a network, whose descriptor it closes, until leave. Its
// thread goes back then: a holder of a machine's namespaces ends with the thread that has started
// it.
func enter(network int) (leave func(), err error) {
	defer unix.Close(network)
	runtime.LockOSThread()
	own, err := unix.Open("/proc/thread-self/ns/net", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err == nil {
		err = unix.Setns(network, unix.CLONE_NEWNET)
	}
	if err != nil {
		return nil, err
	}
	return func() {
		defer unix.Close(own)
		if unix.Setns(own, unix.CLONE_NEWNET) == nil {
			runtime.UnlockOSThread()
		}
	}, nil
}

// ask sends one more request, and sends it again if it fails.
func (l *load) ask(address string) {
	l.requests++
	began := time.Now()
	if first := get(address); first != nil {
		l.failed++
		if second := get(address); second != nil {
			l.twice, l.why = l.twice+1, fmt.Errorf("%w, then %w", first, second)
		}
	}
	l.slowest = max(l.slowest, time.Since(began))
}

// get sends a GET over a new connection, which is made in the caller's network.
func get(address string) error {
	conn, err := net.DialTimeout("tcp", address, answered)
	if err != nil {
		return err
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(answered)); err != nil {
		return err
	}
	if _, err := fmt.Fprintf(conn, "GET / HTTP/1.1\r\nHost: %s\r\nConnection: close\r\n\r\n", address); err != nil {
		return err
	}
	answer, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	if _, err := io.Copy(io.Discard, answer.Body); err != nil {
		return err
	}
	if answer.StatusCode != http.StatusOK {
		return errors.New(answer.Status)
	}
	return nil
}
