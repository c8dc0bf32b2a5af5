// Package config is the settings of coracled: one TOML file, read strictly. The
// struct below is the only place where a setting is named and explained; Default is
// the only place where it gets its value; `coracled config default` prints both.
package config

import "time"

// Config is all settings. The tag doc is the comment that Write puts above a key; live marks what
// may change while the daemon runs (Merge).
type Config struct {
	Root     string   `toml:"root" doc:"Images, layers and writable layers: what outlives a reboot."`
	State    string   `toml:"state" doc:"Pods, containers, sockets: what a reboot may lose. Best on a tmpfs."`
	GRPC     GRPC     `toml:"grpc" doc:"Where the kubelet and crictl connect."`
	Log      Log      `toml:"log" doc:"What coracled writes to its standard error."`
	Shim     Shim     `toml:"shim" doc:"The process that is the parent of all containers."`
	Cgroup   Cgroup   `toml:"cgroup" doc:"Who makes cgroups."`
	Network  Network  `toml:"network" doc:"How pods are connected: by the plugins in cni_conf_dir if there is a configuration,\notherwise by routed links of Coracle's own."`
	Image    Image    `toml:"image" doc:"How images are pulled and kept."`
	Snapshot Snapshot `toml:"snapshot" doc:"How layers are kept and containers' root file systems made of them."`
	Runtime  Runtime  `toml:"runtime" doc:"What RuntimeClass objects may name."`
	NRI      NRI      `toml:"nri" doc:"Plugins of the Node Resource Interface, which see and may change what containers are made from."`
	Metrics  Metrics  `toml:"metrics" doc:"What the daemon says of itself to Prometheus."`
	Tracing  Tracing  `toml:"tracing" doc:"Spans of calls, to OpenTelemetry."`
	Stream   Stream   `toml:"stream" doc:"The server for exec, attach and port forwarding."`
}

// GRPC is section grpc.
type GRPC struct {
	Address string `toml:"address" doc:"unix:// and the absolute path of the socket (mode 0660, root).\nEmpty: coracle.sock in the state directory."`
}

// Log is section log.
type Log struct {
	Level  string `toml:"level" live:"true" doc:"debug, info, warn or error. debug shows every call."`
	Format string `toml:"format" doc:"text or json."`
}

// Shim is section shim.
type Shim struct {
	Scope  string `toml:"scope" doc:"node: one shim for all pods. pod: one for each, which costs a process per pod."`
	Binary string `toml:"binary" doc:"Absolute path. Empty: containerd-shim-coracle-v1 next to coracled."`
	Engine string `toml:"engine" doc:"What makes containers: coracle or libcontainer, runc's, to compare with."`
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
	Name      string   `toml:"name" doc:"Name of the built-in network and of its nftables table. Each daemon on a host needs its own."`
	Subnets   []string `toml:"subnets" doc:"Where the built-in network takes addresses from: an IPv4 range, an IPv6 range, or one of each.\nThe first address of each is the host's."`
	MTU       int      `toml:"mtu" doc:"MTU of the pods' links. 0: that of the default route's interface."`
	AllowFrom []string `toml:"allow_from" doc:"Ranges beyond this host that may reach pods by the pods' own addresses, such as the cluster's nodes\nand pods where the network between nodes routes to pods. Answers and host ports need none."`
	// Bridge is Name by its old name.
	Bridge     string   `toml:"bridge" old:"true" doc:"Old name of network.name."`
	CNIConfDir string   `toml:"cni_conf_dir" live:"true" doc:"Directory with *.conflist, *.conf or *.json."`
	CNIBinDirs []string `toml:"cni_bin_dirs" live:"true" doc:"Directories with CNI plugins."`
}

// Image is section image.
type Image struct {
	ShortNameRegistry      string              `toml:"short_name_registry" doc:"Where names without a registry (busybox, team/app) are: docker.io, or a registry and path.\nEmpty: such names are refused, since the first registry to answer would decide what runs."`
	MaxConcurrentDownloads int                 `toml:"max_concurrent_downloads" live:"true" doc:"Blobs, or parts of large ones, fetched at the same time from one registry, over all pulls."`
	PullProgressTimeout    string              `toml:"image_pull_progress_timeout" live:"true" doc:"A pull that gets no byte for so long fails, whatever is left to be tried."`
	CertsDirs              []string            `toml:"certs_dirs" live:"true" doc:"Directories with hosts.toml or certificates per registry, as containerd and Docker have\nthem. The first that has one for a registry counts; they are read again for each pull."`
	OnlyListedLoopback     bool                `toml:"only_listed_loopback" live:"true" doc:"Connect to registries on loopback addresses only where [image.registry.\"host:port\"] or a directory in certs_dirs names\nthem. Any pod can name any image. Without this setting, the node would connect to its own ports. coracle up sets it."`
	Policy                 string              `toml:"policy" doc:"TOML file that says whose signatures an image needs, see docs/images.md.\nEmpty: /etc/coracle/policy.toml if there is one, else none."`
	DecryptionKeys         string              `toml:"decryption_keys" doc:"Directory with private keys (PEM, no passwords) for images encrypted by ocicrypt. Empty: none."`
	DockerConfig           string              `toml:"docker_config" live:"true" doc:"A Docker config.json whose credentials and helpers serve pulls that bring none. Empty: none."`
	KeepBlobs              bool                `toml:"keep_blobs" doc:"Keep layers also as registries sent them, so that the directory is a whole OCI layout and\nsaved or pushed images keep their manifests' digests. Costs a third more disk space."`
	Pinned                 []string            `toml:"pinned" doc:"Images that are removed by name only, never to make room: full names, or a prefix\nfollowed by * (registry.k8s.io/pause*)."`
	GCHighWater            int                 `toml:"gc_high_water" doc:"A pull that leaves the file system fuller than so many percent has images that nothing runs\nfrom removed, those pulled longest ago first. 0: never, since the kubelet does that."`
	GCLowWater             int                 `toml:"gc_low_water" doc:"Until it is less full than so many percent."`
	LazyReadTimeout        string              `toml:"lazy_read_timeout" live:"true" doc:"How long reading a file of a layer that is pulled lazily may wait for the registry before it fails (EIO)."`
	ShareBetweenNodes      bool                `toml:"share_between_nodes" doc:"Fetch layers from other nodes of the cluster that have them, or are receiving them, and pass them on to those.\nWithout a cluster this does nothing."`
	Registry               map[string]Registry `toml:"registry" live:"true" doc:"A registry that is not reached with HTTPS as the image names it. With any of the first four,\ncerts_dirs are not looked at:\n[image.registry.\"registry.example:5000\"]\nplain_http = true\ninsecure_skip_verify = false\nca_file = \"/etc/ssl/registry-ca.pem\"\nmirrors = [\"mirror.example:5000\"]\ntoken_hosts = [\"auth.example:5001\"]\nlazy = false\nmax_concurrent_downloads = 2"`
}

// ProgressTimeout is image_pull_progress_timeout, which Check has seen to be a duration.
func (i *Image) ProgressTimeout() time.Duration {
	d, _ := time.ParseDuration(i.PullProgressTimeout)
	return d
}

// LazyTimeout is lazy_read_timeout, which Check has seen to be a duration.
func (i *Image) LazyTimeout() time.Duration {
	d, _ := time.ParseDuration(i.LazyReadTimeout)
	return d
}

// Snapshot is section snapshot.
type Snapshot struct {
	Driver    string `toml:"driver" doc:"overlay, erofs or native; docs/images.md says which for what."`
	MaxBytes  int64  `toml:"max_bytes" doc:"The most that a container may write to its root file system. 0: no limit.\nNeeds project quotas (mount option prjquota) where root is."`
	MaxInodes int64  `toml:"max_inodes" doc:"The most files that a container may make there. 0: no limit."`
}

// Registry is one section image.registry."host:port".
type Registry struct {
	PlainHTTP              bool     `toml:"plain_http" doc:"Speak HTTP. Loopback registries without a section are tried so first."`
	InsecureSkipVerify     bool     `toml:"insecure_skip_verify" doc:"Accept any certificate."`
	CAFile                 string   `toml:"ca_file" doc:"PEM file with certificate authorities to trust besides the system's."`
	Mirrors                []string `toml:"mirrors" doc:"Registries to ask first, in order: host:port, or http:// or https:// before it.\nThey are not shown the credentials of a pull."`
	TokenHosts             []string `toml:"token_hosts" doc:"host:port of token services, as the registry names them, that may get the credentials\nalthough their addresses are private, and that are met as the registry is: with its client\ncertificates and insecure_skip_verify. Public ones, and those on the registry's host, always may\nget credentials."`
	Lazy                   bool     `toml:"lazy" doc:"Start containers before layers of estargz are here; docs/images.md says what that needs."`
	MaxConcurrentDownloads int      `toml:"max_concurrent_downloads" doc:"For this registry instead of image.max_concurrent_downloads. 0: that."`
}

// Runtime is section runtime.
type Runtime struct {
	Handlers []string           `toml:"handlers" live:"true" doc:"Handlers for Coracle's own runtime, besides the unnamed default."`
	Handler  map[string]Handler `toml:"handler" live:"true" doc:"A handler that makes containers in another way, by the name that RuntimeClass objects give:\n[runtime.handler.crun]\nruntime = \"oci:/usr/bin/crun\"\nprivileged_without_host_devices = false\nannotations = [\"example.com/*\"]\noverhead_cpu_millis = 0\noverhead_memory_bytes = 0\nsnapshotter = \"\"\nlog_file_bytes = 0\nlog_files = 0"`
	// LogFileBytes and LogFiles hold for Coracle's own runtime; other handlers have their own.
	LogFileBytes int64 `toml:"log_file_bytes" live:"true" doc:"Containers' logs are rotated by their writer before a file exceeds so many bytes, at least 262144: the\nkubelet looks only every ten seconds. Less than its containerLogMaxSize. 0: left to the kubelet."`
	LogFiles     int   `toml:"log_files" live:"true" doc:"How many files a container's log then has at most, with that which is written; the oldest is removed first. 0: 5."`

	Restore      bool     `toml:"restore" doc:"Let containers go on from checkpoints. The author of a checkpoint decides what its processes may do, whatever\nthe container's configuration says: only for nodes where all who create containers are trusted."`
	RestoreBases []string `toml:"restore_bases" doc:"Images that a checkpoint image may name as the one that its container was made from: full names, or a prefix\nfollowed by *. The author of a checkpoint chooses which of them it names, and everyone who creates containers can read them."`
	Ulimits      []string `toml:"ulimits" doc:"Limits of processes (setrlimit(2)) that containers start with, each as name=soft:hard, or name=both:\nulimits = [\"nofile=1024:1048576\", \"core=0\"]. -1 is no limit. Of others they have the shim's."`
	CDISpecDirs  []string `toml:"cdi_spec_dirs" doc:"Directories with CDI specs of devices, later ones before earlier."`
}

// Handler is one section runtime.handler.NAME.
type Handler struct {
	Runtime                      string   `toml:"runtime" doc:"coracle, oci:PATH for an OCI runtime's command, or shim:NAME for a containerd shim:\nits path, or its name in containerd (io.containerd.runc.v2) with the program in PATH."`
	PrivilegedWithoutHostDevices bool     `toml:"privileged_without_host_devices" doc:"Give privileged containers no device that they do not ask for."`
	Annotations                  []string `toml:"annotations" doc:"Annotations of pods and containers that the runtime gets to see: names, or patterns with * and ?. Those\nthat tell a runtime what to do (run.oci.*, org.systemd.property.*, org.criu.*…) have to be named in full."`
	OverheadCPUMillis            int64    `toml:"overhead_cpu_millis" doc:"What a pod needs beyond its containers, in thousandths of a CPU, where RuntimeClass does not say."`
	OverheadMemoryBytes          int64    `toml:"overhead_memory_bytes" doc:"Likewise in bytes."`
	Snapshotter                  string   `toml:"snapshotter" doc:"overlay, erofs or native, as snapshot.driver, which it is if empty. Another one has copies of the layers."`
	LogFileBytes                 int64    `toml:"log_file_bytes" doc:"runtime.log_file_bytes of this handler."`
	LogFiles                     int      `toml:"log_files" doc:"runtime.log_files of this handler."`
}

// NRI is section nri.
type NRI struct {
	Enabled         bool   `toml:"enabled" doc:"Whether plugins are started and listened for."`
	Socket          string `toml:"socket" doc:"Where plugins connect."`
	PluginDir       string `toml:"plugin_dir" doc:"Directory of plugins to be started, NN-NAME."`
	PluginConfigDir string `toml:"plugin_config_dir" doc:"Directory of their configurations, NN-NAME.conf or NAME.conf."`
}

// Metrics is section metrics.
type Metrics struct {
	Address string `toml:"address" doc:"host:port to serve /metrics on, without authentication. Empty: not served."`
}

// Tracing is section tracing.
type Tracing struct {
	Endpoint      string `toml:"endpoint" doc:"URL of a collector that takes OTLP over gRPC: http://host:port, or https:// for TLS. Empty: no traces."`
	SamplePercent int    `toml:"sample_percent" doc:"How many of 100 traces that begin here are recorded. Those that the caller began are recorded if it records them."`
}

// Stream is section stream.
type Stream struct {
	Address string `toml:"address" doc:"host:port on loopback: streams are not encrypted, and a client that knows a stream's URL can use it. The kubelet\nrelays from here; port 0 takes a free one."`
}

// Default is the one table of defaults.
func Default() Config {
	return Config{
		Root:   "/var/lib/coracle",
		State:  "/run/coracle",
		Log:    Log{Level: "info", Format: "text"},
		Shim:   Shim{Scope: "node", Engine: "coracle", Supervise: "auto"},
		Cgroup: Cgroup{Driver: "auto"},
		Network: Network{
			Name:       "coracle0",
			Subnets:    []string{"10.85.0.0/16", "fd85:c0ac:1e00::/64"},
			AllowFrom:  []string{},
			CNIConfDir: "/etc/cni/net.d",
			CNIBinDirs: []string{"/opt/cni/bin", "/usr/lib/cni"},
		},
		Image: Image{
			Pinned:                 []string{},
			GCLowWater:             80,
			MaxConcurrentDownloads: 6,
			PullProgressTimeout:    "5m",
			LazyReadTimeout:        "30s",
			ShareBetweenNodes:      true,
			CertsDirs:              []string{"/etc/coracle/certs.d", "/etc/containerd/certs.d", "/etc/docker/certs.d"},
		},
		Snapshot: Snapshot{Driver: "overlay"},
		Runtime: Runtime{
			Handlers: []string{"coracle"}, RestoreBases: []string{}, Ulimits: []string{},
			CDISpecDirs: []string{"/etc/cdi", "/var/run/cdi"},
		},
		NRI:     NRI{Socket: "/var/run/nri/nri.sock", PluginDir: "/opt/nri/plugins", PluginConfigDir: "/etc/nri/conf.d"},
		Tracing: Tracing{SamplePercent: 100},
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
