package integration

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/coracle-project/coracle/internal/testkit"
)

// hostIDs is where the ids of the pods of these tests begin on the host.
const hostIDs = 1 << 17

func userNamespace() *cri.UserNamespace {
	maps := []*cri.IDMapping{{ContainerId: 0, HostId: hostIDs, Length: 1 << 16}}
	return &cri.UserNamespace{Mode: cri.NamespaceMode_POD, Uids: maps, Gids: maps}
}

// In a pod with a user namespace root is root, owns what root owns elsewhere, and is
// no one on the host.
func TestUserNamespace(t *testing.T) {
	n := newNode(t, testkit.Options{})
	n.pull("busybox")
	for _, pid := range []cri.NamespaceMode{cri.NamespaceMode_CONTAINER, cri.NamespaceMode_POD} {
		t.Run(pid.String(), func(t *testing.T) { userNamespaceOf(t, n, pid) })
	}
}

func userNamespaceOf(t *testing.T, n *node, pid cri.NamespaceMode) {
	n.t = t
	n.warm()
	n.pull("busybox")
	check := n.noLeaks()
	p := n.runPod(func(c *cri.PodSandboxConfig) {
		o := c.Linux.SecurityContext.NamespaceOptions
		o.Pid, o.UsernsOptions = pid, userNamespace()
		c.Linux.Sysctls = map[string]string{"kernel.shm_rmid_forced": "1", "net.ipv4.ip_forward": "1"}
	})
	if got := p.status().GetLinux().GetNamespaces().GetOptions().GetUsernsOptions(); got.GetMode() != cri.NamespaceMode_POD ||
		len(got.GetUids()) != 1 || got.GetUids()[0].GetHostId() != hostIDs {
		t.Errorf("status: %v", got)
	}
	volume := t.TempDir()
	conf := shell("main", `
		echo map $(cat /proc/self/uid_map)
		echo root $(id -u) owner $(stat -c %u /bin/busybox) resolv $(stat -c %u /etc/resolv.conf) shm $(stat -c %u /dev/shm)
		echo x > /file && chown 7:8 /file && echo file $(stat -c %u:%g /file)
		echo y > /volume/file && echo volume $(stat -c %u /volume/file)
		echo sysctl $(cat /proc/sys/kernel/shm_rmid_forced) $(cat /proc/sys/net/ipv4/ip_forward)
		hostname mine && echo host $(hostname)
		ip link show eth0 >/dev/null && echo network
		ls /image/bin/busybox
		echo ready; `+forever)
	conf.Linux.SecurityContext.NamespaceOptions.Pid = pid
	conf.Linux.SecurityContext.Capabilities = &cri.Capability{AddCapabilities: []string{"SYS_ADMIN"}}
	maps := userNamespace().Uids
	conf.Mounts = []*cri.Mount{
		{ContainerPath: "/volume", HostPath: volume, UidMappings: maps, GidMappings: maps},
		{ContainerPath: "/image", Image: &cri.ImageSpec{Image: testRef("busybox")}},
	}
	c := p.run(conf)
	eventually(t, "the container has looked around", func() bool { return strings.Contains(c.output(""), "ready") })
	out := c.output("")
	for _, want := range []string{
		fmt.Sprintf("map 0 %d 65536\n", hostIDs), "root 0 owner 0 resolv 0 shm 0\n", "file 7:8\n", "volume 0\n",
		"sysctl 1 1\n", "host mine\n", "network\n", "/image/bin/busybox\n",
	} {
		if !strings.Contains(out, want) {
			t.Errorf("no %q in\n%s", want, out)
		}
	}
	// On the host: a mapped volume has the host's ids, the writable layer and the process the
	// pod's.
	owner := func(path string) uint32 {
		t.Helper()
		var st unix.Stat_t
		if err := unix.Stat(path, &st); err != nil {
			t.Fatal(err)
		}
		return st.Uid
	}
	if got := owner(filepath.Join(volume, "file")); got != 0 {
		t.Errorf("file of the volume belongs to %d on the host", got)
	}
	if got, _ := c.exec("cat", "/proc/self/uid_map"); !strings.Contains(got, fmt.Sprint(hostIDs)) {
		t.Errorf("exec is in another user namespace: %q", got)
	}
	if got, _ := c.exec("id", "-u"); strings.TrimSpace(got) != "0" {
		t.Errorf("exec as %q", got)
	}
	r, err := n.ContainerStatus(n.ctx(), &cri.ContainerStatusRequest{ContainerId: c.id, Verbose: true})
	if err != nil {
		t.Fatal(err)
	}
	var info struct{ PID int }
	if err := json.Unmarshal([]byte(r.GetInfo()["info"]), &info); err != nil {
		t.Fatal(err)
	}
	if got := owner(fmt.Sprintf("/proc/%d", info.PID)); got != hostIDs {
		t.Errorf("process belongs to %d on the host, want %d", got, hostIDs)
	}
	p.remove()
	if _, err := n.Images.RemoveImage(n.ctx(), &cri.RemoveImageRequest{Image: &cri.ImageSpec{Image: testRef("busybox")}}); err != nil {
		t.Fatal(err)
	}
	check()
}

// What the kubelet sends, on the wire: its defaults, or for procMount: Unmasked two empty lists,
// which all containers had covered like any other.
func TestUnmasked(t *testing.T) {
	n := newNode(t, testkit.Options{})
	n.pull("busybox")
	covered := []string{"/proc/interrupts"} // which every kernel has
	for name, tc := range map[string]struct {
		users            *cri.UserNamespace
		masked, readonly []string
		want             bool // that it is covered
	}{
		"Unmasked":                    {users: userNamespace(), masked: []string{}, readonly: []string{}},
		"Default in a user namespace": {users: userNamespace(), masked: covered, readonly: []string{"/proc/sys"}, want: true},
		"nothing is said":             {want: true},
	} {
		t.Run(name, func(t *testing.T) {
			n.t = t
			p := n.runPod(func(c *cri.PodSandboxConfig) {
				c.Linux.SecurityContext.NamespaceOptions.UsernsOptions = tc.users
			})
			conf := shell("main", forever)
			conf.Linux.SecurityContext.MaskedPaths, conf.Linux.SecurityContext.ReadonlyPaths = tc.masked, tc.readonly
			mounts, _ := p.run(conf).exec("cat", "/proc/mounts")
			for _, path := range []string{"/proc/interrupts", "/proc/sys"} {
				if got := strings.Contains(mounts, " "+path+" "); got != tc.want {
					t.Errorf("%s is covered: %t, in\n%s", path, got, mounts)
				}
			}
			p.remove()
		})
	}
}
