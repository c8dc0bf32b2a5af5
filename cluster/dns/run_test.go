package dns

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/miekg/dns"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kuberuntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	ktesting "k8s.io/client-go/testing"

	"github.com/coracle-project/coracle/cluster/client"
	"github.com/coracle-project/coracle/cluster/internal/testkit"
)

var both = []netip.Addr{netip.MustParseAddr("10.96.0.10"), netip.MustParseAddr("fd00:96::a")}

// alone runs f in a network namespace with nothing but lo. Sockets belong to the namespace of the
// thread that opens them, so f runs servers by during.
func alone(t *testing.T, f func()) {
	t.Helper()
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // never unlocked: the thread ends, and the namespace with it
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			t.Errorf("it must be root: %v", err)
			return
		}
		if out, err := exec.Command("ip", "link", "set", "lo", "up").CombinedOutput(); err != nil {
			t.Errorf("%v: %s", err, out)
			return
		}
		f()
	}()
	<-done
}

// newServer is a server of a cluster with these objects that logs to log. Its informers run until
// the test ends.
func newServer(t *testing.T, kube *fake.Clientset, log *testkit.Log) *Server {
	t.Helper()
	shared := informers.NewSharedInformerFactory(kube, 0)
	s, err := New(&client.Set{Kube: kube, Informers: shared}, Options{Addresses: both, ResolvConf: t.TempDir() + "/none", Log: log.Logger()})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	shared.Start(ctx.Done())
	shared.WaitForCacheSync(ctx.Done())
	t.Cleanup(func() {
		cancel()
		shared.Shutdown()
	})
	return s
}

// during runs s on a thread of this namespace while f runs.
func during(t *testing.T, s *Server, f func(ended <-chan struct{})) {
	t.Helper()
	here, err := unix.Open("/proc/thread-self/ns/net", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Error(err)
		return
	}
	defer unix.Close(here)
	ctx, cancel := context.WithCancelCause(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		runtime.LockOSThread()
		if err := unix.Setns(here, unix.CLONE_NEWNET); err != nil {
			t.Error(err)
			return
		}
		if err := s.Run(ctx); err != nil {
			t.Error(err)
		}
	}()
	f(ended)
	cancel(errors.New("terminated signal received")) // as signal.NotifyContext says
	<-ended
}

// answered asks each address by each protocol until all answer, or not.
func answered(t *testing.T, want bool) {
	t.Helper()
	for _, addr := range both {
		for _, network := range []string{"udp", "tcp"} {
			q := new(dns.Msg)
			q.SetQuestion("dns-version.cluster.local.", dns.TypeTXT)
			c := dns.Client{Net: network, Timeout: time.Second}
			for deadline := time.Now().Add(30 * time.Second); ; {
				m, _, err := c.Exchange(q, netip.AddrPortFrom(addr, port).String())
				if (err == nil && len(m.Answer) == 1) == want {
					break
				}
				if time.Now().After(deadline) {
					t.Errorf("%s %s: %v, %v", network, addr, m, err)
					return
				}
			}
		}
	}
}

func TestRun(t *testing.T) {
	kube := fake.NewClientset()
	log := &testkit.Log{}
	first, second := newServer(t, kube, log), newServer(t, kube, log)
	first.retry, second.retry = 10*time.Millisecond, 10*time.Millisecond
	alone(t, func() {
		during(t, first, func(<-chan struct{}) {
			answered(t, true)
			during(t, second, func(<-chan struct{}) {
				for deadline := time.Now().Add(30 * time.Second); !strings.Contains(log.String(), "another process of this machine holds it"); {
					if time.Now().After(deadline) {
						t.Errorf("a second server of the machine says nothing of the first: %s", log)
						return
					}
				}
				answered(t, true)
			})
			answered(t, true)
			s, err := kube.CoreV1().Services("kube-system").Get(t.Context(), "kube-dns", metav1.GetOptions{})
			if err != nil || fmt.Sprint(s.Spec.ClusterIPs) != "[10.96.0.10 fd00:96::a]" || len(s.Spec.Ports) != 2 || s.Spec.Selector != nil {
				t.Errorf("the Service is %+v, %v", s, err)
			}
		})
		answered(t, false)
		if out, err := exec.Command("ip", "addr", "show", "dev", "lo").CombinedOutput(); err != nil || strings.Contains(string(out), "96") {
			t.Errorf("%v: left: %s", err, out)
		}
		during(t, second, func(<-chan struct{}) { answered(t, true) }) // the address is free again
	})
	if strings.Count(log.String(), "level=ERROR") != 1 {
		t.Errorf("what cannot be changed is said again and again: %s", log)
	}
}

// echo answers datagrams and connections at all addresses of this namespace with what they sent, as
// any other server at this port would, until it is stopped.
func echo(t *testing.T, at string) (stop func()) {
	t.Helper()
	conn, err := net.ListenPacket("udp", at)
	if err != nil {
		t.Errorf("another server cannot listen: %v", err)
		return func() {}
	}
	l, err := net.Listen("tcp", at)
	if err != nil {
		t.Errorf("another server cannot listen: %v", err)
		conn.Close()
		return func() {}
	}
	var work sync.WaitGroup
	work.Go(func() {
		packet := make([]byte, 512)
		for {
			n, from, err := conn.ReadFrom(packet)
			if err != nil {
				return
			}
			_, _ = conn.WriteTo(packet[:n], from)
		}
	})
	return func() {
		conn.Close()
		l.Close()
		work.Wait()
	}
}

// Other DNS servers of the node may listen at port 53 of all addresses, and processes at ours,
// whether they come before or after.
func TestOtherServersOfTheNode(t *testing.T) {
	log := &testkit.Log{}
	s := newServer(t, fake.NewClientset(), log)
	echoes := func() {
		conn, err := net.Dial("udp", "127.0.0.1:53")
		if err != nil {
			t.Error(err)
			return
		}
		defer conn.Close()
		_ = conn.SetDeadline(time.Now().Add(30 * time.Second))
		got := make([]byte, 8)
		if _, err = conn.Write([]byte("x")); err == nil {
			_, err = conn.Read(got)
		}
		if err != nil || got[0] != 'x' {
			t.Errorf("the other server does not answer: %v", err)
		}
	}
	alone(t, func() {
		before := echo(t, ":53")
		taken := echo(t, fmt.Sprintf(":%d", firstPort))
		during(t, s, func(<-chan struct{}) {
			answered(t, true)
			echoes()
			at := netip.AddrPortFrom(both[0], port).String()
			if conn, err := net.ListenPacket("udp", at); !errors.Is(err, unix.EADDRINUSE) {
				t.Errorf("positive control: next to the other server, %v listens at %s, %v", conn, at, err)
			}
			before()
			defer echo(t, ":53")()
			answered(t, true)
			echoes()
		})
		taken()
	})
	if strings.Contains(log.String(), "level=ERROR") {
		t.Error(log)
	}
}

// A DNS that a user runs in pods, with the usual Service, is not disturbed. The user may decide at
// any time.
func TestUsersOwnDNS(t *testing.T) {
	own := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "kube-dns"},
		Spec:       corev1.ServiceSpec{ClusterIP: "10.96.0.10", Selector: map[string]string{"k8s-app": "kube-dns"}},
	}
	kube := fake.NewClientset(own)
	log := &testkit.Log{}
	s := newServer(t, kube, log)
	services := kube.CoreV1().Services("kube-system")
	alone(t, func() {
		during(t, s, func(ended <-chan struct{}) {
			for deadline := time.Now().Add(30 * time.Second); !strings.Contains(log.String(), "the user's own"); {
				if time.Now().After(deadline) {
					t.Errorf("nothing is said of the user's own DNS: %s", log)
					return
				}
			}
			answered(t, false)
			if err := services.Delete(t.Context(), "kube-dns", metav1.DeleteOptions{}); err != nil {
				t.Error(err)
			}
			answered(t, true)
			if err := services.Delete(t.Context(), "kube-dns", metav1.DeleteOptions{}); err != nil { // it is made again
				t.Error(err)
			}
			var ours *corev1.Service
			for deadline := time.Now().Add(30 * time.Second); ; {
				var err error
				if ours, err = services.Get(t.Context(), "kube-dns", metav1.GetOptions{}); err == nil {
					break
				}
				if time.Now().After(deadline) {
					t.Errorf("a Service that was deleted is not made again: %v", err)
					return
				}
			}
			answered(t, true)
			ours = ours.DeepCopy()
			delete(ours.Labels, proxyLabel)
			if _, err := services.Update(t.Context(), ours, metav1.UpdateOptions{}); err != nil {
				t.Error(err)
			}
			answered(t, false)
			select {
			case <-ended:
				t.Error("the cluster would end with it")
			default:
			}
		})
	})
	if strings.Contains(log.String(), "level=ERROR") {
		t.Error(log)
	}
}

// A DNS that works goes on when its Service, which was deleted, cannot be made again at once.
func TestFailedCallsDoNotEndTheDNS(t *testing.T) {
	kube := fake.NewClientset()
	log := &testkit.Log{}
	s := newServer(t, kube, log)
	s.retry = 10 * time.Millisecond
	services := kube.CoreV1().Services("kube-system")
	var refuse, refused atomic.Bool
	kube.PrependReactor("create", "services", func(ktesting.Action) (bool, kuberuntime.Object, error) {
		if refuse.CompareAndSwap(true, false) {
			refused.Store(true)
			return true, nil, errors.New("the API server is busy")
		}
		return false, nil, nil
	})
	alone(t, func() {
		during(t, s, func(<-chan struct{}) {
			answered(t, true)
			refuse.Store(true)
			if err := services.Delete(t.Context(), "kube-dns", metav1.DeleteOptions{}); err != nil {
				t.Error(err)
			}
			for deadline := time.Now().Add(30 * time.Second); ; {
				if _, err := services.Get(t.Context(), "kube-dns", metav1.GetOptions{}); err == nil && refused.Load() {
					break
				}
				if time.Now().After(deadline) {
					t.Errorf("the Service is not made again, refused: %t", refused.Load())
					return
				}
			}
			answered(t, true)
		})
	})
	if text := log.String(); strings.Count(text, "cluster DNS answers") != 1 || !strings.Contains(text, "the API server is busy") ||
		strings.Contains(text, "level=ERROR") {
		t.Errorf("the DNS has ended meanwhile: %s", text)
	}
}

// The C library finds names by a pod's search path and ndots, in the way that programs in pods do.
func TestCLibraryFindsNames(t *testing.T) {
	resolv := t.TempDir() + "/resolv.conf"
	content := "search default.svc.cluster.local svc.cluster.local cluster.local\nnameserver 10.96.0.10\noptions ndots:5\n"
	if err := os.WriteFile(resolv, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	var others []kuberuntime.Object // kube-dns is made by the server
	for _, obj := range cluster() {
		if s, ok := obj.(*corev1.Service); !ok || s.Name != serviceName {
			others = append(others, obj)
		}
	}
	s := newServer(t, fake.NewClientset(others...), &testkit.Log{})
	alone(t, func() {
		during(t, s, func(<-chan struct{}) {
			answered(t, true)
			for name, want := range map[string]string{
				"web": "10.96.0.20", "web.default": "10.96.0.20", "web.default.svc": "10.96.0.20", "web.default.svc.cluster.local": "10.96.0.20",
				"six.default": "fd00:96::22", "my-pet.pets": "10.244.0.2", "inward": "10.96.0.20", "10-1-2-3.default.pod": "10.1.2.3",
				"10.96.0.20": "web.default.svc.cluster.local", "none.default": "",
			} {
				database := "ahosts"
				if _, err := netip.ParseAddr(name); err == nil {
					database = "hosts"
				}
				cmd := exec.Command("sh", "-c", "mount --bind "+resolv+" /etc/resolv.conf && exec getent "+database+" "+name)
				cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS}
				out, err := cmd.CombinedOutput()
				if found := err == nil && strings.Contains(string(out), want); found != (want != "") {
					t.Errorf("%s is %q, %v, not %s", name, out, err, want)
				}
			}
		})
	})
}

func TestServiceWithAnotherAddress(t *testing.T) {
	s := newServer(t, fake.NewClientset(), &testkit.Log{})
	moved := s.service()
	moved.Spec.ClusterIP = "10.96.0.77"
	s.kube = fake.NewClientset(moved)
	if err := s.ensureService(t.Context()); err == nil ||
		!strings.Contains(err.Error(), "has the address 10.96.0.77, not 10.96.0.10: delete it") {
		t.Errorf("%v", err)
	}
}
