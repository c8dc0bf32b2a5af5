package main

import (
	"context"
	"fmt"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// dialRuntime connects to a CRI socket; the caller closes the connection.
func dialRuntime(socket string) (*grpc.ClientConn, runtimeapi.RuntimeServiceClient, error) {
	conn, err := grpc.NewClient("unix://"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return nil, nil, err
	}
	return conn, runtimeapi.NewRuntimeServiceClient(conn), nil
}

// runtimeVersion asks the runtime behind a socket who it is. A runtime that is not Coracle is an
// error, as is none.
func runtimeVersion(ctx context.Context, socket string) (string, error) {
	conn, client, err := dialRuntime(socket)
	if err != nil {
		return "", err
	}
	defer func() { _ = conn.Close() }()
	v, err := client.Version(ctx, &runtimeapi.VersionRequest{})
	if err != nil {
		return "", err
	}
	if v.RuntimeName != "coracle" {
		return "", fmt.Errorf("%s belongs to %s", socket, v.RuntimeName)
	}
	return v.RuntimeVersion, nil
}

// runtimeHealth returns the runtime's version, and an error that names what it says is not ready.
func runtimeHealth(ctx context.Context, socket string) (string, error) {
	version, err := runtimeVersion(ctx, socket)
	if err != nil {
		return "", err
	}
	conn, client, err := dialRuntime(socket)
	if err != nil {
		return "", err
	}
	defer func() { _ = conn.Close() }()
	status, err := client.Status(ctx, &runtimeapi.StatusRequest{})
	if err != nil {
		return version, err
	}
	for _, c := range status.GetStatus().GetConditions() {
		if !c.Status {
			return version, fmt.Errorf("%s is false: %s: %s", c.Type, c.Reason, c.Message)
		}
	}
	return version, nil
}
