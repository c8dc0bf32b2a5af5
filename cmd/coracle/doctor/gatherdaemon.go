package doctor

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/distribution/reference"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// patience bounds each question to someone else.
const patience = 5 * time.Second

// askDaemon also returns the registries that the daemon's images came from.
func askDaemon(ctx context.Context, socket string) (d Daemon, registries []string) {
	d = Daemon{Socket: socket, Exists: exists(socket)}
	if !d.Exists {
		return d, nil
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	fail := func(err error) (Daemon, []string) {
		d.Err = status.Convert(err).Message()
		return d, registries
	}
	conn, err := grpc.NewClient("unix:"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return fail(err)
	}
	defer func() { _ = conn.Close() }()
	runtime := runtimeapi.NewRuntimeServiceClient(conn)
	v, err := runtime.Version(ctx, &runtimeapi.VersionRequest{})
	if err != nil {
		return fail(err)
	}
	s, err := runtime.Status(ctx, &runtimeapi.StatusRequest{Verbose: true})
	if err != nil {
		return fail(err)
	}
	for _, c := range s.GetStatus().GetConditions() {
		if !c.GetStatus() {
			d.Conditions = append(d.Conditions, fmt.Sprintf("%s: %s: %s", c.GetType(), c.GetReason(), c.GetMessage()))
		}
	}
	if list, ok := s.GetInfo()["unmanaged"]; ok { // older daemons do not report it
		if err := json.Unmarshal([]byte(list), &d.Unmanaged); err != nil {
			return fail(fmt.Errorf("parse list of unmanaged objects: %w", err))
		}
	}
	if list, ok := s.GetInfo()["bridged"]; ok {
		if err := json.Unmarshal([]byte(list), &d.Bridged); err != nil {
			return fail(fmt.Errorf("parse list of pods on the bridge: %w", err))
		}
	}
	images, err := runtimeapi.NewImageServiceClient(conn).ListImages(ctx, &runtimeapi.ListImagesRequest{})
	if err != nil {
		return fail(err)
	}
	for _, i := range images.GetImages() {
		for _, name := range append(i.GetRepoTags(), i.GetRepoDigests()...) {
			if n, err := reference.ParseNamed(name); err == nil {
				registries = append(registries, reference.Domain(n))
			}
		}
	}
	d.Version = v.GetRuntimeVersion()
	return d, registries
}
