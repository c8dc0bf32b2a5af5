package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/coracle-project/coracle/cmd/coracle/nodes"
	"github.com/coracle-project/coracle/internal/atomicfile"
	"github.com/coracle-project/coracle/internal/forwarded"
)

// The further nodes of up --nodes. Each has namespaces of its own (package nodes), directories
// below those of the cluster, and is a node like one that has joined from another machine: all that
// is done there is done by this program, executed in its namespaces.
//
//	ROOT/nodes/N         --root of node N
//	ROOT/nodes/N.joined  written when join has ended; without it, what there is of a join is undone
//	STATE/nodes/N        --state of node N
//	STATE/nodes/ns       where namespaces are pinned

// defaultNodeNetworks are the networks of the nodes' addresses, unless up is told others.
var defaultNodeNetworks = []string{"10.84.0.0/24", "fd84:c0ac:1e00::/64"}

// atOnce is how many nodes are started at the same time: more are not faster on most machines.
const atOnce = 4

func (p place) nodesRoot() string  { return filepath.Join(p.root, "nodes") }
func (p place) nodesState() string { return filepath.Join(p.state, "nodes") }
func (p place) joinedFile(n int) string {
	return filepath.Join(p.nodesRoot(), strconv.Itoa(n)+".joined")
}

// furtherNodes is how many nodes there are after the first. As a flag it is the number of all, so
// its zero value, which is not remembered, is the default.
type furtherNodes int

// Set implements pflag.Value, as do the others.
func (f *furtherNodes) Set(text string) error {
	all, err := strconv.Atoi(text)
	if err != nil {
		return fmt.Errorf("%q is no number", text)
	}
	*f = furtherNodes(all - 1)
	return nil
}

func (furtherNodes) Type() string { return "int" }

func (f furtherNodes) String() string { return strconv.Itoa(int(f) + 1) }

// nodes is how many nodes of the cluster are on this machine.
func (o *upOptions) nodes() int { return int(o.Further) + 1 }

// of is the place of a further node of this cluster.
func (p place) of(n int, name string) place {
	number := strconv.Itoa(n)
	return place{root: filepath.Join(p.nodesRoot(), number), state: filepath.Join(p.nodesState(), number), node: name, cluster: p.flags()}
}

// nodeName is the name of the cluster's nth node on this machine.
func (o *upOptions) nodeName(n int) string {
	if n == 1 {
		return o.Node
	}
	return fmt.Sprintf("%s-%d", o.Node, n)
}

// further are the places of the nodes that up --nodes has made on this machine besides the first.
func (p place) further(o upOptions) []place {
	var all []place
	for n := 2; n <= o.nodes(); n++ {
		all = append(all, p.of(n, o.nodeName(n)))
	}
	return all
}

// hasLeft says whether the nth node had joined, and was taken out of the cluster by leave, which
// removes what the node remembers.
func (p place) hasLeft(n int) bool {
	_, err := os.Stat(p.joinedFile(n))
	return err == nil && remembered(p.of(n, "")).Server == ""
}

// nodeNetwork is the network that this machine's nodes share.
func (p place) nodeNetwork(o upOptions) nodes.Network {
	w := nodes.Network{Cluster: o.Port, Dir: filepath.Join(p.nodesState(), "ns")}
	for _, text := range o.nodeCIDRs() {
		if prefix, err := netip.ParsePrefix(text); err == nil { // check has refused others
			w.Prefixes = append(w.Prefixes, prefix)
		}
	}
	return w
}

func (o *upOptions) nodeCIDRs() []string {
	if len(o.NodeCIDRs) > 0 {
		return o.NodeCIDRs
	}
	if _, err := os.Stat("/proc/sys/net/ipv6"); err != nil {
		return defaultNodeNetworks[:1]
	}
	return defaultNodeNetworks
}

// several says whether the cluster has more nodes than this machine itself.
func (o *upOptions) several() bool { return o.nodes() > 1 && o.Server == "" }

// bind is the address that the API server serves on. Further nodes do not reach loopback.
func (o *upOptions) bind() string {
	addr, err := netip.ParseAddr(o.Bind)
	if !o.several() || err != nil || !addr.IsLoopback() {
		return o.Bind
	}
	return o.ownAddresses(1)[0]
}

// nodeIPs are the addresses of this machine's node.
func (o *upOptions) nodeIPs() []string {
	if !o.several() || len(o.NodeIPs) > 0 {
		return o.NodeIPs
	}
	return o.ownAddresses(1)
}

// ownAddresses are those of the nth node on the network of the nodes.
func (o *upOptions) ownAddresses(n int) []string {
	var all []string
	for _, a := range (place{}).nodeNetwork(*o).Address(n) {
		all = append(all, a.String())
	}
	return all
}

// checkNodes checks the flags about further nodes.
func (o *upOptions) checkNodes() error {
	if o.Server != "" {
		return nil
	}
	if o.nodes() < 1 || o.nodes() > nodes.Most {
		return fmt.Errorf("up: --nodes %d is not between 1 and %d", o.nodes(), nodes.Most)
	}
	if name := o.nodeName(o.nodes()); o.nodes() > 1 && len(name) > 63 {
		return fmt.Errorf("up: --node-name: %s, the name of node %d, is longer than 63 characters", name, o.nodes())
	}
	families := map[bool]bool{}
	for _, text := range o.NodeCIDRs {
		p, err := netip.ParsePrefix(text)
		if err != nil || p != p.Masked() || p.Addr().Is4In6() {
			return fmt.Errorf("up: --nodes-cidr %q is no network, such as %s", text, defaultNodeNetworks[0])
		}
		if p.Addr().BitLen()-p.Bits() < nodes.Bits {
			return fmt.Errorf("up: --nodes-cidr %s is too small: it needs at least %d addresses", p, 1<<nodes.Bits)
		}
		if families[p.Addr().Is4()] {
			return fmt.Errorf("up: --nodes-cidr %s: there is another network of this family", p)
		}
		families[p.Addr().Is4()] = true
	}
	return nil
}

// makeNodes makes the namespaces of further nodes, and the network that connects them.
func (u *upRun) makeNodes() error {
	if !u.o.several() {
		return nil
	}
	w := u.nodeNetwork(*u.o)
	if u.supervisor == 0 {
		if err := u.checkNodeNetworks(w); err != nil {
			return err
		}
	}
	// Written first, so that down removes what is made.
	if err := u.o.remember(u.place); err != nil {
		return err
	}
	if err := os.MkdirAll(u.nodesRoot(), 0o700); err != nil { // here, since a down may have removed it later
		return err
	}
	if err := w.Make(u.o.nodes(), u.root, u.state); err != nil {
		return fmt.Errorf("up: %w", err)
	}
	// coracled would take it for the operator's choice.
	on, err := w.Forwards()
	if err == nil && on {
		err = forwarded.Add(filepath.Join(u.state, "network"), forwarded.IPv4)
	}
	if err != nil {
		return fmt.Errorf("up: %w", err)
	}
	return nil
}

// checkNodeNetworks refuses networks that this machine has or reaches already.
func (u *upRun) checkNodeNetworks(w nodes.Network) error {
	n, err := readNodeNetwork()
	if err != nil {
		return fmt.Errorf("up: %w", err)
	}
	if bridge, err := netlink.LinkByName(w.Bridge()); err == nil { // of an earlier up
		own := bridge.Attrs().Index
		n.addresses = slices.DeleteFunc(n.addresses, func(a netlink.Addr) bool { return a.LinkIndex == own })
		n.routes = slices.DeleteFunc(n.routes, func(r netlink.Route) bool { return r.LinkIndex == own })
	}
	for _, p := range w.Prefixes {
		for _, text := range append(strings.Split(u.o.ServiceCIDR, ","), u.o.podRanges()...) {
			if other, err := netip.ParsePrefix(text); err == nil && other.Overlaps(p) {
				return fmt.Errorf("up: the network %s for the nodes' addresses overlaps %s: choose others with --nodes-cidr", p, other)
			}
		}
		if what := n.overlaps(p); what != "" {
			return fmt.Errorf("up: the network %s for the nodes' addresses overlaps %s: choose others with --nodes-cidr", p, what)
		}
	}
	return nil
}

// onNode runs this program in the namespaces of a further node, which must exist.
func (p place) onNode(ctx context.Context, name string, args ...string) error {
	return p.tellNode(ctx, name, "", args...)
}

// tellNode is onNode with something on standard input.
func (p place) tellNode(ctx context.Context, name, input string, args ...string) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	args = append([]string{"--root", p.root, "--state", p.state, "--node", name}, args...)
	cmd := exec.CommandContext(ctx, self, args...)
	cmd.Cancel = func() error { return cmd.Process.Signal(unix.SIGTERM) }
	cmd.WaitDelay = undoing
	var said bytes.Buffer
	cmd.Stdin, cmd.Stderr = strings.NewReader(input), &said
	if err := cmd.Run(); err != nil {
		if text := strings.TrimPrefix(strings.TrimSpace(said.String()), "coracle: "); text != "" {
			err = errors.New(text)
		}
		return fmt.Errorf("node %s: %w", name, err)
	}
	return nil
}

// enter makes this process one of the further node that --node names, and the place that node's.
func (p *place) enter() error { return p.enterWith(os.Args) }

// enterWith is enter with the arguments that this program is executed with there.
func (p *place) enterWith(args []string) error {
	const inside = "CORACLE_INSIDE_NODE" // in the environment of a process that is
	o := remembered(*p)
	if p.node == o.Node {
		p.node = ""
		return nil
	}
	text, ours := strings.CutPrefix(p.node, o.Node+"-")
	n, err := strconv.Atoi(text)
	w := p.nodeNetwork(o)
	if !ours || err != nil || n < 2 || n > nodes.Most || p.node != o.nodeName(n) || n > o.nodes() && !w.Has(n) {
		return fmt.Errorf("--node %s: 'coracle up --nodes' has made no node of this name on this machine", p.node)
	}
	name := p.node
	p.node = ""
	if os.Getenv(inside) != name {
		self, err := os.Executable()
		if err == nil {
			err = w.Exec(n, name, self, args, append(os.Environ(), inside+"="+name))
		}
		if errors.Is(err, nodes.ErrNotMade) {
			return fmt.Errorf("node %s does not run: 'coracle up%s' starts it", name, p.flags())
		}
		return fmt.Errorf("--node %s: %w", name, err)
	}
	if err := os.Unsetenv(inside); err != nil {
		return err
	}
	*p = p.of(n, name)
	return nil
}

// upNodes starts the further nodes, and has those join that have not joined yet. It returns when
// all are Ready or have failed: if one fails, the others continue.
func (u *upRun) upNodes(ctx context.Context, client *api, steps *steps) error {
	if err := u.removeSurplus(ctx, client, steps); err != nil {
		return err
	}
	if !u.o.several() {
		return nil
	}
	if lost := nodes.Unreachable(); len(lost) > 0 {
		steps.waits(fmt.Sprintf("the further nodes do not reach this machine's name servers, %v in /etc/resolv.conf, which are on its loopback: "+
			"name a server of its network there for pulls and for other names than the cluster's", lost))
	}
	var mu sync.Mutex // guards steps
	var made newToken // for those that have to join
	invited := sync.OnceValues(func() (newToken, error) {
		var err error
		made, err = u.invite(ctx)
		return made, err
	})
	var errs [nodes.Most + 1]error // one that fails does not end the others
	var group errgroup.Group
	group.SetLimit(atOnce)
	for n := 2; n <= u.o.nodes(); n++ {
		group.Go(func() error {
			if errs[n] = u.upNode(ctx, client, n, invited); errs[n] != nil {
				return nil
			}
			var waits string
			if u.o.PodNetwork == "cni" {
				if waits, errs[n] = client.awaitNode(ctx, u.o.nodeName(n), time.Time{}); errs[n] != nil {
					return nil
				}
			}
			mu.Lock()
			defer mu.Unlock()
			steps.node(u.o.nodeName(n), "Ready", waits)
			return nil
		})
	}
	_ = group.Wait() // each has its own error
	err := errors.Join(errs[:]...)
	if made.ID != "" {
		// One that was cut off before leaves a token, which expires.
		forgetting, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoing)
		defer cancel()
		err = errors.Join(err, kubeTool(forgetting, nil, "token", "--kubeconfig", u.kubeconfig(), "delete", "--", made.ID))
	}
	return err
}

// invite makes a token for the nodes that are to join.
func (u *upRun) invite(ctx context.Context) (made newToken, err error) {
	// The cluster publishes what it takes to join soon after it has started.
	err = await(ctx, "the cluster's invitation", u.kubeLog(), nil, func(try context.Context) error {
		return kubeTool(try, &made, "token", "--kubeconfig", u.kubeconfig(), "create", "--ttl", time.Hour.String(),
			"--description", "coracle up --nodes")
	})
	return made, err
}

// upNode starts a further node, or has it join.
func (u *upRun) upNode(ctx context.Context, client *api, n int, invited func() (newToken, error)) error {
	name, limit := u.o.nodeName(n), u.limit.remaining().Truncate(time.Millisecond)
	if limit <= 0 { // which the node's up would refuse as a flag
		return fmt.Errorf("node %s: %w", name, context.DeadlineExceeded)
	}
	p := u.of(n, name)
	flags := u.o.ofNode(p, n, limit)
	last := remembered(p)
	_, err := os.Stat(u.joinedFile(n))
	joined := err == nil && last.Server != ""
	if joined && last.Node == name {
		defer u.pauseForImages()()
		return u.onNode(ctx, name, append([]string{"up"}, flags...)...)
	}
	if joined { // with another --node-name
		if err := p.hasVolumes(ctx); err != nil {
			return fmt.Errorf("node %s cannot become %s: %w; 'coracle down%s' and then 'coracle up%[4]s --node-name' with the last name keep it",
				last.Node, name, err, u.flags())
		}
	}
	if err := u.removeNode(ctx, client, n); err != nil {
		return fmt.Errorf("node %s, which has to join from the beginning: %w", name, err)
	}
	token, err := invited()
	if err != nil {
		return err
	}
	args := append([]string{"join", token.Server, "--token-file", "-", "--ca-hash", token.CAHash}, flags...)
	resume := u.pauseForImages()
	err = u.tellNode(ctx, name, token.Token, args...)
	if resume(); err != nil {
		return err
	}
	return atomicfile.Write(u.joinedFile(n), nil, 0o600)
}

// pauseForImages stops the clock of --timeout while a node's up or join, which has the limit, too,
// may load images.
func (u *upRun) pauseForImages() (resume func()) {
	if !u.archives() {
		return func() {}
	}
	return u.limit.pause()
}

// ofNode are the flags of join and up for a further node: the cluster's, and what it has of its
// own.
func (o *upOptions) ofNode(p place, n int, limit time.Duration) []string {
	return []string{
		"--node-name", o.nodeName(n), "--node-ip", strings.Join(o.ownAddresses(n), ","),
		"--cgroup-root", o.CgroupRoot + "-" + strconv.Itoa(n), "--pod-log-dir", filepath.Join(p.logs(), "pods"),
		"--config", "", "--runtime-config", o.Config, "--short-name-registry", o.ShortNames, "--kubelet-port", strconv.Itoa(o.KubeletPort),
		"--eviction-hard", o.EvictionHard, "--allowed-unsafe-sysctls", strings.Join(o.UnsafeSysctls, ","), "--resolv-conf", o.ResolvConf,
		"--images", o.Images, "--bgp-as", o.BGPAS, "--bgp-peer", strings.Join(o.BGPPeers, ","), "--timeout", limit.String(),
	}
}
