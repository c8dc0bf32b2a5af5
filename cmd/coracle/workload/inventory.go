package workload

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	"google.golang.org/grpc"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// inventory is all pods and containers of the node at one moment, and how people name them:
// by an id or its beginning, or by name: a pod by POD or NAMESPACE/POD, a container by
// CONTAINER, POD/CONTAINER or NAMESPACE/POD/CONTAINER, or by its pod's name if it is the only
// one in there. Of several attempts at the same thing a name means the last.
type inventory struct {
	pods       []*runtimeapi.PodSandbox
	containers []*runtimeapi.Container
}

func takeInventory(ctx context.Context, c runtimeapi.RuntimeServiceClient, how ...grpc.CallOption) (inventory, error) {
	// Containers first: each one's pod is there then, whatever goes on meanwhile.
	containers, err := c.ListContainers(ctx, &runtimeapi.ListContainersRequest{}, how...)
	if err != nil {
		return inventory{}, err
	}
	pods, err := c.ListPodSandbox(ctx, &runtimeapi.ListPodSandboxRequest{}, how...)
	if err != nil {
		return inventory{}, err
	}
	return newInventory(pods.GetItems(), containers.GetContainers()), nil
}

// newInventory sorts by namespace, name and age.
func newInventory(pods []*runtimeapi.PodSandbox, containers []*runtimeapi.Container) inventory {
	v := inventory{slices.Clone(pods), slices.Clone(containers)}
	slices.SortFunc(v.pods, func(a, b *runtimeapi.PodSandbox) int {
		return cmp.Or(cmp.Compare(podName(a), podName(b)), -cmp.Compare(a.GetCreatedAt(), b.GetCreatedAt()))
	})
	slices.SortFunc(v.containers, func(a, b *runtimeapi.Container) int {
		return cmp.Or(cmp.Compare(v.containerName(a), v.containerName(b)), -cmp.Compare(a.GetCreatedAt(), b.GetCreatedAt()))
	})
	return v
}

func podName(p *runtimeapi.PodSandbox) string {
	return p.GetMetadata().GetNamespace() + "/" + p.GetMetadata().GetName()
}

// podOf is the container's pod; an empty one if it has gone since.
func (v inventory) podOf(c *runtimeapi.Container) *runtimeapi.PodSandbox {
	for _, p := range v.pods {
		if p.GetId() == c.GetPodSandboxId() {
			return p
		}
	}
	return &runtimeapi.PodSandbox{Metadata: &runtimeapi.PodSandboxMetadata{Name: "?", Namespace: "?"}}
}

func (v inventory) containerName(c *runtimeapi.Container) string {
	return podName(v.podOf(c)) + "/" + c.GetMetadata().GetName()
}

// called says whether a name is a full name, or its last part.
func called(full, name string) bool {
	return full == name || strings.HasSuffix(full, "/"+name)
}

// pod finds the pod that is meant.
func (v inventory) pod(name string) (*runtimeapi.PodSandbox, error) {
	var byName, byID []*runtimeapi.PodSandbox
	for _, p := range v.pods {
		switch {
		case p.GetId() == name:
			return p, nil
		case called(podName(p), name):
			if n := len(byName); n == 0 || podName(byName[n-1]) != podName(p) {
				byName = append(byName, p) // the newest of that name
			}
		case name != "" && strings.HasPrefix(p.GetId(), name):
			byID = append(byID, p)
		}
	}
	return one("pod", name, "coracle pods", byName, byID, podName, (*runtimeapi.PodSandbox).GetId)
}

// container finds the container that is meant.
func (v inventory) container(name string) (*runtimeapi.Container, error) {
	var byName, byPod, byID []*runtimeapi.Container
	for _, c := range v.containers {
		full, pod := v.containerName(c), podName(v.podOf(c))
		switch {
		case c.GetId() == name:
			return c, nil
		case called(full, name):
			if n := len(byName); n == 0 || v.containerName(byName[n-1]) != full {
				byName = append(byName, c)
			}
		case called(pod, name):
			if n := len(byPod); n == 0 || v.containerName(byPod[n-1]) != full {
				byPod = append(byPod, c)
			}
		case name != "" && strings.HasPrefix(c.GetId(), name):
			byID = append(byID, c)
		}
	}
	if len(byName) == 0 {
		byName = byPod
	}
	return one("container", name, "coracle ps -a", byName, byID, v.containerName, (*runtimeapi.Container).GetId)
}

// one is the only one that a name or the beginning of an id matches; names go first.
func one[T any](kind, name, list string, byName, byID []T, full, id func(T) string) (none T, err error) {
	found := byName
	if len(found) == 0 {
		found = byID
	}
	switch len(found) {
	case 1:
		return found[0], nil
	case 0:
		return none, fmt.Errorf("no %s is called %q; '%s' lists them", kind, name, list)
	}
	var which []string
	for _, f := range found {
		which = append(which, fmt.Sprintf("%s (%s)", full(f), shortID(id(f))))
	}
	return none, fmt.Errorf("%q could be each of %s; say more of the name, or an id", name, strings.Join(which, ", "))
}

// previous is the attempt at the same container before c.
func (v inventory) previous(c *runtimeapi.Container) (*runtimeapi.Container, error) {
	var last *runtimeapi.Container
	for _, o := range v.containers {
		older := o.GetMetadata().GetAttempt() < c.GetMetadata().GetAttempt()
		if older && o.GetPodSandboxId() == c.GetPodSandboxId() && o.GetMetadata().GetName() == c.GetMetadata().GetName() &&
			(last == nil || o.GetMetadata().GetAttempt() > last.GetMetadata().GetAttempt()) {
			last = o
		}
	}
	if last == nil {
		return nil, fmt.Errorf("container %s has no attempt before this one, or it has been removed", v.containerName(c))
	}
	return last, nil
}

// podNames are the names for completion: with the namespace where the pod's alone is not enough.
func (v inventory) podNames() []string {
	var names []string
	for _, p := range v.pods {
		name := p.GetMetadata().GetName()
		if _, err := v.pod(name); err != nil {
			name = podName(p)
		}
		names = append(names, name)
	}
	return slices.Compact(names)
}

// containerNames are the names for completion, POD/CONTAINER.
func (v inventory) containerNames(running bool) []string {
	var names []string
	for _, c := range v.containers {
		if running && c.GetState() != runtimeapi.ContainerState_CONTAINER_RUNNING {
			continue
		}
		name := v.podOf(c).GetMetadata().GetName() + "/" + c.GetMetadata().GetName()
		if _, err := v.container(name); err != nil {
			name = v.containerName(c)
		}
		names = append(names, name)
	}
	return slices.Compact(names)
}

// shortID is the beginning of an id, long enough for a node.
func shortID(id string) string { return id[:min(len(id), 12)] }
