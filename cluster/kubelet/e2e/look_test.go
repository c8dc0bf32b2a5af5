package e2e

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/coracle-project/coracle/cluster/kubelet"
	"github.com/coracle-project/coracle/cluster/kubelet/cri"
)

func quantity(s string) resource.Quantity { return resource.MustParse(s) }

func now() metav1.DeleteOptions {
	zero := int64(0)
	return metav1.DeleteOptions{GracePeriodSeconds: &zero}
}

func update() metav1.UpdateOptions { return metav1.UpdateOptions{} }

func there(dir, file string) bool {
	_, err := os.Stat(filepath.Join(dir, file))
	return err == nil
}

// hostDir mounts a directory of the machine into all containers of a pod.
func hostDir(p *v1.Pod, dir, at string) {
	p.Spec.Volumes = append(p.Spec.Volumes,
		v1.Volume{Name: "host", VolumeSource: v1.VolumeSource{HostPath: &v1.HostPathVolumeSource{Path: dir}}})
	for i := range p.Spec.Containers {
		c := &p.Spec.Containers[i]
		c.VolumeMounts = append(c.VolumeMounts, v1.VolumeMount{Name: "host", MountPath: at})
	}
}

func (n *testNode) client() *cri.Client {
	n.t.Helper()
	c, err := cri.Dial(n.opts.Endpoint)
	if err != nil {
		n.t.Fatal(err)
	}
	n.t.Cleanup(func() { _ = c.Close() })
	return c
}

// exec runs the guest in a container and returns what it printed.
func (n *testNode) exec(p *v1.Pod, container string, args ...string) string {
	n.t.Helper()
	id, err := n.kubelet.ContainerID(p, container)
	if err != nil {
		n.t.Fatal(err)
	}
	out, err := n.client().Exec(n.ctx, id, append([]string{"/guest"}, args...), patience)
	if err != nil {
		n.t.Fatalf("%v: %s", err, out)
	}
	return string(out)
}

// untilNoSandbox waits until nothing of a pod is left in the runtime.
func (n *testNode) untilNoSandbox(p *v1.Pod) {
	n.t.Helper()
	c := n.client()
	ctx, cancel := context.WithTimeout(n.ctx, patience)
	defer cancel()
	looked := make(chan struct{}, 1)
	go c.Watch(ctx, slog.New(slog.DiscardHandler), func(types.UID) { look(looked) }, func() { look(looked) })
	// What Watch does not tell, since the event does not say whose it was: that a sandbox is gone.
	events, err := c.Runtime.GetContainerEvents(ctx, &runtimeapi.GetEventsRequest{})
	if err != nil {
		n.t.Fatal(err)
	}
	go func() {
		_, err := events.Header()
		for err == nil {
			look(looked)
			_, err = events.Recv()
		}
	}()
	for {
		s, err := c.Pod(ctx, p.UID)
		if err != nil {
			n.t.Fatal(err)
		}
		if len(s.SandboxStatuses)+len(s.ContainerStatuses) == 0 {
			return
		}
		select {
		case <-looked:
		case <-ctx.Done():
			n.t.Fatalf("of pod %s there are still %d sandboxes and %d containers", p.Name, len(s.SandboxStatuses), len(s.ContainerStatuses))
		}
	}
}

func look(ch chan struct{}) {
	select {
	case ch <- struct{}{}:
	default:
	}
}

func TestStaticPods(t *testing.T) {
	dir := scratch(t)
	n := newNode(t, func(o *kubelet.Options) { o.StaticPodDir = dir })
	manifest := func(arg string) string {
		return strings.NewReplacer("IMAGE", n.image, "ARG", arg).Replace(`
apiVersion: v1
kind: Pod
metadata: {name: static, namespace: kube-system}
spec:
  terminationGracePeriodSeconds: 1
  enableServiceLinks: false
  containers: [{name: c, image: IMAGE, args: ["say", "ARG", ",", "sleep"]}]
`)
	}
	mirror := func(what string, ok func(*v1.Pod) bool) *v1.Pod {
		t.Helper()
		timeout := time.After(patience)
		for {
			select {
			case p := <-n.changes:
				if p.Name == "static-"+nodeName && ok(p) {
					return p
				}
			case <-timeout:
				t.Fatalf("the mirror is not %s", what)
			}
		}
	}
	write := func(arg string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, "static.yaml"), []byte(manifest(arg)), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("one")
	first := mirror("ready", ready)
	if first.Annotations["kubernetes.io/config.mirror"] == "" || first.Spec.NodeName != nodeName {
		t.Errorf("mirror %+v", first.ObjectMeta)
	}
	// A mirror that is deleted is made again, and the pod runs on.
	if err := n.kube.CoreV1().Pods("kube-system").Delete(n.ctx, first.Name, now()); err != nil {
		t.Fatal(err)
	}
	again := mirror("made again", func(p *v1.Pod) bool { return !gone(p) && ready(p) })
	if again.Status.ContainerStatuses[0].ContainerID != first.Status.ContainerStatuses[0].ContainerID {
		t.Error("deleting the mirror restarted the pod")
	}
	write("two")
	changed := mirror("of the changed pod", func(p *v1.Pod) bool {
		return ready(p) && !gone(p) && p.Annotations["kubernetes.io/config.hash"] != first.Annotations["kubernetes.io/config.hash"]
	})
	if err := os.Remove(filepath.Join(dir, "static.yaml")); err != nil {
		t.Fatal(err)
	}
	mirror("gone", func(p *v1.Pod) bool {
		return gone(p) && p.Annotations["kubernetes.io/config.hash"] == changed.Annotations["kubernetes.io/config.hash"]
	})
}

func made() metav1.CreateOptions { return metav1.CreateOptions{} }
