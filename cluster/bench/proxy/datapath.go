package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/coracle-project/coracle/cluster/internal/netspace"
)

const (
	// pathServices is how many Services there are while connections to one of them are measured.
	pathServices = 1000
	// pathRuns is how often each proxy is measured, in turn with the other.
	pathRuns = 10
	// pathConnections is how many connections a run makes, with one byte each way, by so many
	// clients at once.
	pathConnections, pathClients = 6000, 2
	// pathService is the Service that is measured: its address and its endpoints' network are in
	// world.
	pathService, pathTarget, pathEndpoints = 1, "10.96.0.2:80", "11.0.0"
)

// path is what one run has measured.
type path struct {
	rate     float64       // connections per second
	p50, p99 time.Duration // from connect to the answer
	cpu      time.Duration // of client, server and kernel, for each connection
}

// dataPath prints what connections through a ClusterIP cost with both proxies.
func dataPath(limit time.Duration) error {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	names := proxies
	nodes := make([]*pathNode, len(names))
	for i, name := range names {
		n, err := startPath(ctx, name)
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		defer n.end()
		nodes[i] = n
	}
	all := make([][]path, len(names))
	for range pathRuns + 1 {
		for i, n := range nodes {
			p, err := n.run()
			if err != nil {
				return fmt.Errorf("%s: %w", names[i], err)
			}
			all[i] = append(all[i], p)
		}
	}
	fmt.Printf("\nConnections to a ClusterIP among %d Services, %d runs each, in turn; the median of the runs (lowest to highest).\n\n",
		pathServices, pathRuns)
	fmt.Println("| proxy | connections/s | p50 | p99 | CPU of a connection |")
	fmt.Println("| --- | --- | --- | --- | --- |")
	for i := range all {
		all[i] = all[i][1:] // the first one warms up
		micro := func(of func(path) time.Duration) string {
			return spread(all[i], func(p path) float64 { return float64(of(p).Nanoseconds()) / 1000 }) + " µs"
		}
		fmt.Printf("| %s | %s | %s | %s | %s |\n", names[i], spread(all[i], func(p path) float64 { return p.rate }),
			micro(func(p path) time.Duration { return p.p50 }), micro(func(p path) time.Duration { return p.p99 }),
			micro(func(p path) time.Duration { return p.cpu }))
	}
	var ratios []float64
	for i := range all[0] {
		ratios = append(ratios, float64(all[0][i].cpu)/float64(all[1][i].cpu))
	}
	slices.Sort(ratios)
	fmt.Printf("\nCPU of a connection, coracle to kube-proxy, in pairs: median %.3f (%.3f to %.3f).\n", ratios[len(ratios)/2], ratios[0],
		ratios[len(ratios)-1])
	return nil
}

func spread(runs []path, of func(path) float64) string {
	var all []float64
	for _, r := range runs {
		all = append(all, of(r))
	}
	slices.Sort(all)
	return fmt.Sprintf("%.0f (%.0f to %.0f)", all[len(all)/2], all[0], all[len(all)-1])
}

// pathNode is a process with a node of its own, which measures when it gets a line.
type pathNode struct {
	cmd *exec.Cmd
	in  io.WriteCloser
	out *bufio.Reader
}

func startPath(ctx context.Context, name string) (*pathNode, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, self, "-path", name)
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNET, Pdeathsig: syscall.SIGKILL}
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	n := &pathNode{cmd, in, bufio.NewReader(out)}
	_, err = n.out.ReadString('\n') // all rules are in force
	return n, err
}

func (n *pathNode) run() (p path, err error) {
	if _, err := io.WriteString(n.in, "run\n"); err != nil {
		return p, err
	}
	line, err := n.out.ReadString('\n')
	if err == nil {
		_, err = fmt.Sscan(line, &p.rate, &p.p50, &p.p99, &p.cpu)
	}
	return p, err
}

func (n *pathNode) end() {
	_ = n.in.Close()
	_ = n.cmd.Wait()
}

// servePath is such a process.
func servePath(name string) error {
	ctx := context.Background()
	client, err := newPod("client", 1, "10.244.0.2")
	if err != nil {
		return err
	}
	var addresses []string
	for e := range 10 {
		addresses = append(addresses, pathEndpoints+"."+strconv.Itoa(pathService*10+e))
	}
	server, err := newPod("server", 2, addresses...)
	if err != nil {
		return err
	}
	if err := os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("1"), 0); err != nil {
		return err
	}
	var l net.Listener
	if err := netspace.Within(server, func() (err error) { l, err = net.Listen("tcp", ":8080"); return err }); err != nil {
		return err
	}
	go answer(l)
	s, err := newSubject(ctx, name, newWorld(pathServices))
	if err != nil {
		return err
	}
	if err := s.sync(ctx); err != nil {
		return err
	}
	fmt.Println("ready")
	for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
		p, err := connect(client)
		if err != nil {
			return err
		}
		fmt.Println(p.rate, int64(p.p50), int64(p.p99), int64(p.cpu))
	}
	return nil
}

// answer sends back one byte of each connection.
func answer(l net.Listener) {
	for {
		conn, err := l.Accept()
		if err != nil {
			return
		}
		go func() {
			defer conn.Close()
			b := make([]byte, 1)
			if _, err := io.ReadFull(conn, b); err == nil {
				_, _ = conn.Write(b)
				_, _ = conn.Read(b) // until the client closes
			}
		}()
	}
}

// connect makes the connections of a run.
func connect(client netns.NsHandle) (path, error) {
	var mu sync.Mutex
	var took []time.Duration
	var errs []error
	var clients sync.WaitGroup
	runtime.GC()
	began, cpu := time.Now(), used()
	for range pathClients {
		clients.Go(func() {
			err := netspace.Within(client, func() error {
				for range pathConnections / pathClients {
					t, err := once()
					mu.Lock()
					took, errs = append(took, t), append(errs, err)
					mu.Unlock()
				}
				return nil
			})
			mu.Lock()
			defer mu.Unlock()
			errs = append(errs, err)
		})
	}
	clients.Wait()
	wall, cpu := time.Since(began), used()-cpu
	slices.Sort(took)
	n := len(took)
	return path{float64(n) / wall.Seconds(), took[n/2], took[n*99/100], cpu / time.Duration(n)}, errors.Join(errs...)
}

func once() (time.Duration, error) {
	began := time.Now()
	conn, err := net.Dial("tcp", pathTarget)
	if err != nil {
		return 0, err
	}
	defer conn.Close()
	b := []byte("x")
	if _, err := conn.Write(b); err != nil {
		return 0, err
	}
	if _, err := io.ReadFull(conn, b); err != nil {
		return 0, err
	}
	took := time.Since(began)
	return took, conn.(*net.TCPConn).SetLinger(0) // a port that is closed in the usual way cannot be used for a minute
}

// newPod makes a network namespace with a link to the one of this process.
func newPod(name string, number int, addresses ...string) (netns.NsHandle, error) {
	pod, err := netspace.New()
	if err == nil {
		err = netspace.Within(pod, func() error { return ip("link set lo up") })
	}
	if err != nil {
		return pod, err
	}
	if err := netlink.LinkAdd(&netlink.Veth{
		LinkAttrs: netlink.LinkAttrs{Name: name}, PeerName: "eth0", PeerNamespace: netlink.NsFd(int(pod)),
	}); err != nil {
		return pod, fmt.Errorf("add link %s: %w", name, err)
	}
	near := netip.AddrFrom4([4]byte{169, 254, byte(number), 1}).String()
	commands := []string{"link set " + name + " up", "addr add " + near + "/32 dev " + name}
	inside := []string{"link set eth0 up"}
	for _, a := range addresses {
		commands = append(commands, "route add "+a+" dev "+name)
		inside = append(inside, "addr add "+a+"/32 dev eth0")
	}
	inside = append(inside, "route add "+near+" dev eth0", "route add default via "+near+" dev eth0")
	run := func(commands []string) error {
		var errs []error
		for _, c := range commands {
			errs = append(errs, ip(c))
		}
		return errors.Join(errs...)
	}
	return pod, errors.Join(run(commands), netspace.Within(pod, func() error { return run(inside) }))
}

func ip(command string) error {
	if out, err := exec.Command("ip", strings.Fields(command)...).CombinedOutput(); err != nil {
		return fmt.Errorf("ip %s: %w: %s", command, err, out)
	}
	return nil
}
