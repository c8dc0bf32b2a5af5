// Package config is the settings of coracled: one TOML file, read strictly. The
// struct below is the only place where a setting is named and explained; Default is
// the only place where it gets its value; `coracled config default` prints both.
package config

// Config is all settings. The tag doc is the comment that Write puts above a key.
type Config struct {
	Root    string  `toml:"root" doc:"Images, layers and writable layers: what outlives a reboot."`
	State   string  `toml:"state" doc:"Pods, containers, sockets: what a reboot may lose. Best on a tmpfs."`
	GRPC    GRPC    `toml:"grpc" doc:"Where the kubelet and crictl connect."`
	Log     Log     `toml:"log" doc:"What coracled writes to its standard error."`
	Shim    Shim    `toml:"shim" doc:"The process that is the parent of all containers."`
	Cgroup  Cgroup  `toml:"cgroup" doc:"Who makes cgroups."`
	Network Network `toml:"network" doc:"How pods are connected: by the plugins in cni_conf_dir if there is a configuration,\notherwise by a bridge of Coracle's own."`
	Image   Image   `toml:"image" doc:"How images are pulled."`
	Runtime Runtime `toml:"runtime" doc:"What RuntimeClass objects may name."`
	Stream  Stream  `toml:"stream" doc:"The server for exec, attach and port forwarding."`
}

// GRPC is section grpc.
type GRPC struct {
	Address string `toml:"address" doc:"unix:// and the absolute path of the socket (mode 0660, root).\nEmpty: coracle.sock in the state directory."`
}

// Log is section log.
type Log struct {
	Level  string `toml:"level" doc:"debug, info, warn or error. debug shows every call."`
	Format string `toml:"format" doc:"text or json."`
}

// Shim is section shim.
type Shim struct {
	Scope  string `toml:"scope" doc:"node: one shim for all pods. pod: one for each, which costs a process per pod."`
	Binary string `toml:"binary" doc:"Absolute path. Empty: containerd-shim-coracle-v1 next to coracled."`
	// Supervise is a bool or "auto", which Supervised resolves.
	Supervise any `toml:"supervise" doc:"Whether coracled, killed, is started again by the shim's keeper: true, false or \"auto\",\nwhich is true unless systemd started coracled."`
}

// Cgroup is section cgroup.
type Cgroup struct {
	Driver string `toml:"driver" doc:"cgroupfs or systemd, as the kubelet's cgroupDriver; auto is cgroupfs."`
	Root   string `toml:"root" doc:"Where pods go that name no parent. Empty: /coracle with cgroupfs, system.slice with systemd."`
}

// Network is section network.
type Network struct {
	Bridge     string   `toml:"bridge" doc:"Name of the built-in bridge, and of its nftables table."`
	Subnets    []string `toml:"subnets" doc:"Where the built-in bridge takes addresses from: an IPv4 range, an IPv6 range, or one of each."`
	MTU        int      `toml:"mtu" doc:"Of the built-in bridge. 0: that of the default route's interface."`
	CNIConfDir string   `toml:"cni_conf_dir" doc:"Directory with *.conflist, *.conf or *.json."`
	CNIBinDirs []string `toml:"cni_bin_dirs" doc:"Directories with CNI plugins."`
}

// Image is section image.
type Image struct {
	MaxConcurrentDownloads int                 `toml:"max_concurrent_downloads" doc:"Layers fetched at the same time from one registry, over all pulls."`
	Registry               map[string]Registry `toml:"registry" doc:"A registry that is not reached with HTTPS as the image names it:\n[image.registry.\"registry.example:5000\"]\nplain_http = true\ninsecure_skip_verify = false\nca_file = \"/etc/ssl/registry-ca.pem\"\nmirrors = [\"mirror.example:5000\"]\ntoken_hosts = [\"auth.example:5001\"]"`
}

// Registry is one section image.registry."host:port".
type Registry struct {
	PlainHTTP          bool     `toml:"plain_http" doc:"Speak HTTP. Loopback registries are tried so without asking."`
	InsecureSkipVerify bool     `toml:"insecure_skip_verify" doc:"Accept any certificate."`
	CAFile             string   `toml:"ca_file" doc:"PEM file with certificate authorities to trust besides the system's."`
	Mirrors            []string `toml:"mirrors" doc:"Registries to ask first, in order: host:port, or http:// or https:// before it.\nThey are not shown the credentials."`
	TokenHosts         []string `toml:"token_hosts" doc:"host:port of token services, as the registry names them, that may get the credentials\nalthough their addresses are private. Public ones, and those on the registry's host, always may."`
}

// Runtime is section runtime.
type Runtime struct {
	Handlers []string `toml:"handlers" doc:"Handlers for Coracle's own runtime, besides the unnamed default."`
}

// Stream is section stream.
type Stream struct {
	Address string `toml:"address" doc:"host:port. The kubelet relays from here; port 0 takes a free one."`
}

// Default is the one table of defaults.
func Default() Config {
	return Config{
		Root:   "/var/lib/coracle",
		State:  "/run/coracle",
		Log:    Log{Level: "info", Format: "text"},
		Shim:   Shim{Scope: "node", Supervise: "auto"},
		Cgroup: Cgroup{Driver: "auto"},
		Network: Network{
			Bridge:     "coracle0",
			Subnets:    []string{"10.85.0.0/16", "fd85:c0ac:1e00::/64"},
			CNIConfDir: "/etc/cni/net.d",
			CNIBinDirs: []string{"/opt/cni/bin", "/usr/lib/cni"},
		},
		Image:   Image{MaxConcurrentDownloads: 6},
		Runtime: Runtime{Handlers: []string{"coracle"}},
		Stream:  Stream{Address: "127.0.0.1:0"},
	}
}

// Socket is the path of the CRI socket.
func (c *Config) Socket() string {
	if c.GRPC.Address == "" {
		return c.State + "/coracle.sock"
	}
	return c.GRPC.Address[len(scheme):]
}

// Supervised resolves Shim.Supervise; underSystemd says that systemd started us and
// does the restarting.
func (c *Config) Supervised(underSystemd bool) bool {
	if b, ok := c.Shim.Supervise.(bool); ok {
		return b
	}
	return !underSystemd
}
