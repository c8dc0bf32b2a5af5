// Package integration drives a real coracled, with a real registry and the real
// crictl, end to end. Every test ends with a leak check. Run it with
// `make integration`.
package integration

import (
	"context"
	"flag"
	"fmt"
	"os"
	"sync"
	"testing"

	"github.com/coracle-project/coracle/integration/images"
	"github.com/coracle-project/coracle/internal/testkit"
	"github.com/coracle-project/coracle/internal/testkit/ociimage"
)

func TestMain(m *testing.M) {
	flag.Parse()
	if flag.Lookup("test.list").Value.String() != "" {
		os.Exit(m.Run()) // lists the tests, and runs none
	}
	os.Exit(testkit.Isolate(func() int { return withRegistry(m) }))
}

// registry is the plain HTTP registry that all tests pull from.
var registry *testkit.Registry

// withRegistry runs the tests with a registry that holds the test images.
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
	if err := pushAll(registry.Addr, ociimage.Registry{PlainHTTP: true}); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return m.Run()
}

// testImages are built once, as they are the same each time.
var testImages = sync.OnceValues(func() ([]images.Named, error) {
	web, err := testkit.FindBin("test", "web")
	if err != nil {
		return nil, err
	}
	src, err := images.NewSource(binDir(web))
	if err != nil {
		return nil, err
	}
	return src.Test()
})

func pushAll(host string, r ociimage.Registry) error {
	list, err := testImages()
	if err != nil {
		return err
	}
	return images.Push(context.Background(), host, list, r)
}
