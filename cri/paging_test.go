package cri

import (
	"errors"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/coracle-project/coracle/image"
	"github.com/coracle-project/coracle/pod"
)

func prefixes(texts ...string) []netip.Prefix {
	var out []netip.Prefix
	for _, s := range texts {
		out = append(out, netip.MustParsePrefix(s))
	}
	return out
}

func samePrefix(a, b netip.Prefix) bool { return a == b }

func TestPages(t *testing.T) {
	item := func(size int) *runtimeapi.PodSandbox { return &runtimeapi.PodSandbox{Id: strings.Repeat("x", size)} }
	for name, c := range map[string]struct {
		sizes []int
		want  []int // items in each page
	}{
		"none":                   {nil, nil},
		"one":                    {[]int{1}, []int{1}},
		"all in one":             {[]int{1, 2, 3}, []int{3}},
		"one too large":          {[]int{1, 2 * pageBytes, 1}, []int{1, 1, 1}},
		"as many as there is to": {[]int{pageBytes / 2, pageBytes / 3, pageBytes / 2, 1}, []int{2, 2}},
	} {
		t.Run(name, func(t *testing.T) {
			var items []*runtimeapi.PodSandbox
			for _, size := range c.sizes {
				items = append(items, item(size))
			}
			var got []int
			err := inPages(items, func(page []*runtimeapi.PodSandbox) error {
				got = append(got, len(page))
				return nil
			})
			if err != nil || !slices.Equal(got, c.want) {
				t.Errorf("%v, %v, want %v", got, err, c.want)
			}
		})
	}
	gone := errors.New("gone")
	calls := 0
	err := inPages([]*runtimeapi.PodSandbox{item(pageBytes), item(pageBytes)}, func([]*runtimeapi.PodSandbox) error {
		calls++
		return gone
	})
	if !errors.Is(err, gone) || calls != 1 {
		t.Errorf("%v after %d pages", err, calls)
	}
}

// all reads a stream to its end.
func all[M, T any](t *testing.T, stream grpc.ServerStreamingClient[M], err error, of func(*M) []T) (items []T, pages int) {
	t.Helper()
	for err == nil {
		var page *M
		if page, err = stream.Recv(); err == nil {
			items, pages = append(items, of(page)...), pages+1
			if len(of(page)) == 0 {
				t.Error("an empty page")
			}
		}
	}
	if !errors.Is(err, io.EOF) {
		t.Fatal(err)
	}
	return items, pages
}

// TestStreamsGiveWhatListsGive has more of everything than fits into a page.
func TestStreamsGiveWhatListsGive(t *testing.T) {
	d := &double{}
	long := strings.Repeat("y", 200)
	for i := range 500 {
		c := aContainer()
		c.ID = fmt.Sprintf("c%04d", i)
		c.Config.Labels = map[string]string{"long": long}
		d.containers = append(d.containers, c)
		p := aMeasuredPod()
		p.ID = fmt.Sprintf("p%04d", i)
		p.Config.Labels = c.Config.Labels
		d.pods = append(d.pods, p)
		st := someStats()
		st.ID = c.ID
		d.stats = append(d.stats, st)
		ps := somePodStats()
		ps.ID, ps.Containers = p.ID, nil
		d.podStats = append(d.podStats, ps)
		d.images = append(d.images, image.Image{RepoTags: []string{fmt.Sprintf("image%d:%s", i, long)}})
	}
	e := serve(t, d)
	ctx := t.Context()

	pods, err := e.runtime.StreamPodSandboxes(ctx, &runtimeapi.StreamPodSandboxesRequest{})
	gotPods, pages := all(t, pods, err, (*runtimeapi.StreamPodSandboxesResponse).GetPodSandboxes)
	wantPods, err := e.runtime.ListPodSandbox(ctx, &runtimeapi.ListPodSandboxRequest{})
	same(t, "pods", gotPods, wantPods.GetItems(), err, pages)

	containers, err := e.runtime.StreamContainers(ctx, &runtimeapi.StreamContainersRequest{})
	gotContainers, pages := all(t, containers, err, (*runtimeapi.StreamContainersResponse).GetContainers)
	wantContainers, err := e.runtime.ListContainers(ctx, &runtimeapi.ListContainersRequest{})
	same(t, "containers", gotContainers, wantContainers.GetContainers(), err, pages)

	images, err := e.image.StreamImages(ctx, &runtimeapi.StreamImagesRequest{})
	gotImages, pages := all(t, images, err, (*runtimeapi.StreamImagesResponse).GetImages)
	wantImages, err := e.image.ListImages(ctx, &runtimeapi.ListImagesRequest{})
	same(t, "images", gotImages, wantImages.GetImages(), err, pages)

	stats, err := e.runtime.StreamContainerStats(ctx, &runtimeapi.StreamContainerStatsRequest{})
	gotStats, pages := all(t, stats, err, (*runtimeapi.StreamContainerStatsResponse).GetContainerStats)
	wantStats, err := e.runtime.ListContainerStats(ctx, &runtimeapi.ListContainerStatsRequest{})
	same(t, "container stats", gotStats, wantStats.GetStats(), err, pages)

	podStats, err := e.runtime.StreamPodSandboxStats(ctx, &runtimeapi.StreamPodSandboxStatsRequest{})
	gotPodStats, pages := all(t, podStats, err, (*runtimeapi.StreamPodSandboxStatsResponse).GetPodSandboxStats)
	wantPodStats, err := e.runtime.ListPodSandboxStats(ctx, &runtimeapi.ListPodSandboxStatsRequest{})
	same(t, "pod stats", gotPodStats, wantPodStats.GetStats(), err, pages)

	metrics, err := e.runtime.StreamPodSandboxMetrics(ctx, &runtimeapi.StreamPodSandboxMetricsRequest{})
	gotMetrics, pages := all(t, metrics, err, (*runtimeapi.StreamPodSandboxMetricsResponse).GetPodSandboxMetrics)
	wantMetrics, err := e.runtime.ListPodSandboxMetrics(ctx, &runtimeapi.ListPodSandboxMetricsRequest{})
	same(t, "metrics", gotMetrics, wantMetrics.GetPodMetrics(), err, pages)
}

func same[T proto.Message](t *testing.T, what string, got, want []T, err error, pages int) {
	t.Helper()
	if err != nil {
		t.Errorf("%s: %v", what, err)
	}
	if pages < 2 {
		t.Errorf("%s came in %d pages", what, pages)
	}
	if !slices.EqualFunc(got, want, func(a, b T) bool { return proto.Equal(a, b) }) {
		t.Errorf("%s: %d streamed differ from %d listed", what, len(got), len(want))
	}
}

// TestStreamsFilter sees that filters are passed on.
func TestStreamsFilter(t *testing.T) {
	e := serve(t, &double{})
	stream, err := e.runtime.StreamContainers(t.Context(), &runtimeapi.StreamContainersRequest{
		Filter: &runtimeapi.ContainerFilter{Id: "c", LabelSelector: map[string]string{"a": "b"}},
	})
	items, pages := all(t, stream, err, (*runtimeapi.StreamContainersResponse).GetContainers)
	if len(items) != 0 || pages != 0 {
		t.Errorf("%d items in %d pages", len(items), pages)
	}
	got := e.last(t).args[0].(pod.ContainerFilter)
	if got.ID != "c" || got.Labels["a"] != "b" {
		t.Errorf("%+v", got)
	}
}
