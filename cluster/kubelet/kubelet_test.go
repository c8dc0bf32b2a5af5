package kubelet

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	k8stesting "k8s.io/client-go/testing"

	"github.com/coracle-project/coracle/cluster/client"
	"github.com/coracle-project/coracle/cluster/kubelet/cgroups"
)

// A kubelet whose port is taken must say so before its node is reported ready.
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

// The node is granted a pull secret with the pod that names it, and the API may learn of that after the
// kubelet has.
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

func TestCgroupsOfPodsThatAreGoneAreSwept(t *testing.T) {
	root := fmt.Sprint("/coracle-test-sweep-", os.Getpid())
	c, err := cgroups.New(root, cgroups.Limits{MilliCPU: 1000, MemoryBytes: 1 << 30})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		for _, uid := range c.Pods() {
			if err := c.Remove(uid); err != nil {
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
	for _, uid := range []types.UID{"here", "gone"} {
		p := &v1.Pod{ObjectMeta: metav1.ObjectMeta{UID: uid}}
		if err := c.Ensure(p); err != nil {
			t.Fatal(err)
		}
	}
	if n := len(c.Pods()); n != 2 {
		t.Fatalf("%d cgroups of pods before", n)
	}
	sweepCgroups(c, func(uid types.UID) bool { return uid == "here" })
	if left := c.Pods(); !slices.Equal(left, []types.UID{"here"}) {
		t.Errorf("left %v", left)
	}
}
