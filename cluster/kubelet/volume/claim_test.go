package volume

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/tools/cache"
	volumeutil "k8s.io/kubernetes/pkg/volume/util"
	"k8s.io/utils/ptr"

	"github.com/coracle-project/coracle/cluster/kubelet/internal/volumetest"
	"github.com/coracle-project/coracle/cluster/kubelet/volume/holders"
	"github.com/coracle-project/coracle/cluster/kubelet/volume/layout"
	"github.com/coracle-project/coracle/cluster/kubelet/volume/mountpoint"
	"github.com/coracle-project/coracle/cluster/kubelet/volume/source"
)

const pluginLocal = "kubernetes.io~local-volume"

// bound returns a claim and the local volume that it is bound to.
func bound(name, path string) (*v1.PersistentVolumeClaim, *v1.PersistentVolume) {
	claim := &v1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: types.UID("claim-" + name)},
		Spec:       v1.PersistentVolumeClaimSpec{VolumeName: "pv-" + name},
		Status:     v1.PersistentVolumeClaimStatus{Phase: v1.ClaimBound},
	}
	return claim, &v1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: "pv-" + name},
		Spec: v1.PersistentVolumeSpec{
			PersistentVolumeSource: v1.PersistentVolumeSource{Local: &v1.LocalVolumeSource{Path: path}},
			ClaimRef:               &v1.ObjectReference{Namespace: "ns", Name: name, UID: claim.UID},
			NodeAffinity: &v1.VolumeNodeAffinity{Required: &v1.NodeSelector{NodeSelectorTerms: []v1.NodeSelectorTerm{{
				MatchExpressions: []v1.NodeSelectorRequirement{{Key: v1.LabelHostname, Operator: v1.NodeSelectorOpIn, Values: []string{"n1"}}},
			}}}},
		},
	}
}

// newBound returns a node with a bound local volume, the volume's directory, and a pod that uses
// it.
func newBound(t *testing.T, change func(*v1.PersistentVolumeClaim, *v1.PersistentVolume)) (*node, string, *v1.Pod) {
	t.Helper()
	disk := filepath.Join(t.TempDir(), "disk")
	if err := os.Mkdir(disk, 0o755); err != nil {
		t.Fatal(err)
	}
	volumetest.Write(t, filepath.Join(disk, "data"), "precious")
	claim, pv := bound("data", disk)
	if change != nil {
		change(claim, pv)
	}
	return newNode(t, claim, pv), disk, podWith(claimVolume("v", "data"))
}

func claimVolume(name, claim string) v1.Volume {
	return vol(name, v1.VolumeSource{PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{ClaimName: claim}})
}

// podOf is a pod that another object controls and that has the claim data.
func podOf(uid types.UID, name, owner string) *v1.Pod {
	p := podWith(claimVolume("v", "data"))
	p.UID, p.Name = uid, name
	p.OwnerReferences = []metav1.OwnerReference{{Kind: owner, Name: "db", Controller: ptr.To(true)}}
	return p
}

func (n *node) forgetWakes() {
	for len(n.wakes) > 0 {
		<-n.wakes
	}
}

// wantWoken wants this pod to have been woken, and no other.
func (n *node) wantWoken(pod *v1.Pod) {
	n.t.Helper()
	if len(n.wakes) == 0 {
		n.t.Fatalf("pod %q was not woken", pod.UID)
	}
	for len(n.wakes) > 0 {
		if uid := <-n.wakes; uid != pod.UID {
			n.t.Errorf("pod %q was woken", uid)
		}
	}
}

func wantFile(t *testing.T, path, want string) {
	t.Helper()
	if got, err := os.ReadFile(path); err != nil || string(got) != want {
		t.Errorf("%s has %q, %v, want %q", path, got, err, want)
	}
}

func (n *node) mounts(pod *v1.Pod) (paths []string, readOnly []bool) {
	n.t.Helper()
	all, err := n.Mounts(context.Background(), pod, &pod.Spec.Containers[0], nil)
	if err != nil {
		n.t.Fatal(err)
	}
	for _, m := range all {
		paths, readOnly = append(paths, m.HostPath), append(readOnly, m.Readonly)
	}
	return paths, readOnly
}

func (n *node) wantRefused(pod *v1.Pod, want string) {
	n.t.Helper()
	if err := n.Mount(context.Background(), pod); err == nil || !strings.Contains(err.Error(), want) {
		n.t.Errorf("mounted with %v, want an error with %q", err, want)
	}
}

// fakeCSI serves the volumes of CSI drivers by an empty directory.
type fakeCSI struct{}

func (fakeCSI) Plugin() string                                { return "kubernetes.io~csi" }
func (fakeCSI) Serves(v *source.Spec) bool                    { return v.Inline != nil && v.Inline.CSI != nil }
func (fakeCSI) Relabels(*source.Spec) bool                    { return true }
func (fakeCSI) Unmount(context.Context, source.Mounted) error { return nil }

func (fakeCSI) Mount(_ context.Context, v *source.Spec) (string, error) {
	return v.Dir, os.MkdirAll(v.Dir, 0o750)
}

// Regression: a CSI volume of the pod's own that the pod calls read-only could be written to by
// containers whose mount did not say so, too.
func TestAReadOnlyVolumeOfADriver(t *testing.T) {
	n := newNode(t)
	n.sources = append(n.sources, fakeCSI{})
	for _, readOnly := range []bool{true, false} {
		pod := podWith(vol("secrets", v1.VolumeSource{CSI: &v1.CSIVolumeSource{Driver: "secrets.example.com", ReadOnly: &readOnly}}))
		pod.UID = types.UID(fmt.Sprint("read-only-", readOnly))
		n.mount(pod)
		if _, got := n.mounts(pod); len(got) != 1 || got[0] != readOnly {
			t.Errorf("read-only %t: mounts that are read-only: %v", readOnly, got)
		}
		n.unmount(pod)
	}
}

// A local volume is a mount of the pod's own, and belongs to its group. Its data outlives all pods.
func TestALocalVolume(t *testing.T) {
	n, disk, pod := newBound(t, nil)
	pod.Spec.SecurityContext = &v1.PodSecurityContext{FSGroup: ptr.To[int64](4242)}
	n.mount(pod)
	want := n.path(pod, layout.VolumesDir, pluginLocal, "pv-data")
	paths, readOnly := n.mounts(pod)
	if !slices.Equal(paths, []string{want}) || readOnly[0] || !mountpoint.Is(want) {
		t.Errorf("mounts %q, read-only %v, want %q", paths, readOnly, want)
	}
	wantFile(t, want+"/data", "precious")
	if gid, mode := volumetest.GroupOf(t, disk); gid != 4242 || mode&os.ModeSetgid == 0 {
		t.Errorf("the volume belongs to group %d, mode %v", gid, mode)
	}
	if gid, mode := volumetest.GroupOf(t, disk+"/data"); gid != 4242 || mode.Perm() != 0o664 {
		t.Errorf("its file belongs to group %d, mode %v", gid, mode)
	}
	if got := n.Usage(context.Background(), pod); len(got) != 1 || got[0].PVCRef == nil || got[0].PVCRef.Name != "data" ||
		*got[0].CapacityBytes == 0 {
		t.Errorf("usage %+v", got)
	}
	n.unmount(pod)
	wantFile(t, disk+"/data", "precious")
}

// What is mounted is found on disk: a kubelet that was started again neither mounts again nor
// changes what containers have written since, and a pod that it never knew leaves no mount.
func TestAVolumeOutlivesTheKubelet(t *testing.T) {
	n, disk, pod := newBound(t, nil)
	pod.Spec.SecurityContext = &v1.PodSecurityContext{FSGroup: ptr.To[int64](4242)}
	n.mount(pod)
	volumetest.Write(t, disk+"/later", "x")
	if err := os.Chown(disk+"/later", 0, 7); err != nil {
		t.Fatal(err)
	}
	mounted := n.path(pod, layout.VolumesDir, pluginLocal, "pv-data")
	var before, after unix.Statx_t
	if err := unix.Statx(unix.AT_FDCWD, mounted, 0, unix.STATX_MNT_ID, &before); err != nil {
		t.Fatal(err)
	}
	n.restart(n.opts.RootDir)
	n.mount(pod)
	if err := unix.Statx(unix.AT_FDCWD, mounted, 0, unix.STATX_MNT_ID, &after); err != nil || before.Mnt_id != after.Mnt_id {
		t.Errorf("mounted again: %v, mount %d, was %d", err, after.Mnt_id, before.Mnt_id)
	}
	if gid, _ := volumetest.GroupOf(t, disk+"/later"); gid != 7 {
		t.Errorf("a file of a pod that runs was given to group %d", gid)
	}
	if paths, _ := n.mounts(pod); !slices.Equal(paths, []string{mounted}) {
		t.Errorf("mounts %q", paths)
	}
	n.restart(n.opts.RootDir)
	n.unmount(pod)
	wantFile(t, disk+"/data", "precious")

	// After a reboot the directory is there and nothing is mounted on it.
	n.mount(pod)
	if err := unix.Unmount(mounted, 0); err != nil {
		t.Fatal(err)
	}
	n.restart(n.opts.RootDir)
	n.mount(pod)
	wantFile(t, mounted+"/data", "precious")
	n.unmount(pod)
}

// A pod whose claim is not bound waits, says for what, and is woken by the change of either object.
// No time passes.
func TestAPodIsWokenWhenItsClaimIsBound(t *testing.T) {
	n, _, pod := newBound(t, nil)
	ctx, stop := context.WithCancel(t.Context())
	n.shared = informers.NewSharedInformerFactory(n.kube, 0)
	n.restart(n.opts.RootDir)
	n.shared.Start(ctx.Done())
	defer n.shared.Shutdown()
	defer stop()
	core := n.shared.Core().V1()
	if !cache.WaitForCacheSync(ctx.Done(), core.PersistentVolumeClaims().Informer().HasSynced, core.PersistentVolumes().Informer().HasSynced) {
		t.Fatal("no caches")
	}
	claims, volumes := n.kube.CoreV1().PersistentVolumeClaims("ns"), n.kube.CoreV1().PersistentVolumes()
	claim, err := claims.Get(ctx, "data", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	pv, err := volumes.Get(ctx, "pv-data", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	woken := func(change func() error) {
		t.Helper()
		n.forgetWakes() // of changes before
		if err := change(); err != nil {
			t.Fatal(err)
		}
		select {
		case uid := <-n.wakes:
			if uid != pod.UID {
				t.Errorf("pod %q was woken", uid)
			}
		case <-time.After(time.Minute):
			t.Fatal("the pod was not woken")
		}
	}
	if err := claims.Delete(ctx, "data", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	n.wantRefused(pod, `persistentvolumeclaims "data" not found`)
	pending := claim.DeepCopy()
	pending.Spec.VolumeName, pending.Spec.StorageClassName, pending.Status.Phase = "", ptr.To("slow"), v1.ClaimPending
	woken(func() error { _, err := claims.Create(ctx, pending, metav1.CreateOptions{}); return err })
	n.wantRefused(pod, `persistentvolumeclaim "data" is not bound to a volume yet (storage class "slow")`)
	if err := volumes.Delete(ctx, pv.Name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	woken(func() error { _, err := claims.Update(ctx, claim, metav1.UpdateOptions{}); return err })
	n.wantRefused(pod, `persistentvolumes "pv-data" not found`)
	woken(func() error { _, err := volumes.Create(ctx, pv, metav1.CreateOptions{}); return err })
	n.mount(pod)
	if keys := n.waiting.Keys(); len(keys) != 0 {
		t.Errorf("still waits for %v", keys)
	}
	n.unmount(pod)
}

func TestVolumesThatAPodMustNotHave(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*v1.PersistentVolumeClaim, *v1.PersistentVolume)
		want   string
	}{
		"another claim's": {func(_ *v1.PersistentVolumeClaim, pv *v1.PersistentVolume) {
			pv.Spec.ClaimRef = &v1.ObjectReference{Namespace: "other", Name: "data", UID: "another"}
		}, `persistentvolume "pv-data" is not bound to the persistentvolumeclaim "data": it belongs to other/data with the uid "another"`},
		"an earlier claim's of this name": {func(_ *v1.PersistentVolumeClaim, pv *v1.PersistentVolume) {
			pv.Spec.ClaimRef.UID = "earlier"
		}, `it belongs to ns/data with the uid "earlier"`},
		"no claim's": {
			func(_ *v1.PersistentVolumeClaim, pv *v1.PersistentVolume) { pv.Spec.ClaimRef = nil },
			"it belongs to no claim",
		},
		"another node's": {func(_ *v1.PersistentVolumeClaim, pv *v1.PersistentVolume) {
			pv.Spec.NodeAffinity.Required.NodeSelectorTerms[0].MatchExpressions[0].Values = []string{"n2"}
		}, `persistentvolume "pv-data" cannot be reached from node "n1", its nodeAffinity says: no matching NodeSelectorTerms`},
		"lost": {func(c *v1.PersistentVolumeClaim, _ *v1.PersistentVolume) {
			c.Status.Phase = v1.ClaimLost
		}, "bound to non-existent persistentvolume"},
		"going": {func(c *v1.PersistentVolumeClaim, _ *v1.PersistentVolume) {
			c.DeletionTimestamp, c.Finalizers = ptr.To(metav1.Now()), []string{"x/y"}
		}, `persistentvolumeclaim "data" is being deleted`},
		"a device": {func(_ *v1.PersistentVolumeClaim, pv *v1.PersistentVolume) {
			pv.Spec.VolumeMode = ptr.To(v1.PersistentVolumeBlock)
		}, "volume v has volumeMode Block, but is specified in volumeMounts"},
		"not there": {func(_ *v1.PersistentVolumeClaim, pv *v1.PersistentVolume) {
			pv.Spec.Local.Path += "-gone"
		}, "does not exist on this node"},
		"a file":    {func(_ *v1.PersistentVolumeClaim, pv *v1.PersistentVolume) { pv.Spec.Local.Path += "/data" }, "is no directory"},
		"backwards": {func(_ *v1.PersistentVolumeClaim, pv *v1.PersistentVolume) { pv.Spec.Local.Path += "/../.." }, "must not contain '..'"},
		"with options": {func(_ *v1.PersistentVolumeClaim, pv *v1.PersistentVolume) {
			pv.Spec.MountOptions = []string{"noexec"}
		}, "mountOptions of local volumes are not served"},
		"of a driver": {func(_ *v1.PersistentVolumeClaim, pv *v1.PersistentVolume) {
			pv.Spec.Local, pv.Spec.CSI = nil, &v1.CSIPersistentVolumeSource{Driver: "d.example"}
		}, `(csi, driver "d.example")`},
		"an odd name": {func(c *v1.PersistentVolumeClaim, pv *v1.PersistentVolume) {
			c.Spec.VolumeName, pv.Name = "..", ".."
		}, "not usable as a directory's name"},
	} {
		t.Run(name, func(t *testing.T) {
			n, disk, pod := newBound(t, c.change)
			n.wantRefused(pod, c.want)
			n.unmount(pod)
			wantFile(t, disk+"/data", "precious")
		})
	}
}

// A claim that was deleted while a pod has it stays until that pod has ended: the pod is served as
// before, also after a restart of the kubelet.
func TestAClaimThatIsDeletedWhileMounted(t *testing.T) {
	n, disk, pod := newBound(t, func(c *v1.PersistentVolumeClaim, _ *v1.PersistentVolume) {
		c.DeletionTimestamp, c.Finalizers = ptr.To(metav1.Now()), []string{volumeutil.PVCProtectionFinalizer}
	})
	n.mount(pod)
	n.restart(n.opts.RootDir)
	n.mount(pod)
	if paths, _ := n.mounts(pod); len(paths) != 1 {
		t.Errorf("mounts %q", paths)
	}
	n.unmount(pod)
	wantFile(t, disk+"/data", "precious")
}

// The directory of a provisioned volume is never a link: a link there would have been put by an
// attacker. An administrator's own volumes may be behind links, which shows that the attack works
// on them.
func TestAProvisionedVolumeThatIsALink(t *testing.T) {
	secret := t.TempDir()
	volumetest.Write(t, secret+"/secret", "hush")
	for name, provisioned := range map[string]bool{"provisioned": true, "the administrator's": false} {
		t.Run(name, func(t *testing.T) {
			n, _, pod := newBound(t, nil)
			dir := t.TempDir()
			if provisioned {
				dir = n.opts.Provisioned
			}
			if err := os.MkdirAll(dir, 0o700); err != nil {
				t.Fatal(err)
			}
			path := filepath.Join(dir, "pvc-1")
			if err := os.Symlink(secret, path); err != nil {
				t.Fatal(err)
			}
			pv, err := n.kube.CoreV1().PersistentVolumes().Get(t.Context(), "pv-data", metav1.GetOptions{})
			if err != nil {
				t.Fatal(err)
			}
			pv.Spec.Local.Path = path
			if _, err := n.kube.CoreV1().PersistentVolumes().Update(t.Context(), pv, metav1.UpdateOptions{}); err != nil {
				t.Fatal(err)
			}
			if provisioned {
				n.wantRefused(pod, "leads through a symbolic link")
			} else {
				n.mount(pod)
				wantFile(t, n.path(pod, layout.VolumesDir, pluginLocal, "pv-data", "secret"), "hush")
			}
			n.unmount(pod)
			wantFile(t, secret+"/secret", "hush")
		})
	}
}

// Links within a volume lead no container out of it.
func TestASubPathOfAClaimThatIsALink(t *testing.T) {
	n, disk, pod := newBound(t, nil)
	if err := os.Symlink("/etc", disk+"/out"); err != nil {
		t.Fatal(err)
	}
	pod.Spec.Containers[0].VolumeMounts[0].SubPath = "out"
	n.mount(pod)
	if _, err := os.Stat(n.path(pod, layout.VolumesDir, pluginLocal, "pv-data", "out", "passwd")); err != nil {
		t.Error("the link leads nowhere, so it proves nothing:", err)
	}
	if _, err := n.Mounts(t.Context(), pod, &pod.Spec.Containers[0], nil); err == nil ||
		!strings.Contains(err.Error(), "failed to prepare subPath") {
		t.Errorf("followed: %v", err)
	}
	n.unmount(pod)
}

// Of two pods with a ReadWriteOncePod claim the second one waits until the first has ended, also if
// the kubelet was restarted in between.
func TestAVolumeForOnePod(t *testing.T) {
	n, _, first := newBound(t, func(_ *v1.PersistentVolumeClaim, pv *v1.PersistentVolume) {
		pv.Spec.AccessModes = []v1.PersistentVolumeAccessMode{v1.ReadWriteOncePod}
	})
	second := podWith(claimVolume("v", "data"))
	second.UID = "uid-2"
	n.mount(first)
	n.mount(first) // its own
	n.wantRefused(second, "volume uses the ReadWriteOncePod access mode and is already in use by another pod")
	n.restart(n.opts.RootDir)
	n.wantRefused(second, "is already in use by another pod")
	users, err := holders.Users(n.opts.RootDir, "pv-data", slog.New(slog.DiscardHandler))
	if err != nil || !slices.Equal(users, []types.UID{first.UID}) {
		t.Errorf("users %q, %v", users, err)
	}
	n.forgetWakes()
	n.unmount(first)
	n.wantWoken(second)
	n.mount(second)
	n.unmount(second)
}

// A StatefulSet's pod waits for its predecessor, which was deleted by force and still runs, also if
// the kubelet was restarted in between. Other pods share the volume, as ReadWriteOnce allows.
func TestAStatefulSetsPodWaitsForTheOneBefore(t *testing.T) {
	n, _, _ := newBound(t, nil)
	first, second := podOf("uid-1", "db-0", "StatefulSet"), podOf("uid-2", "db-0", "StatefulSet")
	n.mount(first)
	n.mount(first) // its own
	n.wantRefused(second, "volume is still in use by an earlier pod of the same StatefulSet and name, which is ending")
	n.restart(n.opts.RootDir)
	n.wantRefused(second, "which is ending")
	for _, other := range []*v1.Pod{podOf("uid-3", "db-1", "StatefulSet"), podOf("uid-4", "db-0", "Robot")} {
		n.mount(other)
		n.unmount(other)
	}
	n.forgetWakes()
	n.unmount(first)
	n.wantWoken(second)
	n.mount(second)
	n.unmount(second)
	if left := n.holders.Volumes(); len(left) > 0 {
		t.Errorf("after all have ended these volumes are held: %v", left)
	}
}

// A StatefulSet's pod does not wait until all directories of its predecessor are removed: an
// append-only file stops that until an administrator comes, and nothing of the pod runs any more.
// ReadWriteOncePod waits, because it is about the volume and not about who runs.
func TestAPodThatCannotBeRemovedKeepsNoSuccessorWaiting(t *testing.T) {
	for mode, want := range map[v1.PersistentVolumeAccessMode]string{
		v1.ReadWriteOnce: "", v1.ReadWriteOncePod: "is already in use by another pod",
	} {
		for _, restarted := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, restarted: %t", mode, restarted), func(t *testing.T) {
				n, _, _ := newBound(t, func(_ *v1.PersistentVolumeClaim, pv *v1.PersistentVolume) {
					pv.Spec.AccessModes = []v1.PersistentVolumeAccessMode{mode}
				})
				first, second := podOf("uid-1", "db-0", "StatefulSet"), podOf("uid-2", "db-0", "StatefulSet")
				first.Spec = podWith(claimVolume("v", "data"), vol("e", v1.VolumeSource{EmptyDir: &v1.EmptyDirVolumeSource{}})).Spec
				n.mount(first)
				n.wantRefused(second, "volume")
				log := n.path(first, layout.VolumesDir, "kubernetes.io~empty-dir", "e", "log")
				volumetest.Write(t, log, "x")
				appendOnly(t, log, true)
				t.Cleanup(func() { appendOnly(t, log, false) })
				if restarted {
					n.restart(n.opts.RootDir)
				}
				n.forgetWakes()
				if err := n.Unmount(t.Context(), first.UID); err == nil {
					t.Fatal("an append-only file was removed")
				}
				if want != "" {
					n.wantRefused(second, want)
					return
				}
				if !restarted {
					n.wantWoken(second)
				}
				n.mount(second)
				n.restart(n.opts.RootDir) // both are on disk now, as if both had it
				n.mount(second)
				n.unmount(second)
			})
		}
	}
}

// appendOnly sets or clears chattr's flag a.
func appendOnly(t *testing.T, path string, set bool) {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	const appendFlag = 0x20 // FS_APPEND_FL
	flags, err := unix.IoctlGetUint32(int(f.Fd()), unix.FS_IOC_GETFLAGS)
	if err != nil {
		t.Fatal(err)
	}
	flags &^= appendFlag
	if set {
		flags |= appendFlag
	}
	if err := unix.IoctlSetPointerInt(int(f.Fd()), unix.FS_IOC_SETFLAGS, int(flags)); err != nil {
		t.Fatal(err)
	}
}

// What is damaged in one pod's directory stops no other pod, whatever it is. Only a volume of which
// a pod's name cannot be read counts as held, so that ReadWriteOncePod refuses it.
func TestADamagedNeighbour(t *testing.T) {
	for name, damage := range map[string]func(plugins, claimed string) error{
		"plugins are a file": func(plugins, _ string) error { return os.WriteFile(plugins, nil, 0o600) },
		"a directory":        func(_, claimed string) error { return os.MkdirAll(claimed, 0o700) },
		"a pipe": func(_, claimed string) error {
			return inNewDirectory(claimed, func() error { return unix.Mkfifo(claimed, 0o600) })
		},
		"a link that leads away": func(_, claimed string) error {
			return inNewDirectory(claimed, func() error { return os.Symlink("/dev/zero", claimed) })
		},
	} {
		for _, single := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, for one pod: %t", name, single), func(t *testing.T) {
				n, _, _ := newBound(t, func(_ *v1.PersistentVolumeClaim, pv *v1.PersistentVolume) {
					if single {
						pv.Spec.AccessModes = []v1.PersistentVolumeAccessMode{v1.ReadWriteOncePod}
					}
				})
				neighbour, pod := podOf("uid-1", "db-0", "StatefulSet"), podOf("uid-2", "db-0", "StatefulSet")
				if err := os.MkdirAll(n.path(neighbour), 0o700); err != nil {
					t.Fatal(err)
				}
				plugins := n.path(neighbour, layout.PluginsDir)
				if err := damage(plugins, filepath.Join(plugins, pluginLocal, "pv-data", "claimed")); err != nil {
					t.Fatal(err)
				}
				held := name != "plugins are a file"
				users, err := holders.Users(n.opts.RootDir, "pv-data", slog.New(slog.DiscardHandler))
				if err != nil || slices.Contains(users, neighbour.UID) != held {
					t.Errorf("users %q, %v", users, err)
				}
				if single && held {
					n.wantRefused(pod, "is already in use by another pod")
				} else {
					n.mount(pod)
				}
				n.unmount(pod)
			})
		}
	}
}

func inNewDirectory(path string, make func() error) error {
	return errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), make())
}

// The record of who has a volume is written once: a crash while it is written again would empty it.
func TestTheRecordIsNotWrittenAgain(t *testing.T) {
	n, _, pod := newBound(t, nil)
	n.mount(pod)
	file := n.path(pod, layout.PluginsDir, pluginLocal, "pv-data", "claimed")
	wantFile(t, file, "ns/p")
	past := time.Unix(1e9, 0)
	if err := os.Chtimes(file, past, past); err != nil {
		t.Fatal(err)
	}
	n.restart(n.opts.RootDir)
	n.mount(pod)
	if info, err := os.Stat(file); err != nil || !info.ModTime().Equal(past) {
		t.Errorf("written again: %v, %v", info, err)
	}
	n.unmount(pod)
}

// A pod with two volumes of a claim that another pod has waits for that pod, though it has seen the
// volume itself again since it was refused.
func TestAPodThatWaitsWithTwoVolumesOfOneClaim(t *testing.T) {
	n, _, _ := newBound(t, nil)
	first, second := podOf("uid-1", "db-0", "StatefulSet"), podOf("uid-2", "db-0", "StatefulSet")
	second.Spec = podWith(claimVolume("v", "data"), claimVolume("w", "data")).Spec
	n.mount(first)
	n.wantRefused(second, "which is ending")
	for _, v := range second.Spec.Volumes { // in any order
		if _, err := n.claims.Spec(t.Context(), second, &v); err != nil {
			t.Fatal(err)
		}
	}
	n.forgetWakes()
	n.unmount(first)
	n.wantWoken(second)
	n.mount(second)
	n.unmount(second)
}

func TestHostPathAndReadOnlyVolumes(t *testing.T) {
	n, disk, pod := newBound(t, func(_ *v1.PersistentVolumeClaim, pv *v1.PersistentVolume) {
		pv.Spec.HostPath, pv.Spec.Local = &v1.HostPathVolumeSource{Path: pv.Spec.Local.Path, Type: ptr.To(v1.HostPathDirectory)}, nil
	})
	pod.Spec.Volumes[0].PersistentVolumeClaim.ReadOnly = true
	pod.Spec.SecurityContext = &v1.PodSecurityContext{FSGroup: ptr.To[int64](4242)}
	n.mount(pod)
	if paths, readOnly := n.mounts(pod); !slices.Equal(paths, []string{disk}) || !readOnly[0] {
		t.Errorf("mounts %q, read-only %v", paths, readOnly)
	}
	if gid, _ := volumetest.GroupOf(t, disk); gid == 4242 {
		t.Error("a path of the host was given to the pod's group")
	}
	n.unmount(pod)
	wantFile(t, disk+"/data", "precious")
}

// Of two volumes of one claim, one may write: the claim is given to the pod's group, and each mount
// is what its own volume says.
func TestTwoVolumesOfOneClaim(t *testing.T) {
	n, disk, _ := newBound(t, nil)
	reader := claimVolume("a-reader", "data")
	reader.PersistentVolumeClaim.ReadOnly = true
	pod := podWith(reader, claimVolume("writer", "data"))
	pod.Spec.SecurityContext = &v1.PodSecurityContext{FSGroup: ptr.To[int64](4242)}
	n.mount(pod)
	if gid, _ := volumetest.GroupOf(t, disk); gid != 4242 {
		t.Errorf("the volume belongs to group %d", gid)
	}
	if _, readOnly := n.mounts(pod); !slices.Equal(readOnly, []bool{true, false}) {
		t.Errorf("read-only %v", readOnly)
	}
	n.unmount(pod)
}

// OnRootMismatch looks at the volume's directory only.
func TestTheGroupOfAVolumeThatHasItAlready(t *testing.T) {
	n, disk, pod := newBound(t, nil)
	pod.Spec.SecurityContext = &v1.PodSecurityContext{
		FSGroup:             ptr.To[int64](4242),
		FSGroupChangePolicy: ptr.To(v1.FSGroupChangeOnRootMismatch),
	}
	n.mount(pod)
	n.unmount(pod)
	if err := os.Chown(disk+"/data", 0, 7); err != nil {
		t.Fatal(err)
	}
	n.mount(pod)
	if gid, _ := volumetest.GroupOf(t, disk+"/data"); gid != 7 {
		t.Errorf("its file was given to group %d", gid)
	}
	n.unmount(pod)
}

func TestABlockVolume(t *testing.T) {
	var device string
	n, _, pod := newBound(t, func(_ *v1.PersistentVolumeClaim, pv *v1.PersistentVolume) {
		pv.Spec.VolumeMode = ptr.To(v1.PersistentVolumeBlock)
		dir := filepath.Dir(pv.Spec.Local.Path)
		device = filepath.Join(dir, "sdx")
		if err := unix.Mknod(device, unix.S_IFBLK|0o600, int(unix.Mkdev(7, 200))); err != nil {
			t.Fatal(err)
		}
		pv.Spec.Local.Path = filepath.Join(dir, "by-id") // as in /dev/disk
		if err := os.Symlink("sdx", pv.Spec.Local.Path); err != nil {
			t.Fatal(err)
		}
	})
	c := &pod.Spec.Containers[0]
	c.VolumeMounts, c.VolumeDevices = nil, []v1.VolumeDevice{{Name: "v", DevicePath: "/dev/data"}}
	n.mount(pod)
	got, err := n.Devices(t.Context(), pod, c)
	if err != nil || len(got) != 1 || got[0].HostPath != device || got[0].ContainerPath != "/dev/data" || got[0].Permissions != "mrw" {
		t.Errorf("devices %v, %v", got, err)
	}
	n.unmount(pod)
	if _, err := os.Lstat(device); err != nil {
		t.Error(err)
	}
}

// An ephemeral volume's claim is the pod's own, or not used.
func TestAnEphemeralVolume(t *testing.T) {
	n, _, pod := newBound(t, func(c *v1.PersistentVolumeClaim, pv *v1.PersistentVolume) {
		c.Name, pv.Spec.ClaimRef.Name = "p-v", "p-v"
	})
	pod.Spec.Volumes[0].VolumeSource = v1.VolumeSource{Ephemeral: &v1.EphemeralVolumeSource{}}
	n.wantRefused(pod, "was not created for pod ns/p")
	claims := n.kube.CoreV1().PersistentVolumeClaims("ns")
	claim, err := claims.Get(t.Context(), "p-v", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if err := claims.Delete(t.Context(), "p-v", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	n.wantRefused(pod, `waiting for ephemeral volume controller to create the persistentvolumeclaim "p-v"`)
	claim.OwnerReferences = []metav1.OwnerReference{*metav1.NewControllerRef(pod, v1.SchemeGroupVersion.WithKind("Pod"))}
	if _, err := claims.Create(t.Context(), claim, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	n.mount(pod)
	n.unmount(pod)
}
