package e2e

import (
	"bufio"
	"bytes"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/authorization/authorizerfactory"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/portforward"
	"k8s.io/client-go/tools/remotecommand"
	"k8s.io/client-go/transport/spdy"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/coracle-project/coracle/cluster/kubelet/images"
	"github.com/coracle-project/coracle/cluster/kubelet/server"
)

// serve answers the kubelet's API to anybody, and returns where.
func (n *testNode) serve() *url.URL {
	n.t.Helper()
	anybody := authenticator.RequestFunc(func(*http.Request) (*authenticator.Response, bool, error) {
		return &authenticator.Response{User: &user.DefaultInfo{Name: "anybody"}}, true, nil
	})
	var everything authorizer.Authorizer = authorizerfactory.NewAlwaysAllowAuthorizer()
	s, err := server.New(n.kubelet, n.client(), server.Options{
		NodeName: nodeName, Kube: n.kube, RootDir: n.opts.RootDir, Authenticator: anybody, Authorizer: everything,
	})
	if err != nil {
		n.t.Fatal(err)
	}
	web := httptest.NewServer(s.Handler())
	n.t.Cleanup(web.Close)
	at, err := url.Parse(web.URL)
	if err != nil {
		n.t.Fatal(err)
	}
	return at
}

// get returns what is served at a path, until it ends.
func get(t *testing.T, at *url.URL) string {
	t.Helper()
	response, err := http.Get(at.String())
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil || response.StatusCode != http.StatusOK {
		t.Fatalf("%s: %s %v\n%s", at, response.Status, err, body)
	}
	return string(body)
}

func TestStreamsLogsAndFigures(t *testing.T) {
	n := newNode(t, nil)
	at := n.serve()
	c := container("c", "say", "hello", ",", "serve", "8080")
	c.ReadinessProbe = &v1.Probe{ProbeHandler: v1.ProbeHandler{TCPSocket: &v1.TCPSocketAction{}}}
	c.ReadinessProbe.TCPSocket.Port.IntVal = 8080
	p := n.create(n.pod("served", c))
	n.until(p, "ready", ready)

	command := at.JoinPath("exec/default/served/c")
	command.RawQuery = url.Values{"command": {"/guest", "cat", "/proc/self/comm"}, "output": {"1"}, "error": {"1"}}.Encode()
	executor, err := remotecommand.NewSPDYExecutor(&rest.Config{Host: at.String()}, "POST", command)
	if err != nil {
		t.Fatal(err)
	}
	var out, errOut bytes.Buffer
	if err := executor.StreamWithContext(n.ctx, remotecommand.StreamOptions{Stdout: &out, Stderr: &errOut}); err != nil ||
		out.String() != "guest\n" {
		t.Errorf("exec: %v, %q, %q", err, &out, &errOut)
	}

	transport, upgrader, err := spdy.RoundTripperFor(&rest.Config{Host: at.String()})
	if err != nil {
		t.Fatal(err)
	}
	dialer := spdy.NewDialer(upgrader, &http.Client{Transport: transport}, "POST", at.JoinPath("portForward/default/served"))
	stop, forwarding := make(chan struct{}), make(chan struct{})
	forwarder, err := portforward.NewOnAddresses(dialer, []string{"127.0.0.1"}, []string{"18080:8080"}, stop, forwarding, io.Discard,
		io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- forwarder.ForwardPorts() }()
	select {
	case <-forwarding:
		if got := get(t, &url.URL{Scheme: "http", Host: "127.0.0.1:18080"}); got != "ok\n" {
			t.Errorf("through the forwarded port: %q", got)
		}
		close(stop)
	case err := <-ended:
		t.Errorf("forward a port: %v", err)
	}

	// A log that is followed brings a line when it is there.
	follow := at.JoinPath("containerLogs/default/served/c")
	follow.RawQuery = "follow=true"
	response, err := http.Get(follow.String())
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	followed := bufio.NewReader(response.Body)
	if line, err := followed.ReadString('\n'); err != nil || line != "hello\n" {
		t.Errorf("followed log %q, %v", line, err)
	}
	if got := get(t, at.JoinPath("containerLogs/default/served/c")); got != "hello\n" {
		t.Errorf("log %q", got)
	}
	figures := get(t, at.JoinPath("stats/summary"))
	for _, want := range []string{`"name": "served"`, `"usageCoreNanoSeconds"`, `"workingSetBytes"`, `"imageFs"`} {
		if !strings.Contains(figures, want) && !strings.Contains(figures, strings.ReplaceAll(want, " ", "")) {
			t.Errorf("no %s in the figures:\n%s", want, figures)
		}
	}

	// It ends with the container.
	n.delete(p, 2)
	if rest, err := io.ReadAll(followed); err != nil || len(rest) > 0 {
		t.Errorf("the followed log ends with %q, %v", rest, err)
	}
}

func TestALostSandboxIsMadeAgain(t *testing.T) {
	n := newNode(t, nil)
	p := n.pod("lost", container("c", "sleep"))
	p.Spec.InitContainers = []v1.Container{container("first", "say", "first")}
	n.defaults(p)
	p = n.create(p)
	before := n.until(p, "ready", ready)
	id, err := n.kubelet.SandboxID(p)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := n.client().Runtime.StopPodSandbox(n.ctx, &runtimeapi.StopPodSandboxRequest{PodSandboxId: id}); err != nil {
		t.Fatal(err)
	}
	after := n.until(p, "ready again", func(p *v1.Pod) bool {
		s := p.Status.ContainerStatuses
		return ready(p) && len(s) == 1 && s[0].ContainerID != before.Status.ContainerStatuses[0].ContainerID
	})
	// There are more restarts than one where some were tried in the old sandbox, whose end was not
	// seen yet.
	if c := after.Status.ContainerStatuses[0]; c.RestartCount < 1 || c.LastTerminationState.Terminated == nil {
		t.Errorf("status of the container that runs again: %+v", c)
	}
	if after.Status.PodIP == "" {
		t.Error("the pod has no address in its new sandbox")
	}
	n.untilEvent(p, "Normal SandboxChanged Pod sandbox changed, it will be killed and re-created.")
}

func TestAContainerThatCannotBeStarted(t *testing.T) {
	n := newNode(t, nil)
	p := n.pod("nostart", container("c"))
	p.Spec.Containers[0].Command = []string{"/nothing"}
	p = n.create(p)
	now := n.until(p, "failed to start", func(p *v1.Pod) bool {
		s := p.Status.ContainerStatuses
		return len(s) == 1 && s[0].LastTerminationState.Terminated != nil && s[0].State.Waiting != nil
	})
	s := now.Status.ContainerStatuses[0]
	// What there is not to be executed is 127 to shells, and 128 to containerd.
	if end := s.LastTerminationState.Terminated; end.Reason != "StartError" || end.ExitCode != 127 && end.ExitCode != 128 ||
		!strings.Contains(end.Message, "/nothing") {
		t.Errorf("last state %+v", end)
	}
	if why := s.State.Waiting.Reason; why != "RunContainerError" && why != "CrashLoopBackOff" {
		t.Errorf("state %+v", s.State)
	}
	n.untilEvent(p, "Warning Failed Error: ")
}

func TestASlowProbeTimesOut(t *testing.T) {
	n := newNode(t, nil)
	c := container("c", "sleep")
	c.LivenessProbe = &v1.Probe{ProbeHandler: v1.ProbeHandler{Exec: &v1.ExecAction{Command: []string{"/guest", "sleep", "60000"}}}}
	p := n.pod("slow", c)
	p.Spec.Containers[0].LivenessProbe.TimeoutSeconds = 1
	p = n.create(p)
	n.untilEvent(p, `Warning Unhealthy Liveness probe failed: command timed out: "/guest sleep 60000" timed out after 1s`)
	n.until(p, "restarted", func(p *v1.Pod) bool {
		s := p.Status.ContainerStatuses
		return len(s) == 1 && s[0].RestartCount > 0
	})
}

func TestTheLastLinesAreTheMessage(t *testing.T) {
	n := newNode(t, nil)
	p := n.pod("wordy", container("c", "say", "why it failed", ",", "exit", "2"))
	p.Spec.RestartPolicy = v1.RestartPolicyNever
	p.Spec.Containers[0].TerminationMessagePolicy = v1.TerminationMessageFallbackToLogsOnError
	p = n.create(p)
	now := n.until(p, "failed", phase(v1.PodFailed))
	if end := now.Status.ContainerStatuses[0].State.Terminated; end == nil || end.Message != "why it failed\n" || end.ExitCode != 2 {
		t.Errorf("end %+v", end)
	}
}

func TestUnusedImagesAreCollected(t *testing.T) {
	n := newNode(t, nil)
	p := n.create(n.pod("user", container("c", "sleep")))
	now := n.until(p, "ready", ready)
	if id := now.Status.ContainerStatuses[0].ImageID; !strings.Contains(id, "sha256:") {
		t.Errorf("image id %q", id)
	}
	full := images.GCPolicy{HighPercent: 0, LowPercent: 0, Every: time.Hour}
	collect := func() {
		// That the disk is still full afterwards is an error, and expected.
		c := images.NewCollector(n.client(), nil, full, nil, nil, slog.New(slog.DiscardHandler))
		if err := c.Collect(n.ctx); err != nil && !strings.HasPrefix(err.Error(), "Failed to garbage collect required amount of images.") {
			t.Error(err)
		}
	}
	there := func() bool {
		i, err := n.client().Images.ImageStatus(n.ctx, &runtimeapi.ImageStatusRequest{Image: &runtimeapi.ImageSpec{Image: n.image}})
		if err != nil {
			t.Fatal(err)
		}
		return i.Image != nil
	}
	collect()
	if !there() {
		t.Fatal("an image that is in use was removed")
	}
	n.delete(p, 1)
	n.until(p, "gone", gone)
	n.untilNoSandbox(p)
	collect()
	if there() {
		t.Error("an image that no one uses is still there")
	}
	other := n.create(n.pod("other", container("c", "sleep")))
	n.until(other, "ready", ready)
}

func TestTheNodeTellsItsRuntime(t *testing.T) {
	n := newNode(t, nil)
	p := n.create(n.pod("any", container("c", "sleep")))
	n.until(p, "ready", ready)
	if v := n.kubelet.Node().Status.NodeInfo.ContainerRuntimeVersion; !strings.HasPrefix(v, n.runtime.name+"://") {
		t.Errorf("runtime version %q", v)
	}
}
