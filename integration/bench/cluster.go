package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/vishvananda/netlink"

	"github.com/coracle-project/coracle/integration/bench/page"
	"github.com/coracle-project/coracle/internal/testkit"
)

// nodeIP is an address that is not the loopback's, which kubelet and API server insist on.
const nodeIP = "10.99.0.1"

// benchmarkCluster measures whole clusters: Coracle's, and upstream's over containerd and runc.
func benchmarkCluster(ctx context.Context, o options) error {
	dir, err := os.MkdirTemp("", "bench-")
	if err != nil {
		return err
	}
	registry, err := publish(ctx, dir)
	if err != nil {
		return err
	}
	defer registry.Close()
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return err
	}
	addr, err := netlink.ParseAddr(nodeIP + "/32")
	if err != nil {
		return err
	}
	if err := netlink.AddrAdd(lo, addr); err != nil {
		return fmt.Errorf("address %s: %w", nodeIP, err)
	}
	flags := o.clusterFlags
	if o.scale {
		flags = "-only nodes,reads -nodes 5000 -pods 100000 " + flags
	}
	rep := newReport(o, page.Clusters, nil, page.ClusterTable)
	for _, stack := range []string{"coracle", "upstream"} { // one is up at a time
		if o.targets != "" && !slices.Contains(strings.Split(o.targets, ","), stack) {
			continue
		}
		if _, err := testkit.FindBin("peers", "bin", "kubelet"); err != nil && stack == "upstream" {
			fmt.Fprintln(os.Stderr, "bench: upstream's stack is left out: hack/peers/kube.sh builds it")
			continue
		}
		before := loadAverage()
		out, err := measureStack(ctx, stack, dir, flags)
		rep.Versions[stack] = fmt.Sprintf("%s, load %s before and %s after", out.Version, before, loadAverage())
		rep.Figures = append(rep.Figures, out.Figures...)
		if err != nil {
			fmt.Fprintln(os.Stderr, "bench: not all has been measured; this was:")
			rep.Print(os.Stderr)
			return fmt.Errorf("%s: %w\nlogs are in %s", stack, err, dir)
		}
	}
	return errors.Join(finish(rep, o), os.RemoveAll(dir))
}

// measureStack runs cluster-bench for one stack in a directory of its own.
func measureStack(ctx context.Context, stack, dir, flags string) (out measured, err error) {
	program, err := testkit.FindBin("test", "cluster-bench")
	if err != nil {
		return out, err
	}
	bin := filepath.Dir(filepath.Dir(program))
	cgroup := "coracle-" + filepath.Base(dir)
	defer func() {
		if err == nil { // after an error, what could not be removed is no news
			err = testkit.RemoveCgroups(cgroup)
		}
	}()
	dir = filepath.Join(dir, stack)
	if err := os.Mkdir(dir, 0o711); err != nil {
		return out, err
	}
	argv := append([]string{
		program, "-stack", stack, "-dir", dir, "-bin", bin, "-ip", nodeIP, "-cgroup", cgroup, "-image", image,
	}, strings.Fields(flags)...)
	if stack == "coracle" {
		config := filepath.Join(dir, "coracled.toml")
		toml := fmt.Sprintf("[network]\ncni_conf_dir = %q\n[image.registry.%q]\nplain_http = true\n", filepath.Join(dir, "cni"), registryAddr)
		if err := os.WriteFile(config, []byte(toml), 0o600); err != nil {
			return out, err
		}
		argv = append(argv, "-config", config)
	} else {
		t := &target{
			name: stack, handler: "runc", dir: filepath.Join(filepath.Dir(dir), "t1"),
			launch: launchContainerd(filepath.Join(bin, "peers")),
		}
		if err := t.open(); err != nil {
			return out, err
		}
		defer func() { err = joinDown(err, t) }()
		// Volumes that kubelet mounts have to be seen by the runtime.
		argv = append([]string{"nsenter", "--mount", "--target", strconv.Itoa(t.pid())}, append(argv, "-cri", t.socket)...)
	}
	if out, err = runProgram(ctx, "cluster-bench", argv); err != nil {
		return out, err
	}
	out.Version = "Kubernetes " + out.Version
	if stack == "coracle" { // and of which commit
		said, err := exec.CommandContext(ctx, filepath.Join(bin, "coracle-kube"), "--version").Output()
		if err != nil {
			return out, fmt.Errorf("coracle-kube --version: %w", err)
		}
		out.Version = strings.TrimSpace(string(said))
	}
	return out, nil
}
