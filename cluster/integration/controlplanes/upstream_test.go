//go:build ha && skew

package controlplanes

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/coracle-project/coracle/cluster/internal/testkit"
)

// kubeletVersions are the releases of upstream's kubelet besides that of cluster/, with spaces
// between.
func kubeletVersions() []string { return strings.Fields(os.Getenv("KUBELET_VERSIONS")) }

// TestUpstreamKubelet has upstream's kubelets of several releases, and its kube-proxy, join our
// cluster by a bootstrap token, with coracled as their runtime.
func TestUpstreamKubelet(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 2*patience)
	defer cancel()
	all := switched(t, "198.51.100.", "one", "two")
	one, two := all[0], all[1]
	startRegistry(t)
	for _, m := range all {
		m.useRegistry(t)
	}
	t.Cleanup(func() {
		if _, said, err := one.Run("down"); err != nil {
			t.Errorf("down: %v\n%s", err, said)
		}
	})
	one.Must(t, append([]string{"up", "--bind-address", one.ip}, one.flags()...)...)
	kube := one.admin(t)
	service := newService(ctx, t, kube)
	runWeb(ctx, t, kube, "web-one", "one")
	two.startCoracled(t)
	for _, version := range append([]string{""}, kubeletVersions()...) {
		t.Run("kubelet "+version, func(t *testing.T) {
			u := upstreamNode{machine: two, cluster: one, kube: kube, server: "https://" + one.ip + ":6443"}
			u.startKubelet(ctx, t, version)
			u.routeTo(ctx, t, "one", one.ip)
			one.routeBack(ctx, t, kube, "two")
			proxy := u.startProxy(ctx, t)
			defer proxy.stop(t)
			runWeb(ctx, t, kube, "web-two", "two")
			u.checkPods(ctx, t, service, "web-one", "web-two")
			u.leave(ctx, t, "web-two")
		})
	}
}

// routeBack waits until our agent has a path to another node's pods, which it makes by itself.
func (m *machine) routeBack(ctx context.Context, t *testing.T, kube kubernetes.Interface, node string) {
	t.Helper()
	var ranges []string
	testkit.Eventually(ctx, t, "node "+node+" has a range of pods", func() (bool, error) {
		n, err := kube.CoreV1().Nodes().Get(ctx, node, metav1.GetOptions{})
		if err != nil {
			return false, err
		}
		ranges = n.Spec.PodCIDRs
		return len(ranges) > 0, nil
	})
	testkit.Eventually(ctx, t, m.Name+" has a path to the pods of "+node, func() (found bool, err error) {
		m.network(t, func(h *netlink.Handle) error {
			routes, err := h.RouteList(nil, netlink.FAMILY_V4)
			for i := range routes {
				found = found || routes[i].Dst != nil && routes[i].Dst.String() == ranges[0]
			}
			return err
		})
		return found, nil
	})
}

// useRegistry has the machine's coracled pull from the test's registry.
func (m *machine) useRegistry(t *testing.T) {
	t.Helper()
	settings := fmt.Sprintf("[image.registry.%q]\nplain_http = true\n[network]\ncni_conf_dir = %q\n", registry, filepath.Join(m.dir, "cni"))
	if err := os.WriteFile(filepath.Join(m.dir, "coracled.toml"), []byte(settings), 0o600); err != nil {
		t.Fatal(err)
	}
}

// newService makes the Service web, and returns its address.
func newService(ctx context.Context, t *testing.T, kube kubernetes.Interface) string {
	t.Helper()
	var service *corev1.Service
	testkit.Eventually(ctx, t, "make the Service", func() (_ bool, err error) {
		service, err = kube.CoreV1().Services("default").Create(ctx, &corev1.Service{
			ObjectMeta: metav1.ObjectMeta{Name: "web"},
			Spec: corev1.ServiceSpec{
				Selector: map[string]string{"app": "web"},
				Ports:    []corev1.ServicePort{{Port: 80, TargetPort: intstr.FromInt32(webPort)}},
			},
		}, metav1.CreateOptions{})
		return err == nil, err
	})
	return service.Spec.ClusterIP
}

// runWeb runs a pod of the Service on a node.
func runWeb(ctx context.Context, t *testing.T, kube kubernetes.Interface, name, node string) *corev1.Pod {
	t.Helper()
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"app": "web"}},
		Spec:       corev1.PodSpec{NodeName: node, Containers: []corev1.Container{{Name: "web", Image: webImage}}},
	}
	testkit.Eventually(ctx, t, "make pod "+name, func() (bool, error) { // its service account may not be there yet
		_, err := kube.CoreV1().Pods("default").Create(ctx, p, metav1.CreateOptions{})
		return err == nil, err
	})
	testkit.Eventually(ctx, t, "pod "+name+" is ready", func() (bool, error) {
		have, err := kube.CoreV1().Pods("default").Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return false, err
		}
		p = have
		for _, c := range p.Status.Conditions {
			if c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue {
				return true, nil
			}
		}
		return false, fmt.Errorf("%s: %+v", p.Status.Phase, p.Status.ContainerStatuses)
	})
	return p
}

// program is one of a machine, or of the test's own network.
type program struct {
	cmd  *exec.Cmd
	log  string
	exit chan struct{}
}

// run starts a program in the machine's namespaces, or in the test's if m is nil. It ends with the
// test.
func (m *machine) run(t *testing.T, dir string, argv ...string) *program {
	t.Helper()
	name := filepath.Base(argv[0])
	if m != nil {
		argv = append([]string{"nsenter", "--target", strconv.Itoa(m.holder), "--net", "--mount", "--"}, argv...)
	}
	p := &program{cmd: exec.Command(argv[0], argv[1:]...), log: filepath.Join(dir, name+".log"), exit: make(chan struct{})}
	log, err := os.OpenFile(p.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	p.cmd.Stdout, p.cmd.Stderr = log, log
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		defer close(p.exit)
		_ = p.cmd.Wait()
	}()
	t.Cleanup(func() { p.stop(t) })
	return p
}

// stop ends the program, and shows the end of its log if the test has failed.
func (p *program) stop(t *testing.T) {
	t.Helper()
	if err := p.cmd.Process.Signal(unix.SIGTERM); errors.Is(err, os.ErrProcessDone) {
		return
	}
	select {
	case <-p.exit:
	case <-time.After(patience):
		_ = p.cmd.Process.Kill()
		t.Errorf("%s does not end", p.cmd.Path)
	}
	if t.Failed() {
		said, _ := os.ReadFile(p.log)
		t.Logf("%s ends:\n%s", p.log, said[max(0, len(said)-6000):])
	}
}

func (m *machine) socket() string { return filepath.Join(m.dir, "state", "coracle.sock") }

// startCoracled starts coracled alone. Directories with fixed paths that programs of upstream use
// are the machine's own, and files are in the place of settings of the kernel that kubelets change.
func (m *machine) startCoracled(t *testing.T) {
	t.Helper()
	m.furnishForUpstream(t)
	m.run(t, m.dir, bin("coracled"), "--root", m.Root, "--state", filepath.Join(m.dir, "state"),
		"--config", filepath.Join(m.dir, "coracled.toml"))
	testkit.Eventually(t.Context(), t, "coracled answers", func() (bool, error) {
		conn, err := net.Dial("unix", m.socket())
		if err == nil {
			_ = conn.Close()
		}
		return err == nil, err
	})
}

func (m *machine) furnishForUpstream(t *testing.T) {
	t.Helper()
	script := "set -e; mount -t tmpfs tmpfs /var/lib; mkdir -p /var/log; mount -t tmpfs tmpfs /var/log\n"
	for _, name := range []string{
		"kernel/panic", "kernel/panic_on_oops", "kernel/keys/root_maxkeys", "kernel/keys/root_maxbytes", "vm/overcommit_memory",
		"vm/panic_on_oom",
	} {
		own := filepath.Join(m.dir, filepath.Base(name))
		if err := os.WriteFile(own, []byte("0"), 0o600); err != nil {
			t.Fatal(err)
		}
		script += fmt.Sprintf("mount --bind %s /proc/sys/%s\n", own, name)
	}
	out, err := exec.Command("nsenter", "--target", strconv.Itoa(m.holder), "--net", "--mount", "--", "sh", "-c", script).CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
}

// upstreamNode is a machine with coracled on which upstream's kubelet and kube-proxy run.
type upstreamNode struct {
	*machine
	cluster *machine
	kube    kubernetes.Interface
	server  string
	kubelet *program
}

// upstreamKubelet is what kubeadm tells a kubelet, with serving certificates from the cluster.
const upstreamKubelet = `
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
authentication: {anonymous: {enabled: false}, webhook: {enabled: true}, x509: {clientCAFile: {CA}}}
authorization: {mode: Webhook}
containerRuntimeEndpoint: unix://{SOCKET}
podLogsDir: {LOGS}
volumePluginDir: {DIR}/volume-plugins
cgroupDriver: cgroupfs
cgroupRoot: {CGROUP}
enforceNodeAllocatable: [none]
evictionHard: {memory.available: 1Mi}
failCgroupV1: false
failSwapOn: false
makeIPTablesUtilChains: false
resolvConf: ""
rotateCertificates: true
serverTLSBootstrap: true
`

// startKubelet starts upstream's kubelet with nothing but a bootstrap token, and returns when its
// Node is Ready.
func (u *upstreamNode) startKubelet(ctx context.Context, t *testing.T, version string) {
	t.Helper()
	dir := filepath.Join(u.dir, "kubelet"+version)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	admin := must(clientcmd.BuildConfigFromFlags("", filepath.Join(u.cluster.Root, "kubeconfig")))
	ca := filepath.Join(dir, "ca.crt")
	config := strings.NewReplacer("{CA}", ca, "{SOCKET}", u.socket(), "{LOGS}", filepath.Join(u.dir, "pods"), "{DIR}", dir,
		"{CGROUP}", u.cgroup(t)).Replace(upstreamKubelet)
	bootstrap := filepath.Join(dir, "bootstrap.kubeconfig")
	err := errors.Join(os.WriteFile(ca, admin.CAData, 0o600), os.WriteFile(filepath.Join(dir, "kubelet.yaml"), []byte(config), 0o600),
		writeKubeconfig(bootstrap, u.server, admin.CAData, u.cluster.Invite(t).Token))
	if err != nil {
		t.Fatal(err)
	}
	name := "kubelet"
	if version != "" {
		name += "-" + version
	}
	u.kubelet = u.run(t, u.dir, filepath.Join(bin("peers"), "bin", name), "--config", filepath.Join(dir, "kubelet.yaml"), "--root-dir", dir,
		"--cert-dir", filepath.Join(dir, "pki"), "--bootstrap-kubeconfig", bootstrap, "--kubeconfig", filepath.Join(dir, "kubeconfig"),
		"--hostname-override", u.Name, "--node-ip", u.ip)
	testkit.Eventually(ctx, t, "upstream's node is Ready", func() (bool, error) {
		select {
		case <-u.kubelet.exit:
			t.Fatal("the kubelet has ended")
		default:
		}
		n, err := u.kube.CoreV1().Nodes().Get(ctx, u.Name, metav1.GetOptions{})
		if err != nil {
			return false, err
		}
		if got := n.Status.NodeInfo.KubeletVersion; version != "" && got != version {
			return false, fmt.Errorf("the kubelet is %s, want %s", got, version)
		}
		for _, c := range n.Status.Conditions {
			if c.Type == corev1.NodeReady {
				return c.Status == corev1.ConditionTrue, errors.New(c.Message)
			}
		}
		return false, nil
	})
}

// cgroup makes the parent of the node's pods' cgroups, and removes it when they are gone.
func (u *upstreamNode) cgroup(t *testing.T) string {
	t.Helper()
	name := "/coracle-nodes-" + filepath.Base(u.dir) + "-" + u.Name
	tops, err := filepath.Glob("/sys/fs/cgroup/*/cgroup.procs")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat("/sys/fs/cgroup/cgroup.controllers"); err == nil { // the only hierarchy
		tops = []string{"/sys/fs/cgroup/cgroup.procs"}
	}
	for _, top := range tops {
		parent := filepath.Join(filepath.Dir(top), name)
		if err := os.MkdirAll(parent, 0o755); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			var dirs []string
			_ = filepath.WalkDir(parent, func(path string, d os.DirEntry, err error) error {
				if err == nil && d.IsDir() {
					dirs = append(dirs, path)
				}
				return nil
			})
			for i := range dirs {
				if err := os.Remove(dirs[len(dirs)-1-i]); err != nil {
					t.Error(err)
				}
			}
		})
	}
	return name
}

func writeKubeconfig(path, server string, ca []byte, token string) error {
	config := clientcmdapi.NewConfig()
	config.Clusters["c"] = &clientcmdapi.Cluster{Server: server, CertificateAuthorityData: ca}
	config.AuthInfos["u"] = &clientcmdapi.AuthInfo{Token: token}
	config.Contexts["x"] = &clientcmdapi.Context{Cluster: "c", AuthInfo: "u"}
	config.CurrentContext = "x"
	return clientcmd.WriteToFile(*config, path)
}

// routeTo gives the machine the route to another node's pods that a network plugin would.
func (u *upstreamNode) routeTo(ctx context.Context, t *testing.T, node, via string) {
	t.Helper()
	n, err := u.kube.CoreV1().Nodes().Get(ctx, node, metav1.GetOptions{})
	if err != nil || len(n.Spec.PodCIDRs) == 0 {
		t.Fatalf("node %s has no range of pods: %v", node, err)
	}
	u.network(t, func(h *netlink.Handle) error {
		return h.RouteReplace(&netlink.Route{Dst: must(netlink.ParseIPNet(n.Spec.PodCIDRs[0])), Gw: net.ParseIP(via)})
	})
}

// startProxy starts upstream's kube-proxy with the rights and the kind of credentials that kubeadm
// gives it. Its rules go when it ends.
func (u *upstreamNode) startProxy(ctx context.Context, t *testing.T) *program {
	t.Helper()
	accounts := u.kube.CoreV1().ServiceAccounts("kube-system")
	_, err := accounts.Create(ctx, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "kube-proxy"}}, metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		t.Fatal(err)
	}
	_, err = u.kube.RbacV1().ClusterRoleBindings().Create(ctx, &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "kubeadm:node-proxier"},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "system:node-proxier"},
		Subjects:   []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: "kube-system", Name: "kube-proxy"}},
	}, metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		t.Fatal(err)
	}
	token, err := accounts.CreateToken(ctx, "kube-proxy", &authenticationv1.TokenRequest{}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	admin := must(clientcmd.BuildConfigFromFlags("", filepath.Join(u.cluster.Root, "kubeconfig")))
	kubeconfig := filepath.Join(u.dir, "proxy.kubeconfig")
	if err := writeKubeconfig(kubeconfig, u.server, admin.CAData, token.Status.Token); err != nil {
		t.Fatal(err)
	}
	return u.run(t, u.dir, filepath.Join(bin("peers"), "bin", "kube-proxy"), "--kubeconfig", kubeconfig, "--proxy-mode", "nftables",
		"--hostname-override", u.Name, "--conntrack-max-per-core", "0", "--conntrack-min", "0", "--conntrack-tcp-timeout-established", "0",
		"--conntrack-tcp-timeout-close-wait", "0")
}

// checkPods has the last pod reach all of them through the Service, and reads its log and runs a
// program in it through the API server.
func (u *upstreamNode) checkPods(ctx context.Context, t *testing.T, service string, pods ...string) {
	t.Helper()
	own := pods[len(pods)-1]
	seen := map[string]bool{}
	testkit.Eventually(ctx, t, own+" reaches all pods through the Service", func() (bool, error) {
		page, err := u.kubectl("exec", own, "--", "timeout", "5", "wget", "-q", "-O", "-", "http://"+service)
		for _, pod := range pods {
			if strings.Contains(page, "in pod "+pod+".") {
				seen[pod] = true
			}
		}
		return len(seen) == len(pods), fmt.Errorf("%v, %w", seen, err)
	})
	if log, err := u.kubectl("logs", own); err != nil || !strings.Contains(log, "GET / from") {
		t.Errorf("the log of pod %s: %v\n%s", own, err, log)
	}
}

// kubectl acts as the administrator of the cluster.
func (u *upstreamNode) kubectl(args ...string) (string, error) {
	args = append([]string{"--kubeconfig", filepath.Join(u.cluster.Root, "kubeconfig")}, args...)
	cmd := exec.Command(filepath.Join(bin("tools"), "kubectl"), args...)
	var said bytes.Buffer
	cmd.Stderr = &said
	out, err := cmd.Output()
	if err != nil {
		err = fmt.Errorf("kubectl %s: %w: %s", strings.Join(args[2:], " "), err, said.String())
	}
	return string(out), err
}

// leave deletes a pod and the Node, and ends the kubelet.
func (u *upstreamNode) leave(ctx context.Context, t *testing.T, pod string) {
	t.Helper()
	if out, err := u.kubectl("delete", "pod", pod, "--timeout=2m"); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
	u.kubelet.stop(t)
	if err := u.kube.CoreV1().Nodes().Delete(ctx, u.Name, metav1.DeleteOptions{}); err != nil {
		t.Error(err)
	}
}
