// Package crashmatrix takes a node through its operations while something fails at each fault point
// that they pass, and checks what was lost.
//
//   - An operation (operations_test.go) is a request of a client, with its preparation and a check
//     of its result. The client repeats it until it succeeds, as the kubelet does.
//   - The points that an operation passes are found by running it once.
//   - A fault (faults_test.go) happens once, at such a point: the process dies, gets an error,
//     hangs, runs out of space or descriptors, or another process dies at that moment.
//   - A cell (cell_test.go) is an operation, a point and a fault. It passes if the container of the
//     operation and a bystander have all lines of their logs and their exit statuses, the bystander
//     is the same process all the time, the client succeeds, and nothing is left behind.
//
// `make test` runs every point with an error, a hang and a kill, and a sample of the rest. `make
// crash-matrix` runs the whole matrix and writes docs/crash-matrix.md.
package crashmatrix

import (
	"context"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/coracle-project/coracle/integration/images"
	"github.com/coracle-project/coracle/internal/testkit"
	"github.com/coracle-project/coracle/internal/testkit/ociimage"
)

// page is where TestMatrix writes its results. Without it, only the sample runs.
var page = flag.String("page", "", "run the whole matrix and write it to this `file`")

func TestMain(m *testing.M) {
	flag.Parse()
	os.Exit(testkit.Isolate(func() int { return withRegistry(m) }))
}

// registry holds the images that the nodes pull.
var registry *testkit.Registry

func withRegistry(m *testing.M) int {
	dir, err := os.MkdirTemp("", "registry-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	if registry, err = testkit.NewRegistry(dir, testkit.RegistryOptions{}); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer registry.Close()
	if err := push(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return m.Run()
}

func push() error {
	web, err := testkit.FindBin("test", "web")
	if err != nil {
		return err
	}
	src, err := images.NewSource(filepath.Dir(filepath.Dir(web)))
	if err != nil {
		return err
	}
	list, err := src.Test()
	if err != nil {
		return err
	}
	return images.Push(context.Background(), registry.Addr, list, ociimage.Registry{PlainHTTP: true})
}
