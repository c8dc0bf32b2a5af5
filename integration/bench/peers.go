package main

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"text/template"

	"github.com/coracle-project/coracle/internal/testkit"
)

// peerFiles are a peer's configuration: file name to text/template.
type peerFiles map[string]string

// place is what the templates know.
type place struct {
	Dir, Socket, Peers, CNI, Registry, Bridge, Subnet string
	CanLowerOOM                                       bool
}

func (f peerFiles) write(p place) error {
	for name, text := range f {
		t, err := template.New(name).Parse(strings.TrimPrefix(text, "\n"))
		if err != nil {
			return err
		}
		path := filepath.Join(p.Dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return err
		}
		w, err := os.Create(path)
		if err != nil {
			return err
		}
		if err := errors.Join(t.Execute(w, p), w.Close()); err != nil {
			return err
		}
	}
	return nil
}

// newPlace fills in what a peer's configuration needs.
func newPlace(t *target, peers, bridge, subnet string) (place, error) {
	cni, err := testkit.FindBin("tools", "cni")
	if err != nil {
		return place{}, err
	}
	return place{
		Dir: t.dir, Socket: filepath.Join(t.dir, "cri.sock"), Peers: peers, CNI: cni,
		Registry: registryAddr, Bridge: bridge, Subnet: subnet, CanLowerOOM: testkit.CanLowerOOM(),
	}, nil
}

// The peers' networks can what Coracle's built-in one can, so that like is compared
// with like: a bridge, addresses handed out per node, masquerading, host ports.
// containerd leaves host ports to the portmap plugin, as the configuration that its
// documentation installs does; CRI-O maps them itself.
const (
	bridgePlugin = `
  { "type": "bridge", "bridge": "{{.Bridge}}", "isGateway": true, "ipMasq": true, "ipMasqBackend": "nftables",
    "ipam": { "type": "host-local", "dataDir": "{{.Dir}}/ipam",
              "ranges": [[{"subnet": "{{.Subnet}}"}]], "routes": [{"dst": "0.0.0.0/0"}] } }`
	conflist = `
{ "cniVersion": "1.0.0", "name": "{{.Bridge}}", "plugins": [` + bridgePlugin + ` ] }
`
	portmapConflist = `
{ "cniVersion": "1.0.0", "name": "{{.Bridge}}", "plugins": [` + bridgePlugin + `,
  { "type": "portmap", "backend": "nftables", "capabilities": {"portMappings": true} } ] }
`
)

// launchCoracleCNI has coracled call the plugins that the peers call.
func launchCoracleCNI(t *target) (func() error, string, error) {
	p, err := newPlace(t, "", "bench-cor0", "10.76.0.0/21")
	if err != nil {
		return nil, "", err
	}
	if err := (peerFiles{"cni/10-bench.conflist": portmapConflist}).write(p); err != nil {
		return nil, "", err
	}
	return startCoracle(t, filepath.Join(t.dir, "cni"))
}

var containerdFiles = peerFiles{
	"cni/10-bench.conflist": portmapConflist,
	"certs.d/_default/hosts.toml": `
server = "http://{{.Registry}}"
[host."http://{{.Registry}}"]
  capabilities = ["pull", "resolve"]
`,
	"config.toml": `
version = 3
root = "{{.Dir}}/root"
state = "/run/containerd"
disabled_plugins = ["io.containerd.nri.v1.nri", "io.containerd.internal.v1.tracing", "io.containerd.tracing.processor.v1.otlp"]
[grpc]
  address = "{{.Socket}}"
[ttrpc]
  address = "{{.Socket}}.ttrpc"
[plugins."io.containerd.cri.v1.images"]
  snapshotter = "overlayfs"
  [plugins."io.containerd.cri.v1.images".pinned_images]
    sandbox = "{{.Registry}}/pause:3.10"
  [plugins."io.containerd.cri.v1.images".registry]
    config_path = "{{.Dir}}/certs.d"
[plugins."io.containerd.cri.v1.runtime"]
  restrict_oom_score_adj = {{not .CanLowerOOM}}
  disable_apparmor = true
  [plugins."io.containerd.cri.v1.runtime".cni]
    bin_dirs = ["{{.CNI}}"]
    conf_dir = "{{.Dir}}/cni"
  [plugins."io.containerd.cri.v1.runtime".containerd]
    default_runtime_name = "runc"
    [plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"
      [plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc.options]
        BinaryName = "{{.Peers}}/bin/runc"
    [plugins."io.containerd.cri.v1.runtime".containerd.runtimes.crun]
      runtime_type = "io.containerd.runc.v2"
      [plugins."io.containerd.cri.v1.runtime".containerd.runtimes.crun.options]
        BinaryName = "{{.Peers}}/bin/crun"
`,
}

func launchContainerd(peers string) func(*target) (func() error, string, error) {
	return func(t *target) (func() error, string, error) {
		id := strings.TrimPrefix(filepath.Base(t.dir), "t")
		p, err := newPlace(t, peers, "bench-ctrd"+id, "10.7"+id+".0.0/21")
		if err != nil {
			return nil, "", err
		}
		if err := containerdFiles.write(p); err != nil {
			return nil, "", err
		}
		return daemon(t, p.Socket, []string{"PATH=" + peers + "/bin:" + os.Getenv("PATH")},
			filepath.Join(peers, "bin/containerd"), "--config", filepath.Join(t.dir, "config.toml"))
	}
}

var crioFiles = peerFiles{
	"cni/10-bench.conflist": conflist,
	"policy.json":           `{"default":[{"type":"insecureAcceptAnything"}]}`,
	"home/.config/containers/registries.conf": `
unqualified-search-registries = ["{{.Registry}}"]
[[registry]]
location = "{{.Registry}}"
insecure = true
`,
	"conf.d/.keep": "",
	"hooks/.keep":  "",
	"crio.conf": `
[crio]
root = "{{.Dir}}/root"
runroot = "/run/containers/storage"
storage_driver = "overlay"
log_dir = "{{.Dir}}/log"
version_file = "/run/crio/version"
version_file_persist = "{{.Dir}}/version-persist"
clean_shutdown_file = "{{.Dir}}/clean.shutdown"
[crio.api]
listen = "{{.Socket}}"
stream_address = "127.0.0.1"
stream_port = "0"
[crio.runtime]
default_runtime = "crun"
cgroup_manager = "cgroupfs"
conmon_cgroup = "pod"
pinns_path = "{{.Peers}}/bin/pinns"
namespaces_dir = "/run/crio/ns"
container_exits_dir = "/run/crio/exits"
container_attach_socket_dir = "/run/crio/attach"
hooks_dir = ["{{.Dir}}/hooks"]
apparmor_profile = "unconfined"
[crio.runtime.runtimes.crun]
runtime_path = "{{.Peers}}/bin/crun"
runtime_root = "/run/crun"
monitor_path = "{{.Peers}}/bin/conmon"
[crio.image]
pause_image = "{{.Registry}}/pause:3.10"
pause_command = "/pause"
signature_policy = "{{.Dir}}/policy.json"
signature_policy_dir = "{{.Dir}}/policies"
[crio.network]
network_dir = "{{.Dir}}/cni"
plugin_dirs = ["{{.CNI}}"]
[crio.nri]
enable_nri = false
`,
}

func launchCRIO(peers string) func(*target) (func() error, string, error) {
	return func(t *target) (func() error, string, error) {
		p, err := newPlace(t, peers, "bench-crio0", "10.78.0.0/21")
		if err != nil {
			return nil, "", err
		}
		if err := crioFiles.write(p); err != nil {
			return nil, "", err
		}
		return daemon(t, p.Socket, []string{"HOME=" + filepath.Join(t.dir, "home"), "PATH=" + peers + "/bin:" + os.Getenv("PATH")},
			filepath.Join(peers, "bin/crio"), "--config", filepath.Join(t.dir, "crio.conf"), "--config-dir", filepath.Join(t.dir, "conf.d"))
	}
}
