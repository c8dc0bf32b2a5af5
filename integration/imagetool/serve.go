package main

import (
	"context"
	"errors"
	"flag"
	"io"
	"log"
	"net/http"
	"time"

	"github.com/google/go-containerregistry/pkg/registry"
)

// serve is a registry for the demo. Blobs are in a directory, names in memory: what starts it
// again pushes again. Unlike the registry of the tests it links no drivers for the storage of
// clouds, which would have to be built for nothing.
func serve(ctx context.Context, args []string) error {
	fs := flag.NewFlagSet("serve", flag.ContinueOnError)
	address := fs.String("listen", "", "host:port to serve at")
	dir := fs.String("dir", "", "directory for blobs")
	if err := fs.Parse(args); err != nil {
		return err
	}
	if *address == "" || *dir == "" {
		return errors.New("-listen or -dir is missing")
	}
	server := &http.Server{
		Addr:              *address,
		Handler:           registry.New(registry.WithBlobHandler(registry.NewDiskBlobHandler(*dir)), registry.Logger(log.New(io.Discard, "", 0))),
		ReadHeaderTimeout: 10 * time.Second,
	}
	stopped := context.AfterFunc(ctx, func() { _ = server.Close() })
	defer stopped()
	if err := server.ListenAndServe(); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}
