// Package ocispec makes OCI runtime specs (config.json) out of decisions that have
// been taken already. It is pure data: it opens no file, asks no kernel and knows no
// container but the one in its arguments, so that every rule in it can be read off a
// golden file.
//
// pod/ resolves first (users against the image, host paths, devices, what the daemon
// itself may do) and then calls Container or PodInit.
package ocispec

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/coracle-project/coracle/internal/atomicfile"
)

// Input is all that a container's spec depends on.
type Input struct {
	Identity Identity
	// Root is the mounted root file system.
	Root         string
	ReadonlyRoot bool
	Hostname     string // of the pod's UTS namespace; only for annotations and env

	Args []string
	// ImageEnv comes first, then what the runtime sets, then Env; later wins.
	ImageEnv   []string
	Env        [][2]string
	WorkingDir string // "/" if empty
	TTY        bool
	UID, GID   uint32
	Groups     []uint32
	Rlimits    []specs.POSIXRlimit

	Privileged   bool
	NoNewPrivs   bool
	Capabilities Capabilities
	Seccomp      Seccomp
	AppArmor     string // profile name, "" for none
	ProcessLabel string // SELinux
	MountLabel   string
	// MaskedPaths and ReadonlyPaths: see coveredPaths.
	MaskedPaths, ReadonlyPaths []string

	Namespaces Namespaces
	// Files are the pod's own files that are mounted unless Mounts covers them.
	Files  Files
	Mounts []Mount
	// Devices are given besides the default ones. With AllDevices the container
	// may use every device number.
	Devices    []Device
	AllDevices bool

	Resources   Resources
	CgroupsPath string
	// Annotations are others that the runtime gets to see.
	Annotations map[string]string
}

// Identity is who the container is, for annotations.
type Identity struct {
	ID, Name                             string
	PodID, PodName, PodNamespace, PodUID string
	Image                                string
}

// Files are host paths; an empty one is not mounted.
type Files struct{ ResolvConf, Hosts, Hostname, Shm string }

// Mount is a bind mount whose source exists.
type Mount struct {
	Source, Destination string
	Readonly            bool
	RecursiveReadonly   bool
	Propagation         string // "rprivate" (if empty), "rslave", "rshared"
	Options             []string
	UIDs, GIDs          []specs.LinuxIDMapping
}

// Device is a device node and what may be done with it.
type Device struct {
	Node        specs.LinuxDevice
	Permissions string // of "rwm"
}

// Container makes the spec of an application container.
func Container(in Input) (*specs.Spec, error) {
	caps, err := in.Capabilities.sets(in.Privileged)
	if err != nil {
		return nil, err
	}
	s := &specs.Spec{
		Version: specs.Version,
		Root:    &specs.Root{Path: in.Root, Readonly: in.ReadonlyRoot},
		Process: &specs.Process{
			Terminal: in.TTY,
			User:     specs.User{UID: in.UID, GID: in.GID, AdditionalGids: in.Groups},
			Args:     in.Args, Env: environment(in), Cwd: in.WorkingDir,
			Capabilities: caps, NoNewPrivileges: in.NoNewPrivs,
			ApparmorProfile: in.AppArmor, SelinuxLabel: in.ProcessLabel,
			OOMScoreAdj: in.Resources.oomScoreAdj(), Rlimits: in.Rlimits,
		},
		Mounts:      mounts(in),
		Annotations: in.Identity.annotations("container", in.Annotations),
		Linux: &specs.Linux{
			Namespaces:  in.Namespaces.list(!in.Privileged),
			CgroupsPath: in.CgroupsPath,
			Resources:   in.Resources.linux(),
			MountLabel:  in.MountLabel,
			UIDMappings: in.Namespaces.UIDs, GIDMappings: in.Namespaces.GIDs,
		},
	}
	if s.Process.Cwd == "" {
		s.Process.Cwd = "/"
	}
	s.Linux.RootfsPropagation = rootPropagation(in.Mounts)
	s.Linux.Resources.Devices = deviceRules(in)
	for _, d := range in.Devices {
		s.Linux.Devices = append(s.Linux.Devices, d.Node)
	}
	if !in.Privileged {
		s.Linux.MaskedPaths, s.Linux.ReadonlyPaths = in.coveredPaths()
		if s.Linux.Seccomp, err = in.Seccomp.load(s); err != nil {
			return nil, err
		}
	}
	return s, nil
}

// coveredPaths are the paths that are hidden and those that are read-only. CRI cannot tell a list
// that is empty from none: the kubelet sends its defaults, or two empty lists for procMount:
// Unmasked, which Kubernetes allows in user namespaces only; people with crictl send nothing. So
// nothing means the defaults, but in a user namespace it means nothing.
func (in *Input) coveredPaths() (masked, readonly []string) {
	if len(in.MaskedPaths) == 0 && len(in.ReadonlyPaths) == 0 && in.Namespaces.User != "" {
		return nil, nil
	}
	return orDefault(in.MaskedPaths, DefaultMaskedPaths()), orDefault(in.ReadonlyPaths, DefaultReadonlyPaths())
}

func orDefault(given, def []string) []string {
	if len(given) == 0 {
		return def
	}
	return slices.Clone(given)
}

// annotations are others, and those that peers set, which hooks and other tools read.
func (i Identity) annotations(kind string, others map[string]string) map[string]string {
	a := maps.Clone(others)
	if a == nil {
		a = map[string]string{}
	}
	maps.Copy(a, map[string]string{
		"io.kubernetes.cri.container-type":    kind,
		"io.kubernetes.cri.sandbox-id":        i.PodID,
		"io.kubernetes.cri.sandbox-name":      i.PodName,
		"io.kubernetes.cri.sandbox-namespace": i.PodNamespace,
		"io.kubernetes.cri.sandbox-uid":       i.PodUID,
	})
	if i.Name != "" {
		a["io.kubernetes.cri.container-name"] = i.Name
		a["io.kubernetes.cri.image-name"] = i.Image
	}
	return a
}

// FileName is the spec's name in a bundle.
const FileName = "config.json"

// Write puts the spec into a bundle directory.
func Write(bundle string, s *specs.Spec) error {
	b, err := json.Marshal(s)
	if err != nil {
		return fmt.Errorf("write spec: %w", err)
	}
	if err := atomicfile.Write(filepath.Join(bundle, FileName), b, 0o600); err != nil {
		return fmt.Errorf("write spec: %w", err)
	}
	return nil
}

// Read reads the spec in a bundle directory.
func Read(bundle string) (*specs.Spec, error) {
	b, err := os.ReadFile(filepath.Join(bundle, FileName))
	if err != nil {
		return nil, err
	}
	s := &specs.Spec{}
	if err := json.Unmarshal(b, s); err != nil {
		return nil, fmt.Errorf("bundle: %w", err)
	}
	return s, nil
}
