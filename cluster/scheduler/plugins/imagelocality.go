package plugins

import (
	"context"
	"strings"

	v1 "k8s.io/api/core/v1"

	"github.com/coracle-project/coracle/cluster/scheduler/framework"
)

// imageLocality prefers nodes that have the pod's images, the more the larger they are and the
// more nodes have them already (else all pods would follow the first to its node).
type imageLocality struct{}

// Images of 23 MB and less do not count; 1 GB for each container is as good as it gets.
const (
	imagesWorthNothing int64 = 23 << 20
	imageWorthMost     int64 = 1000 << 20
)

// podImage is an image of a pod's that some nodes have, and what it is worth there.
type podImage struct {
	name  string
	worth int64
}

var podImages = framework.NewKey[[]podImage]()

func (imageLocality) Name() string { return "ImageLocality" }

// PreScore skips pods whose images no node has.
func (imageLocality) PreScore(_ context.Context, state *framework.CycleState, pod *framework.PodInfo,
	_ []*framework.NodeInfo,
) *framework.Status {
	if state.Nodes.FindImage == nil {
		return framework.Skipped
	}
	var images []podImage
	add := func(name string) {
		name = tagged(name)
		if image := state.Nodes.FindImage(name); image != nil {
			spread := float64(image.Nodes.Load()) / float64(len(state.Nodes.Nodes))
			images = append(images, podImage{name, int64(float64(image.Size) * spread)})
		}
	}
	spec := &pod.Pod().Spec
	for _, list := range [][]v1.Container{spec.InitContainers, spec.Containers} {
		for i := range list {
			add(list[i].Image)
		}
	}
	for i := range spec.Volumes {
		if image := spec.Volumes[i].Image; image != nil {
			add(image.Reference)
		}
	}
	if len(images) == 0 {
		return framework.Skipped
	}
	podImages.Write(state, images)
	return nil
}

func (imageLocality) Shape(b []byte, state *framework.CycleState, pod *framework.PodInfo) ([]byte, bool) {
	images := podImages.Read(state)
	b = framework.AppendInts(b, containers(pod), int64(len(images)))
	for _, image := range images {
		b = framework.AppendInts(framework.AppendStrings(b, image.name), image.worth)
	}
	return b, true
}

func (imageLocality) Score(state *framework.CycleState, pod *framework.PodInfo, node *framework.NodeInfo) (int64, *framework.Status) {
	var sum int64
	for _, image := range podImages.Read(state) {
		if node.Images[image.name] != nil {
			sum += image.worth
		}
	}
	most := imageWorthMost * containers(pod)
	sum = min(max(sum, imagesWorthNothing), most)
	return framework.MaxScore * (sum - imagesWorthNothing) / (most - imagesWorthNothing), nil
}

func containers(pod *framework.PodInfo) int64 {
	spec := &pod.Pod().Spec
	return int64(len(spec.InitContainers) + len(spec.Containers))
}

// tagged returns an image's name with the tag that is meant if it has none.
func tagged(name string) string {
	if strings.LastIndex(name, ":") <= strings.LastIndex(name, "/") {
		return name + ":latest"
	}
	return name
}
