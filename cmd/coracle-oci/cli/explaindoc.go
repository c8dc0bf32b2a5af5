package cli

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

// explanation is what explain prints: the document of --output json and yaml.
type explanation struct {
	Bundle string `json:"bundle"`
	// Engine would make the container; Because says why, if it is not the usual one.
	Engine  string `json:"engine"`
	Because string `json:"because,omitempty"`

	Namespaces []explainedNamespace `json:"namespaces"`
	Mappings   *plan.Mappings       `json:"mappings,omitempty"`
	Cgroup     explainedCgroup      `json:"cgroup"`
	Root       explainedRoot        `json:"root"`
	Mounts     []explainedMount     `json:"mounts"`
	Devices    []explainedDevice    `json:"devices"`
	Links      []plan.Symlink       `json:"links"`
	Readonly   []string             `json:"readonlyPaths"`
	Masked     []string             `json:"maskedPaths"`
	Kernel     []explainedSetting   `json:"kernel"`
	Process    explainedProcess     `json:"process"`
	Seccomp    *explainedSeccomp    `json:"seccomp,omitempty"`
	Hooks      []explainedHook      `json:"hooks"`
	// Steps are all operations, in order.
	Steps    []string           `json:"steps"`
	Warnings []explainedWarning `json:"warnings"`
}

// newExplanation has empty lists, which in JSON are no null.
func newExplanation(bundle string) *explanation {
	return &explanation{
		Bundle: bundle, Engine: engine.Name, Mounts: []explainedMount{}, Devices: []explainedDevice{}, Links: []plan.Symlink{},
		Readonly: []string{}, Masked: []string{}, Kernel: []explainedSetting{}, Hooks: []explainedHook{}, Warnings: []explainedWarning{},
		Process: explainedProcess{Env: []string{}, Limits: []explainedSetting{}, Settings: []explainedSetting{}},
	}
}

type explainedNamespace struct {
	Type string `json:"type"`
	// Of is new, joined or host.
	Of   string `json:"of"`
	Path string `json:"path,omitempty"`
}

type explainedCgroup struct {
	Version int      `json:"version"`
	Paths   []string `json:"paths"`
	// Limits are the files that are written.
	Limits  []explainedSetting `json:"limits"`
	Devices []string           `json:"deviceRules"`
}

type explainedRoot struct {
	Path        string `json:"path"`
	Readonly    bool   `json:"readonly"`
	Propagation string `json:"propagation"`
}

type explainedMount struct {
	Target  string   `json:"target"`
	Type    string   `json:"type"`
	Source  string   `json:"source,omitempty"`
	Options []string `json:"options"`
}

func (m explainedMount) has(option string) bool { return slices.Contains(m.Options, option) }

type explainedDevice struct {
	Path string `json:"path"`
	// What is the kind with numbers and mode, or that it is the host's.
	What string `json:"what"`
}

type explainedSetting struct {
	Name  string `json:"name"`
	Value string `json:"value"`
}

type explainedProcess struct {
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
	Dropped         []string           `json:"droppedCapabilities"`
	NoNewPrivileges bool               `json:"noNewPrivileges"`
	Limits          []explainedSetting `json:"rlimits"`
	Settings        []explainedSetting `json:"settings"` // scheduling, labels, and so on
}

type explainedSeccomp struct {
	Default      string            `json:"defaultAction"`
	Instructions int               `json:"instructions"`
	Flags        []string          `json:"flags,omitempty"`
	Listener     string            `json:"listener,omitempty"`
	Archs        []seccomp.Summary `json:"architectures"`
}

type explainedHook struct {
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
func namespacesOfSpec(spec *specs.Spec) []explainedNamespace {
	var out []explainedNamespace
	for _, ns := range allNamespaces {
		e := explainedNamespace{Type: string(ns.kind), Of: "host"}
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
func (e *explanation) of(t specs.LinuxNamespaceType) explainedNamespace {
	for _, n := range e.Namespaces {
		if n.Type == string(t) {
			return n
		}
	}
	return explainedNamespace{}
}

// hosts tells a namespace that is the host's, also one that is joined by way of its init.
func (n explainedNamespace) hosts() bool {
	return n.Of == "host" || strings.HasPrefix(path.Clean(n.Path), "/proc/1/ns/")
}

// joinable are the namespaces that a further process has to join.
func (e *explanation) joinable() plan.Namespaces {
	var all plan.Namespaces
	for i, ns := range allNamespaces {
		if e.Namespaces[i].Of != "host" {
			all |= ns.flag
		}
	}
	return all
}
