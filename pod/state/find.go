package state

import "github.com/coracle-project/coracle/pod/errdefs"

// FindReady returns the pod with the id or unique id prefix. ErrPrecondition if it is not ready.
func FindReady(pods *PodTable, id string) (*PodEntry, error) {
	e, err := pods.Find(id)
	if err != nil {
		return nil, err
	}
	return e, e.Get().MustBeReady()
}

// FindRunning returns the container with the id or unique id prefix. ErrPrecondition if it does not
// run.
func FindRunning(containers *ContainerTable, id string) (*ContainerEntry, error) {
	e, err := containers.Find(id)
	if err != nil {
		return nil, err
	}
	if p := e.Get().Phase; p != ContainerRunning {
		return nil, errdefs.Errorf(errdefs.ErrPrecondition, "it is not running (%s)", p)
	}
	return e, nil
}

// ContainersOf returns all containers of a pod, half-made and half-removed ones too.
func ContainersOf(containers *ContainerTable, podID string) []*ContainerEntry {
	return containers.Each(func(r *ContainerRecord) bool { return r.PodID == podID })
}
