package csi

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	authenticationv1 "k8s.io/api/authentication/v1"
	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	k8stesting "k8s.io/client-go/testing"
	"k8s.io/utils/ptr"

	"github.com/coracle-project/coracle/cluster/kubelet/csi/client"
	"github.com/coracle-project/coracle/cluster/kubelet/csi/registration"
	"github.com/coracle-project/coracle/cluster/kubelet/volume/source"
)

func itoa(n int) string { return strconv.Itoa(n) }

func TestTwoPodsShareAStagedVolume(t *testing.T) {
	n := newTestNode(t, unattached())
	d := newDriver(t, n.root, driverName).serve("a.sock")
	d.registered()
	pv := persistent("pv1", "handle-1")
	first, second := n.spec(pod("p1"), pv), n.spec(pod("p2"), pv)
	one, two := n.mount(first), n.mount(second)
	if err := os.WriteFile(filepath.Join(one, "f"), []byte("data"), 0o600); err != nil {
		t.Fatal(err)
	}
	if got, err := os.ReadFile(filepath.Join(two, "f")); string(got) != "data" {
		t.Errorf("the second pod reads %q, %v", got, err)
	}
	if d.count("NodeStageVolume") != 1 || d.count("NodePublishVolume") != 2 {
		t.Errorf("calls: %v", d.calls)
	}
	if got := d.publish.VolumeContext; len(got) != 1 || got["size"] != "small" {
		t.Errorf("volume context %v", got)
	}
	n.awaitUse("handle-1")
	n.unmount(first)
	if mountedOn(one) || !mountedOn(two) {
		t.Error("not exactly the first pod's mount is gone")
	}
	if n.awaitUse("handle-1"); d.count("NodeUnstageVolume") != 0 {
		t.Error("unstaged though a pod has it")
	}
	n.unmount(second)
	n.awaitUse()
	if d.count("NodeUnstageVolume") != 1 {
		t.Errorf("calls: %v", d.calls)
	}
	n.nothingLeft()
	n.mount(first) // and again
	n.unmount(first)
	n.awaitUse()
	n.nothingLeft()
}

func TestARestartFindsWhatIsMounted(t *testing.T) {
	n := newTestNode(t, unattached())
	d := newDriver(t, n.root, driverName).serve("a.sock")
	d.registered()
	stays, goes := n.spec(pod("p1"), persistent("pv1", "handle-1")), n.spec(pod("p2"), persistent("pv2", "handle-2"))
	path := n.mount(stays)
	n.mount(goes)
	n.restart()
	if got := n.volumeNames(); len(got) != 2 {
		t.Errorf("in use after a restart: %v", got)
	}
	d.registered()
	if again := n.mount(stays); again != path {
		t.Errorf("mounted at %s, was at %s", again, path)
	}
	if d.count("NodePublishVolume") != 2 || d.count("NodeStageVolume") != 2 {
		t.Errorf("the driver was asked for what it has done: %v", d.calls)
	}
	n.unmount(goes)
	n.awaitUse("handle-1")
	n.unmount(stays)
	n.awaitUse()
	n.nothingLeft()
}

func TestAStagedVolumeWithoutPodsIsUnstagedAtStart(t *testing.T) {
	n := newTestNode(t, unattached())
	d := newDriver(t, n.root, driverName).serve("a.sock")
	d.registered()
	s := n.spec(pod("p1"), persistent("pv1", "handle-1"))
	d.set(func(_ context.Context, call string) error {
		if call == "NodePublishVolume" {
			return status.Error(codes.Internal, "no")
		}
		return nil
	})
	if _, err := n.Mount(t.Context(), s); err == nil || d.count("NodePublishVolume") != 1 {
		t.Fatal("published", err)
	}
	// The kubelet was killed before it wrote that the pod has the volume.
	if err := os.Remove(filepath.Join(s.Dir, recordFile)); err != nil {
		t.Fatal(err)
	}
	n.restart()
	n.awaitUse()
	if d.count("NodeUnstageVolume") != 1 {
		t.Errorf("calls: %v", d.calls)
	}
	n.nothingLeft()
}

func TestAnUnpublishThatFailsLosesNothing(t *testing.T) {
	n := newTestNode(t, unattached())
	d := newDriver(t, n.root, driverName).serve("a.sock")
	d.registered()
	s := n.spec(pod("p1"), persistent("pv1", "handle-1"))
	path := n.mount(s)
	if err := os.WriteFile(filepath.Join(path, "f"), []byte("data"), 0o600); err != nil {
		t.Fatal(err)
	}
	intact := func(when string) {
		t.Helper()
		if got, err := os.ReadFile(filepath.Join(path, "f")); string(got) != "data" {
			t.Fatalf("%s: %q, %v", when, got, err)
		}
		if _, err := readRecord(s.Dir); err != nil {
			t.Fatalf("%s: %v", when, err)
		}
	}
	d.set(func(_ context.Context, call string) error {
		if call == "NodeUnpublishVolume" {
			return status.Error(codes.Internal, "device is busy")
		}
		return nil
	})
	if err := n.Unmount(t.Context(), s.Mounted); err == nil || !strings.Contains(err.Error(), "device is busy") {
		t.Errorf("error: %v", err)
	}
	intact("refused")

	written := n.written()
	d.die("a.sock")
	for len(n.csinode().Spec.Drivers) > 0 {
		<-written
	}
	unknown := registration.Unknown(driverName)
	if err := n.Unmount(t.Context(), s.Mounted); !errors.As(err, &unknown) {
		t.Errorf("without its driver: %v", err)
	}
	intact("without its driver")
	if got := n.volumeNames(); len(got) != 1 {
		t.Errorf("in use: %v", got)
	}

	newDriver(t, n.root, driverName).serve("b.sock").registered()
	if uid := <-n.wakes; uid != "p1" {
		t.Errorf("woken: %s", uid)
	}
	n.unmount(s)
	n.awaitUse()
	n.nothingLeft()
}

func TestADriverThatLiesAboutItsMount(t *testing.T) {
	n := newTestNode(t, unattached())
	d := newDriver(t, n.root, driverName)
	d.serve("a.sock").registered()
	s := n.spec(pod("p1"), persistent("pv1", "handle-1"))
	path := n.mount(s)
	if err := os.WriteFile(filepath.Join(path, "f"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	known, err := n.registry.Driver(driverName)
	if err != nil {
		t.Fatal(err)
	}
	honest := known.There
	known.There = "/elsewhere"
	err = n.Unmount(t.Context(), s.Mounted)
	if err == nil || !strings.Contains(err.Error(), "still mounted") {
		t.Errorf("error: %v", err)
	}
	if _, err := os.Stat(filepath.Join(path, "f")); err != nil {
		t.Error(err)
	}
	known.There = honest
	n.unmount(s)
	n.awaitUse()
	n.nothingLeft()
}

func TestAMountWithoutARecordStays(t *testing.T) {
	n := newTestNode(t, unattached())
	newDriver(t, n.root, driverName).serve("a.sock").registered()
	s := n.spec(pod("p1"), persistent("pv1", "handle-1"))
	n.mount(s)
	raw, err := os.ReadFile(filepath.Join(s.Dir, recordFile))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(filepath.Join(s.Dir, recordFile)); err != nil {
		t.Fatal(err)
	}
	if err := n.Unmount(t.Context(), s.Mounted); err == nil || !strings.Contains(err.Error(), "no record") {
		t.Errorf("without a record: %v", err)
	}
	if err := os.WriteFile(filepath.Join(s.Dir, recordFile), raw, 0o600); err != nil {
		t.Fatal(err)
	}
	n.unmount(s)
	n.awaitUse()
	n.nothingLeft()
}

func TestRecordsThatAreDamaged(t *testing.T) {
	n := newTestNode(t, unattached())
	d := newDriver(t, n.root, driverName).serve("a.sock")
	d.registered()
	inline := func(uid string) *source.Spec {
		return n.place(&source.Spec{
			Name: "v", Pod: pod(uid),
			Inline: &v1.Volume{Name: "v", VolumeSource: v1.VolumeSource{CSI: &v1.CSIVolumeSource{Driver: driverName}}},
		})
	}
	for i, damaged := range []string{"", "{", `{"driverName":"../x","volumeHandle":"h"}`} {
		damage := func(dir string) {
			t.Helper()
			if err := os.WriteFile(filepath.Join(dir, recordFile), []byte(damaged), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		// The record of the stage has the same.
		s := n.spec(pod("p1"), persistent("pv1", "handle-1"))
		path := n.mount(s)
		damage(s.Dir)
		n.restart()
		d.registered()
		n.awaitUse("handle-1")
		if !mountedOn(path) {
			t.Errorf("%q: the volume of a running pod is gone", damaged)
		}
		n.unmount(s)
		n.awaitUse()
		n.nothingLeft()
		if got := d.count("NodeUnpublishVolume"); got != 2*i+1 {
			t.Errorf("%q: %d calls", damaged, got)
		}
		// That of the pod has the same as the stage's.
		n.mount(s)
		damage(n.places.stageDir(driverName, "handle-1"))
		n.restart()
		d.registered()
		n.awaitUse("handle-1")
		n.restart() // and it is whole again
		d.registered()
		n.unmount(s)
		n.awaitUse()
		n.nothingLeft()
		// Nothing else tells of an inline volume. It stays while it is mounted.
		s = inline("p2")
		path = n.mount(s)
		damage(s.Dir)
		if err := n.Unmount(t.Context(), s.Mounted); err == nil || !mountedOn(path) {
			t.Errorf("%q: an inline volume was unmounted: %v", damaged, err)
		}
		if err := unix.Unmount(path, 0); err != nil {
			t.Fatal(err)
		}
		_ = os.Remove(path)
		n.unmount(s)
		n.nothingLeft()
	}
}

func TestVolumesWithTwoSELinuxLabels(t *testing.T) {
	n := newTestNode(t, unattached())
	d := newDriver(t, n.root, driverName).serve("a.sock")
	d.registered()
	pv := persistent("pv1", "handle-1")
	first, second := n.spec(pod("p1"), pv), n.spec(pod("p2"), pv)
	n.mount(first)
	r, err := n.requests.make(t.Context(), second)
	if err != nil {
		t.Fatal(err)
	}
	r.label = "system_u:object_r:container_file_t:s0:c1,c2"
	entry, err := n.stages.use(r)
	if err != nil {
		t.Fatal(err)
	}
	known, err := n.registry.Driver(driverName)
	if err != nil {
		t.Fatal(err)
	}
	session, err := known.Open(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer session.Close()
	if err := n.stages.stage(t.Context(), session, entry, r); err == nil || !strings.Contains(err.Error(), "SELinux label") {
		t.Errorf("shared: %v", err)
	}
	n.unmount(first)
	err = n.stages.stage(t.Context(), session, entry, r)
	if err != nil || d.count("NodeUnstageVolume") != 1 || d.count("NodeStageVolume") != 2 {
		t.Errorf("alone: %v, %v", d.calls, err)
	}
	n.unmount(second)
	n.awaitUse()
	n.nothingLeft()
}

// A driver mounts nothing for a block volume, so the list of mounts does not tell that the machine
// has been started again.
func TestADeviceOfAnEarlierBoot(t *testing.T) {
	n := newTestNode(t, unattached())
	d := newDriver(t, n.root, driverName).serve("a.sock")
	d.registered()
	pv := persistent("pv1", "handle-1")
	pv.Spec.VolumeMode = ptr.To(v1.PersistentVolumeBlock)
	s := n.spec(pod("p1"), pv)
	path := n.mount(s)
	stale, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	n.stop()
	if err := os.WriteFile(filepath.Join(s.State, publishedFile), []byte("another boot"), 0o600); err != nil {
		t.Fatal(err)
	}
	n.restart()
	d.registered()
	n.mount(s)
	if fresh, err := os.Stat(path); err != nil || os.SameFile(stale, fresh) && fresh.ModTime().Equal(stale.ModTime()) ||
		d.count("NodePublishVolume") != 2 || d.count("NodeStageVolume") != 2 {
		t.Errorf("calls %v, %v", d.calls, err)
	}
	n.unmount(s)
	n.awaitUse()
	n.nothingLeft()
}

func TestAStageThatHangsIsUndone(t *testing.T) {
	n := newTestNode(t, unattached())
	d := newDriver(t, n.root, driverName).serve("a.sock")
	d.registered()
	hanging := make(chan struct{})
	over := make(chan struct{})
	d.set(func(ctx context.Context, call string) error {
		if call != "NodeStageVolume" {
			return nil
		}
		close(hanging)
		select {
		case <-over:
			return nil
		case <-ctx.Done():
			t.Error("the driver is told to give up")
			return ctx.Err()
		}
	})
	ctx, cancel := context.WithCancel(t.Context())
	stuck, other := n.spec(pod("p1"), persistent("pv1", "handle-1")), n.spec(pod("p2"), persistent("pv2", "handle-2"))
	failed := make(chan error, 1)
	go func() {
		_, err := n.Mount(ctx, stuck)
		failed <- err
	}()
	<-hanging
	d.set(nil)
	n.mount(other) // another volume of the same driver goes on meanwhile
	cancel()       // the pod is deleted
	if err := <-failed; !errors.Is(err, context.Canceled) {
		t.Errorf("error: %v", err)
	}
	// Regression: the driver was asked for the opposite while it worked on the volume, and the volume
	// counted as unused when it said that nothing was mounted.
	brief, end := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer end()
	if err := n.Unmount(brief, stuck.Mounted); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("unmounted while the driver works: %v", err)
	}
	if d.count("NodeUnstageVolume") != 0 {
		t.Error("the driver was asked to unstage what it stages")
	}
	n.awaitUse("handle-1", "handle-2")
	close(over)
	n.unmount(stuck)
	n.awaitUse("handle-2")
	if d.count("NodeStageVolume") != 2 || d.count("NodeUnstageVolume") != 1 || d.count("NodePublishVolume") != 1 {
		t.Errorf("calls: %v", d.calls)
	}
	n.unmount(other)
	n.awaitUse()
	n.nothingLeft()
}

func TestAnUnstageThatFailsIsTriedAgain(t *testing.T) {
	n := newTestNode(t, unattached())
	d := newDriver(t, n.root, driverName).serve("a.sock")
	d.registered()
	s := n.spec(pod("p1"), persistent("pv1", "handle-1"))
	n.mount(s)
	d.set(func(_ context.Context, call string) error {
		if call == "NodeUnstageVolume" && d.count(call) == 1 {
			return status.Error(codes.Internal, "busy")
		}
		return nil
	})
	n.unmount(s) // does not wait for it
	n.awaitUse()
	if got := d.count("NodeUnstageVolume"); got != 2 {
		t.Errorf("%d calls", got)
	}
	n.nothingLeft()
}

// A volume was deleted before it was unstaged, or the driver has lost what it knew.
func TestAVolumeThatIsGoneIsUnstaged(t *testing.T) {
	n := newTestNode(t, unattached())
	d := newDriver(t, n.root, driverName).serve("a.sock")
	d.registered()
	s := n.spec(pod("p1"), persistent("pv1", "handle-1"))
	n.mount(s)
	path := filepath.Join(n.stages.places.stageDir(driverName, "handle-1"), globalName)
	d.set(func(_ context.Context, call string) error {
		if call != "NodeUnstageVolume" {
			return nil
		}
		if d.count(call) == 2 { // it is unmounted by hand, between two tries
			if err := unix.Unmount(path, 0); err != nil {
				return status.Error(codes.Internal, err.Error())
			}
		}
		return status.Error(codes.NotFound, "no such volume")
	})
	n.unmount(s)
	n.awaitUse()
	if got := d.count("NodeUnstageVolume"); got != 2 {
		t.Errorf("%d calls: the volume is not unstaged as long as it is mounted, and is then", got)
	}
	n.nothingLeft()
}

// A pod ends at the moment when an unstage has seen that the pod has the volume.
func TestTheLastUserGoesDuringAnUnstage(t *testing.T) {
	n := newTestNode(t, unattached())
	d := newDriver(t, n.root, driverName).serve("a.sock")
	d.registered()
	s := n.spec(pod("p1"), persistent("pv1", "handle-1"))
	n.mount(s)
	n.stages.mu.Lock()
	entry := n.stages.volumes[n.places.stageDir(driverName, "handle-1")]
	entry.unstaging = true
	n.stages.mu.Unlock()
	n.unmount(s)
	if n.awaitUse("handle-1"); d.count("NodeUnstageVolume") != 0 {
		t.Fatal("unstaged twice at once")
	}
	if !n.stages.unstaged(entry, nil) {
		t.Error("the unstage goes on")
	}
	n.awaitUse()
	n.nothingLeft()
}

func TestAnotherBlockVolumeOfTheSameName(t *testing.T) {
	n := newTestNode(t, unattached())
	d := newDriver(t, n.root, driverName).serve("a.sock")
	d.registered()
	block := func(uid, handle string) *source.Spec {
		pv := persistent("pv1", handle)
		pv.Spec.VolumeMode = ptr.To(v1.PersistentVolumeBlock)
		return n.spec(pod(uid), pv)
	}
	busy := make(chan struct{}, 100)
	d.set(func(_ context.Context, call string) error {
		if call == "NodeUnstageVolume" {
			busy <- struct{}{}
			return status.Error(codes.Internal, "busy")
		}
		return nil
	})
	first, second := block("p1", "handle-1"), block("p2", "handle-2")
	n.mount(first)
	n.unmount(first)
	<-busy
	n.restart() // and the next kubelet knows it, too
	d.registered()
	<-busy
	if _, err := n.Mount(t.Context(), second); err == nil || !strings.Contains(err.Error(), `volume "handle-1"`) {
		t.Errorf("error: %v", err)
	}
	if got := d.count("NodeStageVolume"); got != 1 {
		t.Errorf("staged %d times", got)
	}
	d.set(nil)
	if uid := <-n.wakes; uid != "p2" {
		t.Errorf("woken: %s", uid)
	}
	n.mount(second)
	if d.stage.VolumeId != "handle-2" {
		t.Errorf("staged %s", d.stage.VolumeId)
	}
	n.awaitUse("handle-2")
	n.unmount(second)
	n.awaitUse()
	n.nothingLeft()
}

func TestAVolumeIsAttachedFirst(t *testing.T) {
	n := newTestNode(t)
	d := newDriver(t, n.root, driverName).serve("a.sock")
	d.registered()
	s := n.spec(pod("p1"), persistent("pv1", "handle-1"))
	try := func(want string) {
		t.Helper()
		if _, err := n.Mount(t.Context(), s); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want %q", err, want)
		}
	}
	try("there is no volumeattachment")
	n.awaitUse("handle-1")
	a := &storagev1.VolumeAttachment{
		ObjectMeta: metav1.ObjectMeta{Name: attachmentName("handle-1", driverName, "n1")},
		Spec: storagev1.VolumeAttachmentSpec{
			Attacher: driverName, NodeName: "n1",
			Source: storagev1.VolumeAttachmentSource{PersistentVolumeName: ptr.To("pv1")},
		},
	}
	save := func() {
		t.Helper()
		if err := n.kube.Tracker().Update(storagev1.SchemeGroupVersion.WithResource("volumeattachments"), a.DeepCopy(), ""); err != nil {
			t.Fatal(err)
		}
	}
	if err := n.kube.Tracker().Add(a.DeepCopy()); err != nil {
		t.Fatal(err)
	}
	try("has not finished")
	a.Status.AttachError = &storagev1.VolumeError{Message: "no such disk"}
	save()
	try("no such disk")
	a.Status.AttachError, a.Status.Attached, a.DeletionTimestamp = nil, true, ptr.To(metav1.Now())
	save()
	try("being detached")
	a.DeletionTimestamp, a.Spec.Attacher = nil, "other.example.com"
	save()
	try("of driver")
	if d.count("NodeStageVolume") != 0 {
		t.Error("staged without an attachment")
	}
	a.Spec.Attacher, a.Status.AttachmentMetadata = driverName, map[string]string{"device": "/dev/x"}
	save()
	try("status does not list it") // the attach controller is about to delete it
	n.NodeChanged(n.listAttached("handle-1"))
	if uid := <-n.wakes; uid != "p1" {
		t.Errorf("woken: %s", uid)
	}
	n.mount(s)
	if d.stage.PublishContext["device"] != "/dev/x" || d.publish.PublishContext["device"] != "/dev/x" {
		t.Errorf("told %v and %v", d.stage.PublishContext, d.publish.PublishContext)
	}
	n.unmount(s)
	n.awaitUse()
}

func TestNothingIsStagedBeforeTheAPIKnowsThatItIsInUse(t *testing.T) {
	n := newTestNode(t, &storagev1.VolumeAttachment{
		ObjectMeta: metav1.ObjectMeta{Name: attachmentName("handle-1", driverName, "n1")},
		Spec:       storagev1.VolumeAttachmentSpec{Attacher: driverName, NodeName: "n1"},
		Status:     storagev1.VolumeAttachmentStatus{Attached: true},
	})
	n.mute = true
	n.listAttached("handle-1")
	d := newDriver(t, n.root, driverName).serve("a.sock")
	d.registered()
	s := n.spec(pod("p1"), persistent("pv1", "handle-1"))
	mounted := make(chan error, 1)
	go func() {
		_, err := n.Mount(t.Context(), s)
		mounted <- err
	}()
	<-n.report
	n.Reported([]v1.UniqueVolumeName{"kubernetes.io/csi/other^x"}) // a status with another one
	<-n.report
	if d.count("NodeStageVolume") != 0 {
		t.Error("staged already")
	}
	n.Reported(n.VolumesInUse(nil))
	if err := <-mounted; err != nil {
		t.Error(err)
	}
	n.mute = false
	n.unmount(s)
	n.awaitUse()
}

func TestInlineVolumesAndWhatTheDriverIsTold(t *testing.T) {
	object := unattached()
	object.Spec.PodInfoOnMount = ptr.To(true)
	object.Spec.RequiresRepublish = ptr.To(true)
	object.Spec.TokenRequests = []storagev1.TokenRequest{{Audience: "vault"}}
	secret := &v1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "s"}, Data: map[string][]byte{"pw": []byte("hush")}}
	n := newTestNode(t, object, secret)
	made := 0
	n.react("create", "serviceaccounts", func(k8stesting.Action) (bool, runtime.Object, error) {
		made++
		return true, &authenticationv1.TokenRequest{Status: authenticationv1.TokenRequestStatus{Token: "token-" + itoa(made)}}, nil
	})
	d := newDriver(t, n.root, driverName).serve("a.sock")
	d.registered()
	p := pod("p1")
	s := n.place(&source.Spec{Name: "v", Pod: p, Inline: &v1.Volume{Name: "v", VolumeSource: v1.VolumeSource{CSI: &v1.CSIVolumeSource{
		Driver: driverName, ReadOnly: ptr.To(true), VolumeAttributes: map[string]string{"a": "b"},
		NodePublishSecretRef: &v1.LocalObjectReference{Name: "s"},
	}}}})
	n.mount(s)
	told := d.publish
	want := map[string]string{
		"a": "b", "csi.storage.k8s.io/pod.name": "pod-p1", "csi.storage.k8s.io/pod.namespace": "ns", "csi.storage.k8s.io/pod.uid": "p1",
		"csi.storage.k8s.io/serviceAccount.name": "sa", "csi.storage.k8s.io/ephemeral": "true",
	}
	for k, v := range want {
		if told.VolumeContext[k] != v {
			t.Errorf("%s is %q, want %q", k, told.VolumeContext[k], v)
		}
	}
	var tokens map[string]authenticationv1.TokenRequestStatus
	if err := json.Unmarshal([]byte(told.VolumeContext["csi.storage.k8s.io/serviceAccount.tokens"]), &tokens); err != nil ||
		tokens["vault"].Token != "token-1" {
		t.Errorf("tokens %v, %v", tokens, err)
	}
	if !told.Readonly || told.Secrets["pw"] != "hush" || told.VolumeId != inlineHandle("p1", "v") || told.StagingTargetPath != "" ||
		d.count("NodeStageVolume") != 0 {
		t.Errorf("told %v", told)
	}
	if got := n.volumeNames(); len(got) != 0 {
		t.Errorf("in use: %v", got)
	}
	if n.KeepEvery(s) != republishEvery {
		t.Errorf("kept every %v", n.KeepEvery(s))
	}
	if err := n.Keep(t.Context(), s); err != nil ||
		!strings.Contains(d.publish.VolumeContext["csi.storage.k8s.io/serviceAccount.tokens"], "token-2") {
		t.Errorf("published again with %v, %v", d.publish.VolumeContext, err)
	}
	d.set(func(_ context.Context, call string) error {
		if call == "NodePublishVolume" {
			return status.Error(codes.Internal, "the vault is closed")
		}
		return nil
	})
	if err := n.Keep(t.Context(), s); err == nil {
		t.Error("a failure to publish again is hidden")
	}
	if event := <-n.events.Events; !strings.Contains(event, "FailedMount") || !strings.Contains(event, "the vault is closed") {
		t.Errorf("event: %s", event)
	}
	d.set(nil)
	n.unmount(s)
	n.nothingLeft()

	object.Spec.VolumeLifecycleModes = []storagev1.VolumeLifecycleMode{storagev1.VolumeLifecyclePersistent}
	if _, err := n.kube.StorageV1().CSIDrivers().Update(t.Context(), object, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := n.Mount(t.Context(), s); err == nil || !strings.Contains(err.Error(), "not supported by driver") {
		t.Errorf("a mode that the driver has not: %v", err)
	}
}

// Drivers that want tokens are asked to publish again each minute. A token lasts longer.
func TestTokensAreKept(t *testing.T) {
	object := unattached()
	object.Spec.TokenRequests = []storagev1.TokenRequest{{Audience: "vault"}}
	n := newTestNode(t, object)
	made, life, fails := 0, time.Hour, false
	n.react("create", "serviceaccounts", func(k8stesting.Action) (bool, runtime.Object, error) {
		if fails {
			return true, nil, errors.New("the API is gone")
		}
		made++
		return true, &authenticationv1.TokenRequest{
			Spec:   authenticationv1.TokenRequestSpec{ExpirationSeconds: ptr.To[int64](3600)},
			Status: authenticationv1.TokenRequestStatus{Token: "token-" + itoa(made), ExpirationTimestamp: metav1.NewTime(time.Now().Add(life))},
		}, nil
	})
	ask := func(uid, want string) {
		t.Helper()
		r, err := n.requests.make(t.Context(), n.spec(pod(uid), persistent("pv1", "handle-1")))
		if err != nil {
			t.Fatal(err)
		}
		if got, err := n.requests.tokensFor(t.Context(), r); err != nil || !strings.Contains(got, want) {
			t.Errorf("pod %s: %s, %v, want %s", uid, got, err, want)
		}
	}
	ask("p1", "token-1")
	ask("p1", "token-1")
	life = 10 * time.Minute // more than 80 % have passed
	ask("p2", "token-2")
	fails = true
	ask("p2", "token-2")
	fails = false
	ask("p2", "token-2") // until it is time to try again
	n.forget(n.spec(pod("p1"), persistent("pv1", "handle-1")).Mounted, user{pod: "p1", volume: "pv1"})
	ask("p1", "token-3")
}

func TestBlockVolumes(t *testing.T) {
	n := newTestNode(t, unattached())
	d := newDriver(t, n.root, driverName).serve("a.sock")
	d.registered()
	pv := persistent("pv1", "handle-1")
	pv.Spec.VolumeMode = ptr.To(v1.PersistentVolumeBlock)
	s := n.spec(pod("p1"), pv)
	path := n.mount(s)
	if path != filepath.Join(n.root, "plugins/kubernetes.io/csi/volumeDevices/publish/pv1/p1") || !isDevice(path) {
		t.Errorf("device at %s", path)
	}
	if d.stage.VolumeCapability.GetBlock() == nil ||
		d.stage.StagingTargetPath != filepath.Join(n.root, "plugins/kubernetes.io/csi/volumeDevices/staging/pv1") {
		t.Errorf("staged by %v", d.stage)
	}
	n.restart()
	n.awaitUse("handle-1")
	d.registered()
	if n.mount(s) != path || d.count("NodePublishVolume") != 1 {
		t.Errorf("calls: %v", d.calls)
	}
	n.unmount(s)
	n.awaitUse()
	n.nothingLeft()
	pv.Name = stagingDir
	if _, err := n.Mount(t.Context(), n.spec(pod("p1"), pv)); err == nil {
		t.Error("a block volume with the name of a directory was mounted")
	}
}

func TestDriversSeeTheKubeletsDirectoryElsewhere(t *testing.T) {
	n := newTestNode(t, unattached())
	d := newDriver(t, n.root, driverName)
	d.info.Endpoint = kubeletDir + "/plugins/" + driverName + "/csi.sock"
	d.serve("a.sock").registered()
	s := n.spec(pod("p1"), persistent("pv1", "handle-1"))
	path := n.mount(s)
	if !strings.HasPrefix(path, n.root) || !mountedOn(path) {
		t.Errorf("mounted at %s", path)
	}
	if d.publish.TargetPath != kubeletDir+"/pods/p1/volumes/"+pluginName+"/pv1/mount" ||
		!strings.HasPrefix(d.stage.StagingTargetPath, kubeletDir+"/plugins/kubernetes.io/csi/"+driverName+"/") {
		t.Errorf("told %s and %s", d.publish.TargetPath, d.stage.StagingTargetPath)
	}
	n.unmount(s)
	n.awaitUse()
	n.nothingLeft()
}

func TestFSGroup(t *testing.T) {
	for _, c := range []struct {
		name   string
		object *storagev1.CSIDriver
		fsType string
		modes  []v1.PersistentVolumeAccessMode
		can    csipb.NodeServiceCapability_RPC_Type
		want   bool
	}{
		{"no object, no type", nil, "", []v1.PersistentVolumeAccessMode{v1.ReadWriteOnce}, 0, false},
		{"no object", nil, "ext4", []v1.PersistentVolumeAccessMode{v1.ReadWriteOnce}, 0, true},
		{"no object, one pod", nil, "ext4", []v1.PersistentVolumeAccessMode{v1.ReadWriteOncePod}, 0, true},
		{"shared", nil, "ext4", []v1.PersistentVolumeAccessMode{v1.ReadWriteMany}, 0, false},
		{"policy File", unattached(), "", []v1.PersistentVolumeAccessMode{v1.ReadWriteMany}, 0, true},
		{"the driver does it", unattached(), "", nil, csipb.NodeServiceCapability_RPC_VOLUME_MOUNT_GROUP, false},
		{
			"policy None", &storagev1.CSIDriver{Spec: storagev1.CSIDriverSpec{FSGroupPolicy: ptr.To(storagev1.NoneFSGroupPolicy)}}, "ext4",
			[]v1.PersistentVolumeAccessMode{v1.ReadWriteOnce},
			0, false,
		},
	} {
		p := pod("p")
		p.Spec.SecurityContext = &v1.PodSecurityContext{FSGroup: ptr.To[int64](1234)}
		pv := persistent("pv", "h")
		pv.Spec.AccessModes = c.modes
		r := &request{spec: &source.Spec{Pod: p, PV: pv}, object: c.object, fsType: c.fsType, mode: storagev1.VolumeLifecyclePersistent}
		s := &client.Session{Can: map[csipb.NodeServiceCapability_RPC_Type]bool{c.can: true}}
		if got, err := r.givesGroup(s); got != c.want || err != nil {
			t.Errorf("%s: %v, %v", c.name, got, err)
		}
		group := r.capability(s).GetMount().VolumeMountGroup
		if want := c.can == csipb.NodeServiceCapability_RPC_VOLUME_MOUNT_GROUP; (group == "1234") != want {
			t.Errorf("%s: the driver is told the group %q", c.name, group)
		}
	}
}

func TestFilesAreGivenToTheGroup(t *testing.T) {
	n := newTestNode(t, unattached())
	newDriver(t, n.root, driverName).serve("a.sock").registered()
	p := pod("p1")
	p.Spec.SecurityContext = &v1.PodSecurityContext{FSGroup: ptr.To[int64](1234)}
	s := n.spec(p, persistent("pv1", "handle-1"))
	path := n.mount(s)
	info, err := os.Stat(path)
	if err != nil || info.Mode()&os.ModeSetgid == 0 || info.Sys().(*syscall.Stat_t).Gid != 1234 {
		t.Errorf("%+v, %v", info, err)
	}
	n.unmount(s)
	n.awaitUse()
}

// Regression: what a driver made when it published a volume again, as a secret that has changed,
// was not given to the pod's group.
func TestFilesOfARepublishedVolumeAreGivenToTheGroup(t *testing.T) {
	object := unattached()
	object.Spec.RequiresRepublish = ptr.To(true)
	n := newTestNode(t, object)
	newDriver(t, n.root, driverName).serve("a.sock").registered()
	p := pod("p1")
	p.Spec.SecurityContext = &v1.PodSecurityContext{FSGroup: ptr.To[int64](1234)}
	s := n.place(&source.Spec{Name: "v", Pod: p, Inline: &v1.Volume{Name: "v", VolumeSource: v1.VolumeSource{CSI: &v1.CSIVolumeSource{
		Driver: driverName,
	}}}})
	secret := filepath.Join(n.mount(s), "rotated")
	if err := os.WriteFile(secret, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := n.Keep(t.Context(), s); err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(secret); err != nil || info.Mode() != 0o660 || info.Sys().(*syscall.Stat_t).Gid != 1234 {
		t.Errorf("%+v, %v", info, err)
	}
	n.unmount(s)
	n.nothingLeft()
}

func TestAccessModes(t *testing.T) {
	several := &client.Session{Can: map[csipb.NodeServiceCapability_RPC_Type]bool{
		csipb.NodeServiceCapability_RPC_SINGLE_NODE_MULTI_WRITER: true,
	}}
	for mode, want := range map[v1.PersistentVolumeAccessMode][2]csipb.VolumeCapability_AccessMode_Mode{
		v1.ReadWriteOnce:    {csipb.VolumeCapability_AccessMode_SINGLE_NODE_WRITER, csipb.VolumeCapability_AccessMode_SINGLE_NODE_MULTI_WRITER},
		v1.ReadWriteOncePod: {csipb.VolumeCapability_AccessMode_SINGLE_NODE_WRITER, csipb.VolumeCapability_AccessMode_SINGLE_NODE_SINGLE_WRITER},
		v1.ReadOnlyMany:     {csipb.VolumeCapability_AccessMode_MULTI_NODE_READER_ONLY, csipb.VolumeCapability_AccessMode_MULTI_NODE_READER_ONLY},
		v1.ReadWriteMany: {
			csipb.VolumeCapability_AccessMode_MULTI_NODE_MULTI_WRITER,
			csipb.VolumeCapability_AccessMode_MULTI_NODE_MULTI_WRITER,
		},
	} {
		if got := [2]csipb.VolumeCapability_AccessMode_Mode{accessMode(mode, &client.Session{}), accessMode(mode, several)}; got != want {
			t.Errorf("%s: %v", mode, got)
		}
	}
}

func TestLabelsOfContainers(t *testing.T) {
	level := func(l string) *v1.SecurityContext {
		return &v1.SecurityContext{SELinuxOptions: &v1.SELinuxOptions{Level: l}}
	}
	mounts := []v1.VolumeMount{{Name: "v"}}
	p := pod("p")
	p.Spec.Containers = []v1.Container{
		{Name: "a", VolumeMounts: mounts, SecurityContext: level("s0:c1")},
		{Name: "b", SecurityContext: level("s0:c2")},
	}
	if got, err := labelOptions(p, "v"); err != nil || got == nil || got.Level != "s0:c1" {
		t.Errorf("one container: %v, %v", got, err)
	}
	p.Spec.Containers[1].VolumeMounts = mounts
	if _, err := labelOptions(p, "v"); err == nil {
		t.Error("two labels were accepted")
	}
	p.Spec.SecurityContext = &v1.PodSecurityContext{SELinuxChangePolicy: ptr.To(v1.SELinuxChangePolicyRecursive)}
	if got, err := labelOptions(p, "v"); got != nil || err != nil {
		t.Errorf("policy Recursive: %v, %v", got, err)
	}
}

func TestRelabelling(t *testing.T) {
	for _, c := range []struct {
		name    string
		options string
		label   string
		change  func(*source.Spec)
		want    bool
	}{
		{"a file system with labels", "rw,seclabel", "", nil, true},
		{"one without", "rw,relatime", "", nil, false},
		{"mounted with a label", "rw,seclabel", "system_u:object_r:container_file_t:s0:c1,c2", nil, false},
		{"read-only in the pod", "rw,seclabel", "", func(s *source.Spec) { s.ReadOnly = true }, false},
		{"read-only volume", "rw,seclabel", "", func(s *source.Spec) { s.PV.Spec.CSI.ReadOnly = true }, false},
		{"block volume", "rw,seclabel", "", func(s *source.Spec) { s.Block = true }, false},
	} {
		s := &source.Spec{PV: persistent("pv1", "handle-1"), Inline: &v1.Volume{Name: "v"}}
		if c.change != nil {
			c.change(s)
		}
		if got := relabels(s, &record{SELinux: c.label}, &mountinfo.Info{Options: "rw", VFSOptions: c.options}); got != c.want {
			t.Errorf("%s: %v", c.name, got)
		}
	}
}
