// Command csimock takes the place of upstream's hostpathplugin in the specs "CSI Mock" of
// Kubernetes' e2e suite. The Go module proxy does not have that program. With -proxy-endpoint it
// connects the sockets of the pod with the driver in the test process, as the original does.
// Otherwise it is the same driver, of the suite's own package, in the pod.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"strings"

	"github.com/container-storage-interface/spec/lib/go/csi"
	statuspb "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"k8s.io/kubernetes/test/e2e/storage/drivers/csi-test/driver"
	"k8s.io/kubernetes/test/e2e/storage/drivers/csi-test/mock/service"
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "csimock:", err)
		os.Exit(1)
	}
}

func run() error {
	var config service.Config
	endpoint := flag.String("endpoint", "", "socket of the driver")
	proxy := flag.String("proxy-endpoint", "", "tcp://ADDRESS to which the test process connects")
	attach := flag.Bool("enable-attach", false, "volumes are attached to nodes")
	flag.StringVar(&config.DriverName, "drivername", "", "the driver's name")
	flag.Int64Var(&config.AttachLimit, "attach-limit", 0, "volumes that can be attached to a node")
	flag.BoolVar(&config.EnableTopology, "enable-topology", false, "volumes have a topology")
	flag.BoolVar(&config.NodeExpansionRequired, "node-expand-required", false, "volumes grow on the node, too")
	for _, name := range []string{"nodeid", "statedir", "v"} {
		flag.String(name, "", "has no effect")
	}
	flag.Parse()

	if err := os.Remove(*endpoint); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	sockets, err := net.Listen("unix", *endpoint)
	if err != nil {
		return err
	}
	if *proxy != "" {
		tests, err := net.Listen("tcp", strings.TrimPrefix(*proxy, "tcp://"))
		if err != nil {
			return err
		}
		return connect(sockets, tests)
	}
	config.DisableAttach, config.IO = !*attach, service.OSDirIO{}
	s := service.New(config)
	d := driver.NewCSIDriver(&driver.CSIDriverServers{Controller: s, Identity: s, Node: s})
	if err := d.Start(sockets, logged); err != nil {
		return err
	}
	select {}
}

// connect gives each connection of sockets one of those that the test process has made in advance.
func connect(sockets, tests net.Listener) error {
	for {
		client, err := sockets.Accept()
		if err != nil {
			return err
		}
		server, err := tests.Accept()
		if err != nil {
			return err
		}
		fmt.Println("connected", client.RemoteAddr(), server.RemoteAddr())
		for _, ends := range [][2]net.Conn{{client, server}, {server, client}} {
			go func() {
				_, _ = io.Copy(ends[0], ends[1])
				_, _ = client.Close(), server.Close()
			}()
		}
	}
}

// attached returns a call with what an attachment says of the volume. The suite's driver requires
// it even for volumes that Kubernetes does not attach. The program that this one replaces does
// not.
func attached(request any) any {
	device := func(said map[string]string) map[string]string {
		if said["device"] == "" {
			return map[string]string{"device": "mock device"}
		}
		return said
	}
	switch r := request.(type) {
	case *csi.NodeStageVolumeRequest:
		c := proto.CloneOf(r)
		c.PublishContext = device(r.PublishContext)
		return c
	case *csi.NodePublishVolumeRequest:
		c := proto.CloneOf(r)
		c.PublishContext = device(r.PublishContext)
		return c
	}
	return request
}

// directory makes and removes the directory of a volume of a pod's own, which the suite's driver
// leaves out.
func directory(request any) error {
	switch r := request.(type) {
	case *csi.NodePublishVolumeRequest:
		if err := os.Mkdir(r.TargetPath, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
	case *csi.NodeUnpublishVolumeRequest:
		if err := os.Remove(r.TargetPath); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

// logged writes a line for each call, which the test process reads in the container's log.
func logged(ctx context.Context, request any, info *grpc.UnaryServerInfo, handle grpc.UnaryHandler) (any, error) {
	reply, err := handle(ctx, attached(request))
	if err == nil {
		err = directory(request)
	}
	call := struct {
		Method            string
		Request, Response any
		Error             string
		FullError         *statuspb.Status
	}{Method: info.FullMethod, Request: request, Response: reply}
	if err != nil {
		call.Error, call.FullError = err.Error(), status.Convert(err).Proto()
	}
	line, _ := json.Marshal(call)
	fmt.Printf("gRPCCall: %s\n", line)
	return reply, err
}
