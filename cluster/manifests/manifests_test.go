package manifests

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/metadata"

	"github.com/coracle-project/coracle/cluster/apiserver/servertest"
	"github.com/coracle-project/coracle/cluster/client"
	"github.com/coracle-project/coracle/cluster/controllers/upstream"
	"github.com/coracle-project/coracle/cluster/health"
)

// serve runs an API server until the test ends, and returns a Set of an administrator.
func serve(t *testing.T) *client.Set {
	t.Helper()
	server := servertest.New(t, servertest.Options(t))
	admin, err := client.New(server.ClientConfig("test", "system:masters"), server.Informers(), nil)
	if err != nil {
		t.Fatal(err)
	}
	servertest.Run(t, server)
	return admin
}

// directory is the manifests under test, and a cluster.
type directory struct {
	t     *testing.T
	dir   string
	admin *client.Set
	board *health.Board
	// settle is how long an object has to be missing before it is deleted.
	settle time.Duration
	node   string // the default is testNode
	// unknown are kinds that the mapper does not find.
	unknown map[objectKind]bool
}

// forgetful is a mapper that has looked too early, or does not know what another API server says.
type forgetful struct {
	meta.ResettableRESTMapper
	unknown map[objectKind]bool
}

func (f forgetful) RESTMapping(kind schema.GroupKind, versions ...string) (*meta.RESTMapping, error) {
	if f.unknown[kind] {
		return nil, &meta.NoKindMatchError{GroupKind: kind, SearchedVersions: versions}
	}
	return f.ResettableRESTMapper.RESTMapping(kind, versions...)
}

const testNode = "here"

var (
	parentName = parentOf(testNode)
	setID      = idOf(parentName)
)

func (d *directory) name() string { return cmp.Or(d.node, testNode) }

// run keeps the directory applied until the returned function is called.
func (d *directory) run() (stop func()) {
	d.t.Helper()
	must := func(err error) {
		if err != nil {
			d.t.Fatal(err)
		}
	}
	objects, err := dynamic.NewForConfig(d.admin.Config)
	must(err)
	facts, err := metadata.NewForConfig(d.admin.Config)
	must(err)
	events, flush := d.admin.Recorder("test", "")
	d.board = &health.Board{}
	set := New(Options{
		Dir: d.dir, Node: d.name(),
		Kube: d.admin.Kube, Dynamic: objects, Metadata: facts,
		Mapper: forgetful{upstream.NewMapper(d.admin.Kube.Discovery()), d.unknown},
		Events: events, Health: d.board.Add("manifests"),
	})
	set.settle = d.settle
	ctx, cancel := context.WithCancel(d.t.Context())
	done := make(chan error, 1)
	go func() { done <- set.Run(ctx) }()
	return func() {
		cancel()
		must(<-done)
		flush()
	}
}

func (d *directory) write(name, text string) {
	d.t.Helper()
	if err := os.WriteFile(filepath.Join(d.dir, name), []byte(text), 0o644); err != nil {
		d.t.Fatal(err)
	}
}

// until waits until the ConfigMaps of the namespace default are "name=value of v" for each of want.
func (d *directory) until(want ...string) {
	d.t.Helper()
	maps := d.admin.Kube.CoreV1().ConfigMaps("default")
	w, err := maps.Watch(d.t.Context(), metav1.ListOptions{})
	if err != nil {
		d.t.Fatal(err)
	}
	defer w.Stop()
	for ok := true; ok; _, ok = <-w.ResultChan() {
		if d.have() == strings.Join(want, " ") {
			return
		}
	}
	d.t.Fatalf("the watch ended with %s", d.have())
}

// have are the ConfigMaps of the namespace default, as until has them.
func (d *directory) have() string {
	d.t.Helper()
	all, err := d.admin.Kube.CoreV1().ConfigMaps("default").List(d.t.Context(), metav1.ListOptions{})
	if err != nil {
		d.t.Fatal(err)
	}
	var have []string
	for _, m := range all.Items {
		have = append(have, m.Name+"="+m.Data["v"])
	}
	return strings.Join(have, " ")
}

// event waits for an event of the set that says want.
func (d *directory) event(want string) {
	d.t.Helper()
	w, err := d.admin.Kube.CoreV1().Events(metav1.NamespaceSystem).Watch(d.t.Context(),
		metav1.ListOptions{FieldSelector: "involvedObject.name=" + parentOf(d.name())})
	if err != nil {
		d.t.Fatal(err)
	}
	defer w.Stop()
	for e := range w.ResultChan() {
		if ev, ok := e.Object.(*corev1.Event); ok && strings.Contains(ev.Message, want) {
			return
		}
	}
	d.t.Fatalf("no event says %q", want)
}

func configMap(name, value string) string {
	return fmt.Sprintf("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: %s}\ndata: {v: %q}\n", name, value)
}

func TestManifestsAreKept(t *testing.T) {
	d := &directory{t: t, dir: filepath.Join(t.TempDir(), "etc", "manifests"), admin: serve(t)}
	maps := d.admin.Kube.CoreV1().ConfigMaps("default")
	stop := d.run()
	d.until()
	// The directory is made later, with what is above it.
	if err := os.MkdirAll(d.dir, 0o755); err != nil {
		t.Fatal(err)
	}
	d.write("a.yaml", configMap("one", "1")+"---\n# nothing\n---\n"+configMap("two", "2"))
	d.until("one=1", "two=2")
	one, err := maps.Get(t.Context(), "one", metav1.GetOptions{})
	if err != nil || one.Labels[partOfLabel] != setID || one.Annotations[fileAnnotation] != "a.yaml" {
		t.Errorf("%+v, %v", one, err)
	}
	// What others change or delete is put back.
	if _, err := maps.Patch(t.Context(), "one", types.MergePatchType, []byte(`{"data":{"v":"9"}}`), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := maps.Delete(t.Context(), "two", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	d.until("one=1", "two=2")
	// An object that moves to another file is the same object.
	if err := os.Rename(filepath.Join(d.dir, "a.yaml"), filepath.Join(d.dir, "b.yaml")); err != nil {
		t.Fatal(err)
	}
	d.write("c.json", `{"apiVersion":"v1","kind":"List","items":[
		{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"three"},"data":{"v":"3"}}]}`)
	d.until("one=1", "three=3", "two=2")
	if moved, err := maps.Get(t.Context(), "one", metav1.GetOptions{}); err != nil || moved.UID != one.UID {
		t.Errorf("the object was made again: %v", err)
	}
	// Links are manifests.
	elsewhere := filepath.Join(t.TempDir(), "elsewhere")
	if err := os.WriteFile(elsewhere, []byte(configMap("linked", "1")), 0o644); err != nil {
		t.Fatal(err)
	}
	link := filepath.Join(d.dir, "link.yaml")
	if err := os.Symlink(elsewhere, link); err != nil {
		t.Fatal(err)
	}
	d.until("linked=1", "one=1", "three=3", "two=2")
	if err := os.Remove(link); err != nil {
		t.Fatal(err)
	}
	d.until("one=1", "three=3", "two=2")
	// A document that goes takes its object along, and so does a file, also while nothing follows it.
	d.write("b.yaml", configMap("one", "1b"))
	d.until("one=1b", "three=3")
	stop()
	if err := os.Remove(filepath.Join(d.dir, "c.json")); err != nil {
		t.Fatal(err)
	}
	d.write("d.yaml", configMap("four", "4"))
	stop = d.run()
	d.until("four=4", "one=1b")
	// A directory that may not be read is tried again, also if no event of it comes.
	if err := os.Chmod(d.dir, 0o775); err != nil {
		t.Fatal(err)
	}
	d.write("d.yaml", configMap("four", "5"))
	d.event("others may write it: ")
	if err := os.Chmod(d.dir, 0o755); err != nil {
		t.Fatal(err)
	}
	d.until("four=5", "one=1b")
	// Without its directory everything stays.
	stop()
	if err := os.Rename(d.dir, d.dir+".away"); err != nil {
		t.Fatal(err)
	}
	stop = d.run()
	d.board.Wait(t.Context())
	d.until("four=5", "one=1b")
	stop()
}

// Some editors move the old file away before they write the new one, and git removes it.
func TestFileIsReplaced(t *testing.T) {
	d := &directory{t: t, dir: t.TempDir(), admin: serve(t), settle: time.Hour}
	d.write("a.yaml", configMap("one", "1"))
	stop := d.run()
	d.until("one=1")
	one, err := d.admin.Kube.CoreV1().ConfigMaps("default").Get(t.Context(), "one", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(filepath.Join(d.dir, "a.yaml"), filepath.Join(d.dir, "a.yaml~")); err != nil {
		t.Fatal(err)
	}
	// When the second change is applied, the directory was read and compared without the file.
	d.write("b.yaml", configMap("two", "1"))
	d.until("one=1", "two=1")
	d.write("b.yaml", configMap("two", "2"))
	d.until("one=1", "two=2")
	d.write("a.yaml", configMap("one", "2"))
	d.until("one=2", "two=2")
	if now, err := d.admin.Kube.CoreV1().ConfigMaps("default").Get(t.Context(), "one", metav1.GetOptions{}); err != nil || now.UID != one.UID {
		t.Errorf("it is another object: %v", err)
	}
	stop()
	// It is deleted if it stays away.
	if err := os.Remove(filepath.Join(d.dir, "a.yaml")); err != nil {
		t.Fatal(err)
	}
	d.settle = settle
	stop = d.run()
	d.until("two=2")
	stop()
}

// An empty directory deletes all objects, also if the process does not know what it had before.
func TestEmptyDirectory(t *testing.T) {
	d := &directory{t: t, dir: t.TempDir(), admin: serve(t)}
	file := filepath.Join(d.dir, "a.yaml")
	d.write("a.yaml", configMap("one", "1"))
	stop := d.run()
	d.until("one=1")
	stop()
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	stop = d.run()
	d.until()
	// The last file had an error when it was removed.
	d.write("a.yaml", configMap("two", "2"))
	d.until("two=2")
	d.write("a.yaml", "apiVersion: v1\nkind: [")
	d.event("a.yaml: document 1: ")
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	d.until()
	stop()
}

// Events tell of errors from the beginning: also if the directory was never read.
func TestDirectoryIsRefusedAtStart(t *testing.T) {
	d := &directory{t: t, dir: t.TempDir(), admin: serve(t)}
	if err := os.Chmod(d.dir, 0o775); err != nil {
		t.Fatal(err)
	}
	stop := d.run()
	d.event("others may write it: ")
	stop()
}

// Control-plane nodes have different directories: none deletes or changes another's objects.
func TestManifestsOfTwoNodes(t *testing.T) {
	admin := serve(t)
	for _, name := range []string{"first", "second"} {
		node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
		if _, err := admin.Kube.CoreV1().Nodes().Create(t.Context(), node, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	first := &directory{t: t, dir: t.TempDir(), admin: admin, node: "first"}
	second := &directory{t: t, dir: t.TempDir(), admin: admin, node: "second"}
	first.write("a.yaml", configMap("one", "1")+"---\n"+configMap("two", "1"))
	stop := first.run()
	first.until("one=1", "two=1")
	second.write("b.yaml", configMap("three", "3"))
	second.write("c.yaml", configMap("two", "2"))
	stopSecond := second.run()
	second.event("c.yaml: ConfigMap default/two: node first has it in its a.yaml")
	if err := os.Remove(filepath.Join(second.dir, "c.yaml")); err != nil {
		t.Fatal(err)
	}
	// When the new object is gone, the second has deleted what its directory does not have.
	second.write("d.yaml", configMap("four", "4"))
	second.until("four=4", "one=1", "three=3", "two=1")
	if err := os.Remove(filepath.Join(second.dir, "d.yaml")); err != nil {
		t.Fatal(err)
	}
	second.until("one=1", "three=3", "two=1")
	// Objects of a node that is gone stay, until another node has them.
	stop()
	if err := admin.Kube.CoreV1().Nodes().Delete(t.Context(), "first", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	second.write("c.yaml", configMap("two", "2"))
	second.until("one=1", "three=3", "two=2")
	stopSecond()
}

func TestFaultsOfManifests(t *testing.T) {
	d := &directory{t: t, dir: t.TempDir(), admin: serve(t)}
	d.write("a.yaml", configMap("one", "1"))
	stop := d.run()
	defer func() { stop() }()
	d.until("one=1")
	for name, test := range map[string]struct{ text, want string }{
		"not-yaml.yaml":  {"a: [", "not-yaml.yaml: document 1: "},
		"no-kind.yaml":   {configMap("x", "") + "---\nmetadata: {name: a}\n", "no-kind.yaml: document 2: an object without apiVersion and kind"},
		"no-name.yaml":   {"apiVersion: v1\nkind: ConfigMap\n", "no-name.yaml: document 1: ConfigMap: metadata.name is missing"},
		"twice.yaml":     {configMap("x", "") + "---\n" + configMap("x", ""), "twice.yaml: ConfigMap default/x is in it twice"},
		"theirs.yaml":    {configMap("one", "2"), "theirs.yaml: ConfigMap default/one is also in a.yaml"},
		"no-field.yaml":  {configMap("w", "") + "dada: {}\n", `no-field.yaml: ConfigMap default/w: failed to create typed patch object`},
		"no-kind-2.yaml": {"apiVersion: boat/v1\nkind: Oar\nmetadata: {name: a}\n", `no-kind-2.yaml: Oar a: no matches for kind "Oar" in version "boat/v1"`},
		"number.yaml": {
			"apiVersion: v1\nkind: ConfigMap\nmetadata: {name: w, labels: {app: w, version: 1}}\n",
			"number.yaml: ConfigMap w: .metadata.labels accessor error: contains non-string value in the map under key \"version\"",
		},
		"cluster.yaml": {
			"apiVersion: v1\nkind: Namespace\nmetadata: {name: a, namespace: b}\n",
			`cluster.yaml: Namespace a: it has no namespace, but metadata.namespace is "b"`,
		},
	} {
		d.write(name, test.text)
		d.event(test.want)
		if err := os.Remove(filepath.Join(d.dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	// A file with an error keeps what it had, and others are applied.
	d.write("a.yaml", "apiVersion: v1\nkind: [")
	d.event("a.yaml: document 1: ")
	d.write("b.yaml", configMap("two", "2"))
	d.until("one=1", "two=2")
	if s := d.board.States()[0]; s.Healthy || !strings.HasPrefix(s.Message, "a.yaml: document 1: ") {
		t.Errorf("%+v", s)
	}
	// So does one with a new name.
	if err := os.Rename(filepath.Join(d.dir, "a.yaml"), filepath.Join(d.dir, "moved.yaml")); err != nil {
		t.Fatal(err)
	}
	d.event("moved.yaml: document 1: ")
	if have := d.have(); have != "one=1 two=2" {
		t.Errorf("after a file with an error got another name: %s", have)
	}
	if err := os.Rename(filepath.Join(d.dir, "moved.yaml"), filepath.Join(d.dir, "a.yaml")); err != nil {
		t.Fatal(err)
	}
	d.write("a.yaml", configMap("one", "3"))
	d.until("one=3", "two=2")
	// A file that is being written keeps what it had, when others change, too.
	half, err := os.OpenFile(filepath.Join(d.dir, "a.yaml"), os.O_WRONLY|os.O_TRUNC, 0)
	if err != nil {
		t.Fatal(err)
	}
	d.write("c.yaml", configMap("other", "1"))
	d.until("one=3", "other=1", "two=2")
	d.write("c.yaml", configMap("other", "2"))
	d.until("one=3", "other=2", "two=2")
	if _, err := half.WriteString(configMap("one", "4")); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(half.Close(), os.Remove(filepath.Join(d.dir, "c.yaml"))); err != nil {
		t.Fatal(err)
	}
	d.until("one=4", "two=2")
	// What another set has is left to it.
	labels := map[string]string{partOfLabel: "applyset-of-others"}
	_, err = d.admin.Kube.CoreV1().ConfigMaps("default").Create(t.Context(),
		&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "zero", Labels: labels}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	d.write("zero.yaml", configMap("zero", "0"))
	d.event("ConfigMap default/zero: it belongs to the apply set applyset-of-others")
	d.until("one=4", "two=2", "zero=")
}

const (
	oar = `apiVersion: boat.example/v1
kind: Oar
metadata: {name: left, namespace: default}
spec: {length: 3}
`
	oarDefinition = `apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: oars.boat.example}
spec:
  group: boat.example
  scope: Namespaced
  names: {kind: Oar, plural: oars, singular: oar}
  versions:
  - name: v1
    served: true
    storage: true
    schema: {openAPIV3Schema: {type: object, properties: {spec: {type: object, properties: {length: {type: integer}}}}}}
`
)

var oarResource = schema.GroupVersionResource{Group: "boat.example", Version: "v1", Resource: "oars"}

// kinds waits until the set lists these kinds.
func (d *directory) kinds(want string) {
	d.t.Helper()
	parents, err := d.admin.Kube.CoreV1().ConfigMaps(metav1.NamespaceSystem).Watch(d.t.Context(),
		metav1.ListOptions{FieldSelector: "metadata.name=" + parentName})
	if err != nil {
		d.t.Fatal(err)
	}
	defer parents.Stop()
	last := "nothing"
	for e := range parents.ResultChan() {
		if m, ok := e.Object.(*corev1.ConfigMap); ok {
			if last = m.Annotations[kindsAnnotation]; last == want {
				return
			}
		}
	}
	d.t.Fatalf("the watch ended with %s", last)
}

// A kind and an object of it can be in one file. What a run that was cut off has left is deleted by
// the next one.
func TestKindsOfManifests(t *testing.T) {
	d := &directory{t: t, dir: t.TempDir(), admin: serve(t)}
	d.write("oars.yaml", oar+"---\n"+oarDefinition+"---\n"+configMap("after", "1"))
	stop := d.run()
	d.until("after=1")
	objects, err := dynamic.NewForConfig(d.admin.Config)
	if err != nil {
		t.Fatal(err)
	}
	// The set lists the kind before it applies an object of it.
	d.kinds("ConfigMap,CustomResourceDefinition.apiextensions.k8s.io,Oar.boat.example")
	oars, err := objects.Resource(oarResource).Watch(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer oars.Stop()
	if _, ok := <-oars.ResultChan(); !ok {
		t.Fatal("no object of the kind was applied")
	}
	// Annotations are put back, too, which an object's generation does not count.
	of := []byte(`{"metadata":{"annotations":{"` + fileAnnotation + `":"other.yaml"}}}`)
	_, err = objects.Resource(oarResource).Namespace("default").Patch(t.Context(), "left", types.MergePatchType, of, metav1.PatchOptions{})
	if err != nil {
		t.Fatal(err)
	}
	last := ""
	for e := range oars.ResultChan() {
		before := last
		if m, err := meta.Accessor(e.Object); err == nil {
			last = m.GetAnnotations()[fileAnnotation]
		}
		if before == "other.yaml" && last == "oars.yaml" {
			break
		}
	}
	stop()
	// Of a run that was cut off.
	left := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "left", Labels: map[string]string{partOfLabel: setID}}}
	if _, err := d.admin.Kube.CoreV1().ConfigMaps("default").Create(t.Context(), left, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	stop = d.run()
	defer func() { stop() }()
	d.until("after=1")
	// A set that is made again has the kinds of the old one.
	d.write("account.yaml", "apiVersion: v1\nkind: ServiceAccount\nmetadata: {name: purser}\n")
	d.kinds("ConfigMap,CustomResourceDefinition.apiextensions.k8s.io,Oar.boat.example,ServiceAccount")
	accounts := d.admin.Kube.CoreV1().ServiceAccounts("default")
	seen, err := accounts.Watch(t.Context(), metav1.ListOptions{FieldSelector: "metadata.name=purser"})
	if err != nil {
		t.Fatal(err)
	}
	defer seen.Stop()
	if e := <-seen.ResultChan(); e.Type != watch.Added {
		t.Fatalf("%+v", e)
	}
	if err := d.admin.Kube.CoreV1().ConfigMaps(metav1.NamespaceSystem).Delete(t.Context(), parentName, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	d.write("secret.yaml", "apiVersion: v1\nkind: Secret\nmetadata: {name: log}\n")
	if err := os.Remove(filepath.Join(d.dir, "account.yaml")); err != nil {
		t.Fatal(err)
	}
	for e := range seen.ResultChan() {
		if e.Type == watch.Deleted {
			break
		}
	}
}

// A kind whose definition something else deletes leaves the set with its objects' file.
func TestKindDeletedByOthers(t *testing.T) {
	d := &directory{t: t, dir: t.TempDir(), admin: serve(t)}
	objects, err := dynamic.NewForConfig(d.admin.Config)
	if err != nil {
		t.Fatal(err)
	}
	definitions := objects.Resource(schema.GroupVersionResource{
		Group: definitionKind.Group, Version: "v1", Resource: "customresourcedefinitions",
	})
	// until waits for an event of a resource.
	until := func(of dynamic.ResourceInterface, want func(watch.Event) bool) {
		w, err := of.Watch(t.Context(), metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		defer w.Stop()
		for e := range w.ResultChan() {
			if want(e) {
				return
			}
		}
		t.Fatal("the watch ended")
	}
	definition, err := parse([]byte(oarDefinition))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := definitions.Create(t.Context(), definition[0], metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	until(definitions, func(e watch.Event) bool {
		return strings.Contains(fmt.Sprint(e.Object), "status:True type:Established")
	})
	d.write("oar.yaml", oar)
	stop := d.run()
	defer func() { stop() }()
	until(objects.Resource(oarResource), func(e watch.Event) bool { return e.Type == watch.Added })
	until(definitions, func(e watch.Event) bool {
		if e.Type == watch.Added { // it is there when the watch starts
			if err := definitions.Delete(t.Context(), "oars.boat.example", metav1.DeleteOptions{}); err != nil {
				t.Fatal(err)
			}
		}
		return e.Type == watch.Deleted
	})
	d.event("oar.yaml: Oar default/left: ")
	if err := os.Remove(filepath.Join(d.dir, "oar.yaml")); err != nil {
		t.Fatal(err)
	}
	d.kinds("")
}

// oarService registers an API server for the group of oars, which is at a port of this machine.
func (d *directory) oarService(port string) {
	d.t.Helper()
	objects, err := dynamic.NewForConfig(d.admin.Config)
	if err != nil {
		d.t.Fatal(err)
	}
	_, err = d.admin.Kube.CoreV1().Services("default").Create(d.t.Context(), &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: "boats"}, Spec: corev1.ServiceSpec{Type: corev1.ServiceTypeExternalName, ExternalName: "localhost"},
	}, metav1.CreateOptions{})
	if err != nil {
		d.t.Fatal(err)
	}
	service, err := parse([]byte("apiVersion: apiregistration.k8s.io/v1\nkind: APIService\nmetadata: {name: v1.boat.example}\n" +
		"spec: {group: boat.example, version: v1, groupPriorityMinimum: 1, versionPriority: 1, insecureSkipTLSVerify: true,\n" +
		"  service: {name: boats, namespace: default, port: " + port + "}}\n"))
	if err != nil {
		d.t.Fatal(err)
	}
	if _, err := objects.Resource(serviceResource).Create(d.t.Context(), service[0], metav1.CreateOptions{}); err != nil {
		d.t.Fatal(err)
	}
}

// leaveKinds has an earlier run of the set list kinds.
func (d *directory) leaveKinds(kinds string) {
	d.t.Helper()
	_, err := d.admin.Kube.CoreV1().ConfigMaps(metav1.NamespaceSystem).Create(d.t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{
		Name: parentName, Labels: map[string]string{idLabel: setID}, Annotations: map[string]string{kindsAnnotation: kinds},
	}}, metav1.CreateOptions{})
	if err != nil {
		d.t.Fatal(err)
	}
}

// A kind whose API server does not answer stays in the set, until nothing is registered for it.
func TestKindWithoutServer(t *testing.T) {
	d := &directory{t: t, dir: t.TempDir(), admin: serve(t)}
	d.oarService("9") // nothing listens there
	// An earlier run has applied an object of it, and another one whose file is gone since.
	d.leaveKinds("ConfigMap,Oar.boat.example")
	left := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "left", Labels: map[string]string{partOfLabel: setID}}}
	if _, err := d.admin.Kube.CoreV1().ConfigMaps("default").Create(t.Context(), left, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	d.write("a.yaml", configMap("one", "1"))
	stop := d.run()
	defer func() { stop() }()
	d.event("Oar.boat.example: its API server does not answer (APIService v1.boat.example)")
	d.until("one=1") // objects of other kinds are deleted meanwhile
	d.kinds("ConfigMap,Oar.boat.example")
	objects, err := dynamic.NewForConfig(d.admin.Config)
	if err != nil {
		t.Fatal(err)
	}
	if err := objects.Resource(serviceResource).Delete(t.Context(), "v1.boat.example", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	d.kinds("ConfigMap")
}

// Objects of a kind are deleted when its API server is back, though the mapper has not found out.
func TestKindWhoseServerIsBack(t *testing.T) {
	d := &directory{t: t, dir: t.TempDir(), admin: serve(t), unknown: map[objectKind]bool{{Group: "boat.example", Kind: "Oar"}: true}}
	const oars = "/apis/boat.example/v1/namespaces/default/oars/left"
	deleted := make(chan string, 1)
	boats := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		answer := `{"kind":"APIResourceList","apiVersion":"v1","groupVersion":"boat.example/v1","resources":[
			{"name":"oars","namespaced":true,"kind":"Oar","verbs":["list","delete"]},
			{"name":"oars/status","namespaced":true,"kind":"Oar","verbs":["get"]}]}`
		switch {
		case r.Method == http.MethodDelete:
			deleted <- r.URL.Path
			answer = `{"kind":"Status","apiVersion":"v1","status":"Success"}`
		case r.URL.Path == "/apis/boat.example/v1/oars":
			answer = `{"kind":"PartialObjectMetadataList","apiVersion":"meta.k8s.io/v1","metadata":{},"items":[
				{"metadata":{"name":"left","namespace":"default","uid":"1"}}]}`
		}
		_, _ = io.WriteString(w, answer)
	}))
	defer boats.Close()
	_, port, err := net.SplitHostPort(boats.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	d.oarService(port)
	d.leaveKinds("ConfigMap,Oar.boat.example")
	d.write("a.yaml", configMap("one", "1"))
	stop := d.run()
	defer func() { stop() }()
	d.kinds("ConfigMap")
	select {
	case path := <-deleted:
		if path != oars {
			t.Errorf("%s is deleted", path)
		}
	default:
		t.Error("the set forgets a kind that has an object")
	}
}

// Finalizers and owners of a file are put back, which an object's generation does not count.
func TestFinalizersAndOwnersAreKept(t *testing.T) {
	d := &directory{t: t, dir: t.TempDir(), admin: serve(t)}
	owner := "{apiVersion: v1, kind: ConfigMap, name: one, uid: u1, blockOwnerDeletion: true}"
	d.write("oars.yaml", oarDefinition+"---\n"+strings.Replace(oar, "name: left,",
		"name: left, finalizers: [boat.example/log], ownerReferences: ["+owner+"],", 1))
	stop := d.run()
	defer func() { stop() }()
	d.kinds("CustomResourceDefinition.apiextensions.k8s.io,Oar.boat.example")
	objects, err := dynamic.NewForConfig(d.admin.Config)
	if err != nil {
		t.Fatal(err)
	}
	oars := objects.Resource(oarResource).Namespace("default")
	w, err := oars.Watch(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	whole := func(o metav1.Object) bool {
		owners := o.GetOwnerReferences()
		return len(o.GetFinalizers()) == 1 && len(owners) == 1 && owners[0].BlockOwnerDeletion != nil
	}
	changes := []string{
		`{"finalizers":null}`, `{"ownerReferences":null}`,
		`{"ownerReferences":[{"apiVersion":"v1","kind":"ConfigMap","name":"one","uid":"u1"}]}`,
	}
	for e := range w.ResultChan() {
		o, err := meta.Accessor(e.Object)
		if err != nil || !whole(o) {
			continue
		}
		if len(changes) == 0 {
			return
		}
		if _, err := oars.Patch(t.Context(), "left", types.MergePatchType, []byte(`{"metadata":`+changes[0]+`}`), metav1.PatchOptions{}); err != nil {
			t.Fatal(err)
		}
		changes = changes[1:]
	}
	t.Fatal("the watch ended")
}
