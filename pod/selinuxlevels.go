package pod

import (
	"strings"
	"sync"

	"github.com/coracle-project/coracle/pod/errdefs"
)

// levels counts the pods and containers of each SELinux level: any number of them may name the same
// one. go-selinux only knows which are taken, so a level is released when the last of them is gone.
type levels struct {
	mu    sync.Mutex
	users map[string]int
}

// newLabels makes labels and holds their level.
func (m *Manager) newLabels(options []string) (SELinuxLabels, error) {
	// Under the mutex: another pod's release could free the level before it is counted here.
	m.levels.mu.Lock()
	defer m.levels.mu.Unlock()
	l, err := m.Labels.Labels(options)
	if err != nil {
		return l, errdefs.Errorf(errdefs.ErrInvalid, "selinux label: %w", err)
	}
	m.levels.count(l)
	return l, nil
}

// holdLevel holds the level of labels that an earlier daemon made.
func (m *Manager) holdLevel(l SELinuxLabels) {
	m.levels.mu.Lock()
	defer m.levels.mu.Unlock()
	if m.levels.count(l) {
		m.Labels.Reserve(l.Process)
	}
}

// releaseLevel undoes one newLabels or holdLevel.
func (m *Manager) releaseLevel(l SELinuxLabels) {
	level := levelOf(l.Process)
	if level == "" {
		return
	}
	m.levels.mu.Lock()
	defer m.levels.mu.Unlock()
	if m.levels.users[level]--; m.levels.users[level] > 0 {
		return
	}
	delete(m.levels.users, level)
	m.Labels.Release(l.Process)
}

// count reports whether the labels have a level, which has one user more then.
func (l *levels) count(labels SELinuxLabels) bool {
	level := levelOf(labels.Process)
	if level == "" {
		return false
	}
	if l.users == nil {
		l.users = map[string]int{}
	}
	l.users[level]++
	return true
}

// levelOf is the level of a label, which is user:role:type:level. A level may have colons.
func levelOf(label string) string {
	parts := strings.SplitN(label, ":", 4)
	if len(parts) < 4 {
		return ""
	}
	return parts[3]
}
