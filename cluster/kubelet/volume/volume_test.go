package volume

import (
	"context"
	"maps"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/utils/ptr"

	"github.com/coracle-project/coracle/cluster/client"
	"github.com/coracle-project/coracle/cluster/kubelet/internal/volumetest"
	"github.com/coracle-project/coracle/cluster/kubelet/volume/layout"
	"github.com/coracle-project/coracle/cluster/kubelet/volume/mountpoint"
)

// node is a manager over a fake API.
type node struct {
	*Manager
	t     *testing.T
	kube  *fake.Clientset
	wakes chan types.UID
	looks chan types.UID
	// shared is given to managers that are made from then on.
	shared informers.SharedInformerFactory
}

func newNode(t *testing.T, objects ...runtime.Object) *node {
	n := &node{t: t, kube: fake.NewClientset(objects...), wakes: make(chan types.UID, 100), looks: make(chan types.UID, 100)}
	n.restart(t.TempDir())
	return n
}

// restart starts again with what is on disk.
func (n *node) restart(dir string) {
	n.Manager = New(&client.Set{Kube: n.kube}, Options{
		RootDir: dir, NodeName: "n1",
		Allocatable: func() v1.ResourceList {
			return v1.ResourceList{v1.ResourceMemory: resource.MustParse("64Mi"), v1.ResourceCPU: resource.MustParse("2")}
		},
		Wake:       func(uid types.UID) { n.wakes <- uid },
		NodeLabels: func() map[string]string { return map[string]string{v1.LabelHostname: "n1"} },
		Watch:      n.shared, Provisioned: filepath.Join(dir, "provisioned"),
	})
	n.looked = func(uid types.UID) { n.looks <- uid }
	n.objects.FirstRead = time.Minute // on however busy a machine
}

func (n *node) path(pod *v1.Pod, parts ...string) string {
	return filepath.Join(append([]string{n.opts.RootDir, "pods", string(pod.UID)}, parts...)...)
}

func (n *node) mount(pod *v1.Pod) {
	n.t.Helper()
	if err := n.Mount(context.Background(), pod); err != nil {
		n.t.Fatal(err)
	}
}

func (n *node) unmount(pod *v1.Pod) {
	n.t.Helper()
	if err := n.Unmount(context.Background(), pod.UID); err != nil {
		n.t.Fatal(err)
	}
	for _, dir := range []string{layout.VolumesDir, layout.SubPathsDir, layout.PluginsDir} {
		if _, err := os.Lstat(n.path(pod, dir)); !os.IsNotExist(err) {
			n.t.Errorf("%s is left: %v", dir, err)
		}
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.pods[pod.UID] != nil {
		n.t.Error("the pod is not forgotten")
	}
}

// podWith returns a pod with one container that mounts each of the volumes on /NAME.
func podWith(volumes ...v1.Volume) *v1.Pod {
	pod := &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "p", UID: "uid-1", Labels: map[string]string{"app": "web"}},
		Spec:       v1.PodSpec{ServiceAccountName: "sa", Volumes: volumes, Containers: []v1.Container{{Name: "c"}}},
	}
	for _, vol := range volumes {
		pod.Spec.Containers[0].VolumeMounts = append(pod.Spec.Containers[0].VolumeMounts,
			v1.VolumeMount{Name: vol.Name, MountPath: "/" + vol.Name})
	}
	return pod
}

func vol(name string, source v1.VolumeSource) v1.Volume {
	return v1.Volume{Name: name, VolumeSource: source}
}

func configMap(name, version string, data map[string]string) *v1.ConfigMap {
	return &v1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: types.UID("cm-" + name), ResourceVersion: version},
		Data:       data,
	}
}

func secret(name string, data map[string]string) *v1.Secret {
	s := &v1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, ResourceVersion: "1"}, Data: map[string][]byte{}}
	for k, v := range data {
		s.Data[k] = []byte(v)
	}
	return s
}

var mode644 = ptr.To[int32](0o644)

func fromConfigMap(name string, optional bool, items ...v1.KeyToPath) v1.VolumeSource {
	return v1.VolumeSource{ConfigMap: &v1.ConfigMapVolumeSource{
		LocalObjectReference: v1.LocalObjectReference{Name: name}, DefaultMode: mode644, Optional: &optional, Items: items,
	}}
}

func tmpfsAt(t *testing.T, dir string) bool {
	t.Helper()
	var s unix.Statfs_t
	if err := unix.Statfs(dir, &s); err != nil {
		t.Fatal(err)
	}
	return s.Type == unix.TMPFS_MAGIC && mountpoint.Is(dir)
}

func TestProjectionsAndTheirUpdates(t *testing.T) {
	n := newNode(t, configMap("cm", "1", map[string]string{"a": "1", "b": "2"}), secret("s", map[string]string{"pw": "hush"}))
	pod := podWith(
		vol("cm", fromConfigMap("cm", false)),
		vol("items", fromConfigMap("cm", false, v1.KeyToPath{Key: "a", Path: "deep/a", Mode: ptr.To[int32](0o400)})),
		vol("secret", v1.VolumeSource{Secret: &v1.SecretVolumeSource{SecretName: "s", DefaultMode: ptr.To[int32](0o600)}}),
		vol("absent", fromConfigMap("none", true)),
		vol("down", v1.VolumeSource{DownwardAPI: &v1.DownwardAPIVolumeSource{DefaultMode: mode644, Items: []v1.DownwardAPIVolumeFile{
			{Path: "labels", FieldRef: &v1.ObjectFieldSelector{FieldPath: "metadata.labels"}},
			{Path: "cpu", ResourceFieldRef: &v1.ResourceFieldSelector{ContainerName: "c", Resource: "limits.cpu"}},
		}}}),
		vol("all", v1.VolumeSource{Projected: &v1.ProjectedVolumeSource{DefaultMode: mode644, Sources: []v1.VolumeProjection{
			{ConfigMap: &v1.ConfigMapProjection{LocalObjectReference: v1.LocalObjectReference{Name: "cm"}}},
			{Secret: &v1.SecretProjection{
				LocalObjectReference: v1.LocalObjectReference{Name: "s"},
				Items:                []v1.KeyToPath{{Key: "pw", Path: "x/pw"}},
			}},
			{DownwardAPI: &v1.DownwardAPIProjection{Items: []v1.DownwardAPIVolumeFile{{
				Path:     "name",
				FieldRef: &v1.ObjectFieldSelector{FieldPath: "metadata.name"},
			}}}},
		}}}),
	)
	pod.Spec.Volumes = append(pod.Spec.Volumes, vol("unused", fromConfigMap("none", false)))
	n.mount(pod)

	check := func(when, dir string, want map[string]string) {
		t.Helper()
		if got := volumetest.Read(t, n.path(pod, layout.VolumesDir, dir)); !maps.Equal(got, want) {
			t.Errorf("%s: %s shows %v, want %v", when, dir, got, want)
		}
	}
	check("first", "kubernetes.io~configmap/cm", map[string]string{"a": "1", "b": "2"})
	check("first", "kubernetes.io~configmap/items", map[string]string{"deep/a": "1"})
	check("first", "kubernetes.io~configmap/absent", map[string]string{})
	check("first", "kubernetes.io~secret/secret", map[string]string{"pw": "hush"})
	check("first", "kubernetes.io~downward-api/down", map[string]string{"labels": `app="web"`, "cpu": "2"})
	check("first", "kubernetes.io~projected/all", map[string]string{"a": "1", "b": "2", "x/pw": "hush", "name": "p"})
	for dir, memory := range map[string]bool{
		"kubernetes.io~configmap/cm": false, "kubernetes.io~secret/secret": true, "kubernetes.io~downward-api/down": true,
		"kubernetes.io~projected/all": true,
	} {
		if tmpfsAt(t, n.path(pod, layout.VolumesDir, dir)) != memory {
			t.Errorf("%s: on tmpfs: %v", dir, !memory)
		}
	}
	if info, err := os.Stat(n.path(pod, layout.VolumesDir, "kubernetes.io~secret/secret/pw")); err != nil || info.Mode() != 0o600 {
		t.Error(info.Mode(), err)
	}
	if _, err := os.Lstat(n.path(pod, layout.VolumesDir, "kubernetes.io~configmap/unused")); err == nil {
		t.Error("a volume that no container mounts was made")
	}

	update := configMap("cm", "2", map[string]string{"a": "3"})
	if _, err := n.kube.CoreV1().ConfigMaps("ns").Update(context.Background(), update, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	<-n.looks
	check("updated", "kubernetes.io~configmap/cm", map[string]string{"a": "3"})
	check("updated", "kubernetes.io~configmap/items", map[string]string{"deep/a": "3"})
	check("updated", "kubernetes.io~projected/all", map[string]string{"a": "3", "x/pw": "hush", "name": "p"})

	if _, err := n.kube.CoreV1().ConfigMaps("ns").Create(context.Background(), configMap("none", "1", map[string]string{"late": "1"}),
		metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	<-n.looks
	check("came later", "kubernetes.io~configmap/absent", map[string]string{"late": "1"})

	changed := pod.DeepCopy()
	changed.Labels["app"] = "db"
	if err := n.Refresh(context.Background(), changed); err != nil {
		t.Fatal(err)
	}
	check("relabelled", "kubernetes.io~downward-api/down", map[string]string{"labels": `app="db"`, "cpu": "2"})

	n.restart(n.opts.RootDir)
	n.mount(changed)
	check("restarted", "kubernetes.io~configmap/cm", map[string]string{"a": "3"})
	n.unmount(pod)
	n.unmount(pod)
}

func TestMountFails(t *testing.T) {
	missing := "/no/such/place"
	for _, c := range []struct {
		name   string
		source v1.VolumeSource
		want   string
	}{
		{"config map missing", fromConfigMap("none", false), `configmap "none" not found`},
		{"secret missing", v1.VolumeSource{Secret: &v1.SecretVolumeSource{SecretName: "none", DefaultMode: mode644}}, `secret "none" not found`},
		{"key missing", fromConfigMap("cm", false, v1.KeyToPath{Key: "zz", Path: "z"}), "configmap references non-existent config key: zz"},
		{"secret key missing", v1.VolumeSource{Secret: &v1.SecretVolumeSource{
			SecretName: "s", DefaultMode: mode644,
			Items: []v1.KeyToPath{{Key: "zz", Path: "z"}},
		}}, "references non-existent secret key: zz"},
		{"path out of the volume", fromConfigMap("cm", false, v1.KeyToPath{Key: "a", Path: "../z"}), "invalid path: must not contain '..': ../z"},
		{
			"no directory",
			v1.VolumeSource{HostPath: &v1.HostPathVolumeSource{Path: missing, Type: ptr.To(v1.HostPathDirectory)}},
			"hostPath type check failed: /no/such/place is not a directory",
		},
		{
			"claim",
			v1.VolumeSource{PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{ClaimName: "data"}},
			`persistentvolumeclaims "data" not found`,
		},
		{
			"csi",
			v1.VolumeSource{CSI: &v1.CSIVolumeSource{Driver: "d.example"}},
			`the volume is a csi volume (driver "d.example"), which this kubelet cannot mount: use configMap, downwardAPI, emptyDir, ephemeral, hostPath, image, nfs, persistentVolumeClaim, projected or secret`,
		},
		{
			"trust bundle",
			v1.VolumeSource{Projected: &v1.ProjectedVolumeSource{
				DefaultMode: mode644,
				Sources:     []v1.VolumeProjection{{ClusterTrustBundle: &v1.ClusterTrustBundleProjection{Path: "ca"}}},
			}},
			"clusterTrustBundle projections are not served by this kubelet: project a configMap that has the certificates instead",
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			n := newNode(t, configMap("cm", "1", map[string]string{"a": "1"}), secret("s", nil))
			pod := podWith(vol("v", c.source))
			err := n.Mount(context.Background(), pod)
			if want := `MountVolume.SetUp failed for volume "v" : ` + c.want; err == nil || err.Error() != want {
				t.Errorf("got  %v\nwant %v", err, want)
			}
			if plugin := layout.PluginOf(&pod.Spec.Volumes[0]); plugin != "" {
				if _, err := os.Lstat(n.path(pod, layout.VolumesDir, plugin, "v")); err == nil {
					t.Error("a volume that could not be made is left")
				}
			}
			n.unmount(pod)
		})
	}
}

func TestMountIsWokenWhenWhatWasMissingComes(t *testing.T) {
	n := newNode(t)
	pod := podWith(vol("v", fromConfigMap("cm", false)))
	if err := n.Mount(context.Background(), pod); err == nil {
		t.Fatal("no error")
	}
	if _, err := n.kube.CoreV1().ConfigMaps("ns").Create(context.Background(), configMap("cm", "1", map[string]string{"a": "1"}),
		metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if uid := <-n.wakes; uid != pod.UID {
		t.Fatal(uid)
	}
	n.mount(pod)
	n.unmount(pod)
}

func TestVolumesOfEphemeralContainers(t *testing.T) {
	n := newNode(t, configMap("cm", "1", map[string]string{"a": "1"}))
	pod := podWith(vol("v", fromConfigMap("cm", false)))
	mounts := pod.Spec.Containers[0].VolumeMounts
	pod.Spec.Containers[0].VolumeMounts = nil
	n.mount(pod)
	debugger := v1.Container{Name: "debugger", VolumeMounts: mounts}
	if _, err := n.Mounts(context.Background(), pod, &debugger, nil); err != nil {
		t.Fatal(err)
	}
	if got := volumetest.Read(t, n.path(pod, layout.VolumesDir, "kubernetes.io~configmap/v")); got["a"] != "1" {
		t.Error(got)
	}
	n.unmount(pod)
}

// A volume that was there when the pod began may fail its check later; that stops no update.
func TestFollowingLooksAtProjectionsOnly(t *testing.T) {
	n := newNode(t, configMap("cm", "1", map[string]string{"a": "1"}))
	host := t.TempDir() + "/dir"
	pod := podWith(vol("v", fromConfigMap("cm", false)),
		vol("host", v1.VolumeSource{HostPath: &v1.HostPathVolumeSource{Path: host, Type: ptr.To(v1.HostPathDirectoryOrCreate)}}))
	n.mount(pod)
	if err := os.Remove(host); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(host, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := n.Refresh(context.Background(), pod); err != nil {
		t.Error(err)
	}
	n.unmount(pod)
	if err := n.Refresh(context.Background(), pod); err != nil {
		t.Error(err)
	}
}

func TestEmptyDirs(t *testing.T) {
	n := newNode(t)
	memory := func(limit string) v1.VolumeSource {
		q := resource.MustParse(limit)
		return v1.VolumeSource{EmptyDir: &v1.EmptyDirVolumeSource{Medium: v1.StorageMediumMemory, SizeLimit: &q}}
	}
	pod := podWith(vol("disk", v1.VolumeSource{EmptyDir: &v1.EmptyDirVolumeSource{}}), vol("small", memory("1Mi")),
		vol("large", memory("1Gi")))
	pod.Spec.SecurityContext = &v1.PodSecurityContext{FSGroup: ptr.To[int64](4321)}
	n.mount(pod)
	dir := func(name string) string { return n.path(pod, layout.VolumesDir, "kubernetes.io~empty-dir", name) }
	for name, size := range map[string]uint64{"small": 1 << 20, "large": 64 << 20} {
		var s unix.Statfs_t
		if err := unix.Statfs(dir(name), &s); err != nil || s.Blocks*uint64(s.Bsize) != size {
			t.Errorf("%s has %d bytes, want %d; %v", name, s.Blocks*uint64(s.Bsize), size, err)
		}
	}
	for _, name := range []string{"disk", "small"} {
		var s unix.Stat_t
		if err := unix.Stat(dir(name), &s); err != nil || s.Gid != 4321 || s.Mode&0o2777 != 0o2777 {
			t.Errorf("%s: group %d, mode %o, %v", name, s.Gid, s.Mode, err)
		}
	}
	// What containers did stays, also over a restart.
	for _, name := range []string{"disk/data", "small/data"} {
		if err := os.WriteFile(dir(name), []byte("mine"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Chmod(dir("disk"), 0o700); err != nil {
		t.Fatal(err)
	}
	n.restart(n.opts.RootDir)
	n.mount(pod)
	for _, name := range []string{"disk/data", "small/data"} {
		if data, err := os.ReadFile(dir(name)); err != nil || string(data) != "mine" {
			t.Errorf("%s: %q %v", name, data, err)
		}
	}
	if info, _ := os.Stat(dir("disk")); info.Mode().Perm() != 0o700 {
		t.Error("the mode that a container set is changed:", info.Mode())
	}
	n.restart(n.opts.RootDir)
	if uids, err := n.OnDisk(); err != nil || len(uids) != 1 || uids[0] != pod.UID {
		t.Error(uids, err)
	}
	n.unmount(pod)
	if uids, err := n.OnDisk(); err != nil || len(uids) != 1 { // its directory may have more than volumes
		t.Error(uids, err)
	}
	if err := os.Remove(n.dirs.Pod(pod.UID)); err != nil {
		t.Error("something is left of its volumes:", err)
	}
	if uids, err := n.OnDisk(); err != nil || len(uids) != 0 {
		t.Error(uids, err)
	}
}

func TestUIDsThatAreNoNames(t *testing.T) {
	n := newNode(t)
	for _, name := range []string{"..", "../x", ""} {
		pod := podWith(vol(name, v1.VolumeSource{EmptyDir: &v1.EmptyDirVolumeSource{}}))
		if err := n.Mount(context.Background(), pod); err == nil {
			t.Errorf("Mount took a volume named %q", name)
		}
		if _, err := n.Mounts(context.Background(), pod, &v1.Container{Name: name}, nil); err == nil {
			t.Errorf("Mounts took a container named %q", name)
		}
	}
	for _, uid := range []types.UID{"", ".", "..", "a/b", "../../etc"} {
		if err := n.Mount(context.Background(), &v1.Pod{ObjectMeta: metav1.ObjectMeta{UID: uid}}); err == nil {
			t.Errorf("Mount took %q", uid)
		}
		if err := n.Unmount(context.Background(), uid); err == nil {
			t.Errorf("Unmount took %q", uid)
		}
	}
}
