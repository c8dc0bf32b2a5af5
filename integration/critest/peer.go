package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	"github.com/coracle-project/coracle/internal/testkit"
)

// peerLimit bounds containerd's start and its end.
const peerLimit = 30 * time.Second

// peerConfig has containerd find the CNI plugins and the registry that we have for it; all else is
// as it comes. It may not lower oom_score_adj where we may not.
const peerConfig = `version = 3
root = "%[1]s/root"
state = "%[1]s/state"
[grpc]
  address = "%[1]s/cri.sock"
[ttrpc]
  address = "%[1]s/cri.sock.ttrpc"
[plugins."io.containerd.cri.v1.images"]
  [plugins."io.containerd.cri.v1.images".pinned_images]
    sandbox = "registry.k8s.io/pause:3.10"
  [plugins."io.containerd.cri.v1.images".registry]
    config_path = "%[1]s/certs.d"
[plugins."io.containerd.cri.v1.runtime"]
  restrict_oom_score_adj = %[3]t
  [plugins."io.containerd.cri.v1.runtime".cni]
    bin_dirs = ["%[2]s"]
    conf_dir = "%[1]s/cni"
  [plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
`

const peerNetwork = `{ "cniVersion": "1.0.0", "name": "peer", "plugins": [
  { "type": "bridge", "bridge": "peer0", "isGateway": true, "ipMasq": true, "ipMasqBackend": "nftables", "hairpinMode": true,
    "ipam": { "type": "host-local", "dataDir": "%s/ipam", "ranges": [[{"subnet": "10.79.0.0/24"}]], "routes": [{"dst": "0.0.0.0/0"}] } },
  { "type": "portmap", "backend": "nftables", "capabilities": {"portMappings": true} } ] }
`

const peerMirror = "[host.\"http://%s\"]\n  capabilities = [\"pull\", \"resolve\"]\n"

// peer is containerd with runc, in the namespaces that this program has made for itself.
type peer struct {
	name   string // what runs, with versions
	socket string
	cmd    *exec.Cmd
	exit   chan error
}

// startPeer starts the containerd of `make bench-peers` with all that it has in dir.
func startPeer(dir, registry string) (*peer, error) {
	exe, err := testkit.FindBin("peers", "bin/containerd")
	if err != nil {
		return nil, err
	}
	plugins, err := testkit.FindBin("tools", "cni")
	if err != nil {
		return nil, err
	}
	bin := filepath.Dir(exe)
	for name, text := range map[string]string{
		"config.toml":                 fmt.Sprintf(peerConfig, dir, plugins, !testkit.CanLowerOOM()),
		"cni/10-peer.conflist":        fmt.Sprintf(peerNetwork, dir),
		"certs.d/_default/hosts.toml": fmt.Sprintf(peerMirror, registry),
	} {
		file := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			return nil, err
		}
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			return nil, err
		}
	}
	log, err := os.Create(filepath.Join(dir, "containerd.log"))
	if err != nil {
		return nil, err
	}
	defer log.Close()
	p := &peer{
		name: version(exe, "containerd") + " with " + version(filepath.Join(bin, "runc"), "runc"), socket: filepath.Join(dir, "cri.sock"),
		cmd: exec.Command(exe, "--config", filepath.Join(dir, "config.toml")), exit: make(chan error, 1),
	}
	p.cmd.Env = append(os.Environ(), "PATH="+bin+":"+os.Getenv("PATH"))
	p.cmd.Stdout, p.cmd.Stderr = log, log
	if err := p.cmd.Start(); err != nil {
		return nil, err
	}
	go func() { p.exit <- p.cmd.Wait() }()
	if err := p.wait(); err != nil {
		tail, _ := exec.Command("tail", "-n", "15", log.Name()).Output()
		return nil, errors.Join(fmt.Errorf("%s: %w\n%s", exe, err, tail), p.stop())
	}
	return p, nil
}

// wait waits until the socket answers.
func (p *peer) wait() error {
	ctx, cancel := context.WithTimeout(context.Background(), peerLimit)
	defer cancel()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		if c, err := net.Dial("unix", p.socket); err == nil {
			return c.Close()
		}
		select {
		case <-tick.C:
		case err := <-p.exit:
			p.exit <- err
			return fmt.Errorf("ended: %w", err)
		case <-ctx.Done():
			return errors.New("does not answer")
		}
	}
}

// stop ends containerd. What it leaves goes with our namespaces.
func (p *peer) stop() error {
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	select {
	case <-p.exit: // any status: it was told to go
		return nil
	case <-time.After(peerLimit):
		return errors.Join(errors.New("containerd does not end"), p.cmd.Process.Kill())
	}
}
