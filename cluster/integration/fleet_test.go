package integration

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"
	"sigs.k8s.io/yaml"
)

// fleets is a client that knows Fleets, whose definition it has installed.
func fleets(ctx context.Context, t *testing.T) client.WithWatch {
	t.Helper()
	s, err := fleetScheme()
	if err != nil {
		t.Fatal(err)
	}
	c := typed(t, s)
	data, err := os.ReadFile("testdata/fleet.yaml")
	if err != nil {
		t.Fatal(err)
	}
	crd := &apiextensionsv1.CustomResourceDefinition{}
	if err := yaml.UnmarshalStrict(data, crd); err != nil {
		t.Fatal(err)
	}
	create(ctx, t, c, crd)
	awaitServed(ctx, t, c, crd)
	return c
}

// awaitServed waits until the API serves what a definition defines, and returns the definition as
// it is then. That, and what the API says that it serves, where clients look for it, follow a
// moment after the definition's condition.
func awaitServed(ctx context.Context, t *testing.T, c client.WithWatch,
	crd *apiextensionsv1.CustomResourceDefinition,
) *apiextensionsv1.CustomResourceDefinition {
	t.Helper()
	crd = await(ctx, t, c, &apiextensionsv1.CustomResourceDefinitionList{}, crd, func(crd *apiextensionsv1.CustomResourceDefinition) bool {
		return slices.ContainsFunc(crd.Status.Conditions, func(c apiextensionsv1.CustomResourceDefinitionCondition) bool {
			return c.Type == apiextensionsv1.Established && c.Status == apiextensionsv1.ConditionTrue
		})
	})
	kind := schema.GroupKind{Group: crd.Spec.Group, Kind: crd.Spec.Names.Kind}
	eventually(ctx, t, "the API serves "+kind.String(), func() (bool, error) {
		at := boat.kube.Discovery().RESTClient().Get().AbsPath("/apis", crd.Spec.Group, crd.Spec.Versions[0].Name, crd.Spec.Names.Plural)
		err := at.Do(ctx).Error()
		return err == nil, err
	})
	eventually(ctx, t, "the API says that it serves "+kind.String(), func() (bool, error) {
		_, err := c.RESTMapper().RESTMapping(kind, crd.Spec.Versions[0].Name)
		return err == nil, err
	})
	return crd
}

// A demo operator runs unchanged, outside of the cluster and in a pod of it. It goes on through
// kills of the cluster process, and cleans up.
func TestOperator(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 2*patience)
	defer cancel()
	c := fleets(ctx, t)
	for name, start := range map[string]func(context.Context, *testing.T, string) (works func() error){
		"outside": operateOutside, "in a pod": operateInPod,
	} {
		t.Run(name, func(t *testing.T) {
			ctx, ns := namespace(t)
			sail(ctx, t, c, ns, start(ctx, t, ns))
		})
	}
}

// operateOutside runs the operator in this process, as an administrator, until the test ends. works
// says whether it still runs.
func operateOutside(ctx context.Context, t *testing.T, ns string) (works func() error) {
	mgr, err := operator(boat.config, ns)
	if err != nil {
		t.Fatal(err)
	}
	running, stop := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() { ended <- mgr.Start(running) }()
	t.Cleanup(func() {
		stop()
		if err := <-ended; err != nil {
			t.Errorf("the operator ended with %v", err)
		}
	})
	return func() error {
		select {
		case err := <-ended:
			ended <- err
			return fmt.Errorf("the operator has ended: %w", err)
		default:
			return nil
		}
	}
}

// sail has an operator that works in a namespace do all that it can.
func sail(ctx context.Context, t *testing.T, c client.WithWatch, ns string, works func() error) {
	f := &fleet{ObjectMeta: metav1.ObjectMeta{Name: "herring", Namespace: ns}, Spec: fleetSpec{Image: image, Boats: ptr.To[int32](2)}}
	if err := c.Create(ctx, f); err != nil {
		t.Fatal(err)
	}
	if f.Spec.Most != 5 {
		t.Errorf("the schema's default is %d", f.Spec.Most)
	}
	sails := func(n int32) func(*fleet) bool {
		return func(f *fleet) bool { return f.Status == fleetStatus{Ready: n, ObservedGeneration: f.Generation} }
	}
	f = await(ctx, t, c, &fleetList{}, f, sails(2))
	d := &appsv1.Deployment{}
	if err := c.Get(ctx, client.ObjectKeyFromObject(f), d); err != nil || !metav1.IsControlledBy(d, f) {
		t.Errorf("the Deployment's owners are %v, %v", d.OwnerReferences, err)
	}

	// While it is killed, the operator works on, and what is asked for in between is done.
	boat.kill(t)
	if err := c.Patch(ctx, f, client.RawPatch("application/merge-patch+json", []byte(`{"spec":{"boats":3}}`))); err != nil {
		t.Fatal(err)
	}
	boat.kill(t)
	f = await(ctx, t, c, &fleetList{}, f, sails(3))
	if err := works(); err != nil {
		t.Fatal(err)
	}

	t.Run("validation", func(t *testing.T) { validatesFleets(ctx, t, c, f) })

	// Its Deployment is made again when someone deletes it.
	uid := d.UID
	if err := c.Delete(ctx, d); err != nil {
		t.Fatal(err)
	}
	d = await(ctx, t, c, &appsv1.DeploymentList{}, d, func(d *appsv1.Deployment) bool { return d.UID != uid && d.Status.ReadyReplicas == 3 })

	// The end: the finalizer's note stays, the garbage collector takes the Deployment and its pods.
	if err := c.Delete(ctx, f); err != nil {
		t.Fatal(err)
	}
	awaitEnd(ctx, t, c, &fleetList{}, f)
	note := &corev1.ConfigMap{}
	if err := c.Get(ctx, client.ObjectKey{Namespace: ns, Name: "farewell-herring"}, note); err != nil || note.Data["boats"] != "3" {
		t.Errorf("the finalizer's note says %v, %v", note.Data, err)
	}
	awaitEnd(ctx, t, c, &appsv1.DeploymentList{}, d)
	eventually(ctx, t, "the operator's event is told", func() (bool, error) { // it is sent in the background
		told, err := boat.kube.EventsV1().Events(ns).List(ctx, metav1.ListOptions{FieldSelector: "reason=Sailing,regarding.name=herring"})
		return err == nil && len(told.Items) > 0 && told.Items[0].Note == "the fleet's boats were created", err
	})
}

// validatesFleets checks the schema, its CEL rules, and that spec and status are apart.
func validatesFleets(ctx context.Context, t *testing.T, c client.WithWatch, f *fleet) {
	for want, change := range map[string]func(*fleet){
		"a fleet has five boats at most":                      func(f *fleet) { f.Spec.Boats = ptr.To[int32](9) },
		"a harbour does not shrink":                           func(f *fleet) { f.Spec.Most = 4 },
		"should be greater than or equal to 0":                func(f *fleet) { f.Spec.Boats = ptr.To[int32](-1) },
		`metadata.labels: Invalid value: "no blanks allowed"`: func(f *fleet) { f.Labels = map[string]string{"a": "no blanks allowed"} },
	} {
		wrong := f.DeepCopyObject().(*fleet)
		change(wrong)
		if err := c.Update(ctx, wrong); !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %s", err, want)
		}
	}
	// A status that comes with the rest is not taken, nor a spec that comes with the status.
	both := f.DeepCopyObject().(*fleet)
	both.Status.Ready, both.Labels = 77, map[string]string{"painted": "red"}
	if err := c.Update(ctx, both, client.DryRunAll); err != nil || both.Status.Ready == 77 || both.Labels["painted"] != "red" {
		t.Errorf("an update leaves %+v, %v", both, err)
	}
	both = f.DeepCopyObject().(*fleet)
	both.Status.Ready, both.Spec.Image = 77, "other"
	if err := c.Status().Update(ctx, both,
		&client.SubResourceUpdateOptions{UpdateOptions: client.UpdateOptions{DryRun: []string{metav1.DryRunAll}}}); err != nil ||
		both.Status.Ready != 77 || both.Spec.Image == "other" || both.Generation != f.Generation {
		t.Errorf("an update of the status leaves %+v, %v", both, err)
	}
	if kind, err := apiutil.GVKForObject(f, c.Scheme()); err != nil || kind != fleetVersion.WithKind("Fleet") {
		t.Errorf("kind %v, %v", kind, err)
	}
}
