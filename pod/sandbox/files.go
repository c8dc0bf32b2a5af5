package sandbox

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/coracle-project/coracle/network"
	"github.com/coracle-project/coracle/pod/idmaps"
	"github.com/coracle-project/coracle/pod/mac"
	"github.com/coracle-project/coracle/pod/podconfig"
	"github.com/coracle-project/coracle/pod/spec"
)

// filesSize is the size of a pod's /dev/shm, as peers have it, with its other files.
const filesSize = "67108864"

// writePodFiles makes what needs no network: hostname and the shared memory.
func (ps *Pods) writePodFiles(id string, c *podconfig.Pod, hostname string) error {
	dir := ps.Dirs.PodFiles(id)
	if err := os.Mkdir(dir, 0o700); err != nil {
		return err
	}
	flags := uintptr(unix.MS_NOEXEC | unix.MS_NOSUID | unix.MS_NODEV)
	if err := unix.Mount("shm", dir, "tmpfs", flags, "mode=700,size="+filesSize); err != nil {
		return fmt.Errorf("mount %s: %w", dir, err)
	}
	if err := os.WriteFile(ps.Dirs.PodFile(id, "hostname"), []byte(hostname+"\n"), 0o644); err != nil {
		return err
	}
	if c.HostIPC() {
		return nil // /dev/shm is the host's
	}
	shm := ps.Dirs.PodFile(id, "shm")
	if err := os.Mkdir(shm, 0o755); err != nil {
		return err
	}
	return os.Chmod(shm, 0o777|os.ModeSticky) // whatever the umask is
}

// writeNetworkFiles makes what depends on the network's result: resolv.conf and hosts.
func (ps *Pods) writeNetworkFiles(id string, c *podconfig.Pod, hostname string, net network.Result) error {
	resolv, err := resolvConf(c.DNS, net, hostResolvConf)
	if err != nil {
		return err
	}
	if err := os.WriteFile(ps.Dirs.PodFile(id, "resolv.conf"), resolv, 0o644); err != nil {
		return err
	}
	var hosts []byte
	if c.HostNetwork() {
		if hosts, err = os.ReadFile("/etc/hosts"); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	if hosts == nil {
		hosts = hostsFile(hostname, net)
	}
	return os.WriteFile(ps.Dirs.PodFile(id, "hosts"), hosts, 0o644)
}

// givePodFiles makes the root of the pod's user namespace the owner of the pod's files, as
// the host's root is of other pods'.
func (ps *Pods) givePodFiles(id string, c *podconfig.Pod) error {
	if !c.UserNamespace() {
		return nil
	}
	uid, gid := idmaps.Root(c.Namespaces.Users)
	for _, name := range []string{"resolv.conf", "hosts", "hostname", "shm"} {
		if err := os.Lchown(ps.Dirs.PodFile(id, name), uid, gid); err != nil {
			return err
		}
	}
	return nil
}

// labelPodFiles labels the files that all containers of a pod see.
func (ps *Pods) labelPodFiles(id string, c *podconfig.Pod, l mac.Labels) error {
	if l.Mount == "" {
		return nil
	}
	f := spec.PodFiles(ps.Dirs, id, c)
	files := []string{f.ResolvConf, f.Hosts, f.Hostname}
	if !c.HostIPC() {
		files = append(files, f.Shm)
	}
	for _, path := range files {
		if err := ps.SELinux.Relabel(path, mac.VolumeLabel{Mount: l.Mount, Access: mac.PodAccess}); err != nil {
			return err
		}
	}
	return nil
}

// hostResolvConf reads the host's name server configuration; none is an empty one.
func hostResolvConf() ([]byte, error) {
	b, err := os.ReadFile("/etc/resolv.conf")
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return b, err
}

// resolvConf is the pod's resolv.conf: what the caller wants, else what the network
// gave, else a copy of the host's.
func resolvConf(d podconfig.DNS, net network.Result, host func() ([]byte, error)) ([]byte, error) {
	if len(d.Servers)+len(d.Searches)+len(d.Options) == 0 {
		d = podconfig.DNS{Servers: net.DNSServers, Searches: net.DNSSearches, Options: net.DNSOptions}
	}
	if len(d.Servers)+len(d.Searches)+len(d.Options) == 0 {
		return host()
	}
	var b bytes.Buffer
	if len(d.Searches) > 0 {
		fmt.Fprintf(&b, "search %s\n", strings.Join(d.Searches, " "))
	}
	for _, s := range d.Servers {
		fmt.Fprintf(&b, "nameserver %s\n", s)
	}
	if len(d.Options) > 0 {
		fmt.Fprintf(&b, "options %s\n", strings.Join(d.Options, " "))
	}
	return b.Bytes(), nil
}

// hostsFile is the pod's /etc/hosts, for callers that do not mount one of their own.
func hostsFile(hostname string, net network.Result) []byte {
	var b bytes.Buffer
	b.WriteString("127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n" +
		"fe00::0\tip6-localnet\nff02::1\tip6-allnodes\nff02::2\tip6-allrouters\n")
	for _, ip := range net.IPs {
		fmt.Fprintf(&b, "%s\t%s\n", ip, hostname)
	}
	return b.Bytes()
}
