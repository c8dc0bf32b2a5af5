package cri

import (
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// The Stream methods give what the List methods of the same theme give, in pages
// (KEP 5825): a node's pods need not fit into one message. What is listed is one view
// taken at the beginning, so that nothing is in two pages and nothing is left out.

// pageBytes is about how large a page is: large enough that few are needed, small
// enough that gRPC's flow control window takes one without waiting.
const pageBytes = 64 << 10

// inPages sends messages in pages of one at least; no message, no page.
func inPages[T proto.Message](items []T, send func(page []T) error) error {
	return inPagesOf(items, func(item T) int { return proto.Size(item) }, send)
}

// inEncodedPages is inPages for encoded items.
func inEncodedPages(items [][]byte, out grpc.ServerStream) error {
	return inPagesOf(items, func(item []byte) int { return len(item) }, func(page [][]byte) error { return out.SendMsg(encodedList(page)) })
}

func inPagesOf[T any](items []T, bytes func(T) int, send func(page []T) error) error {
	begin, size := 0, 0
	for i, item := range items {
		n := bytes(item)
		if i > begin && size+n > pageBytes {
			if err := send(items[begin:i]); err != nil {
				return err
			}
			begin, size = i, 0
		}
		size += n
	}
	if begin == len(items) {
		return nil
	}
	return send(items[begin:])
}

// StreamPodSandboxes is ListPodSandbox in pages.
func (s *service) StreamPodSandboxes(r *runtimeapi.StreamPodSandboxesRequest,
	out grpc.ServerStreamingServer[runtimeapi.StreamPodSandboxesResponse],
) error {
	items, err := s.podItems(r.GetFilter())
	if err != nil {
		return err
	}
	return inEncodedPages(items, out)
}

// StreamContainers is ListContainers in pages.
func (s *service) StreamContainers(r *runtimeapi.StreamContainersRequest,
	out grpc.ServerStreamingServer[runtimeapi.StreamContainersResponse],
) error {
	items, err := s.containerItems(r.GetFilter())
	if err != nil {
		return err
	}
	return inEncodedPages(items, out)
}

// StreamImages is ListImages in pages.
func (s *service) StreamImages(r *runtimeapi.StreamImagesRequest, out grpc.ServerStreamingServer[runtimeapi.StreamImagesResponse]) error {
	items, err := s.imageItems(r.GetFilter())
	if err != nil {
		return err
	}
	return inPages(items, func(page []*runtimeapi.Image) error {
		return out.Send(&runtimeapi.StreamImagesResponse{Images: page})
	})
}

// StreamContainerStats is ListContainerStats in pages.
func (s *service) StreamContainerStats(r *runtimeapi.StreamContainerStatsRequest,
	out grpc.ServerStreamingServer[runtimeapi.StreamContainerStatsResponse],
) error {
	return inPages(s.containerStatsItems(out.Context(), r.GetFilter()), func(page []*runtimeapi.ContainerStats) error {
		return out.Send(&runtimeapi.StreamContainerStatsResponse{ContainerStats: page})
	})
}

// StreamPodSandboxStats is ListPodSandboxStats in pages.
func (s *service) StreamPodSandboxStats(r *runtimeapi.StreamPodSandboxStatsRequest,
	out grpc.ServerStreamingServer[runtimeapi.StreamPodSandboxStatsResponse],
) error {
	return inPages(s.podStatsItems(out.Context(), r.GetFilter()), func(page []*runtimeapi.PodSandboxStats) error {
		return out.Send(&runtimeapi.StreamPodSandboxStatsResponse{PodSandboxStats: page})
	})
}

// StreamPodSandboxMetrics is ListPodSandboxMetrics in pages.
func (s *service) StreamPodSandboxMetrics(_ *runtimeapi.StreamPodSandboxMetricsRequest,
	out grpc.ServerStreamingServer[runtimeapi.StreamPodSandboxMetricsResponse],
) error {
	return inPages(s.metricsItems(out.Context()), func(page []*runtimeapi.PodSandboxMetrics) error {
		return out.Send(&runtimeapi.StreamPodSandboxMetricsResponse{PodSandboxMetrics: page})
	})
}
