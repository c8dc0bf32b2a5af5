package integration

import (
	"context"
	"errors"
	"fmt"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/metrics/server"
)

// This file is an operator as people write them: nothing in it knows what cluster it runs on. A
// Fleet is a Deployment of boats; when it is deleted, a finalizer notes in a ConfigMap that it was
// there.

// farewell is the finalizer.
const farewell = "harbour.example.org/farewell"

var fleetVersion = schema.GroupVersion{Group: "harbour.example.org", Version: "v1"}

type fleetSpec struct {
	Image string `json:"image"`
	Boats *int32 `json:"boats,omitempty"`
	Most  int32  `json:"most,omitempty"`
}

type fleetStatus struct {
	Ready              int32 `json:"ready"`
	ObservedGeneration int64 `json:"observedGeneration"`
}

type fleet struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`
	Spec              fleetSpec   `json:"spec"`
	Status            fleetStatus `json:"status,omitempty"`
}

func (f *fleet) DeepCopyObject() runtime.Object {
	c := *f
	c.ObjectMeta = *f.ObjectMeta.DeepCopy()
	if f.Spec.Boats != nil {
		c.Spec.Boats = ptr.To(*f.Spec.Boats)
	}
	return &c
}

type fleetList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []fleet `json:"items"`
}

func (l *fleetList) DeepCopyObject() runtime.Object {
	c := &fleetList{TypeMeta: l.TypeMeta, ListMeta: *l.ListMeta.DeepCopy()}
	for i := range l.Items {
		c.Items = append(c.Items, *l.Items[i].DeepCopyObject().(*fleet))
	}
	return c
}

func addFleets(s *runtime.Scheme) {
	s.AddKnownTypeWithName(fleetVersion.WithKind("Fleet"), &fleet{})
	s.AddKnownTypeWithName(fleetVersion.WithKind("FleetList"), &fleetList{})
	metav1.AddToGroupVersion(s, fleetVersion)
}

func fleetScheme() (*runtime.Scheme, error) {
	s := runtime.NewScheme()
	addFleets(s)
	return s, errors.Join(scheme.AddToScheme(s), apiextensionsv1.AddToScheme(s))
}

// operator is the program: it works in one namespace.
func operator(config *rest.Config, ns string) (ctrl.Manager, error) {
	s, err := fleetScheme()
	if err != nil {
		return nil, err
	}
	// It must lead for as long as a killed server may take to serve again on a slow machine.
	renew, lease := time.Minute, 75*time.Second
	mgr, err := ctrl.NewManager(config, ctrl.Options{
		Scheme: s, Metrics: server.Options{BindAddress: "0"},
		Cache:          cache.Options{DefaultNamespaces: map[string]cache.Config{ns: {}}},
		LeaderElection: true, LeaderElectionID: "harbourmaster", LeaderElectionNamespace: ns, LeaderElectionReleaseOnCancel: true,
		RenewDeadline: &renew, LeaseDuration: &lease,
	})
	if err != nil {
		return nil, err
	}
	return mgr, (&harbourmaster{}).setup(mgr)
}

// harbourmaster is the operator's reconciler.
type harbourmaster struct {
	client.Client
	events events.EventRecorder
}

func (h *harbourmaster) setup(mgr ctrl.Manager) error {
	h.Client, h.events = mgr.GetClient(), mgr.GetEventRecorder("harbourmaster")
	return ctrl.NewControllerManagedBy(mgr).For(&fleet{}).Owns(&appsv1.Deployment{}).Complete(h)
}

// Reconcile makes a Fleet's Deployment what the Fleet asks for, and its status what is.
func (h *harbourmaster) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	var f fleet
	if err := h.Get(ctx, req.NamespacedName, &f); err != nil {
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	if !f.DeletionTimestamp.IsZero() {
		return ctrl.Result{}, h.dismiss(ctx, &f)
	}
	if controllerutil.AddFinalizer(&f, farewell) {
		return ctrl.Result{}, h.Update(ctx, &f)
	}
	d := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Name: f.Name, Namespace: f.Namespace}}
	done, err := controllerutil.CreateOrUpdate(ctx, h, d, func() error {
		labels := map[string]string{"fleet": f.Name}
		d.Spec.Replicas = f.Spec.Boats
		d.Spec.Selector = &metav1.LabelSelector{MatchLabels: labels}
		d.Spec.Template.Labels = labels
		d.Spec.Template.Spec.TerminationGracePeriodSeconds = ptr.To[int64](1)
		if len(d.Spec.Template.Spec.Containers) == 0 {
			d.Spec.Template.Spec.Containers = []corev1.Container{{Name: "boat"}}
		}
		d.Spec.Template.Spec.Containers[0].Image = f.Spec.Image
		return controllerutil.SetControllerReference(&f, d, h.Scheme())
	})
	if err != nil {
		return ctrl.Result{}, err
	}
	if done != controllerutil.OperationResultNone {
		h.events.Eventf(&f, d, corev1.EventTypeNormal, "Sailing", "Reconcile", "the fleet's boats were %s", done)
	}
	status := fleetStatus{Ready: d.Status.ReadyReplicas, ObservedGeneration: f.Generation}
	if f.Status == status {
		return ctrl.Result{}, nil
	}
	f.Status = status
	return ctrl.Result{}, h.Status().Update(ctx, &f)
}

// dismiss notes that a Fleet was there, and lets it go.
func (h *harbourmaster) dismiss(ctx context.Context, f *fleet) error {
	note := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "farewell-" + f.Name, Namespace: f.Namespace}}
	if _, err := controllerutil.CreateOrUpdate(ctx, h, note, func() error {
		note.Data = map[string]string{"boats": fmt.Sprint(*f.Spec.Boats)}
		return nil
	}); err != nil {
		return err
	}
	if controllerutil.RemoveFinalizer(f, farewell) {
		return h.Update(ctx, f)
	}
	return nil
}
