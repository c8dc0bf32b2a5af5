package explain

import (
	"path"
	"slices"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/coracle-project/coracle/runtime/engine"
	"github.com/coracle-project/coracle/runtime/plan"
	"github.com/coracle-project/coracle/runtime/seccomp"
)

// Document is an explanation: the document of --output json and yaml.
type Document struct {
	Bundle string `json:"bundle"`
	// Engine would make the container; Because says why, if it is not the usual one.
	Engine  string `json:"engine"`
	Because string `json:"because,omitempty"`

	Namespaces []Namespace    `json:"namespaces"`
	Mappings   *plan.Mappings `json:"mappings,omitempty"`
	Cgroup     Cgroup         `json:"cgroup"`
	Root       Root           `json:"root"`
	Mounts     []Mount        `json:"mounts"`
	Devices    []Device       `json:"devices"`
	Links      []plan.Symlink `json:"links"`
	Readonly   []string       `json:"readonlyPaths"`
	Masked     []string       `json:"maskedPaths"`
	Kernel     []Setting      `json:"kernel"`
	Process    Process        `json:"process"`
	Seccomp    *Seccomp       `json:"seccomp,omitempty"`
	Hooks      []Hook         `json:"hooks"`
	// Steps are all operations, in order.
	Steps    []string  `json:"steps"`
	Warnings []Warning `json:"warnings"`
}

// newDocument has empty lists, which in JSON are no null.
func newDocument(bundle string) *Document {
	return &Document{
		Bundle: bundle, Engine: engine.Name, Mounts: []Mount{}, Devices: []Device{}, Links: []plan.Symlink{},
		Readonly: []string{}, Masked: []string{}, Kernel: []Setting{}, Hooks: []Hook{}, Warnings: []Warning{},
		Process: Process{Env: []string{}, Limits: []Setting{}, Settings: []Setting{}},
	}
}

type Namespace struct {
	Type string `json:"type"`
	// Of is new, joined or host.
	Of   string `json:"of"`
	Path string `json:"path,omitempty"`
}

type Cgroup struct {
	Version int      `json:"version"`
	Paths   []string `json:"paths"`
	// Limits are the files that are written.
	Limits  []Setting `json:"limits"`
	Devices []string  `json:"deviceRules"`
}

type Root struct {
	Path        string `json:"path"`
	Readonly    bool   `json:"readonly"`
	Propagation string `json:"propagation"`
}

type Mount struct {
	Target  string   `json:"target"`
	Type    string   `json:"type"`
	Source  string   `json:"source,omitempty"`
	Options []string `json:"options"`
}

func (m Mount) has(option string) bool { return slices.Contains(m.Options, option) }

type Device struct {
	Path string `json:"path"`
	// What is the kind with numbers and mode, or that it is the host's.
	What string `json:"what"`
}

type Setting struct {
	Name  string `json:"name"`
	Value string `json:"value"`
}

type Process struct {
	Args     []string            `json:"args"`
	Env      []string            `json:"env"`
	Cwd      string              `json:"cwd"`
	UID      uint32              `json:"uid"`
	GID      uint32              `json:"gid"`
	Groups   []uint32            `json:"groups,omitempty"`
	Umask    string              `json:"umask"`
	Terminal bool                `json:"terminal"`
	Caps     map[string][]string `json:"capabilities"`
	// Dropped is what is not in the bounding set.
	Dropped         []string  `json:"droppedCapabilities"`
	NoNewPrivileges bool      `json:"noNewPrivileges"`
	Limits          []Setting `json:"rlimits"`
	Settings        []Setting `json:"settings"` // scheduling, labels, and so on
}

type Seccomp struct {
	Default      string            `json:"defaultAction"`
	Instructions int               `json:"instructions"`
	Flags        []string          `json:"flags,omitempty"`
	Listener     string            `json:"listener,omitempty"`
	Archs        []seccomp.Summary `json:"architectures"`
}

type Hook struct {
	When string   `json:"when"`
	Path string   `json:"path"`
	Args []string `json:"args,omitempty"`
}

var allNamespaces = []struct {
	kind specs.LinuxNamespaceType
	flag plan.Namespaces
}{
	{specs.UserNamespace, unix.CLONE_NEWUSER},
	{specs.MountNamespace, unix.CLONE_NEWNS},
	{specs.PIDNamespace, unix.CLONE_NEWPID},
	{specs.NetworkNamespace, unix.CLONE_NEWNET},
	{specs.IPCNamespace, unix.CLONE_NEWIPC},
	{specs.UTSNamespace, unix.CLONE_NEWUTS},
	{specs.CgroupNamespace, unix.CLONE_NEWCGROUP},
	{specs.TimeNamespace, unix.CLONE_NEWTIME},
}

// namespacesOfSpec is for containers that another engine makes.
func namespacesOfSpec(spec *specs.Spec) []Namespace {
	var out []Namespace
	for _, ns := range allNamespaces {
		e := Namespace{Type: string(ns.kind), Of: "host"}
		if spec.Linux != nil {
			for _, n := range spec.Linux.Namespaces {
				if n.Type == ns.kind && n.Path == "" {
					e.Of = "new"
				} else if n.Type == ns.kind {
					e.Of, e.Path = "joined", n.Path
				}
			}
		}
		out = append(out, e)
	}
	return out
}

// of says whose namespace of a type the container has.
func (e *Document) of(t specs.LinuxNamespaceType) Namespace {
	for _, n := range e.Namespaces {
		if n.Type == string(t) {
			return n
		}
	}
	return Namespace{}
}

// hosts tells a namespace that is the host's, also one that is joined by way of its init.
func (n Namespace) hosts() bool {
	return n.Of == "host" || strings.HasPrefix(path.Clean(n.Path), "/proc/1/ns/")
}

// joinable are the namespaces that a further process has to join.
func (e *Document) joinable() plan.Namespaces {
	var all plan.Namespaces
	for i, ns := range allNamespaces {
		if e.Namespaces[i].Of != "host" {
			all |= ns.flag
		}
	}
	return all
}
