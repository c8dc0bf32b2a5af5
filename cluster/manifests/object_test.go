package manifests

import (
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	dynamicfake "k8s.io/client-go/dynamic/fake"
	metadatafake "k8s.io/client-go/metadata/fake"
	clienttesting "k8s.io/client-go/testing"
)

// An object may be changed before the answer that it was applied has come. The API is a fake, which
// can have the watch tell of that first.
func TestChangedWhileApplied(t *testing.T) {
	key := objectKey{objectKind{Kind: "ConfigMap"}, "default", "one"}
	content := func(version string) *unstructured.Unstructured {
		u := &unstructured.Unstructured{}
		u.SetAPIVersion("v1")
		u.SetKind("ConfigMap")
		u.SetNamespace(key.namespace)
		u.SetName(key.name)
		u.SetResourceVersion(version)
		return u
	}
	for name, test := range map[string]struct {
		version string
		gone    bool
		kept    bool // the answer says how the object is
	}{
		"nothing":               {kept: true},
		"what was there before": {version: "9", kept: true},
		"our version":           {version: "10", kept: true},
		"a later change":        {version: "11"},
		"a deletion":            {version: "11", gone: true},
	} {
		t.Run(name, func(t *testing.T) {
			scheme := runtime.NewScheme()
			if err := metav1.AddMetaToScheme(scheme); err != nil {
				t.Fatal(err)
			}
			api := dynamicfake.NewSimpleDynamicClient(scheme)
			set := New(Options{Dynamic: api, Metadata: metadatafake.NewSimpleMetadataClient(scheme)})
			api.PrependReactor("patch", "*", func(clienttesting.Action) (bool, runtime.Object, error) {
				if test.version != "" {
					set.changed(key, content(test.version), test.gone)
				}
				return true, content("10"), nil
			})
			o := &object{key: key, resource: schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}, content: content(""), digest: "d"}
			for range 2 { // the first time, and again
				if err := set.applyOne(t.Context(), o); err != nil {
					t.Fatal(err)
				}
				if _, kept := set.applied[key]; kept != test.kept {
					t.Errorf("kept: %t", kept)
				}
				o.digest += "d"
			}
		})
	}
}
