package plugins

import (
	"context"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/coracle-project/coracle/cluster/scheduler/framework"
)

// defaultBinder binds pods through the API.
type defaultBinder struct{ *framework.Handle }

func (defaultBinder) Name() string { return "DefaultBinder" }

func (b defaultBinder) Bind(ctx context.Context, _ *framework.CycleState, pod *framework.PodInfo, node string) *framework.Status {
	p := pod.Pod()
	err := b.Kube.CoreV1().Pods(p.Namespace).Bind(ctx, &v1.Binding{
		ObjectMeta: metav1.ObjectMeta{Namespace: p.Namespace, Name: p.Name, UID: p.UID},
		Target:     v1.ObjectReference{Kind: "Node", Name: node},
	}, metav1.CreateOptions{})
	if err != nil {
		return framework.Errored(b.Name(), err)
	}
	return nil
}
