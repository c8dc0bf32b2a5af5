package state

import (
	"fmt"

	"github.com/coracle-project/coracle/internal/recordfile"
	"github.com/coracle-project/coracle/pod/record"
)

// Records are the records of a state directory.
type Records struct {
	Pods       record.Loaded[PodRecord]
	Containers record.Loaded[ContainerRecord]
}

// ReadRecords reads all records and changes nothing. A record of a newer daemon is an error
// (*recordfile.NewerError): this daemon does not understand it, and could destroy what it
// describes.
func ReadRecords(stateDir string) (*Records, error) {
	pods, err := Layout(stateDir).Pods().LoadAll()
	if err != nil {
		return nil, err
	}
	containers, err := Layout(stateDir).Containers().LoadAll()
	if err != nil {
		return nil, err
	}
	for id, rec := range pods.Records {
		if err := rec.Check(id); err != nil {
			delete(pods.Records, id)
			pods.Unread[id] = err
		}
	}
	for id, rec := range containers.Records {
		if err := rec.Check(id); err != nil {
			delete(containers.Records, id)
			containers.Unread[id] = err
		}
	}
	for _, unread := range []map[string]error{pods.Unread, containers.Unread} {
		for _, err := range unread {
			if recordfile.Newer(err) != nil {
				return nil, err
			}
		}
	}
	return &Records{pods, containers}, nil
}

// Check validates a parsed record.
func (r *PodRecord) Check(id string) error {
	switch r.Phase {
	case PodMaking, PodReady, PodBroken, PodStopping, PodStopped, PodRemoving:
	default:
		return fmt.Errorf("pod.json: unknown phase %q", r.Phase)
	}
	if r.ID != id {
		return fmt.Errorf("pod.json: belongs to pod %q", r.ID)
	}
	return nil
}

// Check validates a parsed record.
func (r *ContainerRecord) Check(id string) error {
	switch r.Phase {
	case ContainerMaking, ContainerCreated, ContainerStarting, ContainerRunning, ContainerExited, ContainerRemoving:
	default:
		return fmt.Errorf("container.json: unknown phase %q", r.Phase)
	}
	if r.ID != id {
		return fmt.Errorf("container.json: belongs to container %q", r.ID)
	}
	return nil
}
