// Command imagetool pushes the images of tests, demo and benchmarks to a registry.
//
//	imagetool push -registry 127.0.0.1:5055 -set demo
//	imagetool serve -listen 127.0.0.1:5055 -dir /var/lib/demo   the demo's registry
//	imagetool digest        the digest that hack/tools.sh builds into critest
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"

	"github.com/coracle-project/coracle/integration/images"
	"github.com/coracle-project/coracle/internal/testkit/ociimage"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "imagetool:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	if len(args) == 0 {
		return fmt.Errorf("usage: imagetool push -registry HOST:PORT -set demo|test|bench|critest|conformance|policy, " +
			"imagetool serve -listen HOST:PORT -dir DIRECTORY, or imagetool digest")
	}
	switch args[0] {
	case "digest":
		b, err := images.Digest().Build()
		if err != nil {
			return err
		}
		fmt.Println(b.Manifest.Digest)
		return nil
	case "push":
		return push(ctx, args[1:])
	case "serve":
		return serve(ctx, args[1:])
	}
	return fmt.Errorf("%s: unknown command", args[0])
}

func push(ctx context.Context, args []string) error {
	exe, err := os.Executable()
	if err != nil {
		return err
	}
	fs := flag.NewFlagSet("push", flag.ContinueOnError)
	host := fs.String("registry", "", "host:port of a plain HTTP registry")
	set := fs.String("set", "", "which images: demo, test, bench, critest, conformance, csimock or policy")
	bin := fs.String("bin", filepath.Dir(filepath.Dir(exe)), "the repository's bin directory")
	busybox := fs.String("busybox", "/bin/busybox", "static busybox to put into the images")
	if err := fs.Parse(args); err != nil {
		return err
	}
	src, err := images.NewSource(*bin)
	if err != nil {
		return err
	}
	src.Busybox = *busybox
	sets := map[string]func() ([]images.Named, error){
		"demo": src.Demo, "test": src.Test, "bench": src.Bench, "critest": src.Critest, "conformance": src.Conformance,
		"policy": src.Policy, "csimock": src.CSIMock,
	}
	list, ok := sets[*set]
	if !ok {
		return fmt.Errorf("set %q: unknown", *set)
	}
	if *host == "" {
		return fmt.Errorf("-registry is missing")
	}
	all, err := list()
	if err != nil {
		return err
	}
	return images.Push(ctx, *host, all, ociimage.Registry{PlainHTTP: true})
}
