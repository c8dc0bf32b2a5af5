package apiserver

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/netip"
	"os/exec"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/kubernetes/pkg/controlplane/reconcilers"

	"github.com/coracle-project/coracle/cluster/nodeaddr"
)

// asked is a reconciler that counts what it is asked for.
type asked struct {
	reconcilers.EndpointReconciler
	times int
}

func (a *asked) ReconcileEndpoints(string, net.IP, []corev1.EndpointPort, bool) error {
	a.times++
	return nil
}

// A server that cannot hold the kubernetes Service's address when it starts serves pods as soon as
// it can. Until then the Service has no endpoint.
func TestTheServicesAddressIsTriedAgain(t *testing.T) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // never unlocked: the thread ends, and the namespace with it
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			t.Errorf("it must be root: %v", err)
			return
		}
		for _, args := range []string{"link set lo up", "link add other type bridge", "addr add 10.96.0.1/32 dev other"} {
			ip(t, args)
		}
		first, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Error(err)
			return
		}
		all := merge(first)
		at := netip.AddrPortFrom(netip.MustParseAddr("10.96.0.1"), uint16(first.Addr().(*net.TCPAddr).Port))
		s := &Server{options: Options{BindAddress: "127.0.0.1", Log: slog.New(slog.DiscardHandler)}}
		h := &heldAddress{server: s, at: at, listeners: all, again: 5 * time.Millisecond}
		counted := &asked{}
		endpoints := heldEndpoints{counted, &s.held}
		reconcile := func() int {
			if err := endpoints.ReconcileEndpoints("kubernetes", nil, nil, true); err != nil {
				t.Error(err)
			}
			return counted.times
		}
		_, taken := h.hold(t.Context())
		if !errors.Is(taken, nodeaddr.ErrTaken) {
			t.Errorf("the first try: %v", taken)
			return
		}
		if n := reconcile(); n != 0 {
			t.Error("the Service has an endpoint that does not answer")
		}
		here, err := unix.Open("/proc/thread-self/ns/net", unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err != nil {
			t.Error(err)
			return
		}
		defer unix.Close(here)
		held := make(chan func(), 1)
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		go func() {
			runtime.LockOSThread()
			if err := unix.Setns(here, unix.CLONE_NEWNET); err != nil {
				t.Error(err)
			}
			held <- h.keepTrying(ctx, taken)
		}()
		ip(t, "addr del 10.96.0.1/32 dev other")
		release := <-held
		for _, port := range []string{"443", at.String()[strings.LastIndexByte(at.String(), ':')+1:]} {
			client, err := net.Dial("tcp", net.JoinHostPort("10.96.0.1", port))
			if err != nil {
				t.Error(err)
				continue
			}
			conn, err := all.Accept()
			if err != nil || conn.LocalAddr().String() != at.String() {
				t.Errorf("port %s: %v, %v", port, conn, err)
			}
			_ = client.Close()
		}
		if n := reconcile(); n != 1 {
			t.Errorf("the Service has no endpoint: %d", n)
		}
		if err := all.Close(); err != nil {
			t.Error(err)
		}
		release()
		if n := reconcile(); n != 1 {
			t.Error("the Service has an endpoint again that does not answer")
		}
		if conn, err := net.DialTimeout("tcp", at.String(), time.Second); err == nil {
			conn.Close()
			t.Error("the address is left")
		}
		// A socket that comes after the end is closed.
		late, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Error(err)
			return
		}
		all.add(late)
		if _, err := late.Accept(); !errors.Is(err, net.ErrClosed) {
			t.Errorf("a socket is left: %v", err)
		}
	}()
	<-done
}

// ip runs a command of ip in the network namespace of this thread.
func ip(t *testing.T, args string) {
	if out, err := exec.Command("ip", strings.Fields(args)...).CombinedOutput(); err != nil {
		t.Errorf("ip %s: %v: %s", args, err, out)
	}
}
