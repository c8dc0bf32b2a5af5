package apiserver

import (
	"context"
	"net/http"
	"strings"
	"sync"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	resourcev1 "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/ptr"
)

// warned collects warnings.
type warned struct {
	mu  sync.Mutex
	all []string
}

func (w *warned) HandleWarningHeader(_ int, _, text string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.all = append(w.all, text)
}

func (w *warned) text() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return strings.Join(w.all, "\n")
}

// clientWarned returns an administrator's client of s, and what it is warned of.
func clientWarned(t *testing.T, s *Server) (*kubernetes.Clientset, *warned) {
	t.Helper()
	said := &warned{}
	config := s.ClientConfig("admin", "system:masters")
	config.WarningHandler = said
	return clientOf(t, config), said
}

func TestDefaultLevelOfPodSecurity(t *testing.T) {
	strict, stop := serve(t, broken(t, func(o *Options) { o.PodSecurity = "baseline" }))
	defer stop()
	privileged := corev1.PodSpec{
		AutomountServiceAccountToken: ptr.To(false),
		Containers: []corev1.Container{{
			Name: "main", Image: "image",
			SecurityContext: &corev1.SecurityContext{Privileged: ptr.To(true)},
		}},
	}
	try := func(s *Server, ns string) error {
		t.Helper()
		client := clientOf(t, s.ClientConfig("admin", "system:masters"))
		if _, err := client.CoreV1().ServiceAccounts(ns).Create(t.Context(), serviceAccount("default"), metav1.CreateOptions{}); err != nil &&
			!apierrors.IsAlreadyExists(err) {
			t.Fatal(err)
		}
		var err error
		eventually(t, "the account is known", func() (bool, error) {
			_, err = client.CoreV1().Pods(ns).Create(t.Context(), &corev1.Pod{ObjectMeta: metav1.ObjectMeta{GenerateName: "p"}, Spec: privileged},
				metav1.CreateOptions{})
			return err == nil || !strings.Contains(err.Error(), "service account"), err
		})
		return err
	}
	// Without a level, every namespace that says nothing takes such a pod.
	if err := try(server, "default"); err != nil {
		t.Fatalf("without a default level: %v", err)
	}
	for _, ns := range []string{"default", "kube-system"} {
		if err := try(strict, ns); !apierrors.IsForbidden(err) ||
			!strings.Contains(err.Error(), `violates PodSecurity "baseline:latest": privileged`) {
			t.Errorf("%s: %v", ns, err)
		}
	}
	client, said := clientWarned(t, strict)
	own := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{
		Name:   "own",
		Labels: map[string]string{"pod-security.kubernetes.io/enforce": "privileged"},
	}}
	if _, err := client.CoreV1().Namespaces().Create(t.Context(), own, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := try(strict, "own"); err != nil {
		t.Errorf("in a namespace that names another level: %v", err)
	}
	labels := map[string]string{"a": "b"}
	_, err := client.AppsV1().Deployments("default").Create(t.Context(),
		&appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Name: "d"}, Spec: appsv1.DeploymentSpec{
			Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: privileged},
		}}, metav1.CreateOptions{})
	if err != nil || !strings.Contains(said.text(), "would violate PodSecurity") {
		t.Errorf("a Deployment of such pods: %v, warnings %q", err, said.text())
	}
	if _, err := New(broken(t, func(o *Options) { o.PodSecurity = "none" })); err == nil ||
		err.Error() != `--pod-security "none" is none of privileged, baseline and restricted` {
		t.Errorf("error %v", err)
	}
}

// Objects that nothing acts on are stored, validated and listed, and their creator is told.
func TestGroupsThatAreKeptOnly(t *testing.T) {
	client, said := clientWarned(t, server)
	ns := namespace(t, client)
	flows, devices := client.FlowcontrolV1(), client.ResourceV1()
	level := &flowcontrolv1.PriorityLevelConfiguration{
		ObjectMeta: metav1.ObjectMeta{Name: "mine"},
		Spec: flowcontrolv1.PriorityLevelConfigurationSpec{
			Type: flowcontrolv1.PriorityLevelEnablementLimited,
			Limited: &flowcontrolv1.LimitedPriorityLevelConfiguration{
				NominalConcurrencyShares: ptr.To(int32(5)), LimitResponse: flowcontrolv1.LimitResponse{Type: flowcontrolv1.LimitResponseTypeReject},
			},
		},
	}
	if _, err := flows.PriorityLevelConfigurations().Create(t.Context(), level, metav1.CreateOptions{}); err != nil {
		t.Error(err)
	}
	schema := &flowcontrolv1.FlowSchema{ObjectMeta: metav1.ObjectMeta{Name: "mine"}, Spec: flowcontrolv1.FlowSchemaSpec{
		PriorityLevelConfiguration: flowcontrolv1.PriorityLevelConfigurationReference{Name: "mine"}, MatchingPrecedence: 500,
	}}
	if _, err := flows.FlowSchemas().Create(t.Context(), schema, metav1.CreateOptions{}); err != nil {
		t.Error(err)
	}
	if list, err := flows.FlowSchemas().List(t.Context(), metav1.ListOptions{}); err != nil || len(list.Items) != 1 ||
		list.Items[0].Spec.MatchingPrecedence != 500 {
		t.Errorf("%+v, %v", list, err)
	}
	bad := schema.DeepCopy()
	bad.Name, bad.Spec.MatchingPrecedence = "bad", 20000
	if _, err := flows.FlowSchemas().Create(t.Context(), bad, metav1.CreateOptions{}); !apierrors.IsInvalid(err) {
		t.Errorf("a precedence that is too high: %v", err)
	}
	if _, err := devices.DeviceClasses().Create(t.Context(), &resourcev1.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: "gpu.example.com"}},
		metav1.CreateOptions{}); err != nil {
		t.Error(err)
	}
	claim := &resourcev1.ResourceClaim{
		ObjectMeta: metav1.ObjectMeta{Name: "one"},
		Spec: resourcev1.ResourceClaimSpec{Devices: resourcev1.DeviceClaim{
			Requests: []resourcev1.DeviceRequest{{Name: "gpu", Exactly: &resourcev1.ExactDeviceRequest{DeviceClassName: "gpu.example.com"}}},
		}},
	}
	if made, err := devices.ResourceClaims(ns).Create(t.Context(), claim, metav1.CreateOptions{}); err != nil ||
		made.Spec.Devices.Requests[0].Exactly.Count != 1 {
		t.Errorf("%+v, %v", made, err)
	}
	slice := &resourcev1.ResourceSlice{ObjectMeta: metav1.ObjectMeta{Name: "n-gpu"}, Spec: resourcev1.ResourceSliceSpec{
		Driver: "gpu.example.com", Pool: resourcev1.ResourcePool{Name: "n", ResourceSliceCount: 1}, NodeName: ptr.To("n"),
		Devices: []resourcev1.Device{{Name: "gpu-0"}},
	}}
	if _, err := devices.ResourceSlices().Create(t.Context(), slice, metav1.CreateOptions{}); err != nil {
		t.Error(err)
	}
	for _, want := range []string{
		`PriorityLevelConfiguration "mine" is stored but not acted on`,
		`FlowSchema "mine" is stored but not acted on`, `ResourceClaim "one" is stored but not acted on`,
	} {
		if !strings.Contains(said.text(), want) {
			t.Errorf("no warning %q in %q", want, said.text())
		}
	}
	if strings.Contains(said.text(), "ResourceSlice") { // the scheduler goes by it
		t.Errorf("warnings %q", said.text())
	}
	t.Cleanup(func() {
		ctx := context.Background()
		_ = flows.FlowSchemas().Delete(ctx, "mine", metav1.DeleteOptions{})
		_ = flows.PriorityLevelConfigurations().Delete(ctx, "mine", metav1.DeleteOptions{})
		_ = devices.DeviceClasses().Delete(ctx, "gpu.example.com", metav1.DeleteOptions{})
		_ = devices.ResourceSlices().Delete(ctx, "n-gpu", metav1.DeleteOptions{})
	})
	if resp, _ := get(t, true, "/apis/flowcontrol.apiserver.k8s.io/v1/flowschemas/mine"); resp.StatusCode != http.StatusOK {
		t.Errorf("%d", resp.StatusCode)
	}
}
