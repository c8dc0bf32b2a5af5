package state

import (
	"path/filepath"

	"github.com/coracle-project/coracle/pod/record"
)

// Layout is the daemon's state directory, and says where everything of pods and containers is in
// it.
type Layout string

// Pods holds the pods' records, and what else belongs to each pod.
func (l Layout) Pods() record.Dir[PodRecord] {
	return record.Dir[PodRecord]{Path: filepath.Join(string(l), "pods"), Name: "pod.json", Version: recordVersion}
}

// Containers holds the containers' records, bundles and mount points.
func (l Layout) Containers() record.Dir[ContainerRecord] {
	return record.Dir[ContainerRecord]{Path: filepath.Join(string(l), "containers"), Name: "container.json", Version: recordVersion}
}

// Namespaces holds the pods' pinned namespaces. It is apart from their other files because
// nothing in it can be bind-mounted (nspin.Root).
func (l Layout) Namespaces() string { return filepath.Join(string(l), "ns") }

// NamespacesOf holds one pod's pinned namespaces.
func (l Layout) NamespacesOf(podID string) string { return filepath.Join(l.Namespaces(), podID) }

// PodFiles is where a pod's own files are. Its containers can write to them, so they
// are on a tmpfs of the pod's own: on the state directory's a container could fill up
// what the whole host needs.
func (l Layout) PodFiles(podID string) string { return filepath.Join(l.Pods().Of(podID), "files") }

// PodFile is the path of one of a pod's own files: "resolv.conf", "hosts", "hostname", "shm".
func (l Layout) PodFile(podID, name string) string { return filepath.Join(l.PodFiles(podID), name) }
