package dns

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"
	"golang.org/x/net/ipv4"
	"golang.org/x/sys/unix"
)

// serving is the environment variable that makes the test program a server on one processor.
const serving = "CORACLE_TEST_SERVE_DNS"

func TestMain(m *testing.M) {
	if os.Getenv(serving) == "" {
		os.Exit(m.Run())
	}
	pin(0)
	testing.Main(func(string, string) (bool, error) { return true, nil }, []testing.InternalTest{{Name: "serve", F: func(t *testing.T) {
		fmt.Println(listening(t, newHandler(t, stub("example.", upstream(t, example)), cluster()...)))
		_, _ = io.Copy(io.Discard, os.Stdin) // until the benchmark ends
	}}}, nil, nil)
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

// BenchmarkThroughput is how many queries a server on one processor answers, with the client on the
// other, and what one processor's second is worth. -benchtime=500000x makes it long enough.
func BenchmarkThroughput(b *testing.B) {
	for _, name := range []string{"web.default" + svc, "pets.default" + svc, "none.default" + svc, "www.example."} {
		b.Run(name, func(b *testing.B) { throughput(b, name) })
	}
}

func throughput(b *testing.B, name string) {
	if runtime.NumCPU() < 2 {
		b.Fatal("client and server need a processor each")
	}
	server := exec.Command("/proc/self/exe")
	server.Env = append(os.Environ(), serving+"=1", "GOMAXPROCS=1")
	stdin, err := server.StdinPipe()
	if err != nil {
		b.Fatal(err)
	}
	stdout, err := server.StdoutPipe()
	if err != nil {
		b.Fatal(err)
	}
	if err := server.Start(); err != nil {
		b.Fatal(err)
	}
	defer func() {
		stdin.Close()
		_ = server.Wait()
		b.ReportMetric(float64(b.N)/(server.ProcessState.UserTime()+server.ProcessState.SystemTime()).Seconds(), "queries/cpu-s")
	}()
	at, err := bufio.NewReader(stdout).ReadString('\n')
	if err != nil {
		b.Fatal(err)
	}
	pin(1)
	conn, err := net.Dial("udp", strings.TrimSpace(at))
	if err != nil {
		b.Fatal(err)
	}
	defer conn.Close()
	q := new(dns.Msg)
	q.SetQuestion(name, dns.TypeA)
	q.SetEdns0(payload, false)
	query, err := q.Pack()
	if err != nil {
		b.Fatal(err)
	}
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
				b.Fatal(err)
			}
			sent += n
		}
		_ = conn.SetReadDeadline(time.Now().Add(10 * time.Second))
		n, err := p.ReadBatch(in, 0)
		if err != nil {
			b.Fatalf("%d of %d queries are answered: %v", got, sent, err)
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
			b.Fatal(err)
		}
		if _, err := conn.Read(in[0].Buffers[0]); err != nil {
			b.Fatal(err)
		}
		took = append(took, time.Since(began))
	}
	slices.Sort(took)
	b.ReportMetric(float64(took[len(took)/2].Nanoseconds())/1e3, "p50-µs")
	b.ReportMetric(float64(took[len(took)*99/100].Nanoseconds())/1e3, "p99-µs")
}
