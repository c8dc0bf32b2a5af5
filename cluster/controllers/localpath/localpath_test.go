package localpath

import (
	"errors"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	ktesting "k8s.io/client-go/testing"
	storagehelpers "k8s.io/component-helpers/storage/volume"
	"k8s.io/utils/ptr"

	"github.com/coracle-project/coracle/cluster/client"
	"github.com/coracle-project/coracle/cluster/controllers/frame"
	"github.com/coracle-project/coracle/cluster/controllers/internal/apitest"
)

const node = "n1"

// ours are the provisioner on a root directory, as the account that it has.
func ours(o Options) apitest.Controllers {
	o.NodeName = node
	return apitest.Ours(func(set *client.Set) *frame.Controller { return New(set, o) }).As("persistent-volume-binder")
}

// bench is a cluster whose scheduler and binder are the test.
type bench struct {
	*apitest.Server
	t    *testing.T
	root string
}

// prepare makes the node and the class.
func prepare(t *testing.T, s *apitest.Server, root string) *bench {
	t.Helper()
	b := &bench{Server: s, t: t, root: root}
	_, err := s.Kube.CoreV1().Nodes().Create(t.Context(), &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: node, Labels: map[string]string{corev1.LabelHostname: "host-1"}},
	}, metav1.CreateOptions{})
	b.ok(err)
	b.ok(EnsureClass(t.Context(), s.Kube))
	return b
}

func (b *bench) ok(err error) {
	b.t.Helper()
	if err != nil {
		b.t.Fatal(err)
	}
}

// claim makes a claim that a pod on the node waits for.
func (b *bench) claim(name, size string, change func(*corev1.PersistentVolumeClaim)) *corev1.PersistentVolumeClaim {
	b.t.Helper()
	c := &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, Annotations: map[string]string{
			storagehelpers.AnnStorageProvisioner: Provisioner, storagehelpers.AnnSelectedNode: node,
		}},
		Spec: corev1.PersistentVolumeClaimSpec{
			StorageClassName: ptr.To(ClassName), AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			Resources: corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse(size)}},
		},
	}
	if change != nil {
		change(c)
	}
	c, err := b.Kube.CoreV1().PersistentVolumeClaims("default").Create(b.t.Context(), c, metav1.CreateOptions{})
	b.ok(err)
	return c
}

// volume returns the claim's volume, nil if there is none.
func (b *bench) volume(claim *corev1.PersistentVolumeClaim) *corev1.PersistentVolume {
	b.t.Helper()
	pv, err := b.Kube.CoreV1().PersistentVolumes().Get(b.t.Context(), nameOf(claim), metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	b.ok(err)
	return pv
}

// bind does what the binder does when there is a volume.
func (b *bench) bind(claim *corev1.PersistentVolumeClaim) {
	b.t.Helper()
	claim = claim.DeepCopy()
	claim.Spec.VolumeName = nameOf(claim)
	_, err := b.Kube.CoreV1().PersistentVolumeClaims("default").Update(b.t.Context(), claim, metav1.UpdateOptions{})
	b.ok(err)
	b.phase(claim, corev1.VolumeBound)
}

func (b *bench) phase(claim *corev1.PersistentVolumeClaim, phase corev1.PersistentVolumePhase) {
	b.t.Helper()
	pv := b.volume(claim)
	pv.Status.Phase = phase
	_, err := b.Kube.CoreV1().PersistentVolumes().UpdateStatus(b.t.Context(), pv, metav1.UpdateOptions{})
	b.ok(err)
}

// release deletes the claim, and does what the binder does then.
func (b *bench) release(claim *corev1.PersistentVolumeClaim) {
	b.t.Helper()
	b.ok(b.Kube.CoreV1().PersistentVolumeClaims("default").Delete(b.t.Context(), claim.Name, metav1.DeleteOptions{}))
	b.phase(claim, corev1.VolumeReleased)
}

// dir is where the claim's volume is.
func (b *bench) dir(claim *corev1.PersistentVolumeClaim) string {
	return filepath.Join(b.root, "volumes", nameOf(claim))
}

// onDisk are the names of what there is, in volumes and in deleting.
func (b *bench) onDisk() []string {
	b.t.Helper()
	var names []string
	for _, dir := range []string{volumesDir, deletingDir} {
		entries, err := os.ReadDir(filepath.Join(b.root, dir))
		if err != nil && !os.IsNotExist(err) {
			b.t.Fatal(err)
		}
		for _, e := range entries {
			names = append(names, e.Name())
		}
	}
	return names
}

func (b *bench) wantOnDisk(want ...string) {
	b.t.Helper()
	if got := b.onDisk(); !slices.Equal(got, want) {
		b.t.Errorf("on disk are %q, want %q", got, want)
	}
}

// wantEvent wants an event about the object whose message has a text.
func (b *bench) wantEvent(name, reason, text string) {
	b.t.Helper()
	list, err := b.Kube.CoreV1().Events("").List(b.t.Context(), metav1.ListOptions{})
	b.ok(err)
	var seen []string
	for _, e := range list.Items {
		if e.InvolvedObject.Name == name && e.Reason == reason && strings.Contains(e.Message, text) {
			return
		}
		seen = append(seen, e.InvolvedObject.Name+" "+e.Reason+" "+e.Message)
	}
	b.t.Errorf("no event %s of %s with %q in %q", reason, name, text, seen)
}

func write(t *testing.T, path string) {
	t.Helper()
	if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, []byte("precious"), 0o600)); err != nil {
		t.Fatal(err)
	}
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

func TestAVolumesLife(t *testing.T) {
	root := t.TempDir()
	ours(Options{Root: root}).Run(t, func(t *testing.T, s *apitest.Server) {
		b := prepare(t, s, root)
		claim := b.claim("data", "1Mi", nil)
		s.Settle()
		pv := b.volume(claim)
		if pv == nil {
			t.Fatal("there is no volume")
		}
		if pv.Spec.Local.Path != b.dir(claim) || pv.Spec.ClaimRef.UID != claim.UID || pv.Spec.Capacity.Storage().String() != "1Mi" ||
			pv.Spec.PersistentVolumeReclaimPolicy != corev1.PersistentVolumeReclaimDelete || pv.Spec.StorageClassName != ClassName {
			t.Errorf("the volume is %+v", pv.Spec)
		}
		for host, reached := range map[string]bool{"host-1": true, "host-2": false} {
			if err := storagehelpers.CheckNodeAffinity(pv, map[string]string{corev1.LabelHostname: host}); (err == nil) != reached {
				t.Errorf("from %s: %v", host, err)
			}
		}
		for path, want := range map[string]os.FileMode{root: 0o700, VolumesDir(root): 0o700, b.dir(claim): 0o777} {
			if info, err := os.Stat(path); err != nil || info.Mode().Perm() != want {
				t.Errorf("%s: %v, %v, want %v", path, info.Mode(), err, want)
			}
		}
		b.wantEvent("data", "ProvisioningSucceeded", nameOf(claim))
		b.bind(claim)
		write(t, b.dir(claim)+"/deep/er/file")
		s.Settle()
		b.wantOnDisk(nameOf(claim))
		b.release(claim)
		s.Settle()
		b.wantOnDisk()
		if pv := b.volume(claim); pv != nil {
			t.Errorf("the volume is still there: %+v", pv)
		}
	})
}

// Crashes after each write of the provisioner lead to the same end, with nothing left on disk.
func TestCrashes(t *testing.T) {
	root := t.TempDir()
	ours(Options{Root: root}).Survives(t, func(t *testing.T, s *apitest.Server, note func(string)) {
		b := prepare(t, s, root)
		claim := b.claim("data", "1Mi", nil)
		note("provisioned")
		b.bind(claim)
		write(t, b.dir(claim)+"/file")
		note("bound")
		b.release(claim)
		note("deleted")
		b.wantOnDisk()
	})
}

// What a crash at any other moment leaves on disk is cleared up at the next start, but never data.
func TestLeftovers(t *testing.T) {
	root := t.TempDir()
	var unreadable atomic.Bool
	controllers := apitest.Ours(func(set *client.Set) *frame.Controller {
		set.Kube.(*fake.Clientset).PrependReactor("get", "persistentvolumes", func(ktesting.Action) (bool, runtime.Object, error) {
			if unreadable.Load() {
				return true, nil, errors.New("the store does not answer")
			}
			return false, nil, nil
		})
		return New(set, Options{Root: root, NodeName: node})
	})
	controllers.Run(t, func(t *testing.T, s *apitest.Server) {
		b := prepare(t, s, root)
		claim := b.claim("data", "1Mi", nil)
		s.Settle()
		b.bind(claim)
		for _, dir := range []string{"volumes/pvc-empty", "volumes/.pvc-begun-1", "volumes/" + nameOf(claim)} {
			b.ok(os.MkdirAll(filepath.Join(root, dir), 0o700))
		}
		write(t, root+"/volumes/pvc-unknown/file")
		write(t, root+"/volumes/mine/file")
		write(t, root+"/deleting/pvc-doomed-1/file")
		unreadable.Store(true)
		s.Restart()
		b.wantOnDisk("mine", "pvc-empty", nameOf(claim), "pvc-unknown")
		unreadable.Store(false)
		s.Restart()
		b.wantOnDisk("mine", nameOf(claim), "pvc-unknown")
	})
}

// A claim that goes before its volume was made known leaves nothing.
func TestAClaimThatGoesWhileItIsProvisioned(t *testing.T) {
	root := t.TempDir()
	ours(Options{Root: root}).Run(t, func(t *testing.T, s *apitest.Server) {
		b := prepare(t, s, root)
		s.Refuse(func(verb, resource string) error {
			if verb == "create" && resource == "persistentvolumes" {
				return errors.New("no")
			}
			return nil
		})
		claim := b.claim("data", "1Mi", nil)
		s.Settle()
		b.wantOnDisk(nameOf(claim))
		b.wantEvent("data", "ProvisioningFailed", "no")
		b.ok(s.Kube.CoreV1().PersistentVolumeClaims("default").Delete(t.Context(), "data", metav1.DeleteOptions{}))
		s.Pass(time.Hour)
		b.wantOnDisk()
	})
}

// smallDisk is a disk of 8 MiB until the test ends.
func smallDisk(t *testing.T) (root string) {
	t.Helper()
	root = t.TempDir()
	if err := unix.Mount("tmpfs", root, "tmpfs", 0, "size=8m"); err != nil {
		t.Fatal("root is needed:", err)
	}
	t.Cleanup(func() { _ = unix.Unmount(root, unix.MNT_DETACH) })
	return root
}

func TestAFullDisk(t *testing.T) {
	root := smallDisk(t)
	ours(Options{Root: root}).Run(t, func(t *testing.T, s *apitest.Server) {
		b := prepare(t, s, root)
		claim := b.claim("large", "1Gi", nil)
		small := b.claim("small", "1Mi", nil)
		s.Settle()
		b.wantEvent("large", "ProvisioningFailed", "has not enough room: 1.0 GiB are asked for, and of 8.0 MiB only 8.0 MiB are free")
		now, err := s.Kube.CoreV1().PersistentVolumeClaims("default").Get(t.Context(), "large", metav1.GetOptions{})
		b.ok(err)
		if _, selected := now.Annotations[storagehelpers.AnnSelectedNode]; selected {
			t.Error("the scheduler is not asked for another node")
		}
		if b.volume(claim) != nil || b.volume(small) == nil {
			t.Errorf("volumes: large %v, small %v", b.volume(claim), b.volume(small))
		}
		b.wantOnDisk(nameOf(small))
		// The room is not counted twice when a volume is tried again.
		write(t, b.dir(small)+"/file")
	})
}

// Of a class that binds at once no scheduler chooses the node. Such a claim gets its volume when
// there is room.
func TestRoomThatComesLater(t *testing.T) {
	root := smallDisk(t)
	ours(Options{Root: root}).Run(t, func(t *testing.T, s *apitest.Server) {
		b := prepare(t, s, root)
		_, err := s.Kube.StorageV1().StorageClasses().Create(t.Context(), &storagev1.StorageClass{
			ObjectMeta: metav1.ObjectMeta{Name: "now"}, Provisioner: Provisioner, VolumeBindingMode: ptr.To(storagev1.VolumeBindingImmediate),
		}, metav1.CreateOptions{})
		b.ok(err)
		b.ok(os.WriteFile(root+"/filler", make([]byte, 5<<20), 0o600))
		claim := b.claim("data", "4Mi", func(c *corev1.PersistentVolumeClaim) {
			c.Spec.StorageClassName = ptr.To("now")
			delete(c.Annotations, storagehelpers.AnnSelectedNode)
		})
		s.Settle()
		b.wantEvent("data", "ProvisioningFailed", "not enough room")
		b.ok(os.Remove(root + "/filler"))
		s.Pass(lookAgain)
		if b.volume(claim) == nil {
			t.Error("there is no volume")
		}
	})
}

// Of several provisioners none would know which is to serve a claim without a node.
func TestOnlySelectedClaims(t *testing.T) {
	root := t.TempDir()
	ours(Options{Root: root, OnlySelected: true}).Run(t, func(t *testing.T, s *apitest.Server) {
		b := prepare(t, s, root)
		_, err := s.Kube.StorageV1().StorageClasses().Create(t.Context(), &storagev1.StorageClass{
			ObjectMeta: metav1.ObjectMeta{Name: "now"}, Provisioner: Provisioner, VolumeBindingMode: ptr.To(storagev1.VolumeBindingImmediate),
		}, metav1.CreateOptions{})
		b.ok(err)
		anywhere := b.claim("anywhere", "1Mi", func(c *corev1.PersistentVolumeClaim) {
			c.Spec.StorageClassName = ptr.To("now")
			delete(c.Annotations, storagehelpers.AnnSelectedNode)
		})
		here := b.claim("here", "1Mi", func(*corev1.PersistentVolumeClaim) {})
		s.Settle()
		if b.volume(anywhere) != nil || b.volume(here) == nil {
			t.Errorf("volumes %v of a claim without a node, %v of one with", b.volume(anywhere), b.volume(here))
		}
	})
}

func TestClaimsThatAreRefusedOrOthers(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*corev1.PersistentVolumeClaim)
		want   string
	}{
		"a device": {func(c *corev1.PersistentVolumeClaim) {
			c.Spec.VolumeMode = ptr.To(corev1.PersistentVolumeBlock)
		}, "volumeMode Block is not possible"},
		"on many nodes": {func(c *corev1.PersistentVolumeClaim) {
			c.Spec.AccessModes = []corev1.PersistentVolumeAccessMode{corev1.ReadWriteMany}
		}, "accessMode ReadWriteMany is not possible: use ReadWriteOnce"},
		"selected": {func(c *corev1.PersistentVolumeClaim) { c.Spec.Selector = &metav1.LabelSelector{} }, "a selector is not possible"},
		"a copy": {func(c *corev1.PersistentVolumeClaim) {
			c.Spec.DataSource = &corev1.TypedLocalObjectReference{Name: "x"}
		}, "a dataSource is not possible"},
		"odd parameters": {func(c *corev1.PersistentVolumeClaim) {
			c.Spec.StorageClassName = ptr.To("odd")
		}, `storage class "odd" has parameters that coracle.dev/local-path does not know: fs, path`},
		"no class": {func(c *corev1.PersistentVolumeClaim) {
			c.Spec.StorageClassName = ptr.To("none")
		}, `storage class "none" does not exist`},
		"another node's": {func(c *corev1.PersistentVolumeClaim) { c.Annotations[storagehelpers.AnnSelectedNode] = "n2" }, ""},
		"no node yet":    {func(c *corev1.PersistentVolumeClaim) { delete(c.Annotations, storagehelpers.AnnSelectedNode) }, ""},
		"another's": {func(c *corev1.PersistentVolumeClaim) {
			c.Annotations[storagehelpers.AnnStorageProvisioner] = "x.example/y"
		}, ""},
		"bound by someone": {func(c *corev1.PersistentVolumeClaim) { c.Spec.VolumeName = "mine" }, ""},
	} {
		t.Run(name, func(t *testing.T) {
			root := t.TempDir()
			ours(Options{Root: root}).Run(t, func(t *testing.T, s *apitest.Server) {
				b := prepare(t, s, root)
				_, err := s.Kube.StorageV1().StorageClasses().Create(t.Context(), &storagev1.StorageClass{
					ObjectMeta: metav1.ObjectMeta{Name: "odd"}, Provisioner: Provisioner, Parameters: map[string]string{"path": "/etc", "fs": "x"},
				}, metav1.CreateOptions{})
				b.ok(err)
				claim := b.claim("data", "1Mi", c.change)
				s.Settle()
				if c.want != "" {
					b.wantEvent("data", "ProvisioningFailed", c.want)
				}
				if b.volume(claim) != nil {
					t.Error("there is a volume")
				}
				b.wantOnDisk()
			})
		})
	}
}

// Of a claim that was deleted by force, a pod may still run and write. Its data goes when its
// kubelet has ended it.
func TestAVolumeThatAPodStillHas(t *testing.T) {
	root := t.TempDir()
	var ended atomic.Bool
	users := func(string) ([]types.UID, error) {
		if ended.Load() {
			return nil, nil
		}
		return []types.UID{"pod-1"}, nil
	}
	ours(Options{Root: root, Users: users}).Run(t, func(t *testing.T, s *apitest.Server) {
		b := prepare(t, s, root)
		claim := b.claim("data", "1Mi", nil)
		s.Settle()
		b.bind(claim)
		write(t, b.dir(claim)+"/file")
		b.release(claim)
		s.Pass(time.Minute)
		if !exists(b.dir(claim) + "/file") {
			t.Error("data of a pod that runs was deleted")
		}
		b.wantEvent(nameOf(claim), "VolumeDelete", "pods that have not ended yet still have the volume: [pod-1]")
		ended.Store(true)
		s.Pass(lookForUsers)
		b.wantOnDisk()
	})
}

// Links in a volume, or in its place, lead the deletion to nothing else. What deletes a volume file
// by file, as the scripts of other provisioners do, deletes what the link leads to.
func TestDeletionOfHostileContent(t *testing.T) {
	for name, hostile := range map[string]func(dir, other string) error{
		"a link within":       func(dir, other string) error { return os.Symlink(other, dir+"/link") },
		"a link in its place": func(dir, other string) error { return errors.Join(os.Remove(dir), os.Symlink(other, dir)) },
		"a mount within": func(dir, other string) error {
			return errors.Join(os.Mkdir(dir+"/mount", 0o700), unix.Mount(other, dir+"/mount", "", unix.MS_BIND, ""))
		},
		"very deep": func(dir, _ string) error {
			at := dir
			for range 200 {
				at += "/directory"
			}
			return os.MkdirAll(at, 0o700)
		},
	} {
		t.Run(name, func(t *testing.T) {
			root, other := t.TempDir(), t.TempDir()
			write(t, other+"/file")
			ours(Options{Root: root}).Run(t, func(t *testing.T, s *apitest.Server) {
				b := prepare(t, s, root)
				claim := b.claim("data", "1Mi", nil)
				s.Settle()
				b.bind(claim)
				b.ok(hostile(b.dir(claim), other))
				b.release(claim)
				s.Settle()
				b.wantOnDisk()
				if !exists(other + "/file") {
					t.Error("what the link leads to was deleted")
				}
			})
		})
	}
	dir, other := t.TempDir()+"/volume", t.TempDir()
	write(t, other+"/file")
	if err := os.Symlink(other, dir); err != nil {
		t.Fatal(err)
	}
	files, err := filepath.Glob(dir + "/*")
	if err != nil || len(files) != 1 {
		t.Fatal(files, err)
	}
	if err := os.RemoveAll(files[0]); err != nil || exists(other+"/file") {
		t.Error("the attack does nothing, so the test proves nothing:", err)
	}
}

// A PersistentVolume that says that it is of this provisioner, and names another directory.
func TestAVolumeWithAnotherPath(t *testing.T) {
	root, other := t.TempDir(), t.TempDir()
	write(t, other+"/file")
	ours(Options{Root: root}).Run(t, func(t *testing.T, s *apitest.Server) {
		b := prepare(t, s, root)
		claim := b.claim("data", "1Mi", nil)
		s.Settle()
		pv := b.volume(claim)
		pv.Spec.Local.Path = other
		_, err := s.Kube.CoreV1().PersistentVolumes().Update(t.Context(), pv, metav1.UpdateOptions{})
		b.ok(err)
		b.bind(claim)
		write(t, b.dir(claim)+"/file")
		b.release(claim)
		s.Settle()
		b.wantEvent(pv.Name, "VolumeFailedDelete", "what is there is left alone")
		if !exists(other+"/file") || !exists(b.dir(claim)+"/file") {
			t.Error("something was deleted")
		}
	})
}

func TestTheClass(t *testing.T) {
	foreign := &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{
		Name: "mine", Annotations: map[string]string{"storageclass.kubernetes.io/is-default-class": "true"},
	}}
	changed := &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: ClassName}, Provisioner: "x"}
	for name, c := range map[string]struct {
		there []runtime.Object
		want  map[string]string
	}{
		"none":                 {nil, map[string]string{"storageclass.kubernetes.io/is-default-class": "true"}},
		"another default":      {[]runtime.Object{foreign}, nil},
		"changed by its owner": {[]runtime.Object{changed}, nil},
	} {
		kube := fake.NewClientset(c.there...)
		for range 2 {
			if err := EnsureClass(t.Context(), kube); err != nil {
				t.Fatal(name, err)
			}
		}
		class, err := kube.StorageV1().StorageClasses().Get(t.Context(), ClassName, metav1.GetOptions{})
		if err != nil || !maps.Equal(class.Annotations, c.want) {
			t.Errorf("%s: %+v, %v", name, class, err)
		}
	}
}
