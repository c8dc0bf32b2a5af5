package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/coracle-project/coracle/cmd/coracle/doctor"
	"github.com/coracle-project/coracle/internal/privatedir"
)

// joining says which cluster a machine joins.
type joining struct {
	server, token string
	hashes        []string
}

// agentFlags are the flags of up that join has, too: those of a node.
var agentFlags = []string{
	"runtime-config", "short-name-registry", "node-name", "node-ip", "kubelet-port", "pod-log-dir", "cgroup-root", "eviction-hard",
	"allowed-unsafe-sysctls", "resolv-conf", "images", "bgp-as", "bgp-peer",
}

func joinCommand(p *place) *cobra.Command {
	var o upOptions
	var j joining
	cmd := &cobra.Command{
		Use:   "join [https://HOST:PORT] (--token TOKEN | --token-file FILE) --ca-hash HASH",
		Short: "make this machine a node of a cluster on another machine",
		Long: `join makes this machine a node of the cluster at HOST: it starts coracled, unless one already serves the socket in
--state, and one process with kubelet, service proxy, DNS and network policies. "coracle token create" on the first
machine prints the whole command.

The token and the hash are needed once. "coracle up" starts the node again after "coracle down" or a reboot, and
"coracle leave" takes it out of the cluster. Every user of this machine can read a token in the arguments of join while
it runs: --token-file reads it from a file or, with -, from standard input.

The file of --config has flags by their names, server, token and ca-hash among them. Flags override it.`,
		Example: `  coracle join https://10.0.0.1:6443 --token abcdef.0123456789abcdef --ca-hash sha256:…
  coracle join https://10.0.0.1:6443 --token abcdef.0123456789abcdef --ca-hash sha256:… --node-name two --node-ip 10.0.0.2
  coracle join https://10.0.0.1:6443 --token-file - --ca-hash sha256:… < token
  coracle join https://10.0.0.1:6443 --token-file - --ca-hash sha256:… --bgp-as 64512 --bgp-peer '10.0.0.254 as=64500' < token`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			ctx, stop := signal.NotifyContext(cmd.Context(), syscall.SIGTERM, syscall.SIGINT)
			defer stop()
			if len(args) == 1 {
				if err := cmd.Flags().Set("server", args[0]); err != nil {
					return err
				}
			}
			if err := readSecrets(cmd.Flags(), cmd.InOrStdin()); err != nil {
				return fmt.Errorf("join: %w", err)
			}
			file, err := o.openClusterFile(*p, cmd.Flags())
			if err == nil {
				err = file.apply(cmd.Flags())
			}
			if err == nil {
				err = j.check()
			}
			if err != nil {
				return fmt.Errorf("join: %w", err)
			}
			o.FromFile = file.keys()
			j.server = strings.TrimSuffix(j.server, "/")
			return join(ctx, *p, o, j, cmd.Flags().Changed, cmd.OutOrStdout())
		},
	}
	all := upFlags(&o)
	for _, name := range append(agentFlags, "timeout", "config") {
		cmd.Flags().AddFlag(all.Lookup(name))
	}
	j.define(cmd.Flags())
	cmd.Flags().String("token-file", "", "`FILE` with the token; - for standard input")
	cmd.MarkFlagsMutuallyExclusive("token", "token-file")
	return cmd
}

// define adds the flags joinKeys.
func (j *joining) define(f *pflag.FlagSet) {
	f.StringVar(&j.server, "server", "", "`URL` of the cluster's API server, as the argument")
	f.StringVar(&j.token, "token", "", "`TOKEN` of the cluster, ID.SECRET")
	f.StringSliceVar(&j.hashes, "ca-hash", nil, "`HASH` of the cluster's authority, sha256:…")
}

// check says what is missing.
func (j *joining) check() error {
	missing := ""
	switch {
	case j.server == "":
		missing = "server"
	case j.token == "":
		missing = "token"
	case len(j.hashes) == 0:
		missing = "ca-hash"
	default:
		return nil
	}
	return fmt.Errorf("--%s is missing: 'coracle token create' on the first machine prints the whole command", missing)
}

// joined says whether this machine has the certificate of a node of another cluster.
func (p place) joined() bool {
	_, err := os.Stat(filepath.Join(p.kubeRoot(), "agent", "cluster.json"))
	return err == nil
}

// agentArgs are the arguments of the agent, which runs the node of a cluster elsewhere.
func agentArgs(p place, o upOptions) []string {
	args := []string{
		"agent", "--root", p.kubeRoot(), "--state", p.kubeState(), "--cri", "unix://" + p.Socket(),
		"--pod-log-dir", o.PodLogs, "--cgroup-root", o.CgroupRoot,
	}
	if o.KubeletPort != 0 {
		args = append(args, "--kubelet-port", strconv.Itoa(o.KubeletPort))
	}
	for _, further := range [][2]string{
		{"--node-ip", strings.Join(o.NodeIPs, ",")},
		{"--eviction-hard", o.EvictionHard},
		{"--allowed-unsafe-sysctls", strings.Join(o.UnsafeSysctls, ",")},
		{"--resolv-conf", o.ResolvConf},
	} {
		if further[1] != "" {
			args = append(args, further[0], further[1])
		}
	}
	return append(args, bgpRoutesArgs(p, o)...)
}

// checkAgent refuses flags that an up on a node of another cluster cannot follow.
func (o *upOptions) checkAgent(differ []string) error {
	if len(o.apply) > 0 {
		differ = append(differ, "apply")
	}
	for _, flag := range differ {
		if !slices.Contains(agentFlags, flag) || flag == "node-name" {
			return fmt.Errorf("up --%s: this machine is node %s of the cluster at %s, and the flag is for a cluster of its own: 'coracle leave' "+
				"takes it out of the other one", flag, o.Node, o.Server)
		}
	}
	return nil
}

const defaultKubeletPort = 10250

func join(ctx context.Context, p place, o upOptions, j joining, given func(flag string) bool, out io.Writer) error {
	if os.Geteuid() != 0 {
		return errors.New("join: only root may make namespaces, mounts and networks: use sudo")
	}
	server, err := url.Parse(j.server)
	if err != nil || server.Scheme != "https" || server.Port() == "" {
		return fmt.Errorf("join: %q is no address of an API server, such as https://10.0.0.1:6443", j.server)
	}
	if err := p.single(); err != nil {
		return fmt.Errorf("join: %w", err)
	}
	if err := o.absolutePaths(); err != nil {
		return err
	}
	if o.Port, err = strconv.Atoi(server.Port()); err != nil {
		return fmt.Errorf("join: the port of %s: %w", j.server, err)
	}
	if err := o.check(); err != nil {
		return fmt.Errorf("join: %s", strings.TrimPrefix(err.Error(), "up: "))
	}
	steps := newSteps(out)
	if err := preflight(ctx, p, o, j.server, steps); err != nil {
		return err
	}
	for _, dir := range []string{p.root, p.state} {
		if err := privatedir.Make(dir); err != nil {
			return err
		}
	}
	// Written first, so that leave finds the cluster of a certificate, whatever interrupts join.
	last := beforeJoin(p)
	o.Server, o.Coracled, o.Boot = j.server, last.Coracled, last.Boot
	if err := o.remember(p); err != nil {
		return err
	}
	asking, cancel := context.WithTimeout(ctx, o.timeout)
	defer cancel()
	if err := j.ask(asking, p, o.Node); err != nil {
		return errors.Join(fmt.Errorf("join: %w", err), last.restore(p))
	}
	steps.done("the cluster at " + j.server + " has given node " + o.Node + " a certificate")
	if err := up(ctx, p, o, given, out); err != nil {
		return fmt.Errorf("%w\nthe machine is a node of the cluster: 'coracle up%s' tries again, and 'coracle leave%[2]s' takes it out", err,
			p.flags())
	}
	return nil
}

// beforeJoin returns the remembered options. Of a join that was interrupted before it had a
// certificate, it returns only those that down needs.
func beforeJoin(p place) upOptions {
	last := remembered(p)
	if last.Server != "" && !p.joined() {
		return upOptions{Coracled: last.Coracled, Boot: last.Boot}
	}
	return last
}

// ask gets this machine a certificate of the cluster.
func (j joining) ask(ctx context.Context, p place, node string) error {
	return kubeToolReading(ctx, j.token, nil, "agent", "join", j.server, "--root", p.kubeRoot(),
		"--ca-hash", strings.Join(j.hashes, ","), "--node-name", node)
}

// single refuses a machine that has a cluster, or is a node of one.
func (p place) single() error {
	if last := remembered(p); last.Server != "" && p.joined() { // a join that was killed can be repeated
		return fmt.Errorf("this machine is node %s of the cluster at %s: 'coracle up%s' starts it, and 'coracle leave%[3]s' takes it out of that "+
			"cluster", last.Node, last.Server, p.flags())
	}
	switch {
	case !p.hasKeys():
		return nil
	case p.severalControlPlanes():
		return fmt.Errorf("this machine is a control-plane node of a cluster already: 'coracle up%s' starts it, and 'coracle leave%[1]s' takes it "+
			"out of that cluster", p.flags())
	default:
		return fmt.Errorf("this machine has a cluster of its own: 'coracle down --purge%s' removes it, with everything in it", p.flags())
	}
}

// preflight checks whether this machine can be a node, and prints what is wrong.
func preflight(ctx context.Context, p place, o upOptions, server string, steps *steps) error {
	places := doctor.Places{ConfigFile: o.Config, Root: p.root, State: p.state, Server: server, KubeletPort: o.KubeletPort}
	if places.KubeletPort == 0 {
		places.KubeletPort = defaultKubeletPort
	}
	places.Ports = p.ports(upOptions{Server: server, KubeletPort: o.KubeletPort})
	all := doctor.Preflight(ctx, places)
	for _, f := range all {
		if f.Level != doctor.OK {
			steps.waits(fmt.Sprintf("%s: %s: %s: %s", f.Level, f.Check, f.Message, f.Remedy))
		}
	}
	if doctor.Sick(all) {
		return errors.New("join: this machine cannot be a node until these errors are fixed; nothing was changed")
	}
	return nil
}

// upAgent starts the node of a cluster elsewhere, and returns when it is Ready.
func (u *upRun) upAgent(ctx context.Context, given func(flag string) bool, steps *steps) error {
	if err := u.checkPrograms(ctx, given); err != nil {
		return err
	}
	if u.supervisor == 0 { // the kubelet starts
		u.since = time.Now()
	}
	if err := u.startRuntime(ctx, steps); err != nil {
		return u.fail(ctx, err)
	}
	var said error
	var waits string
	err := u.awaitCluster(ctx, "the node", func(try context.Context) error {
		args := []string{"agent", "await", "--root", u.kubeRoot(), "--timeout", (longestTry - longestTry/4).String()}
		if !u.since.IsZero() {
			args = append(args, "--since", u.since.Format(time.RFC3339))
		}
		if err := kubeTool(try, &waits, args...); err != nil {
			if try.Err() == nil {
				said = err
			}
			return cmp.Or(said, err) // the last complete try says more than an interrupted one
		}
		return nil
	})
	if err != nil {
		return u.fail(ctx, err)
	}
	steps.node(u.o.Node, "Ready in the cluster at "+u.o.Server, waits)
	tellParts(ctx, u.place, steps)
	return nil
}

func leaveCommand(p *place) *cobra.Command {
	var l leaving
	cmd := &cobra.Command{
		Use:   "leave",
		Short: "take this machine out of the cluster that it has joined",
		Long: `leave asks the cluster whether this machine may delete its Node, evicts the node's pods, so that others of their kind
start on other nodes, stops what join started, deletes the Node, and removes images, certificates and everything else
that the node has kept. PodDisruptionBudgets are kept.

If the cluster is gone, leave changes nothing and says so. With --force it cleans up this machine.

The data of claims (volumes of the StorageClass local-path) on this machine is deleted only with --delete-volumes.
Without it, leave does nothing if there are any, and prints their number and size.`,
		Example: `  coracle leave
  coracle leave --force      # the cluster is gone, or pods cannot be evicted`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx, stop := signal.NotifyContext(cmd.Context(), syscall.SIGTERM, syscall.SIGINT)
			defer stop()
			return leave(ctx, *p, l, cmd.OutOrStdout())
		},
	}
	cmd.Flags().BoolVar(&l.force, "force", false, "leave also if the cluster cannot be reached or pods stay")
	cmd.Flags().BoolVar(&l.volumes, "delete-volumes", false, "delete the data of claims on this machine, too")
	cmd.Flags().DurationVar(&l.limit, "timeout", 2*time.Minute, "how long pods may take to end")
	return cmd
}

// leaving are the flags of leave.
type leaving struct {
	force, volumes bool
	limit          time.Duration
}

func leave(ctx context.Context, p place, l leaving, out io.Writer) error {
	if os.Geteuid() != 0 {
		return errors.New("leave: it ends processes and removes mounts of root: use sudo")
	}
	o := remembered(p)
	controlPlane := o.Server == "" && p.severalControlPlanes()
	if o.Server == "" && len(o.Etcd) > 0 {
		// Its API server works until the end, so a node that is deleted before would register again.
		return fmt.Errorf("leave: with --etcd-servers, 'coracle down --purge%s' removes this machine's part, and then 'coracle node remove %s' on "+
			"another control-plane node deletes its node", p.flags(), o.Node)
	}
	if o.Server == "" && !controlPlane {
		return errors.New("leave: this machine has joined no cluster; 'coracle down' ends a cluster of its own")
	}
	if err := p.checkLeave(ctx, l.volumes); err != nil {
		return err
	}
	if controlPlane {
		return leaveControlPlane(ctx, p, o, l, out)
	}
	steps := newSteps(out)
	tool := func(verb string) error {
		return kubeTool(ctx, nil, "agent", verb, "--root", p.kubeRoot(), "--timeout", l.limit.String())
	}
	whatever := fmt.Sprintf("'coracle leave --force%s' removes this machine's part anyway", p.flags())
	if !l.force { // a node that must not be deleted stays as it is
		if err := tool("check"); err != nil {
			return fmt.Errorf("leave: nothing was changed: %w; %s", err, whatever)
		}
	}
	switch err := tool("drain"); {
	case err == nil:
		steps.done("node " + o.Node + " has no pods left but those of DaemonSets")
	case l.force:
		steps.waits("the pods were not evicted: " + err.Error())
	default:
		return fmt.Errorf("leave: nothing was removed, and node %s may take no new pods until 'kubectl uncordon %[1]s': %w; %s", o.Node, err, whatever)
	}
	if err := p.endSupervisor(ctx, steps); err != nil { // a kubelet that runs would register the node again
		return fmt.Errorf("leave: %w", err)
	}
	switch err := tool("unregister"); {
	case err == nil:
		steps.done("node " + o.Node + " is deleted from the cluster")
	case l.force:
		steps.waits("the node stays in the cluster: " + err.Error() + "; 'kubectl delete node " + o.Node + "' deletes it there")
	default:
		return fmt.Errorf("leave: the node has stopped: %w; 'coracle up%s' starts it again, 'kubectl uncordon %s' lets it take pods, and %s", err,
			p.flags(), o.Node, whatever)
	}
	return downStepping(ctx, p, true, l.volumes, steps)
}
