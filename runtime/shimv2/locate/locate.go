// Package locate finds the program of a containerd shim by its name. It is apart from package
// shimv2, because the daemon, which only looks whether it is there, drives none.
package locate

import (
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
)

// Program is the absolute path of a shim's program. name is that, or what containerd calls the
// shim: io.containerd.runc.v2 is containerd-shim-runc-v2 in PATH.
func Program(name string) (string, error) {
	program := name
	if !filepath.IsAbs(name) {
		parts := strings.Split(name, ".")
		if len(parts) < 2 || strings.ContainsRune(name, '/') {
			return "", fmt.Errorf("shim %q is neither an absolute path nor a name such as io.containerd.runc.v2", name)
		}
		program = fmt.Sprintf("containerd-shim-%s-%s", parts[len(parts)-2], parts[len(parts)-1])
	}
	path, err := exec.LookPath(program)
	if err != nil {
		return "", fmt.Errorf("shim %q: %w", name, err)
	}
	return path, nil
}
