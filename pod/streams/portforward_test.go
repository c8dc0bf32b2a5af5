package streams

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"runtime"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/coracle-project/coracle/pod/errdefs"
	"github.com/coracle-project/coracle/pod/podtest"
	"github.com/coracle-project/coracle/pod/state"
)

// inNetNS runs f in a network namespace of its own, loopback up, and returns its path,
// which is good until the test ends.
func inNetNS(t *testing.T, f func()) string {
	t.Helper()
	type result struct {
		path string
		err  error
	}
	ready, done := make(chan result), make(chan struct{})
	t.Cleanup(func() { close(done) })
	go func() {
		runtime.LockOSThread() // for good: the thread dies, and the namespace with it
		err := unix.Unshare(unix.CLONE_NEWNET)
		if err == nil {
			err = netlink.LinkSetUp(&netlink.Dummy{LinkAttrs: netlink.LinkAttrs{Index: 1, Name: "lo"}})
		}
		if err == nil {
			f()
		}
		ready <- result{fmt.Sprintf("/proc/self/task/%d/ns/net", unix.Gettid()), err}
		<-done
	}()
	r := <-ready
	podtest.OK(t, r.err)
	return r.path
}

// forward runs PortForward on one end of a TCP connection and returns the other.
func forward(t *testing.T, b *bench, port int) (client *net.TCPConn, result <-chan error) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	podtest.OK(t, err)
	defer l.Close()
	conn, err := net.Dial("tcp", l.Addr().String())
	podtest.OK(t, err)
	server, err := l.Accept()
	podtest.OK(t, err)
	res := make(chan error, 1)
	go func() { res <- b.PortForward(t.Context(), b.podID, int32(port), server.(*net.TCPConn)) }()
	t.Cleanup(func() { conn.Close() })
	return conn.(*net.TCPConn), res
}

func TestPortForward(t *testing.T) {
	for _, address := range []string{"127.0.0.1:0", "[::1]:0"} {
		t.Run(address, func(t *testing.T) {
			var l net.Listener
			var lerr error
			path := inNetNS(t, func() { l, lerr = net.Listen("tcp", address) })
			podtest.OK(t, lerr)
			t.Cleanup(func() { l.Close() })
			b := newBench(t, path)
			go func() { // ends with the listener
				conn, err := l.Accept()
				if err != nil {
					return
				}
				defer conn.Close()
				all, _ := io.ReadAll(conn) // until the client has closed its half
				fmt.Fprintf(conn, "got %s\n", all)
			}()
			client, result := forward(t, b, l.Addr().(*net.TCPAddr).Port)
			fmt.Fprint(client, "hello")
			podtest.OK(t, client.CloseWrite())
			if line, err := bufio.NewReader(client).ReadString('\n'); line != "got hello\n" {
				t.Errorf("got %q, %v", line, err)
			}
			select {
			case err := <-result:
				podtest.OK(t, err)
			case <-time.After(patience):
				t.Fatal("does not end when both sides are closed")
			}
		})
	}
}

func TestPortForwardErrors(t *testing.T) {
	b := newBench(t, inNetNS(t, func() {}))
	for port, kind := range map[int]error{0: errdefs.ErrInvalid, 65536: errdefs.ErrInvalid, 81: errdefs.ErrUnavailable} {
		client, result := forward(t, b, port)
		if err := <-result; !errors.Is(err, kind) {
			t.Errorf("port %d: %v", port, err)
		}
		if _, err := client.Read(make([]byte, 1)); err == nil {
			t.Errorf("port %d: the stream is open", port)
		}
	}
	_, unreachable := forward(t, newBench(t, "/none"), 80)
	if err := <-unreachable; !errors.Is(err, errdefs.ErrUnavailable) {
		t.Errorf("no namespace: %v", err)
	}
	stopped := newBench(t, "")
	stopped.podID = stopped.node.Pod(func(r *state.PodRecord) { r.Phase = state.PodStopped }).ID
	client, result := forward(t, stopped, 80)
	if err := <-result; !errors.Is(err, errdefs.ErrPrecondition) {
		t.Errorf("port of a stopped pod: %v", err)
	}
	if _, err := client.Read(make([]byte, 1)); err == nil {
		t.Error("port of a stopped pod: the stream is open")
	}
	if err := stopped.CheckPod(stopped.podID); !errors.Is(err, errdefs.ErrPrecondition) {
		t.Errorf("check of a stopped pod: %v", err)
	}
}
