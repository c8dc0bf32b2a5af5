package kubelet

import (
	"context"
	"crypto/tls"
	"fmt"
	"slices"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	kubecontainer "k8s.io/kubernetes/pkg/kubelet/container"
	kubetypes "k8s.io/kubernetes/pkg/kubelet/types"

	"github.com/coracle-project/coracle/cluster/kubelet/logrotate"
	"github.com/coracle-project/coracle/cluster/kubelet/pod"
	"github.com/coracle-project/coracle/cluster/kubelet/pod/podlogs"
)

var _ Host = (*Kubelet)(nil)

func (k *Kubelet) views() []pod.View {
	select {
	case <-k.began:
		return k.runner.Views()
	default:
		return nil
	}
}

// Pods implements Host.
func (k *Kubelet) Pods() []*v1.Pod {
	views := k.views()
	pods := make([]*v1.Pod, 0, len(views))
	for _, v := range views {
		pods = append(pods, v.Pod)
	}
	return pods
}

// active returns the pods that have not ended.
func (k *Kubelet) active() []*v1.Pod {
	return slices.DeleteFunc(k.Pods(), over)
}

// mountedImages are the images that pods have as volumes.
func (k *Kubelet) mountedImages() []string { return imagesMounted(k.views()) }

// imagesMounted returns the ids of the images that containers have mounted: the runtime lists
// images by normalised names, which a pod need not write. Those of containers that are still to be
// made it returns as their pods write them.
func imagesMounted(views []pod.View) (names []string) {
	for _, v := range views {
		for _, s := range v.Observed.ContainerStatuses {
			for _, m := range s.Mounts {
				if m.Image != nil {
					names = append(names, m.Image.Image, m.Image.ImageRef)
				}
			}
		}
		if over(v.Pod) {
			continue
		}
		for i := range v.Pod.Spec.Volumes {
			if image := v.Pod.Spec.Volumes[i].Image; image != nil {
				names = append(names, image.Reference)
			}
		}
	}
	return slices.DeleteFunc(names, func(s string) bool { return s == "" })
}

// Pod implements Host.
func (k *Kubelet) Pod(namespace, name string, uid types.UID) (*v1.Pod, bool) {
	return k.find(k.views(), namespace, name, uid)
}

// find returns the pod that is asked for. A StatefulSet's pod that was replaced may still be ending
// here, while the API has another one of its name: that is meant.
func (k *Kubelet) find(views []pod.View, namespace, name string, uid types.UID) (found *v1.Pod, ok bool) {
	for _, v := range views {
		p := v.Pod
		if p.Namespace == namespace && p.Name == name && (uid == "" || p.UID == uid || k.mirrorUID(p) == uid) {
			if found, ok = p, true; !v.Removed {
				break
			}
		}
	}
	return found, ok
}

// mirrorUID returns the UID by which the API knows a static pod.
func (k *Kubelet) mirrorUID(p *v1.Pod) types.UID {
	if !kubetypes.IsStaticPod(p) {
		return ""
	}
	k.static.mu.Lock()
	defer k.static.mu.Unlock()
	if m := k.static.mirrorP[kubecontainer.GetPodFullName(p)]; m != nil {
		return m.UID
	}
	return ""
}

func (k *Kubelet) observed(p *v1.Pod) *kubecontainer.PodStatus {
	for _, v := range k.views() {
		if v.Pod.UID == p.UID {
			return v.Observed
		}
	}
	return &kubecontainer.PodStatus{}
}

// ContainerID implements Host.
func (k *Kubelet) ContainerID(p *v1.Pod, container string) (string, error) {
	s := k.observed(p).FindContainerStatusByName(container)
	if s == nil || s.State != kubecontainer.ContainerStateRunning {
		return "", fmt.Errorf("container not found (%q)", container)
	}
	return s.ID.ID, nil
}

// Container implements Host.
func (k *Kubelet) Container(p *v1.Pod, container string, previous bool) (*runtimeapi.ContainerStatus, error) {
	skip := 0
	if previous {
		skip = 1
	}
	for _, s := range k.observed(p).ContainerStatuses {
		if s.Name != container {
			continue
		}
		if skip > 0 {
			skip--
			continue
		}
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		resp, err := k.cri.Runtime.ContainerStatus(ctx, &runtimeapi.ContainerStatusRequest{ContainerId: s.ID.ID})
		return resp.GetStatus(), err
	}
	if previous {
		return nil, fmt.Errorf("previous terminated container %q in pod %q not found", container, p.Name)
	}
	return nil, fmt.Errorf("container %q in pod %q is not available", container, p.Name)
}

// SandboxID implements Host.
func (k *Kubelet) SandboxID(p *v1.Pod) (string, error) {
	for _, s := range k.observed(p).SandboxStatuses {
		if s.State == runtimeapi.PodSandboxState_SANDBOX_READY {
			return s.Id, nil
		}
	}
	return "", fmt.Errorf("pod %q is not running", p.Name)
}

// Node implements Host.
func (k *Kubelet) Node() *v1.Node { return k.reporter.Node() }

// Healthy implements Host.
func (k *Kubelet) Healthy(context.Context) error {
	select {
	case <-k.began:
		return k.reporter.Err()
	default:
		return errNotStarted
	}
}

// logRotator rotates the logs of containers that run.
func (k *Kubelet) logRotator() *logrotate.Rotator {
	return &logrotate.Rotator{
		Log:    k.opts.Log,
		Policy: k.opts.Logs,
		Running: func() (logs []logrotate.Log) {
			for _, v := range k.views() {
				for _, s := range v.Observed.ContainerStatuses {
					if s.State == kubecontainer.ContainerStateRunning {
						logs = append(logs, logrotate.Log{Container: s.ID.ID, Path: podlogs.Dirs{All: k.opts.LogDir}.Path(v.Pod, s)})
					}
				}
			}
			return logs
		},
		Reopen: func(ctx context.Context, container string) error {
			_, err := k.cri.Runtime.ReopenContainerLog(ctx, &runtimeapi.ReopenContainerLogRequest{ContainerId: container})
			return err
		},
	}
}

// LogDir implements Host.
func (k *Kubelet) LogDir() string { return k.opts.LogDir }

// servingTLS serves a certificate from files. It reads them again after a minute, so that a renewed
// certificate needs no notice.
func servingTLS(certFile, keyFile string) (*tls.Config, error) {
	load := func() (*tls.Certificate, error) {
		c, err := tls.LoadX509KeyPair(certFile, keyFile)
		return &c, err
	}
	current, err := load()
	if err != nil {
		return nil, err
	}
	var mu sync.Mutex
	read := time.Now()
	return &tls.Config{
		MinVersion: tls.VersionTLS12,
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
			mu.Lock()
			defer mu.Unlock()
			if time.Since(read) > certReread {
				read = time.Now()
				if c, err := load(); err == nil { // half written: the old one still serves
					current = c
				}
			}
			return current, nil
		},
	}, nil
}
