// Command csi-driver is a CSI driver for tests. Each volume is an image file below one directory,
// used through a loop device: so volumes have a size, a full one is full, and growth is real.
//
// # Directory
//
//	volumes/ID.img, ID.json      a volume's data, and what the controller knows about it
//	snapshots/ID.img, ID.json    likewise for a snapshot
//	nodes/ID                     the nodes, which their node services announce
//	abnormal/ID                  its text is the volume's condition
//	calls                        one line of JSON for each call, and for each fault that was reached
//	faults/, reached/            see fault.go
//
// A volume's id follows from the name that CreateVolume gets. So each call can be repeated after a
// crash at any moment. Two calls at once for one volume: the second fails with Aborted, as the
// specification allows.
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
	"strings"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
)

const (
	defaultName = "disk.csi.coracle.test"
	version     = "1.0.0"
)

// driver serves the three services of CSI.
type driver struct {
	csi.UnimplementedIdentityServer
	csi.UnimplementedControllerServer
	csi.UnimplementedNodeServer

	name, node, zone string
	capacity         int64 // bytes of all volumes together
	controller       bool  // whether this process serves the controller service
	attach           bool  // whether volumes are attached to nodes
	mountGroup       bool  // whether the node service sets a volume's group
	store            store
	busy             busy
}

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "csi-driver:", err)
		os.Exit(1)
	}
}

func run() error {
	d := &driver{}
	var dir, endpoint, services string
	flag.StringVar(&d.name, "name", defaultName, "the driver's name")
	flag.StringVar(&d.node, "node", "", "the node's id")
	flag.StringVar(&d.zone, "zone", "here", "where the node is")
	flag.Int64Var(&d.capacity, "capacity", 100<<30, "bytes of all volumes together")
	flag.BoolVar(&d.attach, "attach", true, "volumes are attached to nodes")
	flag.BoolVar(&d.mountGroup, "mount-group", false, "the node service sets a volume's group")
	flag.StringVar(&dir, "data", "", "directory of volumes and snapshots")
	flag.StringVar(&endpoint, "endpoint", "", "unix:///path of the socket")
	flag.StringVar(&services, "services", "controller,node", "services to serve")
	flag.Parse()
	if dir == "" || !strings.HasPrefix(endpoint, "unix://") {
		return errors.New("-data and -endpoint unix:///path are needed")
	}
	d.store = store{dir}
	if err := d.store.prepare(); err != nil {
		return err
	}
	calls, err := os.OpenFile(filepath.Join(dir, "calls"), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	defer calls.Close()

	server := grpc.NewServer(grpc.UnaryInterceptor(interceptor{journal{calls}, faults{dir}}.intercept))
	csi.RegisterIdentityServer(server, d)
	for service := range strings.SplitSeq(services, ",") {
		switch service {
		case "controller":
			d.controller = true
			csi.RegisterControllerServer(server, d)
		case "node":
			if err := d.store.announceNode(d.node); err != nil {
				return err
			}
			csi.RegisterNodeServer(server, d)
		default:
			return fmt.Errorf("service %q: unknown", service)
		}
	}
	socket := strings.TrimPrefix(endpoint, "unix://")
	if err := os.Remove(socket); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	listener, err := net.Listen("unix", socket)
	if err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(context.Background(), unix.SIGTERM, unix.SIGINT)
	defer stop()
	go func() {
		<-ctx.Done()
		server.Stop()
	}()
	return server.Serve(listener)
}
