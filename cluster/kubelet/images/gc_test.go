package images

import (
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/record"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/coracle-project/coracle/cluster/kubelet/cri/critest"
)

func collector(f *critest.Fake, free int64) *Collector {
	g := NewCollector(f.Client(), nil, DefaultGCPolicy, record.NewFakeRecorder(10), &v1.ObjectReference{}, slog.New(slog.DiscardHandler))
	g.disk = func(string) (int64, int64, error) { return 100 << 20, free, nil }
	return g
}

func left(t *testing.T, f *critest.Fake) string {
	t.Helper()
	resp, err := f.ListImages(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, i := range resp.Images {
		names = append(names, i.Id)
	}
	return strings.Join(names, " ")
}

func TestImagesInUseAndThoseOfAFreeDiskStay(t *testing.T) {
	f := critest.New("a", "b", "used")
	if _, err := f.CreateContainer(t.Context(), &runtimeapi.CreateContainerRequest{Config: &runtimeapi.ContainerConfig{
		Metadata: &runtimeapi.ContainerMetadata{}, Image: &runtimeapi.ImageSpec{Image: "used"},
	}}); err != nil {
		t.Fatal(err)
	}
	if err := collector(f, 50<<20).Collect(t.Context()); err != nil || left(t, f) != "a b used" {
		t.Errorf("a disk that is half full: %v, left %q", err, left(t, f))
	}
	g := collector(f, 1<<20)
	if err := g.Collect(t.Context()); err == nil || left(t, f) != "a b used" {
		t.Errorf("images that have just come: %v, left %q", err, left(t, f))
	}
	for _, u := range g.seen {
		u.first = u.first.Add(-time.Hour)
	}
	err := g.Collect(t.Context())
	if err == nil || left(t, f) != "used" {
		t.Errorf("a full disk: %v, left %q", err, left(t, f))
	}
	const want = "Failed to garbage collect required amount of images. Attempted to free 19922944 bytes, but only found 2097152 bytes " +
		"eligible to free."
	if err.Error() != want {
		t.Errorf("error %q", err)
	}
}

func TestTheLongestUnusedImageGoesFirst(t *testing.T) {
	f := critest.New("a", "b", "c")
	g := collector(f, 15<<20) // 85 % used: 5 MiB too many, which is more than all images
	if err := g.Collect(t.Context()); err == nil {
		t.Error("nothing is old enough to go")
	}
	now := time.Now()
	for id, ago := range map[string]time.Duration{"a": time.Hour, "b": 3 * time.Hour, "c": 2 * time.Hour} {
		g.seen[id].first, g.seen[id].last = now.Add(-24*time.Hour), now.Add(-ago)
	}
	unused, err := g.detect(t.Context(), now)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := g.free(t.Context(), unused, 2<<20, now); err != nil {
		t.Fatal(err)
	}
	if got := left(t, f); got != "a" {
		t.Errorf("left %q", got)
	}
}

// The image that has been unused for longest cannot be removed: it is the first to be tried, each
// time.
func TestAnImageThatCannotBeRemovedKeepsNoOther(t *testing.T) {
	for name, broken := range map[string]error{"fails": pullError("device busy"), "hangs": nil} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := critest.New("a", "b", "c")
				removal := f.OnRemoveImage("a", broken)
				defer removal.Release()
				g := collector(f, 18<<20) // 82 % used: 2 MiB too many
				g.policy.HighPercent = 82
				if err := g.Collect(t.Context()); err == nil {
					t.Error("nothing is old enough to go")
				}
				now := time.Now()
				for id, ago := range map[string]time.Duration{"a": 3 * time.Hour, "b": 2 * time.Hour, "c": time.Hour} {
					g.seen[id].first, g.seen[id].last = now.Add(-24*time.Hour), now.Add(-ago)
				}
				err := g.Collect(t.Context())
				if removal.Tried() != 1 {
					t.Fatalf("the broken image was tried %d times", removal.Tried())
				}
				if broken == nil {
					// The runtime may hang for all: nothing else was asked of it.
					if got := left(t, f); got != "a b c" || err == nil || !strings.Contains(err.Error(), "remove image a: ") {
						t.Errorf("left %q, error %v", got, err)
					}
					// Next time others come first.
					if err := g.Collect(t.Context()); err != nil || left(t, f) != "a" || removal.Tried() != 1 {
						t.Errorf("the next time: %v, left %q, the broken image was tried %d times", err, left(t, f), removal.Tried())
					}
					return
				}
				if got := left(t, f); got != "a" {
					t.Errorf("left %q", got)
				}
				if err == nil || !strings.Contains(err.Error(), "remove image a: ") || strings.Contains(err.Error(), "required amount") {
					t.Errorf("error %v", err)
				}
			})
		})
	}
}

// Regression: a runtime that hung had evictions wait two minutes for each image.
func TestARuntimeThatHangsIsAskedOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := critest.New("a", "b", "c")
		tried := 0
		var removals []*critest.Removal
		for _, image := range []string{"a", "b", "c"} {
			r := f.OnRemoveImage(image, nil)
			defer r.Release()
			removals = append(removals, r)
		}
		g := collector(f, 1<<20)
		g.policy.MinAge = 0
		start := time.Now()
		if err := g.RemoveUnused(t.Context()); err == nil {
			t.Error("no error")
		}
		if took := time.Since(start); took > removeTimeout {
			t.Errorf("it took %s, with a time limit of %s for an image", took, removeTimeout)
		}
		for _, r := range removals {
			tried += int(r.Tried())
		}
		if tried != 1 {
			t.Errorf("%d images were tried", tried)
		}
	})
}

func TestAMountedImageStays(t *testing.T) {
	f := critest.New("unused", "volume")
	g := collector(f, 1<<20)
	g.policy.MinAge = 0
	g.Mounted = func() []string { return []string{"volume"} }
	if err := g.RemoveUnused(t.Context()); err != nil || left(t, f) != "volume" {
		t.Errorf("%v, left %q", err, left(t, f))
	}
}

func TestRemoveUnusedSparesTheYoungOnly(t *testing.T) {
	f := critest.New("old", "young")
	g := collector(f, 90<<20) // however free the disk is
	if err := g.RemoveUnused(t.Context()); err != nil || left(t, f) != "old young" {
		t.Errorf("%v, left %q", err, left(t, f))
	}
	g.seen["old"].first = time.Now().Add(-time.Hour)
	if err := g.RemoveUnused(t.Context()); err != nil || left(t, f) != "young" {
		t.Errorf("%v, left %q", err, left(t, f))
	}
}

// The end of a back-off is read from the image manager's by a key that is its own business: this
// test says when it changes.
func TestAFailedPullIsHeldBack(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		f := critest.New()
		f.Fail("PullImage", errNoPull)
		p, err := NewPuller(f.Client(), record.NewFakeRecorder(100), nil, dir, slog.New(slog.DiscardHandler))
		if err != nil {
			t.Fatal(err)
		}
		pod := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p", Namespace: "ns", UID: "u"}}
		pod.Spec.Containers = []v1.Container{{Name: "c", Image: "x:1", ImagePullPolicy: v1.PullAlways}}
		ensure := func() *Failure {
			_, err := p.Ensure(t.Context(), pod, &pod.Spec.Containers[0], &runtimeapi.PodSandboxConfig{Metadata: &runtimeapi.PodSandboxMetadata{}},
				"")
			failure, ok := err.(*Failure)
			if !ok {
				t.Fatalf("error %v", err)
			}
			return failure
		}
		if got := ensure(); got.Reason != "ErrImagePull" || got.Message != errNoPull.Error() || time.Until(got.Until) > backOffTold {
			t.Errorf("%+v", got)
		}
		if got := ensure(); got.Reason != "ImagePullBackOff" || time.Until(got.Until) != 10*time.Second+50*time.Millisecond {
			t.Errorf("%+v: until in %v", got, time.Until(got.Until))
		}
	})
}

type pullError string

func (e pullError) Error() string { return string(e) }

const errNoPull = pullError("no such image")
