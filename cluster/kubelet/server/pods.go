package server

import (
	"net/http"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

func podList(pods []v1.Pod) *v1.PodList {
	return &v1.PodList{TypeMeta: metav1.TypeMeta{Kind: "PodList", APIVersion: "v1"}, Items: pods}
}

// pods answers with the pods that should run here.
func (s *Server) pods(w http.ResponseWriter, _ *http.Request) {
	items := []v1.Pod{}
	for _, pod := range s.host.Pods() {
		items = append(items, *pod)
	}
	writeJSON(w, podList(items))
}

// runningPods answers with the pods that the runtime runs, as far as it knows them.
func (s *Server) runningPods(w http.ResponseWriter, r *http.Request) {
	sandboxes, err := s.runtime.Runtime.ListPodSandbox(r.Context(), &runtimeapi.ListPodSandboxRequest{Filter: &runtimeapi.PodSandboxFilter{
		State: &runtimeapi.PodSandboxStateValue{State: runtimeapi.PodSandboxState_SANDBOX_READY},
	}})
	var containers *runtimeapi.ListContainersResponse
	if err == nil {
		containers, err = s.runtime.Runtime.ListContainers(r.Context(), &runtimeapi.ListContainersRequest{Filter: &runtimeapi.ContainerFilter{
			State: &runtimeapi.ContainerStateValue{State: runtimeapi.ContainerState_CONTAINER_RUNNING},
		}})
	}
	if err != nil {
		fail(w, http.StatusInternalServerError, err.Error())
		return
	}
	items := make([]v1.Pod, len(sandboxes.Items))
	at := map[string]int{}
	for i, sandbox := range sandboxes.Items {
		at[sandbox.Id] = i
		m := sandbox.GetMetadata()
		items[i].Name, items[i].Namespace, items[i].UID = m.GetName(), m.GetNamespace(), types.UID(m.GetUid())
	}
	for _, c := range containers.Containers {
		if i, ok := at[c.PodSandboxId]; ok {
			items[i].Spec.Containers = append(items[i].Spec.Containers,
				v1.Container{Name: c.GetMetadata().GetName(), Image: c.GetImage().GetImage()})
		}
	}
	writeJSON(w, podList(items))
}
