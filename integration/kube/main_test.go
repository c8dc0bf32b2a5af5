// Package kube drives a whole cluster, as `coracle up` starts it, with an unmodified kubectl. Each
// file in testdata is one behaviour, in a namespace of its own ($NS). It needs what
// `make integration` builds.
package kube

import (
	"context"
	"fmt"
	"os"
	"testing"

	"github.com/coracle-project/coracle/integration/images"
	"github.com/coracle-project/coracle/internal/testkit"
	"github.com/coracle-project/coracle/internal/testkit/ociimage"
)

func TestMain(m *testing.M) { os.Exit(testkit.Isolate(func() int { return withRegistry(m) })) }

// registry is where all tests pull from.
var registry *testkit.Registry

// withRegistry runs the tests with a registry that holds the demo's images.
func withRegistry(m *testing.M) int {
	dir, err := os.MkdirTemp("", "kube-registry-")
	if err != nil {
		return complain(err)
	}
	defer os.RemoveAll(dir)
	if registry, err = testkit.NewRegistry(dir, testkit.RegistryOptions{}); err != nil {
		return complain(err)
	}
	defer registry.Close()
	bin, err := testkit.FindBin()
	if err != nil {
		return complain(err)
	}
	src, err := images.NewSource(bin)
	if err != nil {
		return complain(err)
	}
	list, err := src.Demo()
	if err != nil {
		return complain(err)
	}
	if err := images.Push(context.Background(), registry.Addr, list, ociimage.Registry{PlainHTTP: true}); err != nil {
		return complain(err)
	}
	return m.Run()
}

func complain(err error) int {
	fmt.Fprintln(os.Stderr, err)
	return 1
}
