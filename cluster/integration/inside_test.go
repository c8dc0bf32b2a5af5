package integration

import (
	"context"
	"fmt"
	"os"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// operatorVar is the environment variable with which this program is the operator of a namespace,
// in a pod.
const operatorVar = "HARBOUR_NAMESPACE"

// operate is the operator's main.
func operate(ns string) int {
	ctrl.SetLogger(klog.Background())
	config, err := rest.InClusterConfig()
	if err == nil {
		var mgr ctrl.Manager
		if mgr, err = operator(config, ns); err == nil {
			err = mgr.Start(ctrl.SetupSignalHandler())
		}
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "harbourmaster:", err)
		return 1
	}
	return 0
}

// runSelf has the only container of a pod run this program, which is static and so runs over any
// image. The variable says what it is there.
func runSelf(t *testing.T, spec *corev1.PodSpec, what corev1.EnvVar) {
	t.Helper()
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	const path = "/program"
	c := &spec.Containers[0]
	c.Command, c.Env = []string{path}, []corev1.EnvVar{what}
	c.VolumeMounts = []corev1.VolumeMount{{Name: "program", MountPath: path, ReadOnly: true}}
	spec.Volumes = []corev1.Volume{{Name: "program", VolumeSource: corev1.VolumeSource{
		HostPath: &corev1.HostPathVolumeSource{Path: program, Type: ptr.To(corev1.HostPathFile)},
	}}}
}

// operateInPod runs the operator as a Deployment, with a service account that may do its work and
// no more. All that it knows of the API server is what every pod is told. works says whether it
// still is the process that was started.
func operateInPod(ctx context.Context, t *testing.T, ns string) (works func() error) {
	const name = "harbourmaster"
	spec := corev1.PodSpec{
		ServiceAccountName: name, TerminationGracePeriodSeconds: ptr.To[int64](5),
		Containers: []corev1.Container{{Name: name, Image: image}},
	}
	runSelf(t, &spec, corev1.EnvVar{Name: operatorVar, Value: ns})
	meta := metav1.ObjectMeta{Name: name, Namespace: ns}
	labels := map[string]string{"app": name}
	all := []string{"get", "list", "watch", "create", "update", "patch", "delete"}
	c := typed(t, nil)
	for _, obj := range []client.Object{
		&corev1.ServiceAccount{ObjectMeta: meta},
		&rbacv1.Role{ObjectMeta: meta, Rules: []rbacv1.PolicyRule{
			{APIGroups: []string{fleetVersion.Group}, Resources: []string{"fleets", "fleets/status", "fleets/finalizers"}, Verbs: all},
			{APIGroups: []string{"apps"}, Resources: []string{"deployments"}, Verbs: all},
			{APIGroups: []string{""}, Resources: []string{"configmaps"}, Verbs: all},
			{APIGroups: []string{"coordination.k8s.io"}, Resources: []string{"leases"}, Verbs: all},
			{APIGroups: []string{"", "events.k8s.io"}, Resources: []string{"events"}, Verbs: []string{"create", "patch"}},
		}},
		&rbacv1.RoleBinding{
			ObjectMeta: meta, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: name},
			Subjects: []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Name: name, Namespace: ns}},
		},
		&appsv1.Deployment{ObjectMeta: meta, Spec: appsv1.DeploymentSpec{
			Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: spec},
		}},
	} {
		if err := c.Create(ctx, obj); err != nil { // it goes with the namespace
			t.Fatal(err)
		}
	}
	t.Cleanup(func() {
		if t.Failed() {
			said, err := boat.kube.CoreV1().Pods(ns).GetLogs(podOf(t, ns, name), &corev1.PodLogOptions{}).DoRaw(context.Background())
			t.Logf("the operator says (%v):\n%s", err, said)
		}
	})
	return func() error {
		pods, err := boat.kube.CoreV1().Pods(ns).List(ctx, metav1.ListOptions{LabelSelector: "app=" + name})
		if err != nil {
			return err
		}
		if len(pods.Items) != 1 || len(pods.Items[0].Status.ContainerStatuses) != 1 {
			return fmt.Errorf("the operator has %d pods", len(pods.Items))
		}
		if status := pods.Items[0].Status.ContainerStatuses[0]; !status.Ready || status.RestartCount != 0 {
			return fmt.Errorf("the operator has been restarted: %+v", status)
		}
		return nil
	}
}

// podOf is the name of an app's only pod.
func podOf(t *testing.T, ns, app string) string {
	t.Helper()
	pods, err := boat.kube.CoreV1().Pods(ns).List(context.Background(), metav1.ListOptions{LabelSelector: "app=" + app})
	if err != nil || len(pods.Items) != 1 {
		t.Errorf("%d pods of %s, %v", len(pods.Items), app, err)
		return ""
	}
	return pods.Items[0].Name
}

// The kubernetes Service of an API server on loopback has an endpoint that pods reach, and that
// other proxies than ours may use, too.
func TestKubernetesService(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	const want = "10.96.0.1 https 6443"
	eventually(ctx, t, "the Service's endpoint is "+want, func() (bool, error) {
		service, err := boat.kube.CoreV1().Services(metav1.NamespaceDefault).Get(ctx, "kubernetes", metav1.GetOptions{})
		if err != nil || service.Spec.ClusterIP != "10.96.0.1" || service.Spec.Ports[0].Port != 443 {
			return false, fmt.Errorf("the Service: %+v, %w", service.Spec, err)
		}
		slices, err := boat.kube.DiscoveryV1().EndpointSlices(metav1.NamespaceDefault).List(ctx, metav1.ListOptions{
			LabelSelector: discoveryv1.LabelServiceName + "=kubernetes",
		})
		if err != nil || len(slices.Items) != 1 {
			return false, fmt.Errorf("%d slices, %w", len(slices.Items), err)
		}
		s := slices.Items[0]
		if len(s.Endpoints) != 1 || len(s.Ports) != 1 {
			return false, fmt.Errorf("the slice: %+v", s)
		}
		got := fmt.Sprintf("%s %s %d", s.Endpoints[0].Addresses[0], *s.Ports[0].Name, *s.Ports[0].Port)
		return got == want, fmt.Errorf("the endpoint is %s", got)
	})
}
