package direct_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	batchv1 "k8s.io/api/batch/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/ptr"

	"github.com/coracle-project/coracle/cluster/apiserver/servertest"
	"github.com/coracle-project/coracle/cluster/client"
	"github.com/coracle-project/coracle/cluster/internal/testkit"
)

// world is a server and an administrator's client of it, which goes through requests.
type world struct {
	*testing.T
	kube   kubernetes.Interface
	direct informers.SharedInformerFactory
}

func newWorld(t *testing.T) *world {
	t.Helper()
	server := servertest.New(t, servertest.Options(t))
	set, err := client.New(server.ClientConfig("admin", "system:masters"), server.Informers(), nil)
	if err != nil {
		t.Fatal(err)
	}
	servertest.Run(t, server)
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "default"}} // no controller runs that would make it
	if _, err := set.Kube.CoreV1().ServiceAccounts("default").Create(t.Context(), account, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	return &world{T: t, kube: set.Kube, direct: set.Informers}
}

func (w *world) eventually(what string, is func() error) {
	w.Helper()
	testkit.Eventually(w.Context(), w.T, what, func() (bool, error) {
		err := is()
		return err == nil, err
	})
}

// made are the resources that make creates objects of, and where.
var made = map[string]string{
	"configmaps": "default/", "secrets": "default/", "serviceaccounts": "default/", "pods": "default/", "services": "default/",
	"nodes": "/", "persistentvolumeclaims": "default/", "deployments": "default/", "statefulsets": "default/", "daemonsets": "default/",
	"replicasets": "default/", "jobs": "default/", "cronjobs": "default/", "horizontalpodautoscalers": "default/",
	"poddisruptionbudgets": "default/", "leases": "default/", "endpointslices": "default/", "networkpolicies": "default/",
	"storageclasses": "/", "replicationcontrollers": "default/", "events": "default/",
}

// make creates an object of each of many kinds, with a value in most of what they can have.
func (w *world) make(name string) {
	w.Helper()
	ctx, o := w.Context(), metav1.CreateOptions{}
	m := metav1.ObjectMeta{Name: name, Labels: map[string]string{"app": name}, Annotations: map[string]string{"a": "b"}}
	selector := &metav1.LabelSelector{MatchLabels: m.Labels}
	spec := corev1.PodSpec{
		RestartPolicy: corev1.RestartPolicyAlways, ServiceAccountName: "default", AutomountServiceAccountToken: ptr.To(false),
		InitContainers: []corev1.Container{{Name: "init", Image: "i", Command: []string{"true"}}},
		Containers: []corev1.Container{{
			Name: "main", Image: "i", Args: []string{"x"}, Ports: []corev1.ContainerPort{{Name: "http", ContainerPort: 80, HostPort: 80}},
			Env: []corev1.EnvVar{{Name: "A", ValueFrom: &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{FieldPath: "metadata.name"}}}},
			Resources: corev1.ResourceRequirements{
				Requests: corev1.ResourceList{"cpu": resource.MustParse("100m")},
				Limits:   corev1.ResourceList{"memory": resource.MustParse("64Mi")},
			},
			ReadinessProbe:  &corev1.Probe{ProbeHandler: corev1.ProbeHandler{TCPSocket: &corev1.TCPSocketAction{Port: intstr.FromString("http")}}},
			VolumeMounts:    []corev1.VolumeMount{{Name: "v", MountPath: "/v"}},
			SecurityContext: &corev1.SecurityContext{Privileged: ptr.To(true)},
		}},
		Volumes: []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{
			LocalObjectReference: corev1.LocalObjectReference{Name: name}, Items: []corev1.KeyToPath{{Key: "k", Path: "p"}},
		}}}},
		Tolerations: []corev1.Toleration{{Key: "t", Operator: "Exists", TolerationSeconds: ptr.To(int64(3)), Effect: "NoExecute"}},
		Affinity:    &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{}},
	}
	template := corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: m.Labels}, Spec: spec}
	job := batchv1.JobSpec{Template: corev1.PodTemplateSpec{Spec: *spec.DeepCopy()}}
	job.Template.Spec.RestartPolicy = corev1.RestartPolicyNever
	claim := corev1.PersistentVolumeClaimSpec{
		AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
		Resources:   corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{"storage": resource.MustParse("1Gi")}},
	}
	core, apps := w.kube.CoreV1(), w.kube.AppsV1()
	var errs []error
	keep := func(_ any, err error) { errs = append(errs, err) }
	keep(core.ConfigMaps("default").Create(ctx, &corev1.ConfigMap{
		ObjectMeta: m, Data: map[string]string{"k": "v"}, BinaryData: map[string][]byte{"b": {1}},
	}, o))
	keep(core.Secrets("default").Create(ctx, &corev1.Secret{ObjectMeta: m, Data: map[string][]byte{"k": {2}}, Type: "x"}, o))
	keep(core.ServiceAccounts("default").Create(ctx, &corev1.ServiceAccount{ObjectMeta: m}, o))
	keep(core.Pods("default").Create(ctx, &corev1.Pod{ObjectMeta: m, Spec: spec}, o))
	keep(core.Services("default").Create(ctx, &corev1.Service{ObjectMeta: m, Spec: corev1.ServiceSpec{
		Selector: m.Labels, Type: corev1.ServiceTypeNodePort, Ports: []corev1.ServicePort{{Port: 80, TargetPort: intstr.FromInt32(8080)}},
	}}, o))
	keep(core.Nodes().Create(ctx, &corev1.Node{
		ObjectMeta: m, Spec: corev1.NodeSpec{Taints: []corev1.Taint{{Key: "t", Effect: "NoSchedule"}}},
	}, o))
	keep(core.PersistentVolumeClaims("default").Create(ctx, &corev1.PersistentVolumeClaim{ObjectMeta: m, Spec: claim}, o))
	keep(core.Events("default").Create(ctx, &corev1.Event{
		ObjectMeta: m, InvolvedObject: corev1.ObjectReference{Kind: "Pod", Namespace: "default", Name: name},
		Reason: "R", Count: 3, Type: "Normal",
	}, o))
	keep(apps.Deployments("default").Create(ctx, &appsv1.Deployment{
		ObjectMeta: m, Spec: appsv1.DeploymentSpec{Selector: selector, Template: template},
	}, o))
	keep(apps.DaemonSets("default").Create(ctx, &appsv1.DaemonSet{
		ObjectMeta: m, Spec: appsv1.DaemonSetSpec{Selector: selector, Template: template},
	}, o))
	keep(apps.ReplicaSets("default").Create(ctx, &appsv1.ReplicaSet{
		ObjectMeta: m, Spec: appsv1.ReplicaSetSpec{Selector: selector, Template: template},
	}, o))
	keep(core.ReplicationControllers("default").Create(ctx, &corev1.ReplicationController{
		ObjectMeta: m, Spec: corev1.ReplicationControllerSpec{Selector: m.Labels, Template: &template},
	}, o))
	keep(w.kube.BatchV1().Jobs("default").Create(ctx, &batchv1.Job{ObjectMeta: m, Spec: job}, o))
	keep(apps.StatefulSets("default").Create(ctx, &appsv1.StatefulSet{ObjectMeta: m, Spec: appsv1.StatefulSetSpec{
		Selector: selector, Template: template, ServiceName: name,
		VolumeClaimTemplates: []corev1.PersistentVolumeClaim{{ObjectMeta: m, Spec: claim}},
	}}, o))
	keep(w.kube.BatchV1().CronJobs("default").Create(ctx, &batchv1.CronJob{ObjectMeta: m, Spec: batchv1.CronJobSpec{
		Schedule: "* * * * *", JobTemplate: batchv1.JobTemplateSpec{Spec: job},
	}}, o))
	keep(w.kube.AutoscalingV2().HorizontalPodAutoscalers("default").Create(ctx, &autoscalingv2.HorizontalPodAutoscaler{
		ObjectMeta: m, Spec: autoscalingv2.HorizontalPodAutoscalerSpec{
			ScaleTargetRef: autoscalingv2.CrossVersionObjectReference{APIVersion: "apps/v1", Kind: "Deployment", Name: name}, MaxReplicas: 3,
		},
	}, o))
	keep(w.kube.PolicyV1().PodDisruptionBudgets("default").Create(ctx, &policyv1.PodDisruptionBudget{
		ObjectMeta: m, Spec: policyv1.PodDisruptionBudgetSpec{Selector: selector, MinAvailable: ptr.To(intstr.FromString("50%"))},
	}, o))
	keep(w.kube.CoordinationV1().Leases("default").Create(ctx, &coordinationv1.Lease{
		ObjectMeta: m, Spec: coordinationv1.LeaseSpec{RenewTime: &metav1.MicroTime{Time: time.Now()}},
	}, o))
	keep(w.kube.DiscoveryV1().EndpointSlices("default").Create(ctx, &discoveryv1.EndpointSlice{
		ObjectMeta: m, AddressType: "IPv4", Endpoints: []discoveryv1.Endpoint{{Addresses: []string{"10.0.0.1"}, NodeName: &name}},
	}, o))
	keep(w.kube.NetworkingV1().NetworkPolicies("default").Create(ctx, &networkingv1.NetworkPolicy{
		ObjectMeta: m, Spec: networkingv1.NetworkPolicySpec{Ingress: []networkingv1.NetworkPolicyIngressRule{{}}},
	}, o))
	keep(w.kube.StorageV1().StorageClasses().Create(ctx, &storagev1.StorageClass{ObjectMeta: m, Provisioner: "example.com/x"}, o))
	for _, err := range errs {
		if err != nil {
			w.Fatal(err)
		}
	}
}

// listed are the resources that informers can be had for.
func (w *world) listed(of ...informers.SharedInformerFactory) (all []schema.GroupVersionResource) {
	w.Helper()
	lists, err := w.kube.Discovery().ServerPreferredResources()
	if err != nil {
		w.Fatal(err)
	}
	lists = discovery.FilteredBy(discovery.SupportsAllVerbs{Verbs: []string{"list", "watch"}}, lists)
	resources, err := discovery.GroupVersionResources(lists)
	if err != nil {
		w.Fatal(err)
	}
	for r := range resources {
		known := true
		for _, f := range of {
			_, err := f.ForResource(r)
			known = known && err == nil
		}
		if known {
			all = append(all, r)
		}
	}
	return all
}

func (w *world) objects(of informers.SharedInformerFactory, r schema.GroupVersionResource) map[string]runtime.Object {
	w.Helper()
	informer, err := of.ForResource(r)
	if err != nil {
		w.Fatal(err)
	}
	list, err := informer.Lister().List(labels.Everything())
	if err != nil {
		w.Fatal(err)
	}
	all := map[string]runtime.Object{}
	for _, obj := range list {
		m, err := meta.Accessor(obj)
		if err != nil {
			w.Fatal(err)
		}
		all[m.GetNamespace()+"/"+m.GetName()] = obj
	}
	return all
}

// Informers that read the storage have the same objects as those that make requests, from lists and
// from watches.
func TestInformersHaveWhatIsServed(t *testing.T) {
	w := newWorld(t)
	w.make("before")
	requests := client.NewInformers(w.kube)
	all := w.listed(w.direct, requests)
	if len(all) < 40 {
		t.Errorf("only %d resources have informers: %v", len(all), all)
	}
	ctx, stop := context.WithCancel(t.Context())
	defer requests.Shutdown()
	defer stop()
	for _, f := range []informers.SharedInformerFactory{w.direct, requests} {
		f.StartWithContext(ctx)
		f.WaitForCacheSyncWithContext(ctx)
	}
	w.make("after")
	pods := w.kube.CoreV1().Pods("default")
	pod, err := pods.Get(ctx, "before", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	pod.Status.Phase, pod.Status.PodIPs = corev1.PodRunning, []corev1.PodIP{{IP: "10.0.0.1"}}
	if _, err := pods.UpdateStatus(ctx, pod, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := w.kube.CoreV1().ConfigMaps("default").Delete(ctx, "before", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	found := map[string]bool{}
	for _, r := range all {
		w.eventually(r.String(), func() error {
			got, want := w.objects(w.direct, r), w.objects(requests, r)
			if in, ok := made[r.Resource]; ok {
				found[r.Resource] = true
				if _, before := want[in+"before"]; want[in+"after"] == nil || before != (r.Resource != "configmaps") {
					return errors.New("the informer that makes requests has not seen the last change")
				}
			}
			for name, obj := range want {
				if had := got[name]; had == nil || !equality.Semantic.DeepEqual(asDecoded(had), obj) {
					is, err := json.Marshal(had)
					should, err2 := json.Marshal(obj)
					return fmt.Errorf("%s is\n%s, want\n%s (%w)", name, is, should, errors.Join(err, err2))
				}
			}
			if len(got) != len(want) {
				return fmt.Errorf("%d objects, want %d", len(got), len(want))
			}
			return nil
		})
	}
	for r := range made {
		if !found[r] {
			t.Errorf("no informers of %s were compared", r)
		}
	}
	w.eventually("the pod's status", func() error {
		p, ok := w.objects(w.direct, corev1.SchemeGroupVersion.WithResource("pods"))["default/before"].(*corev1.Pod)
		if !ok || p.Status.Phase != corev1.PodRunning || p.Status.PodIPs[0].IP != "10.0.0.1" {
			return fmt.Errorf("%+v", p)
		}
		return nil
	})
}

// asDecoded returns obj as it comes out of protobuf, which drops the TypeMeta of nested objects.
func asDecoded(obj runtime.Object) runtime.Object {
	if set, ok := obj.(*appsv1.StatefulSet); ok {
		set = set.DeepCopy()
		for i := range set.Spec.VolumeClaimTemplates {
			set.Spec.VolumeClaimTemplates[i].TypeMeta = metav1.TypeMeta{}
		}
		return set
	}
	return obj
}

// What an informer's reader does to an object, which it must not, does not change what is served.
func TestObjectsAreTheInformersOwn(t *testing.T) {
	w := newWorld(t)
	w.make("listed")
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	sets := w.direct.Apps().V1().StatefulSets() // the server itself has no informer for them yet
	informer := sets.Informer()
	// So many watches share the object of an event.
	for range 4 {
		watch, err := w.kube.AppsV1().StatefulSets("default").Watch(ctx, metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		defer watch.Stop()
		go func() {
			for range watch.ResultChan() {
			}
		}()
	}
	served := func(name string) *appsv1.StatefulSet {
		set, err := w.kube.AppsV1().StatefulSets("default").Get(ctx, name, metav1.GetOptions{ResourceVersion: "0"})
		if err != nil {
			t.Fatal(err)
		}
		return set
	}
	served("listed") // the watch cache has it before the informer asks
	if informer.LastSyncResourceVersion() != "" {
		t.Fatal("the server has started this informer: it gets nothing from a list")
	}
	w.direct.StartWithContext(ctx)
	if !cache.WaitForCacheSync(ctx.Done(), informer.HasSynced) {
		t.Fatal("no sync")
	}
	w.make("watched")
	for _, name := range []string{"listed", "watched"} {
		w.eventually(name, func() error {
			set, err := sets.Lister().StatefulSets("default").Get(name)
			if err != nil {
				return err
			}
			pod := set.Spec.Template
			set.Labels["app"], pod.Spec.Containers[0].Image, *pod.Spec.Tolerations[0].TolerationSeconds = "changed", "changed", 77
			return nil
		})
		set := served(name)
		pod := set.Spec.Template.Spec
		if set.Labels["app"] != name || pod.Containers[0].Image != "i" || *pod.Tolerations[0].TolerationSeconds != 3 {
			t.Errorf("%s is served changed: %+v", name, set)
		}
	}
}
