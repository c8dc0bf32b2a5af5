package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/url"
	"os"
	"os/signal"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/coracle-project/coracle/internal/privatedir"
)

// joinFlags are the flags of up that name a cluster to join; without the first, up joins none.
var joinFlags = []string{"join", "token", "ca-hash", "certificate-key"}

const defaultPeerPort = 2380

// ofCluster are the flags of up that must be the same on all control-plane nodes of a cluster.
var ofCluster = []string{
	"service-cidr", "pod-cidr", "pod-network", "cluster-domain", "cluster-dns", "dns-stub-domain", "load-balancer-cidr", "network-policies",
	"etcd-servers", "pod-security", "authentication-token-webhook-version", "node-monitor-grace-period", "cluster-signing-duration",
}

// filesOfCluster are the flags of up that name files which must have the same content on all
// control-plane nodes. Each machine has its own copy.
var filesOfCluster = []string{
	"encryption-provider-config", "audit-policy-file", "audit-webhook-config-file", "scheduler-config", "authentication-config",
	"authentication-token-webhook-config-file",
}

// forControlPlane returns the settings that another control-plane node follows.
func (o upOptions) forControlPlane() (shared upOptions) {
	from, to := o.settings(), shared.settings()
	for _, flag := range slices.Concat(ofCluster, filesOfCluster) {
		reflect.ValueOf(to[flag]).Elem().Set(reflect.ValueOf(from[flag]).Elem())
	}
	return shared
}

// sharedFiles are the arguments that name this machine's files of filesOfCluster.
func (o *upOptions) sharedFiles() (args []string) {
	all := o.settings()
	for _, flag := range filesOfCluster {
		if file, _ := all[flag].(*string); *file != "" {
			args = append(args, "--shared-file", flag+"="+*file)
		}
	}
	return args
}

// followCluster adopts the settings of the cluster that this machine joins. A setting that was
// given must be the same.
func (o *upOptions) followCluster(cluster upOptions, given func(flag string) bool) error {
	theirs := cluster.settings()
	own := o.settings()
	for _, flag := range filesOfCluster {
		mine, _ := own[flag].(*string)
		want, _ := theirs[flag].(*string)
		if err := bothHave(flag, *mine, *want); err != nil {
			return err
		}
	}
	for _, flag := range ofCluster {
		mine, want := reflect.ValueOf(own[flag]).Elem(), reflect.ValueOf(theirs[flag]).Elem()
		if given(flag) && !equal(mine, want) {
			return fmt.Errorf("--%s%s: the cluster has --%[1]s%[3]s, and its control-plane nodes have to agree", flag, shown(own[flag]), shown(theirs[flag]))
		}
		mine.Set(want)
	}
	return nil
}

// bothHave refuses a machine without the file of a flag that the cluster has, or the other way
// round. Whether their content is the same, the API server says when the machine becomes a
// control-plane node: it may have changed since the token was made.
func bothHave(flag, mine, cluster string) error {
	switch {
	case mine == "" && cluster != "":
		return fmt.Errorf("the cluster has --%s %s: copy that file to this machine, and give it as --%[1]s", flag, cluster)
	case mine != "" && cluster == "":
		return fmt.Errorf("--%s %s: the cluster has none, and its control-plane nodes have to agree", flag, mine)
	}
	return nil
}

// readSecrets sets the token and the certificate key by the files that are given instead: every
// user of the machine can read the arguments of a process.
func readSecrets(flags *pflag.FlagSet, input io.Reader) error {
	read := false
	for _, secret := range []struct{ flag, what string }{{"token", "token, ID.SECRET,"}, {"certificate-key", "certificate key"}} {
		file, err := flags.GetString(secret.flag + "-file")
		if err != nil || file == "" {
			continue // join has no certificate key
		}
		if file == "-" && read {
			return errors.New("standard input can hold the token or the certificate key: give the other one in a file")
		}
		read = read || file == "-"
		word, err := secretIn(secret.flag+"-file", file, secret.what, input)
		if err == nil {
			err = flags.Set(secret.flag, word)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// joinControlPlane makes this machine a control-plane node of a cluster, and starts it.
func joinControlPlane(ctx context.Context, p place, o upOptions, given func(flag string) bool, out io.Writer) error {
	if os.Geteuid() != 0 {
		return errors.New("up --join: only root may make namespaces, mounts and networks: use sudo")
	}
	o.joins.server = strings.TrimSuffix(o.joins.server, "/")
	server, err := url.Parse(o.joins.server)
	if err != nil || server.Scheme != "https" || server.Port() == "" {
		return fmt.Errorf("up --join: %q is no address of an API server, such as https://10.0.0.1:6443", o.joins.server)
	}
	for _, flag := range joinFlags[1:] {
		if !given(flag) {
			return fmt.Errorf("up --join: --%s is missing: 'coracle token create --control-plane' on the first machine prints the whole command", flag)
		}
	}
	if err := p.single(); err != nil {
		return fmt.Errorf("up --join: %w", err)
	}
	if !given("bind-address") {
		if o.Bind, err = addressTowards(server.Host); err != nil {
			return fmt.Errorf("up --join: %w; give this machine's address as --bind-address", err)
		}
	}
	if err := o.absolutePaths(); err != nil {
		return err
	}
	if err := o.check(); err != nil {
		return err
	}
	steps := newSteps(out)
	if err := preflight(ctx, p, o, server.String(), steps); err != nil {
		return err
	}
	for _, dir := range []string{p.root, p.state} {
		if err := privatedir.Make(dir); err != nil {
			return err
		}
	}
	err = o.enterControlPlane(ctx, p, given, steps)
	switch {
	case err == nil:
		err = up(ctx, p, o, given, out)
	case !p.hasKeys():
		return fmt.Errorf("up --join: %w", err)
	}
	if err != nil {
		return fmt.Errorf("%w\nthe cluster counts this machine as a control-plane node: 'coracle up%s' tries again, and 'coracle leave%[2]s' takes it "+
			"out of the cluster; if its API server never started, run 'coracle node remove %s' on another control-plane node (with its URL, if "+
			"'coracle status' there shows no name), and then 'coracle leave --force%[2]s' here", err, p.flags(), o.Node)
	}
	return nil
}

// enterControlPlane gets the cluster's settings and keys, and has etcd count this machine as a
// member. The settings are remembered before there are keys: a start with keys must follow them.
func (o *upOptions) enterControlPlane(ctx context.Context, p place, given func(flag string) bool, steps *steps) error {
	ctx, cancel := context.WithTimeout(ctx, o.timeout)
	defer cancel()
	args := []string{
		"controlplane", "join", o.joins.server, "--root", p.kubeRoot(), "--ca-hash", strings.Join(o.joins.hashes, ","), "--node-name", o.Node,
		"--bind-address", o.Bind, "--etcd-peer-port", strconv.Itoa(o.etcdPeerPort()),
	}
	secrets := o.joins.token + " " + o.certificateKey
	var cluster upOptions
	if err := kubeToolReading(ctx, secrets, &cluster, append(args, "--only-settings")...); err != nil {
		return err
	}
	if err := o.followCluster(cluster, given); err != nil {
		return err
	}
	last := remembered(p)
	if err := o.remember(p); err != nil {
		return err
	}
	var joined struct {
		Members map[string]string `json:"members"`
		Kept    string            `json:"kept"`
	}
	if err := kubeToolReading(ctx, secrets, &joined, append(args, o.sharedFiles()...)...); err != nil {
		if p.hasKeys() {
			return err
		}
		return errors.Join(err, last.restore(p))
	}
	if len(joined.Members) > 0 {
		steps.done("etcd has the members " + strings.Join(slices.Sorted(maps.Keys(joined.Members)), ", "))
	}
	if joined.Kept != "" {
		steps.waits(joined.Kept)
	}
	return nil
}

// addressTowards is this machine's address for packets to another one. None is sent.
func addressTowards(host string) (string, error) {
	conn, err := net.Dial("udp", host)
	if err != nil {
		return "", err
	}
	defer conn.Close()
	return conn.LocalAddr().(*net.UDPAddr).IP.String(), nil
}

// severalControlPlanes is whether this machine's etcd has other members, or had.
func (p place) severalControlPlanes() bool {
	_, err := os.Stat(filepath.Join(p.kubeRoot(), "etcd", "peers.json"))
	return err == nil
}

// hasKeys is whether this machine has the keys of a cluster, its own or one that it joined as a
// control-plane node.
func (p place) hasKeys() bool {
	_, err := os.Stat(filepath.Join(p.kubeRoot(), "pki"))
	return err == nil
}

func nodeCommand(p *place) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "node",
		Short: "remove nodes whose machines are gone",
		Long: `On a control-plane node, "node remove" takes another machine out of the cluster, also if it is gone for good. A machine
that runs leaves by itself: "coracle leave".`,
		Example: "  coracle node remove three",
	}
	cmd.AddCommand(&cobra.Command{
		Use: "remove NODE", Short: "take a node out of the cluster whose machine is gone", Args: cobra.ExactArgs(1),
		Long: `remove deletes the Node. If it was a control-plane node, its member of etcd goes first: it counts for the quorum as long
as it is a member.`,
		Example: "  coracle node remove three",
		RunE: func(cmd *cobra.Command, args []string) error {
			ctx, stop := signal.NotifyContext(cmd.Context(), syscall.SIGTERM, syscall.SIGINT)
			defer stop()
			ctx, cancel := context.WithTimeout(ctx, time.Minute)
			defer cancel()
			if _, err := os.Stat(p.kubeconfig()); err != nil {
				return fmt.Errorf("node remove: this machine is no control-plane node: %w", err)
			}
			if o := remembered(*p); o.Node == args[0] {
				return fmt.Errorf("node remove: %s is this machine: 'coracle leave%s' takes it out of the cluster", args[0], p.flags())
			}
			return p.removeNode(ctx, newSteps(cmd.OutOrStdout()), "node remove", args[0])
		},
	})
	return cmd
}

func (p place) removeNode(ctx context.Context, steps *steps, what, name string, more ...string) error {
	var removed struct{ Member, Node bool }
	args := append([]string{"controlplane", "remove", name, "--kubeconfig", p.kubeconfig()}, more...)
	if err := kubeTool(ctx, &removed, args...); err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	if removed.Member {
		steps.done(name + " is no member of etcd any more")
	}
	if removed.Node {
		steps.done("node " + name + " is deleted from the cluster")
	}
	return nil
}

// leaveControlPlane takes this machine out of a cluster that has other control-plane nodes.
func leaveControlPlane(ctx context.Context, p place, o upOptions, l leaving, out io.Writer) error {
	steps := newSteps(out)
	err := kubeTool(ctx, nil, "controlplane", "drain", o.Node, "--self", "--kubeconfig", p.kubeconfig(), "--timeout", l.limit.String())
	switch {
	case err == nil:
		steps.done("node " + o.Node + " has no pods left but those of DaemonSets")
	case l.force:
		steps.waits("the pods were not evicted: " + err.Error())
	default:
		return fmt.Errorf("leave: nothing was removed: %w; 'coracle leave --force%s' removes this machine's part anyway", err, p.flags())
	}
	// While this machine's etcd runs: of two members both have to agree.
	switch err := p.removeNode(ctx, steps, "leave", o.Node, "--self"); {
	case err == nil:
	case l.force:
		steps.waits(err.Error() + "; 'coracle node remove " + o.Node + "' on another control-plane node removes it there")
	default:
		return fmt.Errorf("%w; 'coracle leave --force%s' removes this machine's part anyway", err, p.flags())
	}
	return downStepping(ctx, p, true, l.volumes, steps)
}
