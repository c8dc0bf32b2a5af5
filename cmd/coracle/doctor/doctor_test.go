package doctor

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/coracle-project/coracle/cmd/coracle/kubesocket"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// healthy is a node without a fault.
func healthy() *Facts {
	return &Facts{
		Kernel: Kernel{
			Release: "6.18.1-amd64", Overlay: true, NFTables: true, Seccomp: true,
			Namespaces: []string{"cgroup", "ipc", "mnt", "net", "pid", "time", "user", "uts"},
		},
		Cgroups:  Cgroups{Version: 2, Controllers: []string{"cpuset", "cpu", "io", "memory", "pids"}, Driver: "systemd", Systemd: true},
		Limits:   Limits{InotifyInstances: 1024, UserNamespaces: 1000},
		Security: Security{AppArmor: true, AppArmorParser: true},
		Config:   Config{Path: "/etc/coracle/config.toml", Exists: true},
		Shim:     Program{"containerd-shim-coracle-v1", "/usr/bin/containerd-shim-coracle-v1"},
		Disks: []Disk{
			{Purpose: "root", Path: "/var/lib/coracle", Type: "ext4", Total: 100 << 30, Free: 50 << 30, Inodes: 1000, InodesFree: 500},
			{Purpose: "state", Path: "/run/coracle", Type: "tmpfs", Total: 1 << 30, Free: 1 << 30},
		},
		CNI: CNI{Dir: "/etc/cni/net.d"},
		Network: Network{
			Subnets: []string{"10.85.0.0/16", "fd85::/64"}, Tracked: 10, TrackedMax: 1000, Forwards4: true, Forwards6: true,
			Uplink: Link{"eth0", 1500}, PodLinks: []Link{{"cor0123456789ab", 1500}}, NodePorts: []NodePort{{"tcp", 30080}},
			Listeners: []Listener{{NodePort{"tcp", 30100}, "::", "coracle-kube"}},
		},
		Cluster:    Cluster{Parts: []kubesocket.Part{{Component: "DNS", Healthy: true, Message: "answers"}}},
		Daemon:     Daemon{Socket: "/run/coracle/coracle.sock", Exists: true, Version: "1.0.0", Mine: "1.0.0"},
		Registries: []Registry{{Host: "registry.example", URL: "https://registry.example/v2/", Status: 401, Took: 30 * time.Millisecond}},
	}
}

func TestHealthy(t *testing.T) {
	all := Examine(healthy())
	for _, f := range all {
		if f.Level != OK || f.Remedy != "" {
			t.Errorf("%+v", f)
		}
	}
	if Sick(all) || len(all) < 10 {
		t.Errorf("%d findings", len(all))
	}
}

// Most clusters do without WireGuard.
func TestWireGuardIsNoFault(t *testing.T) {
	for there, want := range map[bool]string{true: "seccomp and WireGuard are there", false: "WireGuard is not"} {
		f := healthy()
		f.Kernel.WireGuard = there
		all := Examine(f)
		i := slices.IndexFunc(all, func(f Finding) bool { return f.Check == "features" })
		if i < 0 || Sick(all) || !strings.Contains(all[i].Message, want) {
			t.Errorf("%t: %+v", there, all)
		}
	}
}

// Each fault is found, by itself, with a remedy.
func TestFaults(t *testing.T) {
	for _, tc := range []struct {
		name    string
		fault   func(*Facts)
		check   string
		level   Level
		message string // a part of it
		remedy  string // likewise
	}{
		{"not root", func(f *Facts) { f.UID = 1000 }, "user", Warning, "not run as root", "sudo"},
		{"old kernel", func(f *Facts) { f.Kernel.Release = "5.4.0-1" }, "kernel", Error, "5.4.0-1 is older than 5.10", "newer kernel"},
		{"odd kernel", func(f *Facts) { f.Kernel.Release = "experimental" }, "kernel", Warning, `"experimental"`, ""},
		{"no overlayfs", func(f *Facts) { f.Kernel.Overlay = false }, "overlayfs", Error, "no overlayfs", "CONFIG_OVERLAY_FS"},
		{"no nftables", func(f *Facts) { f.Kernel.NFTables = false }, "nftables", Error, "no nftables", "modprobe nf_tables"},
		{"no seccomp", func(f *Facts) { f.Kernel.Seccomp = false }, "seccomp", Error, "no seccomp", "CONFIG_SECCOMP_FILTER"},
		{"no namespace", func(f *Facts) {
			f.Kernel.Namespaces = f.Kernel.Namespaces[1:]
		}, "namespaces", Error, "kind cgroup", "CONFIG_NAMESPACES"},
		{"no user namespaces", func(f *Facts) { f.Limits.UserNamespaces = 0 }, "namespaces", Warning, "hostUsers", "sysctl"},
		{"no cgroups", func(f *Facts) { f.Cgroups.Version = 0 }, "cgroups", Error, "nothing is mounted", "mount -t cgroup2"},
		{"no memory controller", func(f *Facts) {
			f.Cgroups.Controllers = []string{"cpu", "cpuset", "pids", "io"}
		}, "cgroups", Error, "no memory controller", "cgroup_enable=memory"},
		{"no pids controller", func(f *Facts) {
			f.Cgroups.Controllers = []string{"cpu", "cpuset", "memory", "io"}
		}, "cgroups", Warning, "no pids controller", "cgroup_disable=pids"},
		{"two writers", func(f *Facts) { f.Cgroups.Driver = "auto" }, "cgroups", Warning, "two writers", `"systemd"`},
		{"no systemd", func(f *Facts) { f.Cgroups.Systemd = false }, "cgroups", Error, "systemd does not run this machine", `"cgroupfs"`},
		{"few inotify instances", func(f *Facts) { f.Limits.InotifyInstances = 10 }, "limits", Warning, "is 10", "sysctl"},
		{"no apparmor_parser", func(f *Facts) {
			f.Security.AppArmorParser = false
		}, "apparmor", Warning, "no apparmor_parser", "package apparmor"},
		{"broken configuration", func(f *Facts) {
			f.Config.Err = "config /x: line 3: no such key"
		}, "config", Error, "line 3", "coracled config check"},
		{"old name of a setting", func(f *Facts) {
			f.Config.Exists, f.Config.Warnings = true, []string{"network.bridge is called network.name now"}
		}, "config", Warning, "network.name", "edit"},
		{"pods on the old bridge", func(f *Facts) {
			f.Daemon.Bridged = []string{"abc", "def"}
		}, "network", Warning, "on the bridge of an earlier release, where neighbours can forge addresses: 2 pods (abc, def)", "recreate"},
		{"no shim", func(f *Facts) { f.Shim.Path = "" }, "shim", Error, "not installed", "next to coracled"},
		{"disk unreadable", func(f *Facts) { f.Disks[0].Err = "input/output error" }, "disk", Error, "input/output", "--root"},
		{"disk read-only", func(f *Facts) { f.Disks[0].ReadOnly = true }, "disk", Error, "read-only", "mount it writable"},
		{"disk full", func(f *Facts) { f.Disks[0].Free = 1 << 20 }, "disk", Error, "free", "coracle image prune"},
		{"disk filling", func(f *Facts) { f.Disks[0].Free = 5 << 30 }, "disk", Warning, "5.369GB of 107.4GB free", "coracle image prune"},
		{"no inodes", func(f *Facts) { f.Disks[0].InodesFree = 3 }, "disk", Error, "3 of 1000 inodes", "more inodes"},
		{"root on overlay", func(f *Facts) { f.Disks[0].Type = "overlay" }, "disk", Error, "is on overlay", "of its own"},
		{"root on nfs", func(f *Facts) { f.Disks[0].Type = "nfs" }, "disk", Error, "is on nfs", "local disk"},
		{"root on tmpfs", func(f *Facts) { f.Disks[0].Type = "tmpfs" }, "disk", Warning, "is on tmpfs", "on a disk"},
		{"state full", func(f *Facts) { f.Disks[1].Free = 0 }, "disk", Error, "/run/coracle (state): 0B of", "remount,size=SIZE /run/coracle"},
		{"state filling", func(f *Facts) { f.Disks[1].Total, f.Disks[1].Free = 10<<30, 1<<29 }, "disk", Warning, "free", "remove pods"},
		{"state running out of inodes", func(f *Facts) {
			f.Disks[1].Inodes, f.Disks[1].InodesFree = 100, 9
		}, "disk", Warning, "9 of 100 inodes", "nr_inodes"},
		{"state on a disk", func(f *Facts) { f.Disks[1].Type = "ext4" }, "disk", Warning, "is on ext4", "tmpfs"},
		{"broken CNI", func(f *Facts) { f.CNI.Err = "/etc/cni/net.d/10.conf: bad" }, "cni", Error, "10.conf: bad", "built-in network"},
		{"CNI plugins missing", func(f *Facts) {
			f.CNI = CNI{File: "/etc/cni/net.d/10.conf", BinDirs: []string{"/opt/cni/bin"}, Missing: []string{"calico"}, Plugins: []string{"calico"}}
		}, "cni", Error, "none of /opt/cni/bin: calico", "containernetworking-plugins"},
		{
			"firewalld", func(f *Facts) {
				f.Network.Firewalls = []Firewall{{Manager: "firewalld", Table: "inet firewalld", Chain: "filter_FORWARD"}}
			}, "firewall", Warning,
			"firewalld: chain filter_FORWARD of table inet firewalld drops",
			"--zone=trusted --add-source=10.85.0.0/16 && firewall-cmd --permanent --zone=trusted --add-source=fd85::/64 && firewall-cmd --reload",
		},
		{"ufw", func(f *Facts) {
			f.Network.Firewalls = []Firewall{{Manager: "ufw", Table: "ip filter", Chain: "FORWARD"}}
		}, "firewall", Warning, "ufw: chain FORWARD", "ufw route allow from 10.85.0.0/16"},
		{
			"ufw, of what the node gets", func(f *Facts) {
				f.Network.Firewalls = []Firewall{{Manager: "ufw", Table: "ip filter", Chain: "INPUT", Keeps: "the cluster's DNS"}}
			}, "firewall", Warning, "ufw: chain INPUT of table ip filter drops what pods send to this node: pods may not reach the cluster's DNS",
			"ufw allow from 10.85.0.0/16 && ufw allow from fd85::/64",
		},
		{"firewalld, of what the node gets", func(f *Facts) {
			f.Network.Firewalls = []Firewall{{Manager: "firewalld", Table: "inet firewalld", Chain: "filter_INPUT", Keeps: "ports"}}
		}, "firewall", Warning, "drops what pods send to this node", "--zone=trusted --add-source=10.85.0.0/16"},
		{"iptables, of what the node gets", func(f *Facts) {
			f.Network.Firewalls = []Firewall{{Manager: "iptables", Table: "ip filter", Chain: "INPUT", Keeps: "ports"}}
		}, "firewall", Warning, "drops what pods send to this node", "ip6tables -I INPUT -s fd85::/64 -j ACCEPT"},
		{
			"a family that pods may not have", func(f *Facts) {
				f.Network.Subnets, f.CNI.File = nil, "/etc/cni/net.d/10.conf"
				f.CNI.Plugins = []string{"ptp"}
				f.Network.Firewalls = []Firewall{{Table: "ip6 filter", Chain: "FORWARD", Family: "IPv6"}}
			}, "firewall", Warning,
			"drops IPv6 packets of what this node forwards, and no rule of it lets pods' packets and the replies to them through: pods with " +
				"addresses of IPv6", "PODS",
		},
		{"docker", func(f *Facts) {
			f.Network.Firewalls = []Firewall{{Manager: "docker", Table: "ip filter", Chain: "FORWARD"}}
		}, "firewall", Warning, "docker: chain FORWARD", "ip6tables -I DOCKER-USER -s fd85::/64"},
		{"iptables-legacy", func(f *Facts) {
			f.Network.Firewalls = []Firewall{{Manager: "iptables-legacy", Table: "ip filter", Chain: "FORWARD"}}
		}, "firewall", Warning, "iptables-legacy: chain FORWARD", "iptables-legacy -I FORWARD -d 10.85.0.0/16"},
		{"someone's firewall", func(f *Facts) {
			f.Network.Firewalls = []Firewall{{Table: "inet mine", Chain: "fwd"}}
		}, "firewall", Warning, "chain fwd of table inet mine", "accept packets from and to 10.85.0.0/16 and fd85::/64"},
		{"rules that cannot be read", func(f *Facts) {
			f.Network.LegacyUnread = "iptables-legacy is not installed"
		}, "firewall", Warning, "cannot be read: iptables-legacy is not", "package iptables"},
		{"network not looked at", func(f *Facts) { f.Network.Err = "permission denied" }, "network", Warning, "permission denied", "sudo"},
		{"connections, nearly full", func(f *Facts) {
			f.Network.Tracked = 810
		}, "conntrack", Warning, "810 of at most 1000", "nf_conntrack_max=4000"},
		{"connections, full", func(f *Facts) { f.Network.Tracked = 990 }, "conntrack", Error, "new ones are dropped", "nf_conntrack_max=4000"},
		{"links larger than the uplink", func(f *Facts) {
			f.Network.Uplink.MTU = 1450
		}, "mtu", Warning, "links of 1 pods (cor0123456789ab): an MTU of 1500, more than eth0 has, 1450", "recreate the pods"},
		{"links of CNI larger than the uplink", func(f *Facts) {
			f.Network.Uplink.MTU, f.CNI.File, f.CNI.Plugins = 1450, "/etc/cni/net.d/10.conf", []string{"ptp"}
		}, "mtu", Warning, "1450", `"mtu": 1450 in /etc/cni/net.d/10.conf`},
		{
			"network.mtu larger than the uplink", func(f *Facts) { f.Network.MTU = 9000 }, "mtu", Warning, "network.mtu: an MTU of 9000",
			"network.mtu = 1500",
		},
		{"no forwarding", func(f *Facts) {
			f.Network.Forwards4 = false
		}, "forwarding", Error, "ip_forward is 0", "sysctl -w net.ipv4.ip_forward=1"},
		{"no forwarding of IPv6", func(f *Facts) {
			f.Network.Forwards6 = false
		}, "forwarding", Error, "net.ipv6.conf.all.forwarding is 0", "sysctl -w net.ipv6"},
		{"a bridge without br_netfilter", func(f *Facts) {
			f.CNI.File, f.CNI.Plugins = "x", []string{"bridge", "host-local"}
		}, "networkpolicy", Warning, "the plugin bridge has them cross a bridge", "modprobe br_netfilter"},
		{"a bridge with br_netfilter for IPv4 only", func(f *Facts) {
			f.CNI.File, f.CNI.Plugins, f.Network.Bridged4 = "x", []string{"bridge"}, true
		}, "networkpolicy", Warning, "the plugin bridge", "bridge-nf-call-ip6tables=1"},
		{"macvlan", func(f *Facts) {
			f.CNI.File, f.CNI.Plugins = "x", []string{"macvlan"}
		}, "networkpolicy", Warning, "macvlan sends them past the node's network stack", "built-in network"},
		{"a node port that is taken", func(f *Facts) {
			f.Network.Listeners = []Listener{{NodePort{"tcp", 30080}, "0.0.0.0", "nginx"}}
		}, "nodeports", Error, "nginx listens on tcp port 30080 of 0.0.0.0, which is a Service's node port", "another nodePort"},
		{"a port of the range that is taken", func(f *Facts) {
			f.Network.Listeners = []Listener{{NodePort{"udp", 30080}, "0.0.0.0", ""}}
		}, "nodeports", Warning, "a process listens on udp port 30080 of 0.0.0.0, in the range", "outside of 30000 to 32767"},
		{"no DNS", func(f *Facts) {
			f.Cluster.Parts[0].Healthy, f.Cluster.Parts[0].Message = false, "address in use"
		}, "cluster", Error, "DNS: address in use", "kube.log"},
		{"objects that are not acted on", func(f *Facts) {
			f.Cluster.Parts[0].Warnings = []string{"2 StatefulSets"}
		}, "cluster", Warning, "2 StatefulSets", "docs/kubernetes.md"},
		{"cluster process of root", func(f *Facts) {
			f.Cluster = clusterOf(nil, fmt.Errorf("ask: %w", unix.EACCES))
		}, "cluster", Warning, "not checked: only root", "sudo coracle doctor"},
		{"cluster process hangs", func(f *Facts) { f.Cluster.Err = "deadline exceeded" }, "cluster", Error, "deadline exceeded", "kube.log"},
		{"no daemon", func(f *Facts) {
			f.Daemon = Daemon{Socket: "/run/coracle/coracle.sock"}
		}, "daemon", Warning, "does not run", "systemctl start coracled"},
		{"dead socket", func(f *Facts) {
			f.Daemon.Version, f.Daemon.Err = "", "connection refused"
		}, "daemon", Error, "connection refused", "systemctl restart"},
		{"not ready", func(f *Facts) {
			f.Daemon.Conditions = []string{"NetworkReady: NetworkNotReady: x"}
		}, "daemon", Error, "NetworkReady", "nothing has to be restarted"},
		{"unmanaged pod", func(f *Facts) {
			f.Daemon.Unmanaged = []Unmanaged{{Kind: "pod", ID: "abc", Reason: "its record is missing"}}
		}, "unmanaged", Warning, "pod abc is not managed: its record is missing", "crictl rmp abc"},
		{"unmanaged container", func(f *Facts) {
			f.Daemon.Unmanaged = []Unmanaged{{Kind: "container", ID: "abc", Reason: "unexpected end of JSON input"}}
		}, "unmanaged", Warning, "unexpected end", "crictl rm abc"},
		{"another version", func(f *Facts) {
			f.Daemon.Version = "0.9.0"
		}, "daemon", Warning, "coracled is 0.9.0, this command is 1.0.0", "systemctl restart coracled"},
		{"unknown registry", func(f *Facts) {
			f.Registries[0].Err, f.Registries[0].Kind = "no such host", NoName
		}, "registry", Error, "no such host", "resolv.conf"},
		{"untrusted registry", func(f *Facts) {
			f.Registries[0].Err, f.Registries[0].Kind = "unknown authority", NoTrust
		}, "registry", Error, "unknown authority", `ca_file in [image.registry."registry.example"]`},
		{"plain registry", func(f *Facts) {
			f.Registries[0].Err, f.Registries[0].Kind = "x", NotTLS
		}, "registry", Error, "x", "plain_http = true"},
		{"silent registry", func(f *Facts) {
			f.Registries[0].Err, f.Registries[0].Kind = "no answer", NoAnswer
		}, "registry", Error, "no answer", "HTTPS_PROXY"},
		{"dead registry", func(f *Facts) {
			f.Registries[0].Err, f.Registries[0].Kind = "refused", OtherReason
		}, "registry", Error, "refused", "see whether it runs"},
		{"dead registry with a mirror", func(f *Facts) {
			f.Registries[0].Err, f.Registries[0].Kind, f.Registries[0].Hosts = "refused", OtherReason, "/certs.d/x/hosts.toml"
		}, "registry", Warning, "refused", "/certs.d/x/hosts.toml"},
		{"ill registry", func(f *Facts) { f.Registries[0].Status = 503 }, "registry", Warning, "with 503", "see whether"},
		{"slow registry", func(f *Facts) { f.Registries[0].Took = 3 * time.Second }, "registry", Warning, "3.0 s", "mirror"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			f := healthy()
			tc.fault(f)
			all := Examine(f)
			var found []Finding
			for _, x := range all {
				if x.Level != OK {
					found = append(found, x)
				}
			}
			if len(found) != 1 {
				t.Fatalf("%+v", found)
			}
			x := found[0]
			if x.Check != tc.check || x.Level != tc.level || !strings.Contains(x.Message, tc.message) || !strings.Contains(x.Remedy, tc.remedy) ||
				(x.Remedy == "") != (tc.remedy == "") {
				t.Errorf("%+v", x)
			}
			if Sick(all) != (tc.level == Error) {
				t.Errorf("sick: %v", Sick(all))
			}
		})
	}
}

// Every disk is below its limit for one reason only, and a node without CNI does not need plugins.
func TestNotFaults(t *testing.T) {
	for name, change := range map[string]func(*Facts){
		"kernel that forgets exits":   func(f *Facts) { f.Kernel.Release = "6.1.0" },
		"file system without inodes":  func(f *Facts) { f.Disks[0].Inodes, f.Disks[0].InodesFree = 0, 0 },
		"no configuration":            func(f *Facts) { f.Config.Exists = false },
		"cgroup v1 with cgroupfs":     func(f *Facts) { f.Cgroups.Version, f.Cgroups.Driver = 1, "auto" },
		"blkio as v1 calls it":        func(f *Facts) { f.Cgroups.Controllers[2] = "blkio" },
		"CNI instead of nftables":     func(f *Facts) { f.Kernel.NFTables, f.CNI.File = false, "/etc/cni/net.d/10.conf" },
		"registry that asks for none": func(f *Facts) { f.Registries[0].Status = 200 },
		"no registry":                 func(f *Facts) { f.Registries = nil },
	} {
		f := healthy()
		change(f)
		for _, x := range Examine(f) {
			if x.Level != OK {
				t.Errorf("%s: %+v", name, x)
			}
		}
	}
}
