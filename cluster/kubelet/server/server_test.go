package server

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	statsapi "k8s.io/kubelet/pkg/apis/stats/v1alpha1"

	"github.com/coracle-project/coracle/cluster/kubelet/cri"
)

// fakeHost is a kubelet with the pod ns/p, whose container c runs as c1 in sandbox s1.
type fakeHost struct{ pod *v1.Pod }

func newFakeHost() *fakeHost {
	started := metav1.NewTime(time.Unix(1000, 0))
	return &fakeHost{pod: &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "p", UID: "u1"},
		Spec:       v1.PodSpec{Containers: []v1.Container{{Name: "c"}, {Name: "waits"}}},
		Status: v1.PodStatus{StartTime: &started, ContainerStatuses: []v1.ContainerStatus{
			{Name: "c", ContainerID: "coracle://c1", State: v1.ContainerState{Running: &v1.ContainerStateRunning{StartedAt: started}}},
			{Name: "waits", State: v1.ContainerState{Waiting: &v1.ContainerStateWaiting{Reason: "ContainerCreating"}}},
		}},
	}}
}

func (h *fakeHost) Pods() []*v1.Pod { return []*v1.Pod{h.pod} }

func (h *fakeHost) Pod(namespace, name string, uid types.UID) (*v1.Pod, bool) {
	return h.pod, namespace == h.pod.Namespace && name == h.pod.Name && (uid == "" || uid == h.pod.UID)
}

func (h *fakeHost) ContainerID(_ *v1.Pod, container string) (string, error) {
	if container != "c" {
		return "", errors.New(`container not found ("` + container + `")`)
	}
	return "c1", nil
}
func (h *fakeHost) SandboxID(*v1.Pod) (string, error) { return "s1", nil }
func (h *fakeHost) Node() *v1.Node                    { return &v1.Node{} }
func (h *fakeHost) Healthy(context.Context) error     { return nil }

// fakeRuntime is a CRI runtime.
type fakeRuntime struct {
	runtimeapi.RuntimeServiceClient
	runtimeapi.ImageServiceClient
	logPath string
	streams *streams
	// states are the answers about a container that runs, or errors, before it has exited.
	states []error
}

func (f *fakeRuntime) ContainerStatus(_ context.Context, r *runtimeapi.ContainerStatusRequest,
	_ ...grpc.CallOption,
) (*runtimeapi.ContainerStatusResponse, error) {
	if r.ContainerId != "c1" {
		return nil, status.Error(codes.NotFound, "no such container")
	}
	state := runtimeapi.ContainerState_CONTAINER_EXITED
	if len(f.states) > 0 {
		err := f.states[0]
		if f.states = f.states[1:]; err != nil {
			return nil, err
		}
		state = runtimeapi.ContainerState_CONTAINER_RUNNING
	}
	return &runtimeapi.ContainerStatusResponse{Status: &runtimeapi.ContainerStatus{LogPath: f.logPath, State: state}}, nil
}

func (f *fakeRuntime) ExecSync(_ context.Context, r *runtimeapi.ExecSyncRequest,
	_ ...grpc.CallOption,
) (*runtimeapi.ExecSyncResponse, error) {
	if r.Cmd[0] == "false" {
		return &runtimeapi.ExecSyncResponse{ExitCode: 1, Stderr: []byte("no")}, nil
	}
	return &runtimeapi.ExecSyncResponse{Stdout: []byte(strings.Join(r.Cmd, "|")), Stderr: []byte("!")}, nil
}

func (f *fakeRuntime) ListPodSandbox(context.Context, *runtimeapi.ListPodSandboxRequest,
	...grpc.CallOption,
) (*runtimeapi.ListPodSandboxResponse, error) {
	return &runtimeapi.ListPodSandboxResponse{Items: []*runtimeapi.PodSandbox{{
		Id:       "s1",
		Metadata: &runtimeapi.PodSandboxMetadata{Namespace: "ns", Name: "p", Uid: "u1"},
	}}}, nil
}

func (f *fakeRuntime) ListContainers(context.Context, *runtimeapi.ListContainersRequest,
	...grpc.CallOption,
) (*runtimeapi.ListContainersResponse, error) {
	return &runtimeapi.ListContainersResponse{Containers: []*runtimeapi.Container{{
		Id: "c1", PodSandboxId: "s1",
		Metadata: &runtimeapi.ContainerMetadata{Name: "c"}, Image: &runtimeapi.ImageSpec{Image: "img"},
	}}}, nil
}

func (f *fakeRuntime) ListContainerStats(context.Context, *runtimeapi.ListContainerStatsRequest,
	...grpc.CallOption,
) (*runtimeapi.ListContainerStatsResponse, error) {
	of := func(name string, attempt uint32, cpu uint64) *runtimeapi.ContainerStats {
		return &runtimeapi.ContainerStats{
			Attributes: &runtimeapi.ContainerAttributes{
				Metadata: &runtimeapi.ContainerMetadata{Name: name, Attempt: attempt},
				Labels:   map[string]string{"io.kubernetes.pod.uid": "u1"},
			},
			Cpu:    &runtimeapi.CpuUsage{Timestamp: 5e9, UsageCoreNanoSeconds: &runtimeapi.UInt64Value{Value: cpu}},
			Memory: &runtimeapi.MemoryUsage{Timestamp: 5e9, WorkingSetBytes: &runtimeapi.UInt64Value{Value: 4096}},
		}
	}
	return &runtimeapi.ListContainerStatsResponse{Stats: []*runtimeapi.ContainerStats{of("c", 1, 2500e6), of("c", 0, 1), of("waits", 0, 7)}},
		nil
}

func (f *fakeRuntime) ListPodSandboxStats(context.Context, *runtimeapi.ListPodSandboxStatsRequest,
	...grpc.CallOption,
) (*runtimeapi.ListPodSandboxStatsResponse, error) {
	return nil, status.Error(codes.Unimplemented, "unknown method")
}

func (f *fakeRuntime) ImageFsInfo(context.Context, *runtimeapi.ImageFsInfoRequest,
	...grpc.CallOption,
) (*runtimeapi.ImageFsInfoResponse, error) {
	return &runtimeapi.ImageFsInfoResponse{}, nil
}

// everyone is let in and may do all.
type everyone struct{}

func (everyone) AuthenticateRequest(*http.Request) (*authenticator.Response, bool, error) {
	return &authenticator.Response{User: &user.DefaultInfo{Name: "tester"}}, true, nil
}

func (everyone) Authorize(context.Context, authorizer.Attributes) (authorizer.Decision, string, error) {
	return authorizer.DecisionAllow, "", nil
}

func newServer(t *testing.T, change func(*Options)) (*Server, *fakeHost, *fakeRuntime) {
	t.Helper()
	host, rt := newFakeHost(), &fakeRuntime{logPath: filepath.Join(t.TempDir(), "0.log")}
	opts := Options{
		NodeName: "n1", Authenticator: everyone{}, Authorizer: everyone{},
		Config: map[string]string{"kind": "KubeletConfiguration"}, RootDir: "/",
	}
	if change != nil {
		change(&opts)
	}
	s, err := New(host, &cri.Client{Runtime: rt, Images: rt}, opts)
	if err != nil {
		t.Fatal(err)
	}
	return s, host, rt
}

func ask(s *Server, method, target string) *httptest.ResponseRecorder {
	return record(s, httptest.NewRequest(method, target, nil))
}

func record(s *Server, r *http.Request) *httptest.ResponseRecorder {
	w := httptest.NewRecorder()
	s.Handler().ServeHTTP(w, r)
	return w
}

func TestAnswers(t *testing.T) {
	s, _, rt := newServer(t, nil)
	if err := os.WriteFile(rt.logPath, []byte("2026-01-01T00:00:01Z stdout F one\n2026-01-01T00:00:02Z stderr F two\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		method, target string
		code           int
		body           string
	}{
		{"GET", "/containerLogs/ns/p/c", 200, "one\ntwo\n"},
		{"GET", "/containerLogs/ns/p/c?tailLines=1", 200, "two\n"},
		{"GET", "/containerLogs/ns/p/c?tail=1", 200, "two\n"},
		{"GET", "/containerLogs/ns/p/c?tail=all", 200, "one\ntwo\n"},
		{"GET", "/containerLogs/ns/p/c?limitBytes=2", 200, "on"},
		{"GET", "/containerLogs/ns/p/c?stream=Stderr", 200, "two\n"},
		{"GET", "/containerLogs/ns/p/c?timestamps=true&sinceTime=2026-01-01T00:00:02Z", 200, "2026-01-01T00:00:02.000000000Z two\n"},
		{"GET", "/containerLogs/ns/p/c?follow=true", 200, "one\ntwo\n"}, // it has exited
		{"GET", "/containerLogs/ns/p/c?timestamps=false&follow=0", 200, "one\ntwo\n"},
		{"GET", "/containerLogs/ns/p/c?previous=true", 400, `previous terminated container "c" in pod "p" not found`},
		{"GET", "/containerLogs/ns/p/waits", 400, `container "waits" in pod "p" is waiting to start: ContainerCreating`},
		{"GET", "/containerLogs/ns/p/none", 404, `container "none" not found in pod "p"`},
		{"GET", "/containerLogs/ns/none/c", 404, `pod "none" does not exist`},
		{"GET", "/containerLogs/ns/p/c?tailLines=x", 400, `{"message": "Unable to decode query."}`},
		{"GET", "/containerLogs/ns/p/c?sinceTime=yesterday", 400, `{"message": "Unable to decode query."}`},
		{"GET", "/containerLogs/ns/p/c?tailLines=-1", 422, `{"message": "Invalid request."}`},
		{"GET", "/containerLogs/ns/p/c?stream=Odd", 422, `{"message": "Invalid request."}`},
		{"POST", "/containerLogs/ns/p/c", 405, "Method Not Allowed\n"},
		{"POST", "/run/ns/p/c?cmd=echo+a+b", 200, "echo|a|b!"},
		{"POST", "/run/ns/p/u1/c?cmd=true", 200, "true!"},
		{"POST", "/run/ns/p/u2/c?cmd=true", 404, "pod does not exist"},
		{"POST", "/run/ns/p/c?cmd=false", 500, "command 'false' exited with 1: no"},
		{"POST", "/run/ns/p/none?cmd=true", 500, `container not found ("none")`},
		{"GET", "/run/ns/p/c?cmd=true", 405, "Method Not Allowed\n"},
		{"POST", "/exec/ns/p/c?command=sh", 400, "you must specify at least 1 of stdin, stdout, stderr"},
		{"POST", "/exec/ns/none/c?command=sh&output=1", 404, "pod does not exist"},
		{"POST", "/exec/ns/p/none?command=sh&output=1", 500, `container not found ("none")`},
		{"POST", "/attach/ns/p/c", 400, "you must specify at least 1 of stdin, stdout, stderr"},
		{"GET", "/portForward/ns/none", 404, "pod does not exist"},
		{"GET", "/healthz", 200, "ok"},
		{"GET", "/healthz/syncloop", 200, "ok"},
		{"GET", "/configz", 200, `{"kubeletconfig":{"kind":"KubeletConfiguration"}}`},
		{"GET", "/logs/", 405, "logs endpoint is disabled.\n"},
		{"GET", "/nothing", 404, "404 page not found\n"},
	} {
		w := ask(s, c.method, c.target)
		if w.Code != c.code || w.Body.String() != c.body {
			t.Errorf("%s %s: %d %q, want %d %q", c.method, c.target, w.Code, w.Body, c.code, c.body)
		}
	}
}

func TestLogFileMissing(t *testing.T) {
	s, _, _ := newServer(t, nil)
	w := ask(s, "GET", "/containerLogs/ns/p/c")
	if w.Code != 400 || !strings.Contains(w.Body.String(), "no such file or directory") {
		t.Error(w.Code, w.Body)
	}
}

// A client that gets a status of 200 takes what follows for the whole log.
func TestLogThatCannotBeRead(t *testing.T) {
	s, _, rt := newServer(t, nil)
	if err := os.Mkdir(rt.logPath, 0o700); err != nil {
		t.Fatal(err)
	}
	w := ask(s, "GET", "/containerLogs/ns/p/c")
	if w.Code != 400 || !strings.Contains(w.Body.String(), "is a directory") {
		t.Error(w.Code, w.Body)
	}
}

// A followed container counts as running while the runtime is away, and until the runtime says
// that it has ended.
func TestWhenEnded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, _, rt := newServer(t, nil)
		rt.states = []error{nil, status.Error(codes.Unavailable, "away"), nil}
		began := time.Now()
		<-s.whenEnded(t.Context(), "c1")
		if took := time.Since(began); took != 3*checkEvery || len(rt.states) != 0 {
			t.Errorf("it ended after %v, and %d states were not asked for", took, len(rt.states))
		}
	})
}

// The watch ends with the request.
func TestWhenEndedAndTheClientLeaves(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, _, rt := newServer(t, nil)
		rt.states = make([]error, 100)
		ctx, cancel := context.WithCancel(t.Context())
		ended := s.whenEnded(ctx, "c1")
		cancel()
		<-ended
	})
}

func TestLogSource(t *testing.T) {
	terminated := func(id string) v1.ContainerState {
		return v1.ContainerState{Terminated: &v1.ContainerStateTerminated{ContainerID: id}}
	}
	waiting := func(reason string) v1.ContainerState {
		return v1.ContainerState{Waiting: &v1.ContainerStateWaiting{Reason: reason}}
	}
	for _, c := range []struct {
		name        string
		state, last v1.ContainerState
		previous    bool
		want        string
	}{
		{name: "ended", state: terminated("r://a"), want: "a"},
		{name: "last start failed", state: terminated(""), last: terminated("r://b"), want: "b"},
		{name: "only start failed", state: terminated(""), want: `container "c" in pod "p" is terminated`},
		{name: "crash loop", state: waiting("CrashLoopBackOff"), last: terminated("r://b"), want: "b"},
		{name: "previous", state: terminated("r://a"), last: terminated("r://b"), previous: true, want: "b"},
		{name: "pull fails", state: waiting("ErrImagePull"), want: `container "c" in pod "p" is waiting to start: image can't be pulled`},
		{
			name: "pull backs off", state: waiting("ImagePullBackOff"),
			want: `container "c" in pod "p" is waiting to start: trying and failing to pull image`,
		},
		{name: "no state", want: `container "c" in pod "p" is waiting to start - no logs yet`},
	} {
		pod := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p"}}
		pod.Status.InitContainerStatuses = []v1.ContainerStatus{{Name: "c", State: c.state, LastTerminationState: c.last}}
		got, err := logSource(pod, "c", c.previous)
		if err != nil {
			got = err.Error()
		}
		if got != c.want {
			t.Errorf("%s: %s, want %s", c.name, got, c.want)
		}
	}
	if _, err := logSource(&v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p"}}, "c", false); err == nil ||
		err.Error() != `container "c" in pod "p" is not available` {
		t.Error(err)
	}
}

func TestPodLists(t *testing.T) {
	s, _, _ := newServer(t, nil)
	for _, target := range []string{"/pods", "/runningpods/"} {
		w := ask(s, "GET", target)
		var list v1.PodList
		if err := json.Unmarshal(w.Body.Bytes(), &list); err != nil || list.Kind != "PodList" || len(list.Items) != 1 ||
			list.Items[0].UID != "u1" || list.Items[0].Spec.Containers[0].Name != "c" {
			t.Error(target, w.Code, w.Body, err)
		}
	}
}

func TestSummary(t *testing.T) {
	s, _, _ := newServer(t, nil)
	for _, target := range []string{"/stats/summary", "/stats/summary?only_cpu_and_memory=true"} {
		w := ask(s, "GET", target)
		var summary statsapi.Summary
		if err := json.Unmarshal(w.Body.Bytes(), &summary); err != nil || w.Code != 200 {
			t.Fatal(target, w.Code, w.Body, err)
		}
		n, p := summary.Node, summary.Pods
		if n.NodeName != "n1" || n.CPU == nil || *n.CPU.UsageCoreNanoSeconds == 0 || *n.Memory.WorkingSetBytes == 0 || n.StartTime.IsZero() {
			t.Error(target, w.Body)
		}
		if (n.Fs != nil) != (target == "/stats/summary") {
			t.Error(target, "fs:", n.Fs)
		}
		if len(p) != 1 || len(p[0].Containers) != 1 || *p[0].Containers[0].CPU.UsageCoreNanoSeconds != 2500e6 ||
			*p[0].CPU.UsageCoreNanoSeconds != 2500e6 || *p[0].Memory.WorkingSetBytes != 4096 {
			t.Error(target, w.Body)
		}
	}
}

func TestResourceMetrics(t *testing.T) {
	s, _, _ := newServer(t, nil)
	text := ask(s, "GET", "/metrics/resource").Body.String()
	for _, want := range []string{
		"# TYPE container_cpu_usage_seconds_total counter\ncontainer_cpu_usage_seconds_total{container=\"c\",namespace=\"ns\",pod=\"p\"} 2.5 " +
			"5000\n",
		"container_memory_working_set_bytes{container=\"c\",namespace=\"ns\",pod=\"p\"} 4096 5000\n",
		"container_start_time_seconds{container=\"c\",namespace=\"ns\",pod=\"p\"} 1000\n",
		"pod_cpu_usage_seconds_total{namespace=\"ns\",pod=\"p\"} 2.5 5000\n",
		"\nnode_cpu_usage_seconds_total ", "\nnode_memory_working_set_bytes ", "\nresource_scrape_error 0\n",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("%q is not in\n%s", want, text)
		}
	}
}

func TestRunServesOverTLS(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s, _, _ := newServer(t, func(o *Options) { o.Listener = listener })
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, DisableKeepAlives: true}}
	answer, err := client.Get("https://" + listener.Addr().String() + "/healthz")
	if err != nil {
		t.Fatal(err)
	}
	body, _ := io.ReadAll(answer.Body)
	answer.Body.Close()
	if string(body) != "ok" {
		t.Error(string(body))
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

func TestClaimMetrics(t *testing.T) {
	asked := 0
	s, _, _ := newServer(t, func(o *Options) {
		o.Claims = func(context.Context, *v1.Pod) []statsapi.VolumeStats {
			asked++
			capacity := uint64(100)
			ref := &statsapi.PVCReference{Namespace: "ns", Name: "data"}
			stats := statsapi.VolumeStats{
				PVCRef: ref, FsStats: statsapi.FsStats{CapacityBytes: &capacity},
				VolumeHealthStats: &statsapi.VolumeHealthStats{Abnormal: true},
			}
			return []statsapi.VolumeStats{stats, stats, {FsStats: statsapi.FsStats{CapacityBytes: &capacity}}}
		}
	})
	text := ask(s, "GET", "/metrics").Body.String()
	for _, want := range []string{
		"# TYPE kubelet_volume_stats_capacity_bytes " +
			"gauge\nkubelet_volume_stats_capacity_bytes{namespace=\"ns\",persistentvolumeclaim=\"data\"} 100\n",
		"kubelet_volume_stats_health_status_abnormal{namespace=\"ns\",persistentvolumeclaim=\"data\"} 1\n",
		"\ngo_goroutines ", // what the process counts is still there
	} {
		if !strings.Contains(text, want) {
			t.Errorf("%q is not in\n%.4000s", want, text)
		}
	}
	if strings.Contains(text, "kubelet_volume_stats_used_bytes") || asked != 1 {
		t.Errorf("asked %d times, answers what is not known:\n%.4000s", asked, text)
	}
}
