package dns

import (
	"bufio"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/miekg/dns"
	"golang.org/x/net/ipv4"
	"golang.org/x/sys/unix"

	"github.com/coracle-project/coracle/cluster/nodeaddr"
)

// serving is the environment variable that makes the test program a server on one processor: of one
// pod, whose network namespace is that of the thread with this number, with "direct:" before it
// without a renamed port.
const serving = "CORACLE_TEST_SERVE_DNS"

func TestMain(m *testing.M) {
	client := os.Getenv(serving)
	if client == "" {
		os.Exit(m.Run())
	}
	pin(0)
	testing.Main(func(string, string) (bool, error) { return true, nil }, []testing.InternalTest{{Name: "serve", F: func(t *testing.T) {
		serveOnePod(t, client)
	}}}, nil, nil)
}

// serveOnePod serves the node's end of a link until stdin ends.
func serveOnePod(t *testing.T, client string) {
	client, direct := strings.CutPrefix(client, "direct:")
	const coracled = "1073741824" // the group of links of coracled's pods begins with it
	ip(t, "link set lo up", "link add cor0 group "+coracled+" type veth peer name eth0 netns "+client, "addr add 192.0.2.1/24 dev cor0",
		"link set cor0 up")
	addrs := []netip.Addr{heldAddr}
	release, err := nodeaddr.Hold(t.Context(), addrs, nil, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := release(); err != nil {
			t.Error(err)
		}
	}()
	var s *sockets
	at := uint16(port)
	if direct {
		s = &sockets{}
		err = s.listenAt(addrs, port)
	} else if s, at, err = listenAll(addrs); err == nil {
		var restore func() error
		if restore, err = nodeaddr.Rename(netip.AddrPortFrom(heldAddr, port), at); err == nil {
			defer func() {
				if err := restore(); err != nil {
					t.Error(err)
				}
			}()
		}
	}
	if err != nil {
		t.Fatal(err)
	}
	serveAt(t, newHandler(t, stub("example.", upstream(t, example)), cluster()...), s)
	fmt.Println("serving")
	_, _ = io.Copy(io.Discard, os.Stdin) // until the benchmark ends
}

// heldAddr is the address that clients ask.
var heldAddr = netip.MustParseAddr("10.96.0.10")

// ip runs commands of ip in the network namespace of this thread.
func ip(t testing.TB, commands ...string) {
	t.Helper()
	for _, args := range commands {
		if out, err := exec.Command("ip", strings.Fields(args)...).CombinedOutput(); err != nil {
			t.Fatalf("ip %s: %v: %s", args, err, out)
		}
	}
}

// onePod runs f in a network namespace of its own with a link to a server, which it gives as a
// process that has not been waited for.
func onePod(b *testing.B, mode string, f func()) *exec.Cmd {
	server := exec.Command("/proc/self/exe")
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // never unlocked: the thread ends, and the namespace with it
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			b.Errorf("it must be root: %v", err)
			return
		}
		server.Env = append(os.Environ(), fmt.Sprintf("%s=%s%d", serving, mode, unix.Gettid()), "GOMAXPROCS=1")
		server.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNET}
		stdin, err := server.StdinPipe()
		if err != nil {
			b.Error(err)
			return
		}
		defer stdin.Close()
		stdout, err := server.StdoutPipe()
		if err != nil {
			b.Error(err)
			return
		}
		if err := server.Start(); err != nil {
			b.Error(err)
			return
		}
		if line, err := bufio.NewReader(stdout).ReadString('\n'); line != "serving\n" {
			b.Errorf("the server says %q, %v", line, err)
			return
		}
		ip(b, "link set lo up", "addr add 192.0.2.2/24 dev eth0", "link set eth0 up", "route add default via 192.0.2.1")
		f()
	}()
	<-done
	return server
}

// pin keeps this process on a processor.
func pin(cpu int) {
	var set unix.CPUSet
	set.Set(cpu)
	threads, err := os.ReadDir("/proc/self/task")
	if err != nil {
		panic(err)
	}
	for _, thread := range threads {
		var tid int
		if _, err := fmt.Sscan(thread.Name(), &tid); err == nil {
			_ = unix.SchedSetaffinity(tid, &set)
		}
	}
}

// BenchmarkThroughput is how many queries of a pod a server on one processor answers, with the pod
// on the other, and what one processor's second is worth. -benchtime=500000x makes it long enough.
func BenchmarkThroughput(b *testing.B) {
	for _, name := range []string{"web.default" + svc, "pets.default" + svc, "none.default" + svc, "www.example."} {
		b.Run(name, func(b *testing.B) { throughput(b, "", name) })
	}
	b.Run("without renamed ports", func(b *testing.B) { throughput(b, "direct:", "web.default"+svc) })
}

func throughput(b *testing.B, mode, name string) {
	if runtime.NumCPU() < 2 {
		b.Fatal("client and server need a processor each")
	}
	server := onePod(b, mode, func() { measure(b, name) })
	_ = server.Wait()
	b.ReportMetric(float64(b.N)/(server.ProcessState.UserTime()+server.ProcessState.SystemTime()).Seconds(), "queries/cpu-s")
}

func measure(b *testing.B, name string) {
	pin(1)
	conn, err := net.Dial("udp", netip.AddrPortFrom(heldAddr, port).String())
	if err != nil {
		b.Error(err)
		return
	}
	defer conn.Close()
	query := ask(b, name, dns.TypeA, withEDNS)
	const batch, window = 16, 64
	p := ipv4.NewPacketConn(conn.(*net.UDPConn))
	out, in := make([]ipv4.Message, batch), make([]ipv4.Message, batch)
	for i := range batch {
		out[i].Buffers, in[i].Buffers = [][]byte{query}, [][]byte{make([]byte, payload)}
	}
	var sent, got int
	b.ResetTimer()
	for got < b.N {
		for sent < b.N && sent-got <= window-batch {
			n, err := p.WriteBatch(out[:min(batch, b.N-sent)], 0)
			if err != nil {
				b.Error(err)
				return
			}
			sent += n
		}
		_ = conn.SetReadDeadline(time.Now().Add(10 * time.Second))
		n, err := p.ReadBatch(in, 0)
		if err != nil {
			b.Errorf("%d of %d queries are answered: %v", got, sent, err)
			return
		}
		got += n
	}
	b.StopTimer()
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "queries/s")

	// One query at a time, after that.
	var took []time.Duration
	for range 5000 {
		began := time.Now()
		if _, err := conn.Write(query); err != nil {
			b.Error(err)
			return
		}
		if _, err := conn.Read(in[0].Buffers[0]); err != nil {
			b.Error(err)
			return
		}
		took = append(took, time.Since(began))
	}
	slices.Sort(took)
	b.ReportMetric(float64(took[len(took)/2].Nanoseconds())/1e3, "p50-µs")
	b.ReportMetric(float64(took[len(took)*99/100].Nanoseconds())/1e3, "p99-µs")
}
