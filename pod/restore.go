package pod

import (
	"context"
	"errors"
	"path/filepath"
	"strconv"

	"github.com/coracle-project/coracle/pod/failure"
	"github.com/coracle-project/coracle/pod/life"
	"github.com/coracle-project/coracle/pod/podconfig"
)

// Restored is a container of RestorePod.
type Restored struct{ Name, ID string }

// RestorePod makes a pod, and of each container in a directory that CheckpointPod wrote one
// with a configuration of that name, which goes on from there when it is started. The
// directory must stay until then. On error nothing is left. ErrExists if there is a pod with
// this identity, even the same one. ErrPrecondition unless restoring is on.
func (m *Manager) RestorePod(ctx context.Context, dir string, c podconfig.Pod,
	containers []podconfig.Container,
) (podID string, out []Restored, err error) {
	saved, err := m.checkpoints.OpenPod(dir, &c, containers)
	if err != nil {
		return "", nil, failure.During("restore pod", c.String(), err)
	}
	made, err := m.podLives.RunNew(ctx, c)
	if err != nil {
		return "", nil, err
	}
	defer func() {
		if err != nil {
			undo, cancel := life.Undoing(ctx)
			defer cancel()
			err = errors.Join(err, m.Remove(undo, made))
		}
	}()
	for i := range containers {
		c := &containers[i]
		id, err := m.containerLives.CreateFrom(ctx, made, *c, filepath.Join(dir, strconv.Itoa(saved[c.Name])))
		if err != nil {
			return "", nil, failure.During("restore pod", made, err)
		}
		out = append(out, Restored{c.Name, id})
	}
	return made, out, nil
}
