package cri

import (
	"context"
	"io"
	"iter"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/test/bufconn"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/coracle-project/coracle/image"
	"github.com/coracle-project/coracle/internal/cgstat"
	"github.com/coracle-project/coracle/pod"
	"github.com/coracle-project/coracle/pod/errdefs"
	"github.com/coracle-project/coracle/pod/podconfig"
)

func TestMain(m *testing.M) {
	// The stream library's request cache and klog start goroutines that have no stop.
	goleak.VerifyTestMain(m,
		goleak.IgnoreAnyFunction("k8s.io/klog/v2.(*flushDaemon).run.func1"),
		goleak.IgnoreAnyFunction("k8s.io/klog/v2.(*loggingT).flushDaemon"))
}

// patience is when a wait gives up. Nothing is expected to take any part of it: on a machine that
// does other things, too, everything takes as long as it takes.
const patience = 2 * time.Minute

// double is a test double of pods and images. It answers from its fields, fails where fail
// says so, and notes what it was asked.
type double struct {
	mu    sync.Mutex
	calls []call

	fail       map[string]error // by method
	pods       []pod.Pod
	containers []pod.Container
	images     []image.Image
	stats      []pod.ContainerStats
	podStats   []pod.PodStats
	execSync   pod.ExecSyncResult
	exec       func(ctx context.Context, r pod.ExecRequest) (int32, error)
	attach     func(ctx context.Context, tty bool, s pod.Streams) error
	forward    func(port int32, conn io.ReadWriteCloser) error
	events     chan pod.Event // closed by no one but the test
}

// call is one call that the double got.
type call struct {
	method string
	args   []any
}

func (d *double) note(method string, args ...any) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.calls = append(d.calls, call{method, args})
	return d.fail[method]
}

// last is the newest call.
func (d *double) last(t *testing.T) call {
	t.Helper()
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.calls) == 0 {
		t.Fatal("nothing was called")
	}
	return d.calls[len(d.calls)-1]
}

// asked is the first argument of the newest call of a method; nil if there was none.
func (d *double) asked(method string) any {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, c := range slices.Backward(d.calls) {
		if c.method == method {
			return c.args[0]
		}
	}
	return nil
}

func (d *double) Run(_ context.Context, c podconfig.Pod) (string, error) {
	return "new-pod", d.note("Run", c)
}
func (d *double) Stop(_ context.Context, id string) error   { return d.note("Stop", id) }
func (d *double) Remove(_ context.Context, id string) error { return d.note("Remove", id) }

func (d *double) Pod(id string) (pod.Pod, error) {
	if err := d.note("Pod", id); err != nil {
		return pod.Pod{}, err
	}
	for _, p := range d.pods {
		if strings.HasPrefix(p.ID, id) {
			return p, nil
		}
	}
	return pod.Pod{}, errdefs.ErrNotFound
}

func (d *double) PodItems(f pod.PodFilter, encode func(*pod.Pod) ([]byte, error)) ([][]byte, error) {
	if err := d.note("Pods", f); err != nil {
		return nil, err
	}
	return encodeAll(d.pods, encode)
}

func encodeAll[T any](all []T, encode func(*T) ([]byte, error)) (items [][]byte, err error) {
	for i := range all {
		item, err := encode(&all[i])
		if err != nil {
			return nil, err
		}
		items = append(items, item)
	}
	return items, nil
}

func (d *double) Create(_ context.Context, podID string, c podconfig.Container) (string, error) {
	return "new-container", d.note("Create", podID, c)
}

func (d *double) StartContainer(_ context.Context, id string) error {
	return d.note("StartContainer", id)
}

func (d *double) StopContainer(_ context.Context, id string, grace time.Duration) error {
	return d.note("StopContainer", id, grace)
}

func (d *double) RemoveContainer(_ context.Context, id string) error {
	return d.note("RemoveContainer", id)
}

func (d *double) Container(id string) (pod.Container, error) {
	if err := d.note("Container", id); err != nil {
		return pod.Container{}, err
	}
	for _, c := range d.containers {
		if strings.HasPrefix(c.ID, id) {
			return c, nil
		}
	}
	return pod.Container{}, errdefs.ErrNotFound
}

func (d *double) Containers(f pod.ContainerFilter) iter.Seq[pod.Container] {
	_ = d.note("Containers", f)
	return slices.Values(d.containers)
}

func (d *double) ContainerItems(f pod.ContainerFilter, encode func(*pod.Container) ([]byte, error)) ([][]byte, error) {
	if err := d.note("Containers", f); err != nil {
		return nil, err
	}
	return encodeAll(d.containers, encode)
}

func (d *double) UpdateResources(_ context.Context, id string, r podconfig.Resources, annotations map[string]string) error {
	return d.note("UpdateResources", id, r, annotations)
}
func (d *double) ReopenLog(_ context.Context, id string) error { return d.note("ReopenLog", id) }

func (d *double) Checkpoint(_ context.Context, id, location string, timeout time.Duration) error {
	return d.note("Checkpoint", id, location, timeout)
}

func (d *double) CheckpointPod(_ context.Context, podID, dir string, ids []string) error {
	return d.note("CheckpointPod", podID, dir, ids)
}

func (d *double) RestorePod(_ context.Context, dir string, c podconfig.Pod,
	containers []podconfig.Container,
) (string, []pod.Restored, error) {
	return "new-pod", []pod.Restored{{Name: "srv", ID: "new-container"}}, d.note("RestorePod", dir, c, containers)
}

func (d *double) ExecSync(_ context.Context, r pod.ExecRequest, timeout time.Duration) (pod.ExecSyncResult, error) {
	return d.execSync, d.note("ExecSync", r, timeout)
}

func (d *double) Exec(ctx context.Context, r pod.ExecRequest) (int32, error) {
	if err := d.note("Exec", r.Container, r.Command, r.TTY); err != nil {
		return 0, err
	}
	return d.exec(ctx, r)
}

func (d *double) Attach(ctx context.Context, id string, tty bool, s pod.Streams) error {
	if err := d.note("Attach", id, tty); err != nil {
		return err
	}
	return d.attach(ctx, tty, s)
}

func (d *double) PortForward(_ context.Context, podID string, port int32, conn io.ReadWriteCloser) error {
	if err := d.note("PortForward", podID, port); err != nil {
		return err
	}
	return d.forward(port, conn)
}
func (d *double) CheckExec(id string) error   { return d.note("CheckExec", id) }
func (d *double) CheckAttach(id string) error { return d.note("CheckAttach", id) }
func (d *double) CheckPod(id string) error    { return d.note("CheckPod", id) }

func (d *double) Stats(_ context.Context, id string) (pod.ContainerStats, error) {
	if err := d.note("Stats", id); err != nil {
		return pod.ContainerStats{}, err
	}
	return d.stats[0], nil
}

func (d *double) ListStats(_ context.Context, f pod.ContainerFilter) []pod.ContainerStats {
	_ = d.note("ListStats", f)
	return d.stats
}

func (d *double) PodStats(_ context.Context, id string) (pod.PodStats, error) {
	if err := d.note("PodStats", id); err != nil {
		return pod.PodStats{}, err
	}
	return d.podStats[0], nil
}

func (d *double) ListPodStats(_ context.Context, f pod.PodStatsFilter) []pod.PodStats {
	_ = d.note("ListPodStats", f)
	return d.podStats
}

func (d *double) Processes(_ context.Context, id string) (cgstat.Processes, error) {
	return cgstat.Processes{Count: 3, Descriptors: 7}, d.note("Processes", id)
}

func (d *double) SetPodCIDR(_ context.Context, ranges []netip.Prefix) error {
	return d.note("SetPodCIDR", ranges)
}

func (d *double) UpdatePodResources(_ context.Context, id string, overhead, resources *podconfig.Resources) error {
	return d.note("UpdatePodResources", id, overhead, resources)
}

func (d *double) Watch() (<-chan pod.Event, func()) {
	return d.events, func() { _ = d.note("unwatch") }
}

func (d *double) Ready() error { return d.note("Ready") }

func (d *double) NetworkReady(context.Context) error { return d.note("NetworkReady") }

// imageDouble is the half of a double that is an image store: both halves have a
// method Remove.
type imageDouble struct{ *double }

func (d imageDouble) Pull(_ context.Context, ref string, o image.PullOptions) (image.Image, error) {
	if err := d.note("Pull", ref, o.Auth); err != nil {
		return image.Image{}, err
	}
	return d.images[0], nil
}

func (d imageDouble) Get(ref string) (image.Image, error) {
	if err := d.note("Get", ref); err != nil {
		return image.Image{}, err
	}
	for _, img := range d.images {
		if ref == img.ID.String() || ref == img.RepoTags[0] {
			return img, nil
		}
	}
	return image.Image{}, image.ErrNotFound
}

func (d imageDouble) List() []image.Image { return d.images }

func (d imageDouble) Remove(_ context.Context, ref string) error { return d.note("RemoveImage", ref) }

// edge is a served double and clients of it.
type edge struct {
	*double
	conn    *grpc.ClientConn
	runtime runtimeapi.RuntimeServiceClient
	image   runtimeapi.ImageServiceClient
	server  *Server
	log     *lines
	worked  chan struct{}
}

// serve puts the edge in front of d, over memory.
func serve(t testing.TB, d *double, change ...func(*Config, *Deps)) *edge {
	t.Helper()
	e := &edge{double: d, log: &lines{}, worked: make(chan struct{}, 100)}
	config := Config{
		Version: "v1.2.3", Handlers: func() []Handler { return []Handler{{Name: "coracle"}} }, ImageFS: "/root/images",
		StreamAddress: "127.0.0.1:0",
		Info:          func() map[string]any { return map[string]any{"config": map[string]string{"root": "/r"}} },
	}
	deps := Deps{
		Pods: d, Images: imageDouble{d},
		Worked: func() { e.worked <- struct{}{} },
		Log:    slog.New(slog.NewTextHandler(e.log, &slog.HandlerOptions{Level: slog.LevelDebug})),
	}
	for _, f := range change {
		f(&config, &deps)
	}
	s, err := New(config, deps)
	if err != nil {
		t.Fatal(err)
	}
	e.server = s
	l := bufconn.Listen(1 << 20)
	served := make(chan error, 1)
	go func() { served <- s.Serve(l) }()
	e.conn, err = grpc.NewClient("passthrough:///edge",
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return l.DialContext(ctx) }),
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxMessage)))
	if err != nil {
		t.Fatal(err)
	}
	e.runtime, e.image = runtimeapi.NewRuntimeServiceClient(e.conn), runtimeapi.NewImageServiceClient(e.conn)
	t.Cleanup(func() {
		_ = e.conn.Close()
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		s.Stop(ctx)
		if err := <-served; err != nil {
			t.Errorf("Serve: %v", err)
		}
	})
	return e
}

// lines is a log that can be read while it is written.
type lines struct {
	mu   sync.Mutex
	text strings.Builder
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

func (d imageDouble) Usage() (bytes, inodes int64, err error) { return 4096, 7, d.fail["Usage"] }
