// Command csi-node-driver-registrar tells a kubelet of a CSI driver, with the flags and the
// behaviour of upstream's program of that name, whose module the Go module proxy does not have.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	registration "k8s.io/kubelet/pkg/apis/pluginregistration/v1"
)

// patience bounds the wait for the driver.
const patience = time.Minute

// registrar answers the kubelet.
type registrar struct {
	registration.UnimplementedRegistrationServer
	info   *registration.PluginInfo
	failed context.CancelCauseFunc
}

func (r registrar) GetInfo(context.Context, *registration.InfoRequest) (*registration.PluginInfo, error) {
	return r.info, nil
}

// NotifyRegistrationStatus ends the program if the kubelet refuses the driver, so that it is tried
// again.
func (r registrar) NotifyRegistrationStatus(_ context.Context,
	s *registration.RegistrationStatus,
) (*registration.RegistrationStatusResponse, error) {
	fmt.Printf("registered: %v %s\n", s.GetPluginRegistered(), s.GetError())
	if !s.GetPluginRegistered() {
		r.failed(fmt.Errorf("the kubelet refuses the driver: %s", s.GetError()))
	}
	return &registration.RegistrationStatusResponse{}, nil
}

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "csi-node-driver-registrar:", err)
		os.Exit(1)
	}
}

func run() error {
	address := flag.String("csi-address", "/run/csi/socket", "the driver's socket in this container")
	path := flag.String("kubelet-registration-path", "", "the driver's socket on the node")
	dir := flag.String("plugin-registration-path", "/registration", "the kubelet's directory of registrars in this container")
	timeout := flag.Duration("timeout", time.Second, "of calls of the driver") // the driver's start is waited for anyway
	flag.Int("v", 0, "ignored: it says little")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), unix.SIGTERM, unix.SIGINT)
	defer stop()
	name, err := driverName(ctx, *address, max(patience, *timeout))
	if err != nil {
		return err
	}
	socket := filepath.Join(*dir, name+"-reg.sock")
	if err := os.Remove(socket); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	listener, err := net.Listen("unix", socket)
	if err != nil {
		return err
	}
	ctx, failed := context.WithCancelCause(ctx)
	server := grpc.NewServer()
	registration.RegisterRegistrationServer(server, registrar{failed: failed, info: &registration.PluginInfo{
		Type: registration.CSIPlugin, Name: name, Endpoint: *path, SupportedVersions: []string{"1.0.0"},
	}})
	go func() {
		<-ctx.Done()
		server.Stop() // which removes the socket
	}()
	if err := server.Serve(listener); err != nil {
		return err
	}
	if cause := context.Cause(ctx); !errors.Is(cause, context.Canceled) {
		return cause
	}
	return nil
}

// driverName asks the driver for its name, as soon as it answers.
func driverName(ctx context.Context, address string, patience time.Duration) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	conn, err := grpc.NewClient("unix://"+address, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return "", err
	}
	defer conn.Close()
	info, err := csi.NewIdentityClient(conn).GetPluginInfo(ctx, &csi.GetPluginInfoRequest{}, grpc.WaitForReady(true))
	if err != nil {
		return "", fmt.Errorf("ask the driver at %s for its name: %w", address, err)
	}
	return info.GetName(), nil
}
