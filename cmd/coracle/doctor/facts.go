package doctor

import "time"

// Facts are what is known of a node.
type Facts struct {
	UID        int
	Kernel     Kernel
	Cgroups    Cgroups
	Limits     Limits
	Security   Security
	Config     Config
	Shim       Program
	Disks      []Disk
	CNI        CNI
	Network    Network
	Daemon     Daemon
	Cluster    Cluster
	Join       *Join // nil for a machine that has nothing to do with a cluster elsewhere
	Peers      []Peer
	Tunnels    []Tunnel
	Refusals   []Refusal
	Registries []Registry
}

// Kernel is what is running.
type Kernel struct {
	Release string // as uname says
	// These say whether the kernel has them, as modules to be loaded too.
	Overlay, NFTables, WireGuard bool

	Seccomp    bool
	Namespaces []string // kinds that /proc/self/ns has
}

// Cgroups is what is mounted at /sys/fs/cgroup.
type Cgroups struct {
	// Version is 2, 1, or 0 if nothing is mounted.
	Version     int
	Controllers []string
	// Driver is cgroup.driver; Systemd says that systemd runs the machine.
	Driver  string
	Systemd bool
}

// Limits of the kernel's.
type Limits struct {
	InotifyInstances int // fs.inotify.max_user_instances
	UserNamespaces   int // user.max_user_namespaces
}

// Security modules.
type Security struct {
	AppArmor       bool // the kernel confines by it
	AppArmorParser bool // apparmor_parser is installed
}

// Config is coracled's file.
type Config struct {
	Path   string
	Exists bool
	Err    string // what is wrong in it
	// Warnings are about settings that should be written in another way.
	Warnings []string
}

// Program is one that coracled executes; Path is empty if there is none.
type Program struct{ Name, Path string }

// Disk is the file system of one of coracled's directories.
type Disk struct {
	Purpose, Path string // "root" or "state"
	Type          string // "ext4", "0x1234" if unknown
	ReadOnly      bool
	Total, Free   uint64 // bytes, free for root
	Inodes        uint64 // 0: the file system has no fixed number
	InodesFree    uint64
	Err           string // why it could not be looked at
}

// CNI is the network configuration.
type CNI struct {
	Dir     string
	BinDirs []string
	File    string // the one in force; empty: none, so the built-in network is used
	Err     string // what is wrong with it
	Missing []string
	Plugins []string // that File asks for, the main one first
}

// Daemon is coracled, seen from outside.
type Daemon struct {
	Socket  string
	Exists  bool // the socket does
	Version string
	Err     string // why it did not answer
	// Conditions are those of CRI's Status that are false, with their reasons.
	Conditions []string
	// Unmanaged are the pods and containers whose records coracled cannot read.
	Unmanaged []Unmanaged
	// Bridged are pods that an earlier release has put on its bridge, by id.
	Bridged []string
	// Mine is the version of this command.
	Mine string
}

// Unmanaged is a pod or container that coracled leaves alone.
type Unmanaged struct {
	Kind   string `json:"kind"` // "pod" or "container"
	ID     string `json:"id"`
	Reason string `json:"reason"`
}

// Registry is one that images come from.
type Registry struct {
	Host   string
	URL    string
	Took   time.Duration
	Status int    // of the answer to GET /v2/
	Err    string // why there was none
	Kind   Unreachable
	// Hosts is the hosts.toml that says which servers coracled asks first; empty: none.
	Hosts string
}

// Unreachable is a kind of reason for an answer that did not come.
type Unreachable string

// The kinds.
const (
	NoName      Unreachable = "name"        // its name does not resolve
	NoTrust     Unreachable = "certificate" // its certificate is not trusted
	NotTLS      Unreachable = "plain"       // it speaks plain HTTP
	NoAnswer    Unreachable = "timeout"
	OtherReason Unreachable = "other"
)
