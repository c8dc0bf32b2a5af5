package kubelet

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/pkg/kubelet/userns"
)

// userNamespaces gives pods that ask for it (spec.hostUsers: false) ids of their own, by upstream's
// rules: 65,536 in a row for each pod, above the node's own, which are noted in the pod's directory
// while it is on the node.
type userNamespaces struct {
	log      *slog.Logger
	podsDir  string
	maxPods  int
	handler  func(class *string) (string, error)
	supports func(handler string) bool

	manager *userns.UsernsManager
	err     error // why there is no manager
}

// open reads which ids pods have. What cannot be read leaves pods without ids of their own alone.
func (u *userNamespaces) open() {
	if u.manager, u.err = userns.MakeUserNsManager(klog.Background(), u, nil); u.err != nil {
		u.log.Error("pods with hostUsers: false cannot be started", "dir", u.podsDir, "err", u.err)
	}
}

// Of returns the user namespace of a pod, nil if that is the node's.
func (u *userNamespaces) Of(pod *v1.Pod) (*runtimeapi.UserNamespace, error) {
	if pod.Spec.HostUsers == nil || *pod.Spec.HostUsers {
		return nil, nil
	}
	if u.err != nil {
		return nil, fmt.Errorf("user namespaces: %w", u.err)
	}
	handler, err := u.handler(pod.Spec.RuntimeClassName)
	if err != nil {
		return nil, err
	}
	return u.manager.GetOrCreateUserNamespaceMappings(klog.Background(), pod, handler)
}

// Release frees the ids of a pod that is gone.
func (u *userNamespaces) Release(uid types.UID) {
	if u.err == nil {
		u.manager.Release(klog.Background(), uid)
	}
}

// HandlerSupportsUserNamespaces says what the runtime says of its handler.
func (u *userNamespaces) HandlerSupportsUserNamespaces(handler string) (bool, error) {
	return u.supports(handler), nil
}

// GetPodDir returns the directory that a pod's ids are noted in.
func (u *userNamespaces) GetPodDir(uid types.UID) string {
	return filepath.Join(u.podsDir, string(uid))
}

// ListPodsFromDisk returns the pods that have a directory.
func (u *userNamespaces) ListPodsFromDisk() ([]types.UID, error) {
	entries, err := os.ReadDir(u.podsDir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	var uids []types.UID
	for _, e := range entries {
		if e.IsDir() {
			uids = append(uids, types.UID(e.Name()))
		}
	}
	return uids, nil
}

// GetKubeletMappings returns the ids that there are for pods: all but the first, which are the
// node's.
func (u *userNamespaces) GetKubeletMappings(_ klog.Logger, perPod uint32) (first, length uint32, err error) {
	return perPod, -perPod, nil // 2³² less the first
}

// GetMaxPods returns for how many pods there have to be ids.
func (u *userNamespaces) GetMaxPods() int { return u.maxPods }
