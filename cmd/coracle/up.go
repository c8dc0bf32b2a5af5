package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/coracle-project/coracle/internal/atomicfile"
)

// upOptions are the flags of up, and what up.json remembers of them.
type upOptions struct {
	Config string `json:"config,omitempty"` // coracled's configuration file, "" for its default
	// Coracled is whether up has started the coracled that last ran, so that down --purge removes what it
	// has in --root.
	Coracled bool `json:"coracled"`
	// Boot is the boot in which it did, so that down ends it; "" after down.
	Boot string `json:"boot,omitempty"`
	Bind string `json:"bind"`
	Port int    `json:"port"`
	Node string `json:"node"`
	// PodLogs is the directory of containers' logs, CgroupRoot the parent of pods' cgroups.
	PodLogs    string `json:"podLogs"`
	CgroupRoot string `json:"cgroupRoot"`

	nodeIPs []string
	etcd    []string
	apply   []string
	// evictionHard are the kubelet's thresholds, in its own words; empty are its default ones.
	evictionHard string
	timeout      time.Duration
}

func upCommand(p *place) *cobra.Command {
	var o upOptions
	cmd := &cobra.Command{
		Use:   "up",
		Short: "start Kubernetes on this machine and wait until its node is Ready",
		Long: `up starts coracled, unless one serves the socket in --state already, and the cluster process, makes
certificates and the administrator's kubeconfig, and waits until the node is Ready. Run again, it
starts what does not run, renews certificates that expire within 30 days, and waits again.`,
		Example: `  coracle up
  coracle up --apply deployment.yaml      # and wait until what it holds is available
  coracle up --root /srv/coracle --state /run/coracle-two --port 7443`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx, stop := signal.NotifyContext(cmd.Context(), syscall.SIGTERM, syscall.SIGINT)
			defer stop()
			return up(ctx, *p, o, cmd.OutOrStdout())
		},
	}
	host, err := os.Hostname()
	if err != nil {
		host = "localhost"
	}
	f := cmd.Flags()
	f.StringVar(&o.Config, "config", "", "configuration file for coracled")
	f.StringVar(&o.Bind, "bind-address", "127.0.0.1", "address that the API server serves on")
	f.IntVar(&o.Port, "port", 6443, "port that the API server serves on")
	f.StringVar(&o.Node, "node-name", strings.ToLower(host), "name of this node")
	f.StringSliceVar(&o.nodeIPs, "node-ip", nil, "addresses of this node (default: that of its name or of the default route)")
	f.StringVar(&o.PodLogs, "pod-log-dir", "/var/log/pods", "directory for containers' logs")
	f.StringVar(&o.CgroupRoot, "cgroup-root", "/coracle-kube", "cgroup below which pods' cgroups are made; down removes it")
	f.StringSliceVar(&o.etcd, "etcd-servers", nil, "URLs of an etcd cluster to use instead of the built-in one")
	f.StringVar(&o.evictionHard, "eviction-hard", "", "when pods are evicted, `THRESHOLDS` such as memory.available<100Mi,nodefs.available<5% (default: upstream's)")
	f.StringSliceVar(&o.apply, "apply", nil, "manifests to apply with kubectl once the node is Ready")
	f.DurationVar(&o.timeout, "timeout", 2*time.Minute, "how long all of it may take")
	return cmd
}

func up(ctx context.Context, p place, o upOptions, out io.Writer) error {
	if os.Geteuid() != 0 {
		return errors.New("up: it makes namespaces, mounts and networks, for which it must be root: use sudo")
	}
	ctx, cancel := context.WithTimeout(ctx, o.timeout)
	defer cancel()
	for _, dir := range []string{p.root, p.state} {
		if err := os.MkdirAll(dir, 0o711); err != nil {
			return err
		}
	}
	steps := newSteps(out)
	release, err := p.exclusive(ctx)
	if err != nil {
		return err
	}
	defer release()
	if err := upCoracled(ctx, p, &o); err != nil {
		return err
	}
	steps.done("coracled serves " + p.socket())
	var since time.Time // a kubelet that runs may have spoken before
	if pid, err := holder(p.supervisor()); err == nil && pid == 0 {
		since = time.Now()
	}
	if err := upCluster(ctx, p, o); err != nil {
		return err
	}
	release() // a node that does not become ready can be taken down
	steps.done(fmt.Sprintf("API server is ready on https://%s:%d", o.Bind, o.Port))
	client, err := openAPI(p.kubeconfig())
	if err != nil {
		return err
	}
	if err := client.awaitNode(ctx, o.Node, since); err != nil {
		return fmt.Errorf("%w; 'coracle status%s' and %s may tell why", err, p.flags(), p.kubeLog())
	}
	steps.done("node " + o.Node + " is Ready")
	for _, manifest := range o.apply {
		if err := apply(ctx, p, manifest); err != nil {
			return err
		}
		steps.done(manifest + " is applied and available")
	}
	return nil
}

// upCoracled starts coracled if none serves the socket.
func upCoracled(ctx context.Context, p place, o *upOptions) error {
	boot, err := bootID()
	if err != nil {
		return err
	}
	if _, err := runtimeVersion(ctx, p.socket()); err == nil {
		if last := remembered(p); last.Coracled && last.Boot == boot {
			o.Coracled, o.Boot = true, boot
		}
		return o.remember(p)
	}
	program, err := sibling("coracled")
	if err != nil {
		return err
	}
	// Written first: a coracled that was started and then not remembered would never be ended.
	o.Coracled, o.Boot = true, boot
	if err := o.remember(p); err != nil {
		return err
	}
	log := p.coracledLog()
	args := []string{"--root", p.root, "--state", p.state, "--address", "unix://" + p.socket(), "--log-file", log}
	if o.Config != "" {
		if o.Config, err = filepath.Abs(o.Config); err != nil {
			return err
		}
		args = append(args, "--config", o.Config)
	}
	cmd, err := launch(log, program, args...)
	if err != nil {
		return err
	}
	answers := func(ctx context.Context) error {
		_, err := runtimeVersion(ctx, p.socket())
		return err
	}
	err = await(ctx, "coracled", log, cmd, answers)
	// Another up, or the keeper of one that had died, may have been quicker to start it.
	return orOther(ctx, err, p.runtime(), "coracled", log, answers)
}

// orOther is for a program of ours that ended with err because another process holds lock, and does what
// it was to do: it awaits that one, for as long as that holds the lock. Without another, err is what went
// wrong.
func orOther(ctx context.Context, err error, lock, what, log string, answers func(context.Context) error) error {
	if err == nil || ctx.Err() != nil {
		return err
	}
	ctx, giveUp := context.WithCancel(ctx)
	defer giveUp()
	other := await(ctx, what, log, nil, func(try context.Context) error {
		if pid, herr := holder(lock); herr != nil || pid == 0 {
			giveUp()
			return err
		}
		return answers(try)
	})
	if other != nil {
		return err
	}
	return nil
}

// upCluster starts the cluster process under its supervisor if it does not run.
func upCluster(ctx context.Context, p place, o upOptions) error {
	log := p.kubeLog()
	answers := func(ctx context.Context) error {
		client, err := openAPI(p.kubeconfig())
		if err != nil {
			return err
		}
		defer client.http.CloseIdleConnections()
		return client.ready(ctx)
	}
	pid, err := holder(p.supervisor())
	if err != nil {
		return err
	}
	if pid != 0 {
		return await(ctx, "the API server", log, nil, answers)
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	program, err := sibling("coracle-kube")
	if err != nil {
		return err
	}
	args := []string{
		"supervise", "--root", p.root, "--state", p.state, "--log", log, "--", program, "server", "--root", p.kubeRoot(), "--state", p.kubeState(),
		"--bind-address", o.Bind, "--port", strconv.Itoa(o.Port), "--node-name", o.Node, "--cri", "unix://" + p.socket(),
		"--kubeconfig-out", p.kubeconfig(), "--pod-log-dir", o.PodLogs, "--cgroup-root", o.CgroupRoot,
	}
	if len(o.nodeIPs) > 0 {
		args = append(args, "--node-ip", strings.Join(o.nodeIPs, ","))
	}
	if len(o.etcd) > 0 {
		args = append(args, "--etcd-servers", strings.Join(o.etcd, ","))
	}
	if o.evictionHard != "" {
		args = append(args, "--eviction-hard", o.evictionHard)
	}
	cmd, err := launch(log, self, args...)
	if err != nil {
		return err
	}
	err = await(ctx, "the API server", log, cmd, answers)
	return orOther(ctx, err, p.supervisor(), "the API server", log, answers)
}

// longestTry is how long an answer is waited for: who listens there may be another, who says nothing.
const longestTry = 2 * time.Second

// await returns when answers does not fail any more. If cmd ends before, or ctx does, the error
// says so and quotes the end of the log.
func await(ctx context.Context, what, log string, cmd *exec.Cmd, answers func(context.Context) error) error {
	var ended <-chan struct{}
	if cmd != nil {
		ended, _ = exit(cmd)
	}
	for {
		try, cancel := context.WithTimeout(ctx, longestTry)
		err := answers(try)
		cancel()
		if err == nil {
			return nil
		}
		select {
		case <-ended:
			return fmt.Errorf("%s ended as soon as it had been started; %s ends with:\n%s", what, log, tail(log))
		case <-ctx.Done():
			return fmt.Errorf("%s does not answer: %w; %s ends with:\n%s", what, err, log, tail(log))
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// tail is the last lines of a log.
func tail(path string) string {
	const most = 2048
	f, err := os.Open(path)
	if err != nil {
		return err.Error()
	}
	defer func() { _ = f.Close() }()
	if size, err := f.Seek(0, io.SeekEnd); err == nil {
		_, _ = f.Seek(max(size-most, 0), io.SeekStart)
	}
	data, err := io.ReadAll(io.LimitReader(f, most))
	if err != nil {
		return err.Error()
	}
	return strings.TrimSpace(string(data))
}

// remember writes what down has to know.
func (o upOptions) remember(p place) error {
	data, err := json.MarshalIndent(o, "", "  ")
	if err != nil {
		return err
	}
	return atomicfile.Write(p.settings(), append(data, '\n'), 0o600)
}

// remembered is what the last up was given; nothing if there was none.
func remembered(p place) upOptions {
	var o upOptions
	data, err := os.ReadFile(p.settings())
	if err != nil || json.Unmarshal(data, &o) != nil {
		return upOptions{}
	}
	return o
}

// bootID names the time since the machine was started.
func bootID() (string, error) {
	id, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	return strings.TrimSpace(string(id)), err
}
