package pod

import (
	"errors"
	"fmt"
	"strings"

	"github.com/opencontainers/selinux/go-selinux"
	"github.com/opencontainers/selinux/go-selinux/label"
	"golang.org/x/sys/unix"

	"github.com/coracle-project/coracle/pod/podconfig"
	"github.com/coracle-project/coracle/pod/table"
)

// SELinuxLabels are a pod's, or a container's; empty where SELinux is off. The processes of a pod
// have its categories, and so have the files that they may write: what other pods wrote they cannot
// open.
type SELinuxLabels struct {
	Process string `json:"process,omitempty"`
	Mount   string `json:"mount,omitempty"`
}

// Labeler is the host's SELinux, as go-selinux has it.
type Labeler interface {
	// Labels makes labels from options such as "type:spc_t", with categories that no other label
	// has unless the options have a level.
	Labels(options []string) (SELinuxLabels, error)
	// Reserve keeps the categories of a label from being given to others, until Release.
	Reserve(label string)
	Release(label string)
	// Relabel labels all files below a path.
	Relabel(path, mountLabel string, access FileAccess) error
}

// FileAccess is who can open files that are relabelled.
type FileAccess bool

const (
	PodAccess FileAccess = false // only processes with the label's categories
	AllAccess FileAccess = true  // the containers of all pods: level "s0"
)

type hostLabels struct{}

func (hostLabels) Labels(options []string) (l SELinuxLabels, err error) {
	l.Process, l.Mount, err = label.InitLabels(options)
	return l, err
}

func (hostLabels) Reserve(label string) { selinux.ReserveLabel(label) }
func (hostLabels) Release(label string) { selinux.ReleaseLabel(label) }

func (hostLabels) Relabel(path, mountLabel string, access FileAccess) error {
	if err := label.Relabel(path, mountLabel, access == AllAccess); err != nil && !errors.Is(err, unix.ENOTSUP) {
		return fmt.Errorf("relabel %s: %w", path, err)
	}
	return nil
}

// podLabels makes a pod's labels. A privileged pod has them, too: its other containers need them.
func (m *Manager) podLabels(c *podconfig.Pod) (SELinuxLabels, error) {
	return m.newLabels(labelOptions(c.SELinux, false))
}

// containerLabels are the pod's, with those parts changed that the container names. A privileged
// container has a label only if it names a part. Labels that are not the pod's are in the
// container's record.
func (m *Manager) containerLabels(pod SELinuxLabels, e *table.Entry[containerRecord]) (SELinuxLabels, error) {
	sec := &e.Get().Config.Security
	own := sec.SELinux
	// A pod that an earlier version made has no labels: there each container has its own.
	if own == (podconfig.SELinux{}) && !sec.Privileged && pod != (SELinuxLabels{}) {
		return pod, nil
	}
	l, err := m.newLabels(labelOptions(within(own, pod), sec.Privileged && own == (podconfig.SELinux{})))
	if err != nil || levelOf(l.Process) == "" {
		return l, err
	}
	if err := e.Update(func(r *containerRecord) { r.Labels = l }); err != nil {
		m.releaseLevel(l)
		return l, err
	}
	return l, nil
}

// volumeLabel is how the volumes of a container are relabelled.
type volumeLabel struct {
	mount  string // "": not at all
	access FileAccess
}

// volumeLabelOf is the pod's label, since its containers share volumes: the label of a privileged
// container would lock the others out. Only a container that names its level needs volumes of that
// level. In a pod that an earlier version made, each container has a level of its own, so its
// volumes remain open to all.
func volumeLabelOf(pod, container SELinuxLabels, sec *podconfig.Security) volumeLabel {
	switch {
	case pod.Mount == "":
		return volumeLabel{container.Mount, AllAccess}
	case sec.SELinux.Level != "":
		return volumeLabel{container.Mount, PodAccess}
	default:
		return volumeLabel{pod.Mount, PodAccess}
	}
}

// within fills in the parts that are not named from the pod's label. A level has colons.
func within(l podconfig.SELinux, pod SELinuxLabels) podconfig.SELinux {
	of := strings.SplitN(pod.Process, ":", 4)
	if len(of) < 4 || l == (podconfig.SELinux{}) {
		return l
	}
	for i, part := range []*string{&l.User, &l.Role, &l.Type, &l.Level} {
		if *part == "" {
			*part = of[i]
		}
	}
	return l
}

// labelOptions are a label's parts as label.InitLabels takes them: what is not named is as the
// host's policy has it for containers. Disabled is a label that confines nothing.
func labelOptions(l podconfig.SELinux, disabled bool) []string {
	if disabled {
		return []string{"disable"}
	}
	var opts []string
	for _, part := range []struct{ name, value string }{
		{"user", l.User}, {"role", l.Role}, {"type", l.Type}, {"level", l.Level},
	} {
		if part.value != "" {
			opts = append(opts, part.name+":"+part.value)
		}
	}
	return opts
}

// labelPodFiles labels the files that all containers of a pod see.
func (m *Manager) labelPodFiles(id string, c *podconfig.Pod, l SELinuxLabels) error {
	if l.Mount == "" {
		return nil
	}
	f := m.containerFiles(id, c)
	files := []string{f.ResolvConf, f.Hosts, f.Hostname}
	if !c.HostIPC() {
		files = append(files, f.Shm)
	}
	for _, path := range files {
		if err := m.Labels.Relabel(path, l.Mount, PodAccess); err != nil {
			return err
		}
	}
	return nil
}
