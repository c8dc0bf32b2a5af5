package csi

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	k8stesting "k8s.io/client-go/testing"
	recording "k8s.io/client-go/tools/record"
	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"
	"k8s.io/utils/ptr"

	"github.com/coracle-project/coracle/cluster/kubelet/volume/source"
)

const driverName = "fake.csi.example.com"

// fakeDriver is a driver with its registrar. A staged volume is a tmpfs, a published one is bound.
type fakeDriver struct {
	csipb.UnimplementedNodeServer
	registerapi.UnimplementedRegistrationServer
	t    *testing.T
	root string
	info registerapi.PluginInfo
	node csipb.NodeGetInfoResponse
	can  []csipb.NodeServiceCapability_RPC_Type
	// fault, if set, is asked before each call does anything.
	fault func(ctx context.Context, call string) error

	server  *grpc.Server
	told    chan *registerapi.RegistrationStatus
	mu      sync.Mutex
	calls   []string
	stage   *csipb.NodeStageVolumeRequest
	publish *csipb.NodePublishVolumeRequest
	expand  *csipb.NodeExpandVolumeRequest
}

func newDriver(t *testing.T, root, name string) *fakeDriver {
	d := &fakeDriver{t: t, root: root, told: make(chan *registerapi.RegistrationStatus, 100)}
	d.info.Type, d.info.Name, d.info.SupportedVersions = registerapi.CSIPlugin, name, []string{"1.0.0"}
	d.info.Endpoint = filepath.Join(root, "plugins", name, "csi.sock")
	d.node.NodeId = "id-of-n1"
	d.can = []csipb.NodeServiceCapability_RPC_Type{csipb.NodeServiceCapability_RPC_STAGE_UNSTAGE_VOLUME}
	return d
}

// serve makes the sockets, the registrar's last: its file name is socket.
func (d *fakeDriver) serve(socket string) *fakeDriver {
	d.server = grpc.NewServer(grpc.MaxSendMsgSize(64 << 20))
	csipb.RegisterNodeServer(d.server, d)
	registerapi.RegisterRegistrationServer(d.server, d)
	for _, path := range []string{
		filepath.Join(d.root, "plugins", d.info.Name, "csi.sock"),
		filepath.Join(d.root, "plugins_registry", socket),
	} {
		if err := os.MkdirAll(filepath.Dir(path), 0o750); err != nil {
			d.t.Fatal(err)
		}
		// Bound under another name first: a socket that is seen is served. Its whole path may be
		// too long.
		dir, err := os.Open(filepath.Dir(path))
		if err != nil {
			d.t.Fatal(err)
		}
		l, err := net.Listen("unix", "/proc/self/fd/"+itoa(int(dir.Fd()))+"/.new")
		if err != nil {
			d.t.Fatal(err)
		}
		l.(*net.UnixListener).SetUnlinkOnClose(false)
		if err := errors.Join(os.Rename(filepath.Join(filepath.Dir(path), ".new"), path), dir.Close()); err != nil {
			d.t.Fatal(err)
		}
		go func() { _ = d.server.Serve(l) }()
	}
	d.t.Cleanup(d.server.Stop)
	return d
}

// die ends the driver and its registrar, as a pod does that is deleted.
func (d *fakeDriver) die(socket string) {
	d.server.Stop()
	_ = os.Remove(filepath.Join(d.root, "plugins", d.info.Name, "csi.sock"))
	_ = os.Remove(filepath.Join(d.root, "plugins_registry", socket))
}

// registered waits until the registrar is told that all is well.
func (d *fakeDriver) registered() {
	d.t.Helper()
	for s := range d.told {
		if s.PluginRegistered {
			return
		}
		d.t.Log("not registered:", s.Error)
	}
}

func (d *fakeDriver) enter(ctx context.Context, call string) error {
	d.mu.Lock()
	d.calls = append(d.calls, call)
	fault := d.fault
	d.mu.Unlock()
	if fault != nil {
		return fault(ctx, call)
	}
	return nil
}

// set changes the fault.
func (d *fakeDriver) set(fault func(ctx context.Context, call string) error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.fault = fault
}

// count is how often a call was made.
func (d *fakeDriver) count(call string) (n int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, c := range d.calls {
		if c == call {
			n++
		}
	}
	return n
}

func (d *fakeDriver) GetInfo(ctx context.Context, _ *registerapi.InfoRequest) (*registerapi.PluginInfo, error) {
	return &registerapi.PluginInfo{
		Type: d.info.Type, Name: d.info.Name, Endpoint: d.info.Endpoint,
		SupportedVersions: d.info.SupportedVersions,
	}, d.enter(ctx, "GetInfo")
}

func (d *fakeDriver) NotifyRegistrationStatus(_ context.Context,
	s *registerapi.RegistrationStatus,
) (*registerapi.RegistrationStatusResponse, error) {
	d.told <- s
	return &registerapi.RegistrationStatusResponse{}, nil
}

func (d *fakeDriver) NodeGetInfo(ctx context.Context, _ *csipb.NodeGetInfoRequest) (*csipb.NodeGetInfoResponse, error) {
	err := d.enter(ctx, "NodeGetInfo")
	d.mu.Lock()
	defer d.mu.Unlock()
	return &csipb.NodeGetInfoResponse{
		NodeId: d.node.NodeId, MaxVolumesPerNode: d.node.MaxVolumesPerNode,
		AccessibleTopology: d.node.AccessibleTopology,
	}, err
}

func (d *fakeDriver) NodeGetCapabilities(ctx context.Context,
	_ *csipb.NodeGetCapabilitiesRequest,
) (*csipb.NodeGetCapabilitiesResponse, error) {
	answer := &csipb.NodeGetCapabilitiesResponse{}
	for _, c := range d.can {
		answer.Capabilities = append(answer.Capabilities, &csipb.NodeServiceCapability{
			Type: &csipb.NodeServiceCapability_Rpc{Rpc: &csipb.NodeServiceCapability_RPC{Type: c}},
		})
	}
	return answer, d.enter(ctx, "NodeGetCapabilities")
}

// kubeletDir is where drivers expect the kubelet's directory.
const kubeletDir = "/var/lib/kubelet"

// mine is a path as this process has it: the driver may see the kubelet's directory elsewhere.
func (d *fakeDriver) mine(path string) string {
	if rest, ok := strings.CutPrefix(path, kubeletDir+"/"); ok {
		return filepath.Join(d.root, rest)
	}
	return path
}

func (d *fakeDriver) NodeStageVolume(ctx context.Context, r *csipb.NodeStageVolumeRequest) (*csipb.NodeStageVolumeResponse, error) {
	if err := d.enter(ctx, "NodeStageVolume"); err != nil {
		return nil, err
	}
	d.mu.Lock()
	d.stage = r
	d.mu.Unlock()
	path := d.mine(r.StagingTargetPath)
	if r.VolumeCapability.GetBlock() == nil && !mountedOn(path) {
		if err := unix.Mount("tmpfs", path, "tmpfs", 0, ""); err != nil {
			return nil, status.Error(codes.Internal, err.Error())
		}
	}
	return &csipb.NodeStageVolumeResponse{}, nil
}

func (d *fakeDriver) NodeUnstageVolume(ctx context.Context, r *csipb.NodeUnstageVolumeRequest) (*csipb.NodeUnstageVolumeResponse, error) {
	if err := d.enter(ctx, "NodeUnstageVolume"); err != nil {
		return nil, err
	}
	for mountedOn(d.mine(r.StagingTargetPath)) {
		if err := unix.Unmount(d.mine(r.StagingTargetPath), 0); err != nil {
			return nil, status.Error(codes.Internal, err.Error())
		}
	}
	return &csipb.NodeUnstageVolumeResponse{}, nil
}

func (d *fakeDriver) NodePublishVolume(ctx context.Context, r *csipb.NodePublishVolumeRequest) (*csipb.NodePublishVolumeResponse, error) {
	if err := d.enter(ctx, "NodePublishVolume"); err != nil {
		return nil, err
	}
	d.mu.Lock()
	d.publish = r
	d.mu.Unlock()
	target := d.mine(r.TargetPath)
	if r.VolumeCapability.GetBlock() != nil {
		if err := unix.Mknod(target, unix.S_IFBLK|0o600, int(unix.Mkdev(7, 250))); err != nil && !errors.Is(err, os.ErrExist) {
			return nil, status.Error(codes.Internal, err.Error())
		}
		return &csipb.NodePublishVolumeResponse{}, nil
	}
	if mountedOn(target) {
		return &csipb.NodePublishVolumeResponse{}, nil
	}
	if err := os.Mkdir(target, 0o750); err != nil && !errors.Is(err, os.ErrExist) {
		return nil, status.Error(codes.Internal, err.Error())
	}
	source, kind, flags := d.mine(r.StagingTargetPath), "", uintptr(unix.MS_BIND)
	if source == "" {
		source, kind, flags = "tmpfs", "tmpfs", 0
	}
	if err := unix.Mount(source, target, kind, flags, ""); err != nil {
		return nil, status.Error(codes.Internal, err.Error())
	}
	return &csipb.NodePublishVolumeResponse{}, nil
}

func (d *fakeDriver) NodeUnpublishVolume(ctx context.Context,
	r *csipb.NodeUnpublishVolumeRequest,
) (*csipb.NodeUnpublishVolumeResponse, error) {
	if err := d.enter(ctx, "NodeUnpublishVolume"); err != nil {
		return nil, err
	}
	target := d.mine(r.TargetPath)
	for mountedOn(target) {
		if err := unix.Unmount(target, 0); err != nil {
			return nil, status.Error(codes.Internal, err.Error())
		}
	}
	_ = os.Remove(target)
	return &csipb.NodeUnpublishVolumeResponse{}, nil
}

func (d *fakeDriver) NodeExpandVolume(ctx context.Context, r *csipb.NodeExpandVolumeRequest) (*csipb.NodeExpandVolumeResponse, error) {
	if err := d.enter(ctx, "NodeExpandVolume"); err != nil {
		return nil, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.expand = r
	return &csipb.NodeExpandVolumeResponse{CapacityBytes: r.CapacityRange.RequiredBytes}, nil
}

func (d *fakeDriver) NodeGetVolumeStats(ctx context.Context,
	_ *csipb.NodeGetVolumeStatsRequest,
) (*csipb.NodeGetVolumeStatsResponse, error) {
	if err := d.enter(ctx, "NodeGetVolumeStats"); err != nil {
		return nil, err
	}
	return &csipb.NodeGetVolumeStatsResponse{
		Usage: []*csipb.VolumeUsage{
			{Unit: csipb.VolumeUsage_BYTES, Total: 100, Used: 30, Available: 70},
			{Unit: csipb.VolumeUsage_INODES, Total: 10, Used: -3, Available: 7},
		},
		VolumeCondition: &csipb.VolumeCondition{Abnormal: true, Message: "a disk is broken"},
	}, nil
}

func mountedOn(path string) bool {
	var s unix.Statx_t
	err := unix.Statx(unix.AT_FDCWD, path, unix.AT_SYMLINK_NOFOLLOW, 0, &s)
	return err == nil && s.Attributes&unix.STATX_ATTR_MOUNT_ROOT != 0
}

// testNode is the node's part over a fake API.
type testNode struct {
	*Node
	t      *testing.T
	root   string
	kube   *fake.Clientset
	wakes  chan types.UID
	events *recording.FakeRecorder
	// report has a value when the node's status is to be written. The status is written at once,
	// unless mute is set.
	report chan struct{}
	mute   bool
	stop   func()

	reacting sync.Mutex
	reactors []*k8stesting.SimpleReactor
}

func newTestNode(t *testing.T, objects ...runtime.Object) *testNode {
	node := &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1", UID: "node-1", Labels: map[string]string{v1.LabelHostname: "n1"}}}
	n := &testNode{t: t, root: t.TempDir(), kube: fake.NewClientset(append(objects, node)...), wakes: make(chan types.UID, 100)}
	n.kube.PrependReactor("*", "*", n.reactions)
	n.restart()
	return n
}

// react has f asked about calls of the API from now on. The clientset's own list must not change
// while calls are made.
func (n *testNode) react(verb, resource string, f k8stesting.ReactionFunc) {
	n.reacting.Lock()
	defer n.reacting.Unlock()
	n.reactors = append(n.reactors, &k8stesting.SimpleReactor{Verb: verb, Resource: resource, Reaction: f})
}

func (n *testNode) reactions(a k8stesting.Action) (bool, runtime.Object, error) {
	n.reacting.Lock()
	reactors := slices.Clone(n.reactors)
	n.reacting.Unlock()
	for _, r := range slices.Backward(reactors) {
		if r.Handles(a) {
			if handled, object, err := r.React(a); handled {
				return handled, object, err
			}
		}
	}
	return false, nil, nil
}

// restart ends the kubelet and begins another with what is on disk.
func (n *testNode) restart() {
	n.t.Helper()
	if n.stop != nil {
		n.stop()
	}
	n.report, n.events = make(chan struct{}, 1000), recording.NewFakeRecorder(100)
	n.Node = New(Options{
		RootDir: n.root, NodeName: "n1", BootID: "boot-1", Kube: n.kube, Recorder: n.events,
		Wake: func(uid types.UID) { n.wakes <- uid },
		Report: func() {
			if !n.mute {
				n.Reported(n.VolumesInUse(nil))
			}
			n.report <- struct{}{}
		},
	})
	if err := n.Load(); err != nil {
		n.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); n.Run(ctx) }()
	n.stop = sync.OnceFunc(func() { cancel(); <-done })
	n.t.Cleanup(n.stop)
}

// listAttached has the node's status list a volume as attached, and returns the node.
func (n *testNode) listAttached(handle string) *v1.Node {
	n.t.Helper()
	node, err := n.kube.CoreV1().Nodes().Get(n.t.Context(), "n1", metav1.GetOptions{})
	if err == nil {
		node.Status.VolumesAttached = []v1.AttachedVolume{{Name: uniqueName(driverName, handle)}}
		node, err = n.kube.CoreV1().Nodes().UpdateStatus(n.t.Context(), node, metav1.UpdateOptions{})
	}
	if err != nil {
		n.t.Fatal(err)
	}
	return node
}

// volumeNames are the volumes that are staged, or about to be, attached or not.
func (n *testNode) volumeNames() (all []v1.UniqueVolumeName) {
	n.stages.mu.Lock()
	defer n.stages.mu.Unlock()
	for _, s := range n.stages.volumes {
		all = append(all, s.name())
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// awaitUse waits until exactly these volumes are staged, or about to be.
func (n *testNode) awaitUse(handles ...string) {
	n.t.Helper()
	var want []v1.UniqueVolumeName
	for _, h := range handles {
		want = append(want, uniqueName(driverName, h))
	}
	for !slices.Equal(n.volumeNames(), want) {
		<-n.report
	}
}

func pod(uid string) *v1.Pod {
	return &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "pod-" + uid, UID: types.UID(uid)},
		Spec: v1.PodSpec{
			ServiceAccountName: "sa",
			Containers:         []v1.Container{{Name: "c", VolumeMounts: []v1.VolumeMount{{Name: "v", MountPath: "/v"}}}},
		},
	}
}

func persistent(name, handle string) *v1.PersistentVolume {
	return &v1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID("pv-" + name)},
		Spec: v1.PersistentVolumeSpec{
			Capacity:    v1.ResourceList{v1.ResourceStorage: resource.MustParse("1Gi")},
			AccessModes: []v1.PersistentVolumeAccessMode{v1.ReadWriteOnce},
			ClaimRef:    &v1.ObjectReference{Namespace: "ns", Name: "claim-" + name, UID: types.UID("claim-" + name)},
			PersistentVolumeSource: v1.PersistentVolumeSource{CSI: &v1.CSIPersistentVolumeSource{
				Driver: driverName, VolumeHandle: handle, VolumeAttributes: map[string]string{"size": "small"},
			}},
		},
	}
}

// unattached is a CSIDriver whose volumes need not be attached.
func unattached() *storagev1.CSIDriver {
	return &storagev1.CSIDriver{
		ObjectMeta: metav1.ObjectMeta{Name: driverName},
		Spec: storagev1.CSIDriverSpec{
			AttachRequired: ptr.To(false), FSGroupPolicy: ptr.To(storagev1.FileFSGroupPolicy),
			VolumeLifecycleModes: []storagev1.VolumeLifecycleMode{storagev1.VolumeLifecyclePersistent, storagev1.VolumeLifecycleEphemeral},
		},
	}
}

// spec is how the pod has the volume, with the directories that the manager makes.
func (n *testNode) spec(p *v1.Pod, pv *v1.PersistentVolume) *source.Spec {
	s := &source.Spec{Name: pv.Name, PV: pv, Pod: p, Inline: &v1.Volume{Name: "v"}}
	s.Block = pv.Spec.VolumeMode != nil && *pv.Spec.VolumeMode == v1.PersistentVolumeBlock
	return n.place(s)
}

func (n *testNode) place(s *source.Spec) *source.Spec {
	dir := filepath.Join(n.root, "pods", string(s.Pod.UID))
	s.Dir, s.State = filepath.Join(dir, "volumes", pluginName, s.Name), filepath.Join(dir, "plugins", pluginName, s.Name)
	for _, d := range []string{filepath.Dir(s.Dir), s.State} {
		if err := os.MkdirAll(d, 0o750); err != nil {
			n.t.Fatal(err)
		}
	}
	return s
}

func (n *testNode) mount(s *source.Spec) string {
	n.t.Helper()
	path, err := n.Mount(n.t.Context(), s)
	if err != nil {
		n.t.Fatal(err)
	}
	return path
}

func (n *testNode) unmount(s *source.Spec) {
	n.t.Helper()
	if err := n.Unmount(n.t.Context(), s.Mounted); err != nil {
		n.t.Fatal(err)
	}
}

// nothingLeft checks that no mount, directory or record of a volume is left.
func (n *testNode) nothingLeft() {
	n.t.Helper()
	if mounts, err := n.mounts.at(n.root); err != nil || len(mounts) > 0 {
		n.t.Errorf("left mounted: %v %v", mounts, err)
	}
	for _, dir := range []string{
		filepath.Join(n.root, "plugins", "kubernetes.io", "csi", driverName),
		filepath.Join(n.places.pluginDir(), devicesDir, stagingDir),
	} {
		if left, _ := os.ReadDir(dir); len(left) > 0 {
			n.t.Errorf("left in %s: %v", dir, left)
		}
	}
	if records, _ := filepath.Glob(filepath.Join(n.root, "pods", "*", "*", pluginName, "*", recordFile)); len(records) > 0 {
		n.t.Errorf("left: %v", records)
	}
}
