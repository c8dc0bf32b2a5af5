package runtimetest

import (
	goruntime "runtime"

	"github.com/opencontainers/runtime-spec/specs-go"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// onOwnNetwork gives the rest of the test a network namespace without devices but lo. The thread
// that is in it ends with the test's goroutine.
func (r *rig) onOwnNetwork() {
	r.Helper()
	goruntime.LockOSThread()
	r.must(unix.Unshare(unix.CLONE_NEWNET))
}

// device makes a network device that is up and has an address.
func (r *rig) device(name, address string) {
	r.Helper()
	link := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: name}, PeerName: "to" + name}
	r.must(netlink.LinkAdd(link))
	addr, err := netlink.ParseAddr(address)
	r.must(err)
	r.must(netlink.AddrAdd(link, addr))
	r.must(netlink.LinkSetUp(link))
}

func (r *rig) hasDevice(name string) bool {
	_, err := netlink.LinkByName(name)
	return err == nil
}

const addresses = "ip -o addr show scope global | tr -s ' ' | cut -d' ' -f2-4; ip -o link show up | cut -d' ' -f2 | cut -d@ -f1 | tr -d :"

var (
	noDevice = differs("no device", "a network device of linux.netDevices that the host has not",
		"the error is netlink's", "it names the field")
	keptAddresses = differs("kept addresses", "IPv6 addresses of network devices", "are lost", "are kept")
	takenName     = differs("taken name", "a network device whose name the container's network has already",
		"it is moved, and goes with the network if it is a virtual one", "it stays on the host")
)

var deviceTests = map[string]func(*rig){
	// config-linux.md#network-devices.
	"network devices move with their addresses, and are up": func(r *rig) {
		r.onOwnNetwork()
		r.device("boat0", "192.0.2.7/24")
		r.device("boat1", "2001:db8::7/64")
		spec := r.spec(addresses)
		spec.Linux.NetDevices = map[string]specs.LinuxNetDevice{"boat0": {Name: "eth0"}, "boat1": {}}
		r.says(spec, "eth0 inet 192.0.2.7/24\n"+either(r, keptAddresses, "", "boat1 inet6 2001:db8::7/64\n")+"lo\neth0\nboat1")
		if r.hasDevice("boat0") || r.hasDevice("boat1") {
			r.Error("a device is still on the host")
		}
	},

	"network devices move into a user namespace's network, and into one that is joined": func(r *rig) {
		r.onOwnNetwork()
		r.device("boat0", "192.0.2.7/24")
		spec := r.inUserNamespace(r.spec(addresses))
		spec.Linux.NetDevices = map[string]specs.LinuxNetDevice{"boat0": {Name: "eth0"}}
		r.says(spec, "eth0 inet 192.0.2.7/24\nlo\neth0")

		r.device("boat1", "192.0.2.8/24")
		owner, pid := r.running()
		spec = r.spec(addresses)
		spec.Linux.NetDevices = map[string]specs.LinuxNetDevice{"boat1": {}}
		r.says(joining(spec, pid, specs.NetworkNamespace), "boat1 inet 192.0.2.8/24\nlo\nboat1")
		r.end(owner, pid)
	},

	"a network device that is missing, or whose name is taken": func(r *rig) {
		r.onOwnNetwork()
		spec := r.spec("true")
		spec.Linux.NetDevices = map[string]specs.LinuxNetDevice{"boat9": {}}
		r.refused(spec, either(r, noDevice, "link not found for interface boat9", "linux.netDevices.boat9: there is no such device"))
		r.device("boat0", "192.0.2.7/24")
		spec = r.spec("true")
		spec.Linux.NetDevices = map[string]specs.LinuxNetDevice{"boat0": {Name: "lo"}}
		r.refused(spec, "file exists")
		if got := r.hasDevice("boat0"); got != either(r, takenName, false, true) {
			r.Errorf("is the device still on the host? %v", got)
		}
	},
}
