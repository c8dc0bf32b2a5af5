// Package upstream asks github.com/moby/profiles/apparmor for its profile.
package upstream

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"

	"github.com/moby/profiles/apparmor"

	ours "github.com/coracle-project/coracle/internal/apparmor"
)

// include is what the profile takes from files of a host that has them; without them it says the
// same itself.
var include = regexp.MustCompile(`(?m)^\s*#include <(tunables/global|abstractions/base)>\n`)

// abi is there on hosts that have that file: see apparmor.LoadDefault.
var abi = regexp.MustCompile(`(?m)^abi <abi/3.0>,\n`)

// denied is the rule that we add another one to: Docker's profile denies vsock, too, but no version
// of the library that Go's module proxy has does.
const denied = "  deny network alg,\n"

// blank are the lines between what is included.
var blank = regexp.MustCompile(`(?m)^\s*\n`)

const header = `# The profile of github.com/moby/profiles/apparmor (Apache-2.0). Made by go generate: do not edit.
`

// Profile is upstream's profile under our name, for hosts with and without AppArmor's files. It is
// what upstream gives to apparmor_parser, for which a script stands in. It changes PATH meanwhile.
func Profile() (_ []byte, err error) {
	dir, err := os.MkdirTemp("", "apparmor-")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	out := filepath.Join(dir, "profile")
	script := fmt.Sprintf("#!/bin/sh\nexec cat >'%s'\n", out)
	if err := os.WriteFile(filepath.Join(dir, "apparmor_parser"), []byte(script), 0o755); err != nil {
		return nil, err
	}
	path := os.Getenv("PATH")
	if err := os.Setenv("PATH", dir+":"+path); err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, os.Setenv("PATH", path)) }()
	if err := apparmor.InstallDefault(ours.Default); err != nil {
		return nil, err
	}
	b, err := os.ReadFile(out)
	if err != nil {
		return nil, err
	}
	if include.Match(b) {
		b = append([]byte("@{PROC}=/proc/\n"), include.ReplaceAll(b, nil)...)
	}
	b = abi.ReplaceAll(b, nil)
	if !bytes.Contains(b, []byte("deny network vsock,")) {
		if !bytes.Contains(b, []byte(denied)) {
			return nil, fmt.Errorf("no %q in the library's profile", denied)
		}
		b = bytes.Replace(b, []byte(denied),
			[]byte(denied+"  # AF_VSOCK leads to the host, whatever the network namespace.\n  deny network vsock,\n"), 1)
	}
	return append([]byte(header), blank.ReplaceAll(b, nil)...), nil
}
