package volume

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/tools/cache"
	statsapi "k8s.io/kubelet/pkg/apis/stats/v1alpha1"

	"github.com/coracle-project/coracle/cluster/kubelet/volume/claims"
	"github.com/coracle-project/coracle/cluster/kubelet/volume/hostpath"
	"github.com/coracle-project/coracle/cluster/kubelet/volume/mountpoint"
	"github.com/coracle-project/coracle/cluster/kubelet/volume/source"
)

// keeper is a Source of volumes that are looked after. A volume is a directory in v.Dir.
type keeper struct {
	every  time.Duration
	kept   chan string
	failed int
	// mounting and keeping, if set, are called by Mount and Keep.
	mounting func(name string) error
	keeping  func(ctx context.Context)
	// unmounting is called by Unmount.
	unmounting func()
}

func (*keeper) Plugin() string { return "kubernetes.io~keeper" }
func (*keeper) Serves(v *source.Spec) bool {
	return v.PV != nil && v.PV.Spec.CSI != nil || v.PV == nil && v.Inline.CSI != nil
}
func (*keeper) Relabels(*source.Spec) bool             { return true }
func (k *keeper) KeepEvery(*source.Spec) time.Duration { return k.every }

func (k *keeper) Mount(_ context.Context, v *source.Spec) (string, error) {
	if k.mounting != nil {
		if err := k.mounting(v.Name); err != nil {
			return "", err
		}
	}
	path := filepath.Join(v.Dir, "mount")
	return path, os.MkdirAll(path, 0o750)
}

func (k *keeper) Unmount(context.Context, source.Mounted) error {
	if k.unmounting != nil {
		k.unmounting()
	}
	return nil
}

func (k *keeper) Keep(ctx context.Context, v *source.Spec) error {
	k.kept <- v.Name
	if k.keeping != nil {
		k.keeping(ctx)
	}
	if k.failed++; k.failed == 1 {
		return errors.New("not yet")
	}
	return nil
}

func (*keeper) Usage(context.Context, *source.Spec) (statsapi.VolumeStats, bool) {
	used := uint64(7)
	return statsapi.VolumeStats{FsStats: statsapi.FsStats{UsedBytes: &used}}, true
}

// newKept is a node with a pod whose volume is a keeper's.
func newKept(t *testing.T) (*node, *keeper, *v1.Pod) {
	t.Helper()
	n, _, pod := newBound(t, func(_ *v1.PersistentVolumeClaim, pv *v1.PersistentVolume) {
		pv.Spec.Local, pv.Spec.CSI = nil, &v1.CSIPersistentVolumeSource{Driver: "d.example"}
	})
	k := &keeper{kept: make(chan string, 100)}
	return n, k, pod
}

func TestAVolumeIsKeptWhenItsClaimChanges(t *testing.T) {
	n, k, pod := newKept(t)
	k.failed = 1 // and does not fail
	ctx, stop := context.WithCancel(t.Context())
	n.shared = informers.NewSharedInformerFactory(n.kube, 0)
	n.restart(n.opts.RootDir)
	n.sources = append(n.sources, k)
	n.shared.Start(ctx.Done())
	defer n.shared.Shutdown()
	defer stop()
	handlers := n.waiting.Handlers()
	if len(handlers) != 2 || !cache.WaitForCacheSync(ctx.Done(), handlers...) {
		t.Fatal("claims and volumes are not watched")
	}
	n.mount(pod)
	if len(k.kept) != 0 {
		t.Error("kept before anything has changed")
	}
	pv, err := n.kube.CoreV1().PersistentVolumes().Get(ctx, "pv-data", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	pv.Spec.Capacity = v1.ResourceList{v1.ResourceStorage: resource.MustParse("2Gi")}
	if _, err := n.kube.CoreV1().PersistentVolumes().Update(ctx, pv, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	if got := <-k.kept; got != "pv-data" {
		t.Errorf("kept %s", got)
	}
	n.unmount(pod)
	if keys := n.waiting.Keys(); len(keys) != 0 {
		t.Errorf("still followed: %v", keys)
	}
}

func TestAVolumeIsKeptFromTimeToTime(t *testing.T) {
	n, k, pod := newKept(t)
	k.every = time.Millisecond
	n.sources = append(n.sources, k)
	n.mount(pod)
	for range 3 { // the first fails
		if got := <-k.kept; got != "pv-data" {
			t.Errorf("kept %s", got)
		}
	}
	n.unmount(pod)
}

// Regression: what changed before all volumes of the pod were mounted was missed.
func TestAClaimThatChangesWhileItsVolumeIsMounted(t *testing.T) {
	n, k, pod := newKept(t)
	k.failed = 1
	n.sources = append(n.sources, k)
	k.mounting = func(name string) error {
		n.waiting.Changed(claims.VolumeKey(name))
		return nil
	}
	n.mount(pod)
	if got := <-k.kept; got != "pv-data" {
		t.Errorf("kept %s", got)
	}
	n.unmount(pod)
}

// A driver that hangs while a volume is kept holds up neither the pod nor its end.
func TestAKeeperThatHangs(t *testing.T) {
	n, k, pod := newKept(t)
	n.sources = append(n.sources, k)
	k.keeping = func(ctx context.Context) { <-ctx.Done() }
	n.mount(pod)
	n.waiting.Changed(claims.VolumeKey("pv-data"))
	<-k.kept
	if err := n.Refresh(t.Context(), pod); err != nil {
		t.Error(err)
	}
	n.unmount(pod) // ends the call
}

// A failure to keep a volume is no failure of the pod's other volumes.
func TestAKeeperThatFailsDoesNotStopThePod(t *testing.T) {
	n, k, pod := newKept(t)
	n.sources = append(n.sources, k)
	n.mount(pod)
	n.waiting.Changed(claims.VolumeKey("pv-data")) // the first fails
	<-k.kept
	if err := n.Refresh(t.Context(), pod); err != nil {
		t.Error(err)
	}
	n.unmount(pod)
}

// A driver that hangs in Mount does not hold up the pod's other volumes.
func TestAMountThatHangsHoldsUpNoOtherVolume(t *testing.T) {
	n, k, pod := newKept(t)
	n.sources = append(n.sources, k)
	for _, name := range []string{"x", "y"} {
		pod.Spec.Volumes = append(pod.Spec.Volumes,
			v1.Volume{Name: name, VolumeSource: v1.VolumeSource{CSI: &v1.CSIVolumeSource{Driver: "d.example"}}})
		pod.Spec.Containers[0].VolumeMounts = append(pod.Spec.Containers[0].VolumeMounts, v1.VolumeMount{Name: name, MountPath: "/" + name})
	}
	mounting, others := make(chan string, 10), make(chan struct{})
	k.mounting = func(name string) error {
		mounting <- name
		<-others
		return nil
	}
	done := make(chan error, 1)
	go func() { done <- n.Mount(t.Context(), pod) }()
	for range 3 {
		<-mounting // all three, though none has ended
	}
	close(others)
	if err := <-done; err != nil {
		t.Error(err)
	}
	unmounting, rest := make(chan struct{}), make(chan struct{})
	k.unmounting = func() {
		unmounting <- struct{}{}
		<-rest
	}
	go func() { done <- n.Unmount(t.Context(), pod.UID) }()
	for range 3 {
		<-unmounting
	}
	close(rest)
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// A volume that is attached while another volume's driver hangs is mounted at once.
func TestAVolumeThatWaitsIsTriedAgainWhileAnotherHangs(t *testing.T) {
	n, k, pod := newKept(t)
	n.sources = append(n.sources, k)
	pod.Spec.Volumes = append(pod.Spec.Volumes,
		v1.Volume{Name: "x", VolumeSource: v1.VolumeSource{CSI: &v1.CSIVolumeSource{Driver: "d.example"}}})
	pod.Spec.Containers[0].VolumeMounts = append(pod.Spec.Containers[0].VolumeMounts, v1.VolumeMount{Name: "x", MountPath: "/x"})
	hanging, waiting := make(chan struct{}), make(chan struct{})
	var attached, hung atomic.Bool
	k.mounting = func(name string) error {
		switch {
		case name == "x": // the first time: it may be tried again, too
			if !hung.Swap(true) {
				hanging <- struct{}{}
				<-hanging
			}
			return errors.New("no answer")
		case !attached.Load():
			waiting <- struct{}{}
			return errors.New("not attached yet")
		}
		waiting <- struct{}{}
		return nil
	}
	done := make(chan error, 1)
	go func() { done <- n.Mount(t.Context(), pod) }()
	<-hanging
	<-waiting
	attached.Store(true)
	n.Wake(pod.UID)
	<-waiting // though x hangs
	hanging <- struct{}{}
	if err := <-done; err == nil || !strings.Contains(err.Error(), "no answer") || strings.Contains(err.Error(), "not attached") {
		t.Errorf("error: %v", err)
	}
	n.unmount(pod)
}

func TestAMeasurerIsAskedForFigures(t *testing.T) {
	n, k, pod := newKept(t)
	n.sources = append(n.sources, k)
	n.mount(pod)
	for _, all := range [][]statsapi.VolumeStats{n.Usage(t.Context(), pod), n.ClaimUsage(t.Context(), pod)} {
		if len(all) != 1 || all[0].Name != "v" || all[0].PVCRef.Name != "data" || *all[0].UsedBytes != 7 {
			t.Errorf("figures %+v", all)
		}
	}
	if all := n.OwnUsage(t.Context(), pod); len(all) != 0 { // the evictor's figures
		t.Errorf("figures %+v", all)
	}
	n.unmount(pod)
}

func TestSubPathsGoBeforeTheirVolume(t *testing.T) {
	n, k, pod := newKept(t)
	n.sources = append(n.sources, k)
	pod.Spec.Containers[0].VolumeMounts[0].SubPath = "sub"
	n.mount(pod)
	mounts, err := n.Mounts(t.Context(), pod, &pod.Spec.Containers[0], nil)
	if err != nil {
		t.Fatal(err)
	}
	if !mountpoint.Is(mounts[0].HostPath) {
		t.Fatalf("%s is no mount", mounts[0].HostPath)
	}
	asked := false
	k.unmounting = func() {
		asked = true
		if mountpoint.Is(mounts[0].HostPath) {
			t.Error("the subPath is still mounted when the volume is taken away")
		}
	}
	n.unmount(pod)
	if !asked {
		t.Error("the source was not asked")
	}
}

func TestFilesInAVolumesDirectoryAreRelabelled(t *testing.T) {
	n, k, pod := newKept(t)
	n.sources = append(n.sources, k)
	n.mount(pod)
	mounts, err := n.Mounts(t.Context(), pod, &pod.Spec.Containers[0], nil)
	if err != nil || !mounts[0].SelinuxRelabel {
		t.Errorf("mounts %v, %v", mounts, err)
	}
	n.unmount(pod)
}

func TestTheKubeletsDirectoryByItsUsualName(t *testing.T) {
	n := newNode(t)
	n.opts.Alias = "/var/lib/kubelet"
	for path, want := range map[string]string{
		"/var/lib/kubelet":                   n.opts.RootDir,
		"/var/lib/kubelet/plugins/d":         n.opts.RootDir + "/plugins/d",
		"/var/lib/kubelet/pods/":             n.opts.RootDir + "/pods",
		"/var/lib//kubelet/plugins_registry": n.opts.RootDir + "/plugins_registry",
		"/var/lib/kubelet2/x":                "/var/lib/kubelet2/x",
		"/var/lib":                           "/var/lib",
		"/var/lib/kubelet/../x":              "/var/lib/kubelet/../x",
	} {
		if got := hostpath.Real(&v1.HostPathVolumeSource{Path: path}, n.opts.Alias, n.opts.RootDir).Path; got != want {
			t.Errorf("%s is %s, want %s", path, got, want)
		}
	}
	kind := v1.HostPathDirectoryOrCreate
	pod := podWith(vol("plugin", v1.VolumeSource{HostPath: &v1.HostPathVolumeSource{Path: "/var/lib/kubelet/plugins/d", Type: &kind}}))
	n.mount(pod)
	mounts, err := n.Mounts(t.Context(), pod, &pod.Spec.Containers[0], nil)
	if err != nil || mounts[0].HostPath != n.opts.RootDir+"/plugins/d" {
		t.Errorf("mounts %v, %v", mounts, err)
	}
	if _, err := os.Stat(n.opts.RootDir + "/plugins/d"); err != nil {
		t.Error(err)
	}
	n.unmount(pod)
	n.opts.Alias = n.opts.RootDir
	own := &v1.HostPathVolumeSource{Path: n.opts.RootDir + "/x"}
	if got := hostpath.Real(own, n.opts.Alias, n.opts.RootDir).Path; got != own.Path {
		t.Errorf("the directory's own name became %s", got)
	}
}
