// Package mac decides which SELinux labels and which AppArmor profile a pod or container has.
package mac

import (
	"errors"
	"fmt"
	"strings"
	"sync"

	"github.com/opencontainers/selinux/go-selinux"
	"github.com/opencontainers/selinux/go-selinux/label"
	"golang.org/x/sys/unix"

	"github.com/coracle-project/coracle/pod/errdefs"
	"github.com/coracle-project/coracle/pod/podconfig"
)

// Labels are a pod's, or a container's; empty where SELinux is off. The processes of a pod
// have its categories, and so have the files that they may write: what other pods wrote they cannot
// open.
type Labels struct {
	Process string `json:"process,omitempty"`
	Mount   string `json:"mount,omitempty"`
}

// Labeler is the host's SELinux, as go-selinux has it.
type Labeler interface {
	// Labels makes labels from options such as "type:spc_t", with categories that no other label
	// has unless the options have a level.
	Labels(options []string) (Labels, error)
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

func (hostLabels) Labels(options []string) (l Labels, err error) {
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

// SELinux makes the labels of pods and containers, and counts the users of each level: any number
// of them may name the same one. go-selinux only knows which are taken, so a level is released when
// the last of them is gone.
type SELinux struct {
	host Labeler

	mu    sync.Mutex
	users map[string]int
}

// NewSELinux makes labels with a host's SELinux; this host's if nil.
func NewSELinux(host Labeler) *SELinux {
	if host == nil {
		host = hostLabels{}
	}
	return &SELinux{host: host, users: map[string]int{}}
}

// Pod makes a pod's labels, and holds their level until Release. A privileged pod has them, too:
// its other containers need them.
func (s *SELinux) Pod(c *podconfig.Pod) (Labels, error) {
	return s.make(labelOptions(c.SELinux, false))
}

// Container returns the pod's labels, with those parts changed that the container names. A
// privileged container has a label only if it names a part. With held, they have a level that is
// not the pod's and is held until Release.
func (s *SELinux) Container(pod Labels, sec *podconfig.Security) (l Labels, held bool, err error) {
	own := sec.SELinux
	// A pod that an earlier version made has no labels: there each container has its own.
	if own == (podconfig.SELinux{}) && !sec.Privileged && pod != (Labels{}) {
		return pod, false, nil
	}
	l, err = s.make(labelOptions(within(own, pod), sec.Privileged && own == (podconfig.SELinux{})))
	return l, err == nil && levelOf(l.Process) != "", err
}

// make makes labels and holds their level.
func (s *SELinux) make(options []string) (Labels, error) {
	// Under the mutex: another pod's release could free the level before it is counted here.
	s.mu.Lock()
	defer s.mu.Unlock()
	l, err := s.host.Labels(options)
	if err != nil {
		return l, errdefs.Errorf(errdefs.ErrInvalid, "selinux label: %w", err)
	}
	s.countLocked(l)
	return l, nil
}

// Hold holds the level of labels that an earlier daemon made.
func (s *SELinux) Hold(l Labels) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.countLocked(l) {
		s.host.Reserve(l.Process)
	}
}

// Release undoes one Pod, Container or Hold.
func (s *SELinux) Release(l Labels) {
	level := levelOf(l.Process)
	if level == "" {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.users[level]--; s.users[level] > 0 {
		return
	}
	delete(s.users, level)
	s.host.Release(l.Process)
}

// countLocked counts a user of the labels' level, and reports whether they have one.
func (s *SELinux) countLocked(labels Labels) bool {
	level := levelOf(labels.Process)
	if level == "" {
		return false
	}
	s.users[level]++
	return true
}

// Relabel labels all files below a path, unless the label is empty.
func (s *SELinux) Relabel(path string, l VolumeLabel) error {
	if l.Mount == "" {
		return nil
	}
	return s.host.Relabel(path, l.Mount, l.Access)
}

// VolumeLabel is how the volumes of a container are relabelled.
type VolumeLabel struct {
	Mount  string // "": not at all
	Access FileAccess
}

// VolumeLabelOf is the pod's label, since its containers share volumes: the label of a privileged
// container would lock the others out. Only a container that names its level needs volumes of that
// level. In a pod that an earlier version made, each container has a level of its own, so its
// volumes remain open to all.
func VolumeLabelOf(pod, container Labels, sec *podconfig.Security) VolumeLabel {
	switch {
	case pod.Mount == "":
		return VolumeLabel{container.Mount, AllAccess}
	case sec.SELinux.Level != "":
		return VolumeLabel{container.Mount, PodAccess}
	default:
		return VolumeLabel{pod.Mount, PodAccess}
	}
}

// within fills in the parts that are not named from the pod's label. A level has colons.
func within(l podconfig.SELinux, pod Labels) podconfig.SELinux {
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

// levelOf is the level of a label, which is user:role:type:level. A level may have colons.
func levelOf(label string) string {
	parts := strings.SplitN(label, ":", 4)
	if len(parts) < 4 {
		return ""
	}
	return parts[3]
}
