package cri

import (
	"context"
	"slices"

	"google.golang.org/grpc"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/encoding/proto"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
	protobuf "google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// A kubelet asks for all pods and containers once a second, and few of them have changed since. So
// each is encoded once for each state that it is in (pod.Manager keeps the bytes), and a list is
// put together from these: a third of the time that encoding a thousand containers took, and next
// to no garbage.

// encodedList is an answer that is a list, such as ListContainersResponse: its items as encodeItem
// makes them.
type encodedList [][]byte

// itemsField is the number of the only field that such answers have (a test sees to that).
const itemsField = 1

// encodeItem is an item as an answer has it.
func encodeItem(item protobuf.Message) ([]byte, error) {
	b, err := protobuf.Marshal(item)
	if err != nil {
		return nil, err
	}
	tagged := make([]byte, 0, protowire.SizeTag(itemsField)+protowire.SizeBytes(len(b)))
	return protowire.AppendBytes(protowire.AppendTag(tagged, itemsField, protowire.BytesType), b), nil
}

// codec is gRPC's own, and knows lists that are encoded already.
type codec struct{ encoding.CodecV2 }

func newCodec() codec { return codec{encoding.GetCodecV2(proto.Name)} }

func (c codec) Marshal(v any) (mem.BufferSlice, error) {
	items, ok := v.(encodedList)
	if !ok {
		return c.CodecV2.Marshal(v)
	}
	size := 0
	for _, item := range items {
		size += len(item)
	}
	pool := mem.DefaultBufferPool()
	buf := pool.Get(size)
	to := (*buf)[:0]
	for _, item := range items {
		to = append(to, item...)
	}
	return mem.BufferSlice{mem.NewBuffer(buf, pool)}, nil
}

// runtimeService is CRI's description of the service, but for the methods whose answers are encoded
// lists: the generated ones can only return messages.
func runtimeService() *grpc.ServiceDesc {
	d := runtimeapi.RuntimeService_ServiceDesc
	d.Methods = slices.Clone(d.Methods)
	for i, m := range d.Methods {
		switch m.MethodName {
		case "ListPodSandbox":
			d.Methods[i].Handler = listMethod(runtimeapi.RuntimeService_ListPodSandbox_FullMethodName, (*service).listPods)
		case "ListContainers":
			d.Methods[i].Handler = listMethod(runtimeapi.RuntimeService_ListContainers_FullMethodName, (*service).listContainers)
		}
	}
	return &d
}

// listMethod is what would be generated for a method that returned an encodedList.
func listMethod[R any](name string, list func(*service, *R) (encodedList, error)) grpc.MethodHandler {
	return func(srv any, ctx context.Context, decode func(any) error, intercept grpc.UnaryServerInterceptor) (any, error) {
		r := new(R)
		if err := decode(r); err != nil {
			return nil, err
		}
		answer := func(_ context.Context, r any) (any, error) { return list(srv.(*service), r.(*R)) }
		if intercept == nil {
			return answer(ctx, r)
		}
		return intercept(ctx, r, &grpc.UnaryServerInfo{Server: srv, FullMethod: name}, answer)
	}
}
