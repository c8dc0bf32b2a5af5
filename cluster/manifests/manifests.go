// Package manifests applies the manifests in a directory of this machine to the cluster, and keeps
// them applied: a changed file is applied again, an object that something else changes or deletes
// is put back, and objects whose file or document is gone are deleted.
//
// All objects of the directory are one set in the sense of kubectl's apply sets: the ConfigMap
// kube-system/coracle-manifests-NODE is the set's parent, and lists the kinds in it. Each object
// has the set's label, and an annotation with the name of its file. So a restart finds what an
// earlier process has applied, also if it was killed between two steps:
//
//	the parent lists the new kinds -> objects are applied -> old ones are deleted -> the parent drops kinds
//
// A file with an error changes nothing, nor does a file that is open for writing. While there is
// one, nothing is deleted: the objects of other files may have moved to it. A directory that does
// not exist is no empty one: what was applied from it stays.
package manifests

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/tools/record"

	"github.com/coracle-project/coracle/cluster/controllers/frame"
	"github.com/coracle-project/coracle/cluster/health"
)

// Options are what a Set needs. All but Health are required.
type Options struct {
	// Dir has the manifests: files *.yaml, *.yml and *.json. It may be missing.
	Dir string
	// Node is this node. An object belongs to the node that has applied it first.
	Node     string
	Kube     kubernetes.Interface
	Dynamic  dynamic.Interface
	Metadata metadata.Interface
	Mapper   meta.ResettableRESTMapper
	Events   record.EventRecorder
	Health   *health.Part
	// Log gets which manifests are not applied; nil discards it.
	Log *slog.Logger
}

// Set is the objects of a directory.
type Set struct {
	Options
	frame *frame.Controller
	// told is what was logged and recorded last, by file. Only the worker uses it, and what follows
	// down to kinds.
	told map[string]string
	// pause is the time until the next try after a failure, writing that while a file is being
	// written.
	pause, writing time.Duration
	// known are the objects when others were deleted last: while they are the same, nothing is to be
	// deleted.
	known map[objectKey]bool
	// wanted are the objects of the files since a time. After settle others are deleted: an editor, or
	// git, may remove a file and then write the new one.
	wanted map[objectKey]bool
	since  time.Time
	settle time.Duration
	// id is the set's, parentName its parent's.
	id, parentName string
	parent         *corev1.ConfigMap
	// names are the kinds that the parent listed last: if something else deletes it, they are listed
	// again.
	names string
	kinds map[objectKind]*kindWatch

	mu sync.Mutex
	// applied is what the API server has made of each object.
	applied map[objectKey]version
	// applying is the object that is being applied. Meanwhile its watch has told last of the version
	// seen, or of its deletion.
	applying objectKey
	seen     string
	deleted  bool
}

// version is an object as it was applied.
type version struct {
	digest          string // of what the file says
	uid             string
	generation      int64
	resourceVersion string
	// The generation does not count changes of these: they are those that the file has.
	labels, annotations, finalizers, owners map[string]string
}

// versionOf returns the version of an object that the API server has answered with.
func versionOf(o *object, now metav1.Object) version {
	return version{
		digest: o.digest, uid: string(now.GetUID()), generation: now.GetGeneration(), resourceVersion: now.GetResourceVersion(),
		labels: those(o.content.GetLabels(), now.GetLabels()), annotations: those(o.content.GetAnnotations(), now.GetAnnotations()),
		finalizers: those(finalizersOf(o.content), finalizersOf(now)), owners: those(ownersOf(o.content), ownersOf(now)),
	}
}

// finalizersOf has a key for each finalizer.
func finalizersOf(o metav1.Object) map[string]string {
	all := map[string]string{}
	for _, name := range o.GetFinalizers() {
		all[name] = ""
	}
	return all
}

// ownersOf are the references to owners by UID, which is their key for the API server.
func ownersOf(o metav1.Object) map[string]string {
	all := map[string]string{}
	for _, r := range o.GetOwnerReferences() {
		all[string(r.UID)] = r.String()
	}
	return all
}

// those returns the entries of all whose keys some has.
func those(some, all map[string]string) map[string]string {
	of := map[string]string{}
	for key := range some {
		if value, ok := all[key]; ok {
			of[key] = value
		}
	}
	return of
}

// same tells whether an object is as it was applied, in all that the file can say of it.
func (v version) same(now metav1.Object) bool {
	switch {
	case string(now.GetUID()) != v.uid || now.GetDeletionTimestamp() != nil:
		return false
	case v.generation == 0:
		return now.GetResourceVersion() == v.resourceVersion
	}
	return now.GetGeneration() == v.generation && maps.Equal(those(v.labels, now.GetLabels()), v.labels) &&
		maps.Equal(those(v.annotations, now.GetAnnotations()), v.annotations) &&
		maps.Equal(those(v.finalizers, finalizersOf(now)), v.finalizers) && maps.Equal(those(v.owners, ownersOf(now)), v.owners)
}

const (
	everything   = "manifests" // the only key: objects move between files
	firstPause   = time.Second
	longestPause = 5 * time.Minute
	settle       = time.Second
	// A close is reported before the file counts as closed: the first try may come too early.
	firstWriting   = 10 * time.Millisecond
	longestWriting = time.Second
	eventReason    = "ManifestFailed"
)

// New returns a set that does nothing before Run.
func New(o Options) *Set {
	o.Log = cmp.Or(o.Log, slog.New(slog.DiscardHandler))
	s := &Set{Options: o, told: map[string]string{}, applied: map[objectKey]version{}, kinds: map[objectKind]*kindWatch{}, settle: settle}
	s.parentName = parentOf(o.Node)
	s.id = idOf(s.parentName)
	s.frame = frame.New("manifests", 1, o.Log, s.sync)
	s.frame.Also(s.follow)
	return s
}

// Run keeps the manifests applied until ctx ends.
func (s *Set) Run(ctx context.Context) error {
	defer s.endWatches()
	s.frame.Run(ctx)
	return nil
}

// again queues a comparison of the directory with the cluster.
func (s *Set) again() { s.frame.Add(everything) }

// sync makes the cluster have what the directory says.
func (s *Set) sync(ctx context.Context, _ string) error {
	files, err := read(s.Dir)
	if err != nil {
		failed := map[string]error{s.Dir: err}
		s.tell(ctx, failed)
		s.tryAgain(failed)
		return nil
	}
	if files == nil {
		s.tell(ctx, nil)
		s.Health.Works("no directory " + s.Dir)
		return nil
	}
	failed := map[string]error{}
	objects := s.resolve(files, failed)
	if err := s.apply(ctx, objects, failed); err != nil {
		failed[s.Dir] = err
	}
	if ctx.Err() != nil {
		return nil
	}
	s.tell(ctx, failed)
	s.tryAgain(failed)
	if len(failed) == 0 {
		s.Health.Works(fmt.Sprintf("applied: %s of %s in %s", health.Count(len(objects), "object"), health.Count(len(files), "file"), s.Dir))
	}
	return nil
}

// tryAgain has the directory compared again later, if something failed.
func (s *Set) tryAgain(failed map[string]error) {
	wrong, writing := 0, 0
	for _, err := range failed {
		if errors.Is(err, errWriting) {
			writing++
		} else {
			wrong++
		}
	}
	s.after(wrong, &s.pause, firstPause, longestPause)
	s.after(writing, &s.writing, firstWriting, longestWriting)
}

// after has the directory compared again after a pause that doubles, unless failures is 0.
func (s *Set) after(failures int, pause *time.Duration, first, longest time.Duration) {
	if failures == 0 {
		*pause = 0
		return
	}
	*pause = min(max(2**pause, first), longest)
	s.frame.AddAfter(everything, *pause)
}

// resolve finds the resource of each object. Errors go to failed, by file. A file with an error has
// no objects, unless kinds are missing that manifests define: the rest is applied then.
func (s *Set) resolve(files map[string]file, failed map[string]error) map[objectKey]*object {
	objects := map[objectKey]*object{}
	defined := definedGroups(files)
	for _, name := range slices.Sorted(maps.Keys(files)) {
		f := files[name]
		own := map[objectKey]*object{}
		err := f.err
		var undefined error
		for k := 0; err == nil && k < len(f.objects); k++ {
			o, oerr := s.newObject(name, k, f.objects[k])
			switch {
			case meta.IsNoMatchError(oerr) && defined[f.objects[k].GroupVersionKind().Group]:
				undefined = oerr
			case oerr != nil:
				err = oerr
			case objects[o.key] != nil:
				err = fmt.Errorf("%s is also in %s", o.key, objects[o.key].file)
			case own[o.key] != nil:
				err = fmt.Errorf("%s is in it twice", o.key)
			default:
				own[o.key] = o
			}
		}
		if err == nil {
			maps.Copy(objects, own)
			err = undefined
		}
		if err != nil {
			failed[name] = err
		}
	}
	return objects
}

// definedGroups are the API groups for which manifests define kinds.
func definedGroups(files map[string]file) map[string]bool {
	groups := map[string]bool{}
	for _, f := range files {
		for _, o := range f.objects {
			if o.GroupVersionKind().GroupKind() == definitionKind {
				group, _, _ := unstructured.NestedString(o.Object, "spec", "group")
				groups[group] = true
			}
		}
	}
	return groups
}

// apply applies objects, and deletes those that were applied once and are in no file any more.
func (s *Set) apply(ctx context.Context, objects map[objectKey]*object, failed map[string]error) error {
	unknown := len(failed) > 0 // what some file says
	if err := s.openParent(ctx, len(objects) > 0 || len(failed) > 0 || s.names != ""); err != nil || s.parent == nil {
		return err
	}
	wanted := map[objectKind]bool{}
	for _, o := range objects {
		wanted[o.kind()] = true
	}
	if err := s.listKinds(ctx, wanted, false); err != nil {
		return err
	}
	if err := s.watch(ctx, objects); err != nil {
		return err
	}
	for _, o := range inOrder(objects) {
		if err := s.applyOne(ctx, o); err != nil {
			failed[o.file] = errors.Join(failed[o.file], err)
		}
	}
	keys := map[objectKey]bool{}
	for key := range objects {
		keys[key] = true
	}
	if unknown {
		s.known, s.wanted = nil, nil // what is applied meanwhile may have to be deleted
		return nil
	}
	if same(keys, s.known) {
		return nil
	}
	if !same(keys, s.wanted) {
		s.known, s.wanted, s.since = nil, keys, time.Now()
	}
	if left := s.settle - time.Since(s.since); left > 0 {
		s.frame.AddAfter(everything, left)
		return nil
	}
	if err := s.prune(ctx, keys); err != nil {
		return err
	}
	s.known = keys
	return s.listKinds(ctx, wanted, true)
}

// same tells whether keys are those of before, which is nil if that is not known.
func same(keys, before map[objectKey]bool) bool { return before != nil && maps.Equal(keys, before) }

// inOrder returns objects in the order in which files and documents have them, definitions of kinds
// and namespaces first.
func inOrder(objects map[objectKey]*object) []*object {
	return slices.SortedFunc(maps.Values(objects), func(a, b *object) int {
		if a.rank != b.rank {
			return a.rank - b.rank
		}
		if a.file != b.file {
			return strings.Compare(a.file, b.file)
		}
		return a.place - b.place
	})
}

// tell writes an event and a line of the log for each file whose error is another than last time,
// and has status show the first of them.
func (s *Set) tell(ctx context.Context, failed map[string]error) {
	// Events are of the parent. Without it the errors are told again.
	known := len(failed) == 0 || s.openParent(ctx, true) == nil
	now := map[string]string{}
	var first error
	for _, name := range slices.Sorted(maps.Keys(failed)) {
		now[name] = oneLine(failed[name])
		if first == nil {
			first = fmt.Errorf("%s: %s", name, now[name])
		}
		if now[name] == s.told[name] || errors.Is(failed[name], errWriting) {
			continue
		}
		s.Log.Warn("a manifest is not applied", "file", name, "err", now[name])
		if known {
			s.Events.Eventf(s.parent, corev1.EventTypeWarning, eventReason, "%s: %s", name, now[name])
		}
	}
	if s.told = now; !known {
		s.told = nil
	}
	switch {
	case first == nil:
	case len(failed) > 1:
		s.Health.Fails(fmt.Errorf("%w (and %d more files)", first, len(failed)-1))
	default:
		s.Health.Fails(first)
	}
}

func oneLine(err error) string { return strings.Join(strings.Fields(err.Error()), " ") }

// changed is called for each event of an object with the set's label.
func (s *Set) changed(key objectKey, now metav1.Object, gone bool) {
	s.mu.Lock()
	was, ok := s.applied[key]
	if key == s.applying {
		s.seen = now.GetResourceVersion()
		s.deleted = s.deleted || gone
	}
	same := ok && !gone && was.same(now)
	if ok && !same {
		delete(s.applied, key)
	}
	s.mu.Unlock()
	if ok && !same {
		s.again()
	}
}
