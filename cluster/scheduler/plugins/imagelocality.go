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

// podImages are the names of the pod's images, as nodes report them.
var podImages = framework.NewKey[[]string]()

func (imageLocality) Name() string { return "ImageLocality" }

func (imageLocality) PreScore(_ context.Context, state *framework.CycleState, pod *framework.PodInfo,
	_ []*framework.NodeInfo,
) *framework.Status {
	spec := &pod.Pod().Spec
	names := make([]string, 0, len(spec.InitContainers)+len(spec.Containers))
	for _, containers := range [][]v1.Container{spec.InitContainers, spec.Containers} {
		for i := range containers {
			names = append(names, tagged(containers[i].Image))
		}
	}
	for i := range spec.Volumes {
		if image := spec.Volumes[i].Image; image != nil {
			names = append(names, tagged(image.Reference))
		}
	}
	podImages.Write(state, names)
	return nil
}

// Shape has how often the images of nodes have changed, since they also count for other nodes.
func (imageLocality) Shape(b []byte, state *framework.CycleState, pod *framework.PodInfo) ([]byte, bool) {
	names := podImages.Read(state)
	spec := &pod.Pod().Spec
	b = framework.AppendInts(b, state.Nodes.Images, int64(len(spec.InitContainers)+len(spec.Containers)), int64(len(names)))
	return framework.AppendStrings(b, names...), true
}

func (imageLocality) Score(state *framework.CycleState, pod *framework.PodInfo, node *framework.NodeInfo) (int64, *framework.Status) {
	if len(node.Images) == 0 {
		return 0, nil
	}
	var sum int64
	for _, name := range podImages.Read(state) {
		if image := node.Images[name]; image != nil {
			spread := float64(image.Nodes.Load()) / float64(len(state.Nodes.Nodes))
			sum += int64(float64(image.Size) * spread)
		}
	}
	spec := &pod.Pod().Spec
	most := imageWorthMost * int64(len(spec.InitContainers)+len(spec.Containers))
	sum = min(max(sum, imagesWorthNothing), most)
	return framework.MaxScore * (sum - imagesWorthNothing) / (most - imagesWorthNothing), nil
}

// tagged returns an image's name with the tag that is meant if it has none.
func tagged(name string) string {
	if strings.LastIndex(name, ":") <= strings.LastIndex(name, "/") {
		return name + ":latest"
	}
	return name
}
