// Command generate writes the default profile into a file: what github.com/moby/profiles/apparmor,
// which Docker and others share, hands to apparmor_parser. That package executes templates, which
// makes a program that links it keep every exported method: 6 MB of coracled. So it is asked here,
// once.
package main

import (
	"fmt"
	"os"

	"github.com/coracle-project/coracle/internal/apparmor/generate/upstream"
)

func main() {
	if err := run(os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, "generate:", err)
		os.Exit(1)
	}
}

func run(file string) error {
	profile, err := upstream.Profile()
	if err != nil {
		return err
	}
	return os.WriteFile(file, profile, 0o644)
}
