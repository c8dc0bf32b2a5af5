package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

func upCommand(p *place) *cobra.Command {
	var o upOptions
	cmd := &cobra.Command{
		Use:   "up",
		Short: "start Kubernetes on this machine and wait until its node is Ready",
		Long: `up starts coracled, unless one already serves the socket in --state, and the cluster process. It creates
certificates and the administrator's kubeconfig, and waits until the node is Ready. Run it again to
start what does not run, and to renew certificates that expire within 30 days. With --pod-network cni it does
not wait for the network plugin, which may be what --apply names.

With --nodes, this machine gets further nodes for trying things that need several: each has network and
mount namespaces, coracled, agent, cgroups and directories of its own, and joins as another machine
would. Their names are that of the first with -2, -3 and so on; "coracle --node NAME COMMAND" is about one.

Flags are remembered until down --purge: a missing flag has its last value. They take effect when the
cluster is started. If they differ from those of a running cluster, up changes nothing and fails. An up
that fails before the node is Ready stops what it started, unless the cluster has other control-plane nodes, which may need this
one for a quorum. Pods that ran before keep running.

The file of --config has flags by their names: "port: 7443". Flags override it. A key that is taken out of it has
its default again. If the file has server, token and ca-hash, up makes this machine a node of that cluster, as join
does.`,
		Example: `  coracle up
  coracle up --apply deployment.yaml      # and wait until what it holds is available
  coracle up --nodes 3                    # three nodes on this machine
  coracle up --root /srv/coracle --state /run/coracle-two --port 7443 \
             --kubelet-port 10350 --service-cidr 10.112.0.0/16
  coracle up --bind-address 10.0.0.1      # so that other machines can join
  coracle up --join https://10.0.0.1:6443 --token … --ca-hash sha256:… --certificate-key …
  coracle up --join https://10.0.0.1:6443 --token-file token --ca-hash sha256:… --certificate-key-file - < key
  coracle up --load-balancer-cidr 192.168.1.240-192.168.1.250   # addresses of this machine's network
  coracle up --bgp-as 64512 --bgp-peer '10.0.0.254 as=64500 password-file=/etc/coracle/bgp-password'`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx, stop := signal.NotifyContext(cmd.Context(), syscall.SIGTERM, syscall.SIGINT)
			defer stop()
			if err := readSecrets(cmd.Flags(), cmd.InOrStdin()); err != nil {
				return fmt.Errorf("up --join: %w", err)
			}
			return upByFile(ctx, *p, &o, cmd.Flags(), cmd.OutOrStdout())
		},
	}
	cmd.Flags().AddFlagSet(upFlags(&o))
	cmd.Flags().StringVar(&o.joins.server, joinFlags[0], "", "`URL` of the cluster whose control plane this machine joins, https://HOST:PORT")
	cmd.Flags().StringVar(&o.joins.token, joinFlags[1], "", "with --join: `TOKEN` of the cluster, ID.SECRET")
	cmd.Flags().String("token-file", "", "with --join: `FILE` with the token; - for standard input")
	cmd.Flags().StringSliceVar(&o.joins.hashes, joinFlags[2], nil, "with --join: `HASH` of the cluster's authority, sha256:…")
	cmd.Flags().StringVar(&o.certificateKey, joinFlags[3], "", "with --join: `KEY` of the cluster's keys, once")
	cmd.Flags().String("certificate-key-file", "", "with --join: `FILE` with the key of the cluster's keys; - for standard input")
	cmd.MarkFlagsMutuallyExclusive("token", "token-file")
	cmd.MarkFlagsMutuallyExclusive("certificate-key", "certificate-key-file")
	cmd.Flags().BoolVar(&o.force, "force-new-cluster", false,
		"go on with this machine's data when the other control-plane nodes are gone for good; what only they have is lost")
	return cmd
}

// upByFile is up with the settings of a file in addition to the flags. A file that names a cluster
// has the machine join that one first.
func upByFile(ctx context.Context, p place, o *upOptions, flags *pflag.FlagSet, out io.Writer) error {
	file, err := o.openClusterFile(p, flags)
	if err != nil {
		return fmt.Errorf("up: %w", err)
	}
	j, err := file.joins()
	if err != nil {
		return fmt.Errorf("up: %w", err)
	}
	if err := file.apply(flags, joinKeys...); err != nil {
		return fmt.Errorf("up: %w", err)
	}
	o.FromFile = file.keys()
	if o.joins.server != "" {
		if j.server != "" {
			return fmt.Errorf("up --join: %s names the cluster at %s to join as a node: take that out of the file", file.path, j.server)
		}
		return joinControlPlane(ctx, p, *o, flags.Changed, out)
	}
	for _, flag := range joinFlags[1:] {
		if flags.Changed(flag) {
			return fmt.Errorf("up: --%s goes with --join: 'coracle token create --control-plane' on the first machine prints the whole command", flag)
		}
	}
	if j.server == "" {
		return up(ctx, p, *o, flags.Changed, out)
	}
	if last := remembered(p); p.joined() && last.Server == j.server {
		return up(ctx, p, *o, flags.Changed, out)
	}
	for _, name := range append(slices.Sorted(maps.Keys(o.settings())), "apply") {
		if flags.Changed(name) && !slices.Contains(agentFlags, name) {
			return fmt.Errorf("up: %s names the cluster at %s to join, and --%s is for a cluster of this machine's own", file.path, j.server, name)
		}
	}
	return join(ctx, p, *o, j, flags.Changed, out)
}

func up(ctx context.Context, p place, o upOptions, given func(flag string) bool, out io.Writer) error {
	if os.Geteuid() != 0 {
		return errors.New("up: only root may make namespaces, mounts and networks: use sudo")
	}
	limit, cancel := withTimeLimit(ctx, o.timeout)
	defer cancel()
	ctx = limit
	if err := o.absolutePaths(); err != nil {
		return err
	}
	last := remembered(p)
	o.follow(last, given)
	if err := o.check(); err != nil {
		return err
	}
	steps := newSteps(out)
	// coracled makes them private, too, but one that runs may have been started before they were
	// opened.
	release, err := p.makeExclusive(ctx, p.state)
	if err != nil {
		return err
	}
	defer release()
	last = remembered(p) // of an up that was quicker
	u := upRun{place: p, o: &o, last: last, limit: limit}
	differ := o.follow(last, given)
	if o.Server != "" {
		if !p.joined() {
			return fmt.Errorf("up: joining the cluster at %s was cut off: repeat 'coracle join', or forget it with 'coracle leave --force%s'",
				o.Server, p.flags())
		}
		if err := o.checkAgent(differ); err != nil {
			return err
		}
	}
	if err := u.look(ctx, differ); err != nil {
		return err
	}
	if o.Server != "" {
		return u.upAgent(ctx, given, steps)
	}
	if o.force {
		if err := kubeTool(ctx, nil, "controlplane", "force", "--root", p.kubeRoot(), "--port", strconv.Itoa(o.Port)); err != nil {
			return errors.Join(fmt.Errorf("up --force-new-cluster: %w", err), u.unforce(ctx))
		}
	}
	if err := u.start(ctx, given, steps); err != nil {
		return errors.Join(err, u.unforce(ctx))
	}
	release() // a node that does not become ready can be taken down
	return u.awaitReady(ctx, steps)
}

// moved says that no cluster runs, and that the last one had another port.
func (u *upRun) moved() bool {
	return u.supervisor == 0 && u.last.Port != 0 && u.last.Port != u.o.Port
}

// start starts coracled and the cluster process where they do not run, and returns when both
// answer. A failure ends what it has started.
func (u *upRun) start(ctx context.Context, given func(flag string) bool, steps *steps) error {
	// What the last cluster announced is the new one's to announce: a pool is refused that is in
	// use.
	if u.moved() {
		if err := removeAnnouncements(ctx, u.last.bind(), u.last.Port); err != nil {
			return err
		}
	}
	if err := errors.Join(u.checkServiceRange(), u.checkPodRanges()); err != nil {
		return err
	}
	if err := u.makeNodes(); err != nil {
		return u.fail(ctx, err)
	}
	// The API server's address has to be there by now.
	if err := u.checkPrograms(ctx, given); err != nil {
		return u.fail(ctx, err)
	}
	if u.supervisor == 0 {
		u.since = time.Now()
	}
	if err := u.startRuntime(ctx, steps); err != nil {
		return u.fail(ctx, err)
	}
	if err := u.upCluster(ctx); err != nil {
		return u.fail(ctx, err)
	}
	var err error
	if u.started, err = holder(u.place.supervisor()); err != nil {
		return u.fail(ctx, err)
	}
	return nil
}

// awaitReady returns when the node is Ready and the manifests are applied.
func (u *upRun) awaitReady(ctx context.Context, steps *steps) error {
	p := u.place
	client, err := openAPI(p.kubeconfig())
	if err != nil {
		return u.failLate(ctx, err)
	}
	defer client.http.CloseIdleConnections()
	steps.done("API server is ready on " + client.server)
	if u.moved() {
		if err := errors.Join(removeRules(u.last.bind(), u.last.Port), removePaths(ctx, u.last.bind(), u.last.Port)); err != nil {
			return u.failLate(ctx, err)
		}
	}
	waits, err := u.awaitOwnNode(ctx, client)
	if err != nil {
		return u.failLate(ctx, fmt.Errorf("%w; %s may tell why", err, p.kubeLog()))
	}
	steps.node(u.o.Node, "Ready", waits)
	if err := u.upNodes(ctx, client, steps); err != nil {
		return fmt.Errorf("up: %w\nthe cluster runs: 'coracle up%s' tries again, and 'coracle down%[2]s' ends them", err, p.flags())
	}
	tellParts(ctx, p, steps)
	for _, manifest := range u.o.apply {
		if err := client.apply(ctx, p, manifest, steps.waits); err != nil {
			return fmt.Errorf("up: the cluster runs, but --apply failed: 'coracle up%s --apply %s' repeats it: %w", p.flags(), manifest, err)
		}
		steps.done(manifest + " is applied and available")
	}
	return nil
}

// awaitOwnNode awaits the node of this machine. The API server that has answered may be that of a
// supervisor that was killed a moment ago, and about to end: then another takes its place.
func (u *upRun) awaitOwnNode(ctx context.Context, client *api) (waits string, err error) {
	for {
		waits, err = client.awaitNode(ctx, u.o.Node, u.since)
		if !errors.Is(err, syscall.ECONNRESET) && !errors.Is(err, syscall.ECONNREFUSED) {
			return waits, err
		}
		if pid, herr := holder(u.place.supervisor()); herr != nil || pid == 0 {
			return "", err // no one starts another
		}
		if err := await(ctx, "the API server", u.place.kubeLog(), nil, client.ready); err != nil {
			return "", err
		}
	}
}

// startRuntime starts coracled where it does not run, and has images loaded. Without any to load,
// the cluster process starts meanwhile.
func (u *upRun) startRuntime(ctx context.Context, steps *steps) error {
	meanwhile := u.launchCluster
	if u.archives() {
		meanwhile = func() error { return nil }
	}
	if err := u.upCoracled(ctx, meanwhile); err != nil {
		return err
	}
	steps.done("coracled serves " + u.Socket())
	return u.preload(ctx, steps)
}

// coracledArgs are what coracled is started with.
func coracledArgs(p place, o upOptions) []string {
	args := []string{
		"--root", p.root, "--state", p.state, "--address", "unix://" + p.Socket(), "--log-file", p.coracledLog(),
		"--only-listed-loopback",
	}
	if o.Config != "" {
		args = append(args, "--config", o.Config)
	}
	if o.ShortNames != "" && o.ShortNames != refuseShortNames {
		args = append(args, "--short-name-registry", o.ShortNames)
	}
	return args
}

// kubeArgs are what the cluster process is started with.
func kubeArgs(p place, o upOptions) []string {
	if o.Server != "" {
		return agentArgs(p, o)
	}
	args := []string{
		"server", "--root", p.kubeRoot(), "--state", p.kubeState(),
		"--bind-address", o.bind(), "--port", strconv.Itoa(o.Port), "--service-cidr", o.ServiceCIDR, "--node-name", o.Node, "--cri",
		"unix://" + p.Socket(),
		"--kubeconfig-out", p.kubeconfig(), "--pod-log-dir", o.PodLogs, "--cgroup-root", o.CgroupRoot,
	}
	if ips := o.nodeIPs(); len(ips) > 0 {
		args = append(args, "--node-ip", strings.Join(ips, ","))
	}
	if len(o.Etcd) > 0 {
		args = append(args, "--etcd-servers", strings.Join(o.Etcd, ","))
	}
	if o.KubeletPort != 0 {
		args = append(args, "--kubelet-port", strconv.Itoa(o.KubeletPort))
	}
	if o.EtcdPeerPort != 0 {
		args = append(args, "--etcd-peer-port", strconv.Itoa(o.EtcdPeerPort))
	}
	for _, further := range [][2]string{
		{"--eviction-hard", o.EvictionHard},
		{"--pod-cidr", strings.Join(o.PodCIDR, ",")},
		{"--pod-network", o.PodNetwork},
		{"--load-balancer-cidr", strings.Join(o.LoadBalancerCIDR, ",")},
		{"--load-balancer-interface", o.LoadBalancerInterface},
		{"--allowed-unsafe-sysctls", strings.Join(o.UnsafeSysctls, ",")},
		{"--cluster-domain", o.ClusterDomain},
		{"--cluster-dns", strings.Join(o.ClusterDNS, ",")},
		{"--dns-stub-domain", strings.Join(o.StubDomains, ",")},
		{"--resolv-conf", o.ResolvConf},
		{"--encryption-provider-config", o.EncryptionConfig},
		{"--audit-policy-file", o.AuditPolicy},
		{"--audit-log-path", o.AuditLog},
		{"--audit-webhook-config-file", o.AuditWebhook},
		{"--etcd-quota", o.EtcdQuota},
		{"--scheduler-config", o.SchedulerConfig},
		{"--authentication-config", o.AuthenticationConfig},
		{"--authentication-token-webhook-config-file", o.TokenWebhook},
		{"--authentication-token-webhook-version", o.TokenWebhookVersion},
		{"--pod-security", o.PodSecurity},
		{"--node-monitor-grace-period", o.MonitorGrace},
		{"--cluster-signing-duration", o.SigningDuration},
	} {
		if further[1] != "" {
			args = append(args, further[0], further[1])
		}
	}
	if dir := o.manifests(p); dir != nothing {
		args = append(args, "--manifests", dir)
	}
	if o.PoliciesOff {
		args = append(args, "--network-policies=false")
	}
	return append(args, bgpRoutesArgs(p, o)...)
}

// upCluster starts the cluster process under its supervisor if it does not run, and returns when
// the API server answers.
func (u *upRun) upCluster(ctx context.Context) error {
	p := u.place
	answers := func(ctx context.Context) error {
		client, err := openAPI(p.kubeconfig())
		if err != nil {
			return err
		}
		defer client.http.CloseIdleConnections()
		return client.ready(ctx)
	}
	return u.awaitCluster(ctx, "the API server", answers)
}

// awaitCluster starts the cluster process if it does not run, and returns when it answers. One that
// runs may have been killed a moment ago: then up starts another.
func (u *upRun) awaitCluster(ctx context.Context, what string, answers func(context.Context) error) error {
	log, lock := u.kubeLog(), u.place.supervisor()
	for {
		if err := u.launchCluster(); err != nil {
			return err
		}
		if u.cluster != nil {
			return orOther(ctx, await(ctx, what, log, u.cluster, answers), lock, what, log, answers)
		}
		if ended, err := awaitHolder(ctx, lock, what, log, answers); !ended {
			return err
		}
		u.supervisor, u.since = 0, time.Now()
	}
}

// launchCluster starts the cluster's supervisor, unless one runs or this up has started one.
func (u *upRun) launchCluster() error {
	switch {
	case u.gate != nil:
		u.gate.open()
		u.gate = nil
		return nil
	case u.cluster != nil:
		return nil
	}
	return u.launchSupervisor(nil)
}

// launchSupervisor starts the cluster's supervisor, unless one runs. Its program waits at g.
func (u *upRun) launchSupervisor(g *gate) error {
	p := u.place
	if pid, err := holder(p.supervisor()); err != nil || pid != 0 {
		return err
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	program, err := sibling("coracle-kube")
	if err != nil {
		return err
	}
	args := []string{"supervise", "--root", p.root, "--state", p.state, "--log", p.kubeLog(), "--log", p.bgpLog()}
	if g != nil {
		args = append(args, "--gate")
	}
	args = append(args, "--", program)
	args = append(args, kubeArgs(p, *u.o)...)
	if len(u.o.BGPPeers) > 0 {
		if err := os.MkdirAll(p.bgp(), 0o755); err != nil { // the cluster process may be quicker than coracle-bgp
			return err
		}
		speaker, err := sibling(bgpProgram)
		if err != nil {
			return err
		}
		args = append(append(args, "--", speaker), bgpArgs(p, *u.o)...)
	}
	cmd, err := launchWith(g, p.kubeLog(), self, args...)
	if err != nil {
		return err
	}
	u.cluster = cmd
	return nil
}

// bootID names the time since the machine was started.
func bootID() (string, error) {
	id, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	return strings.TrimSpace(string(id)), err
}
