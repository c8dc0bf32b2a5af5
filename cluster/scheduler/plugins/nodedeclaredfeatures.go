package plugins

import (
	"context"
	"slices"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	versionutil "k8s.io/apimachinery/pkg/util/version"
	"k8s.io/component-base/version"
	declared "k8s.io/component-helpers/nodedeclaredfeatures"

	"github.com/coracle-project/coracle/cluster/scheduler/framework"
)

// nodeDeclaredFeatures keeps pods off nodes whose kubelet does not say that it can do what they
// need: it may be older than the control plane.
type nodeDeclaredFeatures struct{}

var (
	errFeatures      = framework.NewStatus(framework.Unresolvable, "NodeDeclaredFeatures", "node(s) didn't match Pod's required features")
	requiredFeatures = framework.NewKey[declared.FeatureSet]()
	ownVersion       = versionutil.MustParse(version.Get().String())
)

func (nodeDeclaredFeatures) Name() string { return "NodeDeclaredFeatures" }

func (p nodeDeclaredFeatures) PreFilter(_ context.Context, state *framework.CycleState, pod *framework.PodInfo) (
	sets.Set[string], *framework.Status,
) {
	features, err := declared.DefaultFramework.InferForPodScheduling(&declared.PodInfo{Spec: &pod.Pod().Spec}, ownVersion)
	if err != nil {
		return nil, framework.NewStatus(framework.Error, p.Name(), err.Error())
	}
	if features.IsEmpty() {
		return nil, framework.Skipped
	}
	requiredFeatures.Write(state, features)
	return nil, nil
}

func (p nodeDeclaredFeatures) Filter(state *framework.CycleState, _ *framework.PodInfo, node *framework.NodeInfo) *framework.Status {
	has, err := requiredFeatures.Read(state).IsSubset(declared.DefaultFramework.TryMap(node.Node().Status.DeclaredFeatures))
	if err != nil {
		return framework.NewStatus(framework.Error, p.Name(), err.Error())
	}
	if !has {
		return errFeatures
	}
	return nil
}

func (nodeDeclaredFeatures) Events() []framework.EventHint {
	return []framework.EventHint{
		{
			Event: framework.Event{Kind: framework.Node, Action: framework.Add | framework.UpdateNodeFeatures},
			Hint: framework.OnNode(func(_ *framework.PodInfo, old, new *v1.Node) bool {
				return new != nil && (old == nil || !slices.Equal(old.Status.DeclaredFeatures, new.Status.DeclaredFeatures))
			}),
		},
	}
}
