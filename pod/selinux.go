package pod

import (
	"errors"
	"fmt"
	"strings"

	"github.com/opencontainers/selinux/go-selinux"
	"github.com/opencontainers/selinux/go-selinux/label"
	"golang.org/x/sys/unix"
)

// SELinuxLabels are a pod's, or a container's; empty where SELinux is off. The processes of a pod have its
// categories, and so have the files that they may write: what other pods wrote they cannot open.
type SELinuxLabels struct {
	Process string `json:"process,omitempty"`
	Mount   string `json:"mount,omitempty"`
}

// Labeler is the host's SELinux, as go-selinux has it.
type Labeler interface {
	// Labels makes labels from options such as "type:spc_t", with categories that no other label has unless
	// the options have a level.
	Labels(options []string) (SELinuxLabels, error)
	// Reserve keeps the categories of a label from being given to others, until Release.
	Reserve(label string)
	Release(label string)
	// Relabel labels all files below a path for those with the categories of the label only.
	Relabel(path, mountLabel string) error
}

type hostLabels struct{}

func (hostLabels) Labels(options []string) (l SELinuxLabels, err error) {
	l.Process, l.Mount, err = label.InitLabels(options)
	return l, err
}

func (hostLabels) Reserve(label string) { selinux.ReserveLabel(label) }
func (hostLabels) Release(label string) { selinux.ReleaseLabel(label) }

func (hostLabels) Relabel(path, mountLabel string) error {
	const shared = false // "s0", which every container can open
	if err := label.Relabel(path, mountLabel, shared); err != nil && !errors.Is(err, unix.ENOTSUP) {
		return fmt.Errorf("relabel %s: %w", path, err)
	}
	return nil
}

// podLabels makes a pod's labels. A privileged pod has them, too: its other containers need them.
func (m *Manager) podLabels(c *Config) (SELinuxLabels, error) {
	l, err := m.Labels.Labels(c.SELinux.options(false))
	if err != nil {
		return l, fail(ErrInvalid, "selinux label: %w", err)
	}
	return l, nil
}

// containerLabels are the pod's, with those parts changed that the container names. A privileged container has a
// label only if it names a part.
func (m *Manager) containerLabels(pod SELinuxLabels, sec *Security) (SELinuxLabels, error) {
	own := sec.SELinux
	// A pod that an earlier version made has no labels: there each container has its own.
	if own == (SELinux{}) && !sec.Privileged && pod != (SELinuxLabels{}) {
		return pod, nil
	}
	l, err := m.Labels.Labels(own.within(pod).options(sec.Privileged && own == (SELinux{})))
	if err != nil {
		return l, fail(ErrInvalid, "selinux label: %w", err)
	}
	return l, nil
}

// within fills in the parts that are not named from the pod's label. A level has colons.
func (l SELinux) within(pod SELinuxLabels) SELinux {
	of := strings.SplitN(pod.Process, ":", 4)
	if len(of) < 4 || l == (SELinux{}) {
		return l
	}
	for i, part := range []*string{&l.User, &l.Role, &l.Type, &l.Level} {
		if *part == "" {
			*part = of[i]
		}
	}
	return l
}

// options are a label's parts as label.InitLabels takes them: what is not named is as the host's policy has it for
// containers. Disabled is a label that confines nothing.
func (l SELinux) options(disabled bool) []string {
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
func (m *Manager) labelPodFiles(id string, c *Config, l SELinuxLabels) error {
	if l.Mount == "" {
		return nil
	}
	f := m.containerFiles(id, c)
	files := []string{f.ResolvConf, f.Hosts, f.Hostname}
	if !c.hostIPC() {
		files = append(files, f.Shm)
	}
	for _, path := range files {
		if err := m.Labels.Relabel(path, l.Mount); err != nil {
			return err
		}
	}
	return nil
}
