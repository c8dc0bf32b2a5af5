// Command deb makes a Debian package of a description as nfpm has it (https://nfpm.goreleaser.com),
// in which environment variables are replaced.
//
//	deb -config packaging/coracle.yaml -out out/deb
//
// It uses nfpm's library, and of that only what makes Debian packages: nfpm's own command links the
// makers of six more kinds.
package main

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"

	"github.com/goreleaser/nfpm/v2"
	_ "github.com/goreleaser/nfpm/v2/deb" // the packager that is asked for below
)

func main() {
	config := flag.String("config", "", "description of the package")
	out := flag.String("out", ".", "directory to put it in")
	flag.Parse()
	path, err := build(*config, *out)
	if err != nil {
		fmt.Fprintln(os.Stderr, "deb:", err)
		os.Exit(1)
	}
	fmt.Println(path)
}

// build returns the path of the package.
func build(config, out string) (path string, err error) {
	f, err := os.Open(config)
	if err != nil {
		return "", err
	}
	defer func() { _ = f.Close() }()
	described, err := nfpm.ParseWithEnvMapping(f, os.Getenv)
	if err != nil {
		return "", fmt.Errorf("%s: %w", config, err)
	}
	info, err := described.Get("deb")
	if err != nil {
		return "", fmt.Errorf("%s: %w", config, err)
	}
	info = nfpm.WithDefaults(info)
	if err := nfpm.Validate(info); err != nil {
		return "", fmt.Errorf("%s: %w", config, err)
	}
	packager, err := nfpm.Get("deb")
	if err != nil {
		return "", err
	}
	path = filepath.Join(out, packager.ConventionalFileName(info))
	file, err := os.Create(path)
	if err != nil {
		return "", err
	}
	defer func() {
		if cerr := file.Close(); err == nil {
			err = cerr
		}
	}()
	return path, packager.Package(info, file)
}
