package e2e

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"text/template"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/coracle-project/coracle/cluster/kubelet/cri"
)

// containerdFiles are containerd's configuration, by name below its directory. Its network is a
// bridge, as Coracle's own is.
var containerdFiles = map[string]string{
	"cni/10-bridge.conflist": `
{ "cniVersion": "1.0.0", "name": "kubelet-e2e", "plugins": [
  { "type": "bridge", "bridge": "kubelet-e2e", "isGateway": true,
    "ipam": { "type": "host-local", "dataDir": "{{.Dir}}/ipam",
              "ranges": [[{"subnet": "10.79.0.0/24"}]], "routes": [{"dst": "0.0.0.0/0"}] } } ] }
`,
	"certs.d/_default/hosts.toml": `
server = "http://{{.Registry}}"
[host."http://{{.Registry}}"]
  capabilities = ["pull", "resolve"]
`,
	"config.toml": `
version = 3
root = "{{.Dir}}/root"
state = "{{.Dir}}/state"
disabled_plugins = ["io.containerd.nri.v1.nri", "io.containerd.internal.v1.tracing", "io.containerd.tracing.processor.v1.otlp"]
[grpc]
  address = "{{.Socket}}"
[ttrpc]
  address = "{{.Socket}}.ttrpc"
[plugins."io.containerd.cri.v1.images"]
  snapshotter = "overlayfs"
  [plugins."io.containerd.cri.v1.images".pinned_images]
    sandbox = "{{.Registry}}/guest:pause"
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
        BinaryName = "{{.Bin}}/runc"
`,
}

// containerd has d be a containerd with runc below dir.
func (d *daemon) containerd(dir, registry string) {
	d.t.Helper()
	// Root of a pod with a user namespace passes through it, as through /run.
	if err := os.Chmod(dir, 0o711); err != nil {
		d.t.Fatal(err)
	}
	d.name = "containerd"
	place := struct {
		Dir, Socket, Registry, Bin, CNI string
		CanLowerOOM                     bool
	}{dir, d.socket, registry, binary(d.t, "peers/bin"), binary(d.t, "tools/cni"), canLowerOOM(d.t)}
	for name, text := range containerdFiles {
		var b strings.Builder
		if err := template.Must(template.New(name).Parse(text)).Execute(&b, place); err != nil {
			d.t.Fatal(err)
		}
		write(d.t, filepath.Join(dir, name), b.String())
	}
	d.command = []string{filepath.Join(place.Bin, "containerd"), "--config", filepath.Join(dir, "config.toml")}
	d.env = []string{"PATH=" + place.Bin + ":" + os.Getenv("PATH")}
	d.purge = d.removeSandboxes
}

// removeSandboxes ends what is left through CRI: containerd has nothing else that does.
func (d *daemon) removeSandboxes() error {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	c, err := cri.Dial(d.socket)
	if err != nil {
		return err
	}
	defer c.Close()
	list, err := c.Runtime.ListPodSandbox(ctx, &runtimeapi.ListPodSandboxRequest{})
	if err != nil {
		return err
	}
	var errs []error
	for _, s := range list.Items {
		_, err := c.Runtime.StopPodSandbox(ctx, &runtimeapi.StopPodSandboxRequest{PodSandboxId: s.Id})
		errs = append(errs, err)
		_, err = c.Runtime.RemovePodSandbox(ctx, &runtimeapi.RemovePodSandboxRequest{PodSandboxId: s.Id})
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// canLowerOOM tries what needs CAP_SYS_RESOURCE, on this process, and puts it back.
func canLowerOOM(t *testing.T) bool {
	t.Helper()
	const file = "/proc/self/oom_score_adj"
	before, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if os.WriteFile(file, []byte("-1"), 0) != nil {
		return false
	}
	return os.WriteFile(file, before, 0) == nil
}
