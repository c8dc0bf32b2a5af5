// Command coracle-build builds images from Dockerfiles: `coracle image build` executes it.
// It is a program of its own, and may be missing, because BuildKit's client is larger than
// all of coracle.
//
// It starts BuildKit's daemon (coracle-buildkitd) with coracle-oci as the runtime for the time
// of the build, gives it the images that the Dockerfile names out of coracled, and has coracled
// load the result.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"runtime"
	"syscall"
)

func main() {
	// buildkitd gets a signal when the thread that started it ends.
	runtime.LockOSThread()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := command().ExecuteContext(ctx)
	interrupted := ctx.Err() != nil
	stop()
	switch {
	case err != nil && interrupted:
		fmt.Fprintln(os.Stderr, "coracle: interrupted")
	case err != nil:
		fmt.Fprintln(os.Stderr, "coracle:", err)
	}
	if err != nil {
		os.Exit(1)
	}
}
