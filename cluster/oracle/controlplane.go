package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"sync"

	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/discovery/cached/memory"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/restmapper"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/coracle-project/coracle/cluster/internal/daemon"
	"github.com/coracle-project/coracle/cluster/pki"
)

// side is one of the two control planes.
type side struct {
	name, bin, dir string
	fail           context.CancelCauseFunc
	processes      []*daemon.Process
	kubeconfig     string
	kube           kubernetes.Interface
	objects        dynamic.Interface
	mapper         *restmapper.DeferredDiscoveryRESTMapper
	kubelet        sync.WaitGroup
	warned         warnings
	answers        map[string]any // to the manifests: errors and warnings
	seen           map[string]any // all that is compared
}

func newSide(name, bin, dir string, fail context.CancelCauseFunc) *side {
	return &side{name: name, bin: bin, dir: filepath.Join(dir, name), fail: fail, answers: map[string]any{}}
}

// launch starts a program, to be ended by stop.
func (s *side) launch(program string, args ...string) error {
	p, err := daemon.Start(s.fail, s.dir, filepath.Join(s.bin, program), args...)
	if err == nil {
		s.processes = append(s.processes, p)
	}
	return err
}

// start starts the control plane and returns when its API is ready.
func (s *side) start(ctx context.Context) error {
	if err := os.MkdirAll(s.dir, 0o700); err != nil {
		return err
	}
	ports, err := freePorts(3)
	if err != nil {
		return err
	}
	if s.name == "ours" {
		err = s.startOurs(ctx, ports[0])
	} else {
		err = s.startUpstream(ctx, ports)
	}
	return err
}

func (s *side) startOurs(ctx context.Context, port string) error {
	root := filepath.Join(s.dir, "root")
	s.kubeconfig = filepath.Join(s.dir, "admin.kubeconfig")
	if err := s.launch("coracle-kube", "apiserver", "--port", port, "--root", root, "--state", filepath.Join(s.dir, "state"),
		"--kubeconfig-out", s.kubeconfig); err != nil {
		return err
	}
	if err := s.connect(ctx); err != nil {
		return err
	}
	keys := filepath.Join(root, "pki")
	return errors.Join(
		s.launch("coracle-kube", "controllers", "--kubeconfig", s.kubeconfig,
			"--cluster-ca", filepath.Join(keys, "ca.pem"), "--service-account-key", filepath.Join(keys, "service-account.pem")),
		s.launch("coracle-kube", "scheduler", "--kubeconfig", s.kubeconfig))
}

func (s *side) startUpstream(ctx context.Context, ports []string) error {
	k, err := pki.Ensure(filepath.Join(s.dir, "pki"), "https://127.0.0.1:"+ports[0],
		[]string{"127.0.0.1", "localhost", "kubernetes.default.svc", "10.96.0.1"}, nil)
	if err != nil {
		return err
	}
	s.kubeconfig = k.AdminKubeconfig
	etcd, peer := "http://127.0.0.1:"+ports[1], "http://127.0.0.1:"+ports[2]
	if err := s.launch("peers/bin/etcd", "--data-dir", filepath.Join(s.dir, "etcd"), "--listen-client-urls", etcd, "--advertise-client-urls",
		etcd,
		"--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer, "--initial-cluster", "default="+peer, "--log-level", "warn",
		"--unsafe-no-fsync"); err != nil {
		return err
	}
	if err := s.launch("peers/bin/kube-apiserver", "--etcd-servers", etcd, "--bind-address", "127.0.0.1", "--secure-port", ports[0],
		"--service-cluster-ip-range", "10.96.0.0/16", "--allow-privileged", "--authorization-mode", "Node,RBAC", "--enable-admission-plugins",
		"NodeRestriction",
		"--client-ca-file", k.CACert, "--tls-cert-file", k.Serving, "--tls-private-key-file", k.Serving,
		"--kubelet-client-certificate", k.KubeletClient, "--kubelet-client-key", k.KubeletClient,
		"--proxy-client-cert-file", k.FrontProxyClient, "--proxy-client-key-file", k.FrontProxyClient,
		"--requestheader-client-ca-file", k.FrontProxyCACert, "--requestheader-allowed-names", pki.FrontProxyName,
		"--requestheader-username-headers", "X-Remote-User", "--requestheader-uid-headers", "X-Remote-Uid",
		"--requestheader-group-headers", "X-Remote-Group", "--requestheader-extra-headers-prefix", "X-Remote-Extra-",
		"--service-account-issuer", "https://kubernetes.default.svc.cluster.local",
		"--service-account-key-file", k.ServiceAccountKey, "--service-account-signing-key-file", k.ServiceAccountKey); err != nil {
		return err
	}
	if err := s.connect(ctx); err != nil {
		return err
	}
	unlimited := []string{
		"--kubeconfig", s.kubeconfig, "--kube-api-qps=100000", "--kube-api-burst=100000", "--leader-elect=false",
		"--secure-port=0",
	}
	return errors.Join(
		s.launch("peers/bin/kube-controller-manager", append(unlimited, "--service-account-private-key-file", k.ServiceAccountKey,
			"--root-ca-file", k.CACert, "--cluster-signing-cert-file", k.CA, "--cluster-signing-key-file", k.CA)...),
		s.launch("peers/bin/kube-scheduler", unlimited...))
}

// connect makes the clients, and returns when the API server is ready.
func (s *side) connect(ctx context.Context) error {
	var last error
	err := wait.PollUntilContextTimeout(ctx, poll, patience, true, func(ctx context.Context) (bool, error) {
		var config *rest.Config
		if config, last = clientcmd.BuildConfigFromFlags("", s.kubeconfig); last != nil {
			return false, nil
		}
		config.QPS, config.UserAgent, config.WarningHandler = -1, "oracle", &s.warned
		if s.kube, last = kubernetes.NewForConfig(config); last != nil {
			return false, last
		}
		if s.objects, last = dynamic.NewForConfig(config); last != nil {
			return false, last
		}
		s.mapper = restmapper.NewDeferredDiscoveryRESTMapper(memory.NewMemCacheClient(s.kube.Discovery()))
		last = s.kube.Discovery().RESTClient().Get().AbsPath("/readyz").Do(ctx).Error()
		return last == nil, nil
	})
	if err != nil {
		return fmt.Errorf("API server: %w: %w", err, last)
	}
	return nil
}

func (s *side) stop() error {
	var err error
	for i := range s.processes { // what others need ends last
		err = errors.Join(err, s.processes[len(s.processes)-1-i].End())
	}
	s.kubelet.Wait()
	return err
}

// freePorts returns ports of loopback that nothing listens on now.
func freePorts(n int) ([]string, error) {
	var ports []string
	for range n {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return nil, err
		}
		defer l.Close() // only after all: they have to differ
		ports = append(ports, strconv.Itoa(l.Addr().(*net.TCPAddr).Port))
	}
	return ports, nil
}

// warnings are the API server's since they were last taken.
type warnings struct {
	mu   sync.Mutex
	said []any
}

// HandleWarningHeader implements rest.WarningHandler.
func (w *warnings) HandleWarningHeader(_ int, _, text string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.said = append(w.said, text)
}

func (w *warnings) take() []any {
	w.mu.Lock()
	defer w.mu.Unlock()
	said := w.said
	w.said = nil
	return said
}
