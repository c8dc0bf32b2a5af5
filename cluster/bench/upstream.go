package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/coracle-project/coracle/cluster/internal/daemon"
	"github.com/coracle-project/coracle/cluster/pki"
)

// upstream is etcd, kube-apiserver, kube-controller-manager, kube-scheduler and kubelet, as kubeadm
// sets them up for one node, but without leader election and without clients' limits: both would
// make it slower. It runs in the mount namespace of its runtime.
type upstream struct {
	settings
	fail      context.CancelCauseFunc // ends the run when a program has ended that should not
	pki       *pki.Bundle
	procs     []*daemon.Process
	scheduler *daemon.Process
}

func (u *upstream) url() string        { return "https://" + u.ip + ":6443" }
func (u *upstream) runtime() string    { return u.socket }
func (u *upstream) kubeconfig() string { return filepath.Join(u.dir, "pki", "admin.kubeconfig") }
func (u *upstream) program(name string) string {
	return filepath.Join(u.bin, "peers", "bin", name)
}

func (u *upstream) programs() []string {
	var all []string
	for _, name := range []string{"etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet"} {
		all = append(all, u.program(name))
	}
	return all
}

// run starts one of the programs, to be ended by stop.
func (u *upstream) run(name string, args ...string) error {
	p, err := daemon.Start(u.fail, u.dir, u.program(name), args...)
	if err == nil {
		u.procs = append(u.procs, p)
	}
	return err
}

const (
	etcdURL = "http://127.0.0.1:2379"
	peerURL = "http://127.0.0.1:2380"
)

// unlimited lifts the limits of a component's own client.
var unlimited = []string{"--kube-api-qps=100000", "--kube-api-burst=100000", "--leader-elect=false"}

func (u *upstream) start(ctx context.Context) (err error) {
	if err := u.prepare(); err != nil {
		return err
	}
	hosts := []string{u.ip, "127.0.0.1", "10.96.0.1", "localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc"}
	if u.pki, err = pki.Ensure(filepath.Join(u.dir, "pki"), u.url(), hosts, nil); err != nil {
		return err
	}
	k := u.pki
	if err := u.run("etcd", "--data-dir", filepath.Join(u.dir, "etcd"), "--listen-client-urls", etcdURL, "--advertise-client-urls", etcdURL,
		"--listen-peer-urls", peerURL, "--initial-advertise-peer-urls", peerURL, "--initial-cluster", "default="+peerURL, "--log-level",
		"warn"); err != nil {
		return err
	}
	if err := u.run("kube-apiserver", "--etcd-servers", etcdURL, "--bind-address", u.ip, "--advertise-address", u.ip, "--secure-port", "6443",
		"--service-cluster-ip-range", "10.96.0.0/16", "--allow-privileged", "--authorization-mode", "Node,RBAC", "--enable-admission-plugins",
		"NodeRestriction",
		"--client-ca-file", k.CACert, "--tls-cert-file", k.Serving, "--tls-private-key-file", k.Serving,
		"--kubelet-client-certificate", k.KubeletClient, "--kubelet-client-key", k.KubeletClient,
		"--service-account-issuer", "https://kubernetes.default.svc.cluster.local",
		"--service-account-key-file", k.ServiceAccountKey, "--service-account-signing-key-file", k.ServiceAccountKey); err != nil {
		return err
	}
	if _, err := connect(ctx, u.kubeconfig()); err != nil {
		return err
	}
	manager, err := u.identity("kube-controller-manager")
	if err != nil {
		return err
	}
	if err := u.run("kube-controller-manager", append([]string{
		"--kubeconfig", manager, "--authentication-kubeconfig", manager, "--authorization-kubeconfig", manager,
		"--use-service-account-credentials", "--service-account-private-key-file", k.ServiceAccountKey,
		"--root-ca-file", k.CACert, "--cluster-signing-cert-file", k.CA, "--cluster-signing-key-file", k.CA,
	}, unlimited...)...); err != nil {
		return err
	}
	if err := u.startScheduler(false); err != nil {
		return err
	}
	return u.startKubelet()
}

// prepare makes room for what kubelet has fixed paths for, and gives it files in the place of the
// kernel's settings that it would change: the machine is someone's.
func (u *upstream) prepare() error {
	for _, path := range []string{"/var/lib/kubelet", "/var/log"} {
		own := filepath.Join(u.dir, filepath.Base(path))
		if err := errors.Join(os.MkdirAll(own, 0o755), os.MkdirAll(path, 0o755), unix.Mount(own, path, "", unix.MS_BIND, "")); err != nil {
			return fmt.Errorf("mount on %s: %w", path, err)
		}
	}
	for _, name := range []string{
		"kernel/panic", "kernel/panic_on_oops", "kernel/keys/root_maxkeys", "kernel/keys/root_maxbytes",
		"vm/overcommit_memory", "vm/panic_on_oom",
	} {
		path, own := filepath.Join("/proc/sys", name), filepath.Join(u.dir, filepath.Base(name))
		if err := errors.Join(os.WriteFile(own, []byte("0"), 0o644), unix.Mount(own, path, "", unix.MS_BIND, "")); err != nil {
			return fmt.Errorf("mount on %s: %w", path, err)
		}
	}
	tops, err := os.ReadDir("/sys/fs/cgroup")
	for _, top := range tops {
		if top.IsDir() {
			err = errors.Join(err, os.MkdirAll(filepath.Join("/sys/fs/cgroup", top.Name(), u.cgroup), 0o755))
		}
	}
	return err
}

// identity makes a component's kubeconfig.
func (u *upstream) identity(component string) (string, error) {
	path := filepath.Join(u.dir, component+".kubeconfig")
	return path, u.pki.Kubeconfig(path, "system:"+component)
}

// startScheduler starts kube-scheduler, or Coracle's scheduler in its place.
func (u *upstream) startScheduler(ours bool) error {
	config, err := u.identity("kube-scheduler")
	if err != nil {
		return err
	}
	if ours {
		u.scheduler, err = daemon.Start(u.fail, u.dir, filepath.Join(u.bin, "coracle-kube"), "scheduler", "--kubeconfig", config)
		return err
	}
	u.scheduler, err = daemon.Start(u.fail, u.dir, u.program("kube-scheduler"), append([]string{
		"--kubeconfig", config, "--authentication-kubeconfig", config, "--authorization-kubeconfig", config,
	}, unlimited...)...)
	return err
}

func (u *upstream) startKubelet() error {
	node, err := u.pki.Node(nodeName, []string{nodeName, u.ip})
	if err != nil {
		return err
	}
	config := strings.NewReplacer("{CA}", u.pki.CACert, "{SERVING}", node.Serving, "{CGROUP}", u.cgroup,
		"{SOCKET}", u.socket).Replace(kubeletConfig)
	path := filepath.Join(u.dir, "kubelet.yaml")
	if err := os.WriteFile(path, []byte(config), 0o600); err != nil {
		return err
	}
	return u.run("kubelet", "--config", path, "--kubeconfig", node.Kubeconfig, "--node-ip", u.ip, "--hostname-override", nodeName)
}

// kubeletConfig lets kubelet run on old cgroups, too.
const kubeletConfig = `
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
authentication: {anonymous: {enabled: false}, webhook: {enabled: true}, x509: {clientCAFile: {CA}}}
authorization: {mode: Webhook}
tlsCertFile: {SERVING}
tlsPrivateKeyFile: {SERVING}
containerRuntimeEndpoint: unix://{SOCKET}
cgroupDriver: cgroupfs
cgroupRoot: /{CGROUP}
enforceNodeAllocatable: [none]
evictionHard: {memory.available: 100Mi}
failCgroupV1: false
failSwapOn: false
kubeAPIQPS: 100000
kubeAPIBurst: 100000
`

func (u *upstream) stop() error {
	all := u.procs
	if u.scheduler != nil {
		all = append(all, u.scheduler)
	}
	var err error
	for i := range all { // etcd last
		err = errors.Join(err, all[len(all)-1-i].End())
	}
	return err
}

// firstThenOthers is how long a scheduler took for its first binding and for all.
type firstThenOthers struct{ first, all time.Duration }

// alone measures schedulers that find all pods waiting: upstream's, and Coracle's on the same API
// server, so that nothing but the scheduler differs.
func (u *upstream) alone(ctx context.Context, b *bench) error {
	for _, ours := range []bool{false, true} {
		if err := u.scheduler.End(); err != nil {
			return err
		}
		took, err := b.schedule(ctx, func() error { return u.startScheduler(ours) })
		if err != nil {
			return err
		}
		stack := b.name
		if ours {
			stack = "coracle"
		}
		b.found(figure{
			Stack: stack, Name: "scheduler alone, from its start", Unit: "pods/s", Value: float64(b.pods) / took.all.Seconds(),
			More: true,
		})
		b.found(figure{
			Stack: stack, Name: "scheduler alone, from its first binding", Unit: "pods/s",
			Value: float64(b.pods) / (took.all - took.first).Seconds(), More: true,
		})
	}
	return nil
}
