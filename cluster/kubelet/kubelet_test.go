package kubelet

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	k8stesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/record"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/coracle-project/coracle/cluster/client"
	"github.com/coracle-project/coracle/cluster/kubelet/cgroups"
	"github.com/coracle-project/coracle/cluster/kubelet/cri/critest"
	"github.com/coracle-project/coracle/cluster/kubelet/pod"
	"github.com/coracle-project/coracle/cluster/kubelet/pod/podlogs"
	"github.com/coracle-project/coracle/cluster/kubelet/probe"
	"github.com/coracle-project/coracle/cluster/kubelet/status"
	"github.com/coracle-project/coracle/cluster/kubelet/volume"
)

// A kubelet whose port is taken must say so before its node is reported ready.
var discard = slog.New(slog.DiscardHandler)

func TestPortIsTakenAtOnce(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	dir := t.TempDir()
	kube := fake.NewClientset()
	_, err = New(&client.Set{Kube: kube, Informers: informers.NewSharedInformerFactory(kube, 0)}, Options{
		NodeName: "n", NodeIPs: []string{"127.0.0.1"}, Endpoint: "unix://" + filepath.Join(dir, "cri.sock"),
		RootDir: filepath.Join(dir, "kubelet"), LogDir: filepath.Join(dir, "logs", "pods"),
		Address: "127.0.0.1", Port: taken.Addr().(*net.TCPAddr).Port,
	})
	if err == nil || !strings.Contains(err.Error(), "address already in use (another kubelet may run") {
		t.Errorf("error %v", err)
	}
	if made, _ := os.ReadDir(dir); len(made) > 0 {
		t.Errorf("it has made %v", made)
	}
}

// The node is granted a pull secret with the pod that names it, and the API may learn of that after
// the kubelet has.
func TestAPullSecretIsAwaited(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		kube := fake.NewClientset(&v1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "s"}})
		asked, grantedAt := 0, 3
		kube.PrependReactor("get", "secrets", func(k8stesting.Action) (bool, runtime.Object, error) {
			asked++
			return asked < grantedAt, nil, apierrors.NewForbidden(v1.Resource("secrets"), "s", errors.New("no relationship found"))
		})
		if s, err := pullSecrets(kube)(t.Context(), "ns", "s"); err != nil || s.Name != "s" || asked != grantedAt {
			t.Errorf("after %d calls: %v, %v", asked, s, err)
		}
		asked, grantedAt = 0, 1000
		if _, err := pullSecrets(kube)(t.Context(), "ns", "s"); !apierrors.IsForbidden(err) {
			t.Errorf("never granted: %v after %d calls", err, asked)
		}
	})
}

// A kubelet that was killed leaves the cgroups of pods that are gone by the time it starts again.
// Regression: it also removed those that another kubelet had just made in the same cgroup root.
func TestOnlyOwnCgroupsOfPodsThatAreGoneAreRemoved(t *testing.T) {
	root := fmt.Sprint("/coracle-test-gone-", os.Getpid())
	c, err := cgroups.New(root, cgroups.Limits{MilliCPU: 1000, MemoryBytes: 1 << 30}, discard)
	if err != nil {
		t.Fatal(err)
	}
	gone := &v1.Pod{ObjectMeta: metav1.ObjectMeta{UID: "gone"}}
	others := &v1.Pod{ObjectMeta: metav1.ObjectMeta{UID: "others"}}
	t.Cleanup(func() {
		for _, p := range []*v1.Pod{gone, others} {
			if err := c.Remove(p.UID); err != nil {
				t.Error(err)
			}
		}
		for _, top := range []string{"/sys/fs/cgroup", "/sys/fs/cgroup/*"} {
			for _, sub := range []string{"kubepods/burstable", "kubepods/besteffort", "kubepods", "."} {
				dirs, _ := filepath.Glob(filepath.Join(top, root, sub))
				for _, dir := range dirs {
					if err := os.Remove(dir); err != nil {
						t.Error(err)
					}
				}
			}
		}
	})
	has := func(p *v1.Pod) bool {
		all, _ := filepath.Glob(filepath.Join("/sys/fs/cgroup/*", c.Parent(p)))
		one, _ := filepath.Glob(filepath.Join("/sys/fs/cgroup", c.Parent(p)))
		return len(all)+len(one) > 0
	}
	for _, p := range []*v1.Pod{gone, others} {
		if _, err := c.Ensure(p); err != nil || !has(p) {
			t.Fatalf("the cgroup of %s: %v", p.UID, err)
		}
	}
	dir := t.TempDir()
	if err := os.MkdirAll(filepath.Join(dir, "pods", "gone", "volumes"), 0o700); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	kube, runtime := fake.NewClientset(), critest.New()
	cri := runtime.Client()
	events := record.NewFakeRecorder(100)
	removed := make(chan types.UID, 2)
	k := &Kubelet{
		opts: Options{Log: discard}, cri: cri, cgroups: c,
		volumes: volume.New(&client.Set{Kube: kube}, volume.Options{RootDir: dir, NodeName: "n"}),
	}
	k.status = status.NewWriter(ctx, kube, discard)
	probes := probe.New(cri.Exec, events, func(types.UID) {})
	k.runner = pod.NewRunner(ctx, pod.Config{
		CRI: cri, Volumes: k.volumes, Cgroups: c, Users: noUsers{}, Status: k.status, Probes: probes, Recorder: events,
		HostIPs: func() []string { return nil }, RootDir: dir, Logs: podlogs.Dirs{All: filepath.Join(dir, "logs")},
		Gone: func(uid types.UID) { removed <- uid },
	})
	defer k.status.Wait()
	defer k.runner.Wait()
	defer cancel()
	defer probes.Close()
	k.endUnknown(ctx)
	select {
	case uid := <-removed:
		if uid != "gone" {
			t.Errorf("removed pod %s", uid)
		}
	case <-time.After(time.Minute):
		t.Fatal("the pod that is gone is not removed")
	}
	if has(gone) || !has(others) {
		t.Errorf("cgroups: the pod's that is gone %t, the other kubelet's %t", has(gone), has(others))
	}
}

// noUsers has all pods use the node's ids.
type noUsers struct{}

func (noUsers) Of(*v1.Pod) (*runtimeapi.UserNamespace, error) { return nil, nil }
func (noUsers) Release(types.UID)                             {}
