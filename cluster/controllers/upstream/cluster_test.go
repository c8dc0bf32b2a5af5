package upstream_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/apiserver/pkg/authentication/serviceaccount"
	"k8s.io/apiserver/pkg/authentication/user"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
	"k8s.io/metrics/pkg/apis/metrics"
	metricsinstall "k8s.io/metrics/pkg/apis/metrics/install"

	"github.com/coracle-project/coracle/cluster/apiserver"
	"github.com/coracle-project/coracle/cluster/client"
	"github.com/coracle-project/coracle/cluster/controllers"
	"github.com/coracle-project/coracle/cluster/internal/testkit"
	"github.com/coracle-project/coracle/cluster/metricsapi"
	"github.com/coracle-project/coracle/cluster/pki"
)

// patience bounds what a test waits for, on however slow a machine; it is never the time that a
// test takes.
const patience = 3 * time.Minute

// autoscaleEvery is so short that no test waits for it.
const autoscaleEvery = 50 * time.Millisecond

// cluster is an API server with all controllers, each as its service account. There is no node:
// pods run because the test's kubelet says so.
type cluster struct {
	kube   kubernetes.Interface
	config *rest.Config
	server *apiserver.Server
	usage  usage

	ctx    context.Context // ends when the cluster is to stop
	cancel context.CancelFunc
	served chan error
	parts  sync.WaitGroup
}

// shared is one cluster for all tests; each works in namespaces of its own.
var shared struct {
	once    sync.Once
	cluster *cluster
	dir     string
	err     error
}

// logged is what upstream's packages have logged.
var logged logs

func TestMain(m *testing.M) {
	klog.SetSlogLogger(slog.New(slog.NewTextHandler(&logged, nil)))
	slog.SetLogLoggerLevel(slog.LevelError)
	// The other one sleeps until some time after the last error, which may be of another bubble
	// with another clock.
	utilruntime.ErrorHandlers = utilruntime.ErrorHandlers[:1]
	code := m.Run()
	if shared.cluster != nil {
		err := errors.Join(shared.cluster.stop(), os.RemoveAll(shared.dir))
		if err == nil {
			err = logged.check()
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}
	os.Exit(code)
}

// whole returns the shared cluster, started with the first test that asks for it.
func whole(t *testing.T) *cluster {
	t.Helper()
	shared.once.Do(func() {
		if shared.dir, shared.err = os.MkdirTemp("", "ctl"); shared.err == nil { // short: sockets' paths are limited
			shared.cluster, shared.err = start(shared.dir, true)
		}
	})
	if shared.err != nil {
		t.Fatal(shared.err)
	}
	return shared.cluster
}

// start runs a cluster on the data in dir.
func start(dir string, control bool) (*cluster, error) {
	credentials, err := pki.Ensure(filepath.Join(dir, "pki"), "https://127.0.0.1:1", []string{"127.0.0.1"}, nil)
	if err != nil {
		return nil, err
	}
	c := &cluster{served: make(chan error, 1)}
	scheme := runtime.NewScheme()
	metricsinstall.Install(scheme)
	c.server, err = apiserver.New(apiserver.Options{
		Root: dir, State: filepath.Join(dir, "run"), PKI: credentials, ExtraSchemes: []*runtime.Scheme{scheme}, Log: slog.Default(),
		ExtraAPIGroups: []func(*genericapiserver.GenericAPIServer) error{func(g *genericapiserver.GenericAPIServer) error {
			return metricsapi.Install(g, &c.usage)
		}},
	})
	if err != nil {
		return nil, err
	}
	pods := c.server.Informers().Core().V1().Pods()
	c.usage.pods = pods.Lister()
	c.config = c.server.ClientConfig("test", user.SystemPrivilegedGroup)
	c.config.WarningHandler = &logged
	if c.kube, err = kubernetes.NewForConfig(c.config); err != nil {
		return nil, err
	}
	var all []controllers.Runner
	if control {
		if all, err = c.controllers(); err != nil {
			return nil, err
		}
		if _, err := pods.Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{
			AddFunc: c.kubelet, UpdateFunc: func(_, pod any) { c.kubelet(pod) },
		}); err != nil {
			return nil, err
		}
	}
	c.ctx, c.cancel = context.WithCancel(context.Background())
	serving, end := context.WithCancel(context.Background())
	go func() { c.served <- c.server.Run(serving) }()
	select {
	case <-c.server.Ready():
	case err := <-c.served:
		end()
		c.cancel()
		return nil, errors.Join(errors.New("the API server ended"), err)
	}
	c.parts.Go(func() { controllers.Run(c.ctx, all) })
	context.AfterFunc(c.ctx, func() { // the API server ends last: controllers have something to write when they end
		c.parts.Wait()
		end()
	})
	return c, nil
}

func (c *cluster) controllers() ([]controllers.Runner, error) {
	manager, err := client.New(c.server.ClientConfig(user.KubeControllerManager), c.server.Informers(), slog.Default())
	if err != nil {
		return nil, err
	}
	account := func(name string) (*client.Set, error) {
		return client.New(c.server.ClientConfig(serviceaccount.MakeUsername(metav1.NamespaceSystem, name),
			serviceaccount.MakeGroupNames(metav1.NamespaceSystem)...), c.server.Informers(), slog.Default())
	}
	return controllers.New(controllers.Identities{Manager: manager, Account: account},
		controllers.Options{AutoscaleEvery: autoscaleEvery, Joinable: true, PodRanges: podRanges})
}

func (c *cluster) stop() error {
	c.cancel()
	return <-c.served
}

// Labels of pods that tell the kubelet what to do.
const (
	// holds keeps a pod pending.
	holds = "test/holds"
	// fresh has a pod be ready since now, not since an hour ago.
	fresh = "test/fresh"
	// ends has a pod succeed at once.
	ends = "test/ends"
)

// kubelet does what kubelets do, without any container.
func (c *cluster) kubelet(object any) {
	pod := object.(*corev1.Pod)
	switch {
	case pod.DeletionTimestamp != nil && pod.Spec.NodeName != "":
		_ = c.kube.CoreV1().Pods(pod.Namespace).Delete(c.ctx, pod.Name, *metav1.NewDeleteOptions(0)) // it may have gone
	case pod.DeletionTimestamp != nil || pod.Status.Phase != corev1.PodPending || pod.Labels[holds] != "":
	case pod.Labels[ends] != "":
		c.setStatus(pod, corev1.PodStatus{Phase: corev1.PodSucceeded})
	case pod.Labels[fresh] != "":
		c.ready(pod, time.Now())
	default:
		c.ready(pod, time.Now().Add(-time.Hour))
	}
}

// ready has a pod run and be ready since a time.
func (c *cluster) ready(pod *corev1.Pod, since time.Time) {
	at := metav1.NewTime(since)
	c.setStatus(pod, corev1.PodStatus{
		Phase: corev1.PodRunning, StartTime: &at,
		Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue, LastTransitionTime: at}},
	})
}

func (c *cluster) setStatus(pod *corev1.Pod, status corev1.PodStatus) {
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"uid": pod.UID}, "status": status})
	if err == nil {
		_, err = c.kube.CoreV1().Pods(pod.Namespace).Patch(c.ctx, pod.Name, types.StrategicMergePatchType, patch, metav1.PatchOptions{}, "status")
	}
	if err != nil && c.ctx.Err() == nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) { // it has gone, or another has its name
		logged.note("the kubelet cannot write: " + err.Error())
	}
}

// namespace makes a namespace that pods can be in.
func (c *cluster) namespace(t *testing.T) (context.Context, string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	ns, err := c.kube.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{
		GenerateName: "test-", Annotations: map[string]string{"test": t.Name()},
	}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	eventually(ctx, t, "pods can be made", func() (bool, error) {
		_, err := c.kube.CoreV1().ServiceAccounts(ns.Name).Get(ctx, "default", metav1.GetOptions{})
		return err == nil, err
	})
	return ctx, ns.Name
}

var eventually = testkit.Eventually

// told waits for an event about an object.
func (c *cluster) told(ctx context.Context, t *testing.T, ns, kind, name, reason string) {
	t.Helper()
	eventually(ctx, t, "event "+reason+" of "+kind+" "+name, func() (bool, error) {
		list, err := c.kube.CoreV1().Events(ns).List(ctx, metav1.ListOptions{})
		if err != nil {
			return false, err
		}
		var seen []string
		for _, e := range list.Items {
			if e.InvolvedObject.Kind == kind && e.InvolvedObject.Name == name && e.Reason == reason {
				return true, nil
			}
			seen = append(seen, e.InvolvedObject.Kind+" "+e.InvolvedObject.Name+" "+e.Reason)
		}
		return false, fmt.Errorf("events %q", seen)
	})
}

// must fails the test if a call has failed, and returns its result.
func must[T any](t *testing.T) func(T, error) T {
	return func(result T, err error) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return result
	}
}

// template is that of a pod with some labels.
func template(labels ...map[string]string) corev1.PodTemplateSpec {
	all := map[string]string{}
	for _, some := range labels {
		for k, v := range some {
			all[k] = v
		}
	}
	return corev1.PodTemplateSpec{
		ObjectMeta: metav1.ObjectMeta{Labels: all},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "main", Image: "image:1"}}},
	}
}

// usage is a metricsapi.Source: each pod of a namespace uses as much CPU as was set for it.
type usage struct {
	pods  corelisters.PodLister
	mu    sync.Mutex
	milli map[string]int64
}

func (u *usage) set(ns string, milli int64) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.milli == nil {
		u.milli = map[string]int64{}
	}
	u.milli[ns] = milli
}

// NodeMetrics implements metricsapi.Source.
func (u *usage) NodeMetrics(context.Context) ([]metrics.NodeMetrics, error) { return nil, nil }

// PodMetrics implements metricsapi.Source.
func (u *usage) PodMetrics(context.Context) ([]metrics.PodMetrics, error) {
	pods, err := u.pods.List(labels.Everything())
	if err != nil {
		return nil, err
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	var all []metrics.PodMetrics
	for _, pod := range pods {
		if pod.Status.Phase != corev1.PodRunning {
			continue
		}
		all = append(all, metrics.PodMetrics{
			ObjectMeta: metav1.ObjectMeta{Namespace: pod.Namespace, Name: pod.Name, Labels: pod.Labels},
			Timestamp:  metav1.Now(), Window: metav1.Duration{Duration: time.Second},
			Containers: []metrics.ContainerMetrics{{Name: "main", Usage: corev1.ResourceList{
				corev1.ResourceCPU: *resource.NewMilliQuantity(u.milli[pod.Namespace], resource.DecimalSI),
			}}},
		})
	}
	return all, nil
}

// logs keeps what is logged and warned.
type logs struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *logs) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *logs) note(line string) { _, _ = l.Write([]byte(line + "\n")) }

// HandleWarningHeader implements rest.WarningHandler.
func (l *logs) HandleWarningHeader(_ int, _, text string) { l.note("warning: " + text) }

// count says how many lines have a text.
func (l *logs) count(text string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return bytes.Count(l.text.Bytes(), []byte(text))
}

// check says what must not be in the logs: a controller that panics or may not do its work, and
// warnings of kinds that are acted on.
func (l *logs) check() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	var found []error
	for line := range strings.Lines(l.text.String()) {
		switch {
		case strings.Contains(line, "bserved a panic") && !strings.Contains(line, "odd budget"),
			strings.Contains(line, "is forbidden: User"),
			strings.Contains(line, "the kubelet cannot write"),
			strings.Contains(line, "not acted on"):
			found = append(found, errors.New(strings.TrimSpace(line)))
		}
	}
	return errors.Join(found...)
}
